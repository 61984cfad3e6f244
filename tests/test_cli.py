"""The words of the command `parlab` that run things: what they print, and their status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.cli import checks, main
from parlab.cli.checks import Finding, findings, table

BUFFERED = {
    **os.environ,
    "PYTHONUNBUFFERED": "",
}  # as at a reader's: what could not be written is tried again at the end


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "of_a_learner.py").write_text(
        "def program(comm):\n    comm.print(comm.left)\n    comm.barrier()\n"
        "def broken(comm):\n    if comm.rank == 1:\n        open(str(int('one')))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "of_a_learner"
    sys.modules.pop("of_a_learner", None)


def test_run_prints_what_ranks_print_the_timeline_and_writes_the_trace(module, capsys, tmp_path):
    assert main(["run", f"{module}:program", "--ranks", "3", "--trace", "trace.json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == ["rank 0: 2", "rank 1: 0", "rank 2: 1", "Timeline: 3 ranks, makespan 2.00 µs on classroom"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_python_m_parlab_is_the_command_where_no_script_is_on_the_path():
    command = [sys.executable, "-m", "parlab", "run", "json:nothing", "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("parlab run: program='json:nothing': ")


def test_a_closed_pipe_ends_the_command_without_a_word_and_with_status_141():
    command = [sys.executable, "-m", "parlab", "plan", "--model", "8b", "--gpus", "8", "--batch", "8"]
    command += ["--sequence", "2048"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED) as done:
        done.stdout.close()
        assert done.stderr.read() == b""
    assert done.returncode == 141


@pytest.mark.skipif(sys.platform == "win32", reason="the mpich wheel is for Linux and macOS")
def test_run_on_processes_shows_the_simulated_and_the_measured_timeline(module, capsys):
    assert main(["run", f"{module}:program", "--ranks", "2", "--engine", "mpi", "--collectives", "native"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Timeline")]
    assert len(titles) == 2
    assert titles[1].endswith("on the wall clock")


def test_what_a_rank_program_raises_is_raised_with_its_place_and_its_rank(module):
    with pytest.raises(ValueError, match="'one'") as caught:
        main(["run", f"{module}:broken", "--ranks", "2"])
    assert caught.traceback[-1].name == "broken"
    assert caught.value.__notes__ == ["raised on rank 1 of 2"]


def test_a_trace_that_cannot_be_written_is_status_2_and_named(module, capsys, tmp_path):
    for path in (str(tmp_path), str(tmp_path / "nowhere" / "trace.json")):
        assert main(["run", f"{module}:program", "--ranks", "2", "--trace", path]) == 2
        assert path.removesuffix("/trace.json") in capsys.readouterr().err


@pytest.mark.parametrize("program", ["nowhere:f", "json:nothing", "json", ":f", "./prog.py", ".prog:program"])
def test_run_of_what_is_not_there_is_status_2_and_says_so(program, capsys):
    assert main(["run", program, "--ranks", "2"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"parlab run: program={program!r}: ")
    assert said.endswith("module:function is needed\n")


def test_the_doctor_tries_ten_things_and_the_notebooks_can_run_where_these_tests_do(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "the notebooks can run"
    assert all(f"{name:<10} " in said for name, *_ in checks.CHECKS)
    assert len(checks.CHECKS) == 10
    assert "4 ranks add up to 4" in said


def test_what_is_missing_is_named_with_the_command_and_only_what_is_needed_makes_the_status_1(monkeypatch, capsys):
    def fails():
        raise RuntimeError("it is not there\nat all")

    monkeypatch.setattr(checks, "CHECKS", [(name, fails, remedy, needed) for name, _, remedy, needed in checks.CHECKS])
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "the notebooks cannot run: Python, notebooks, threads, BLAS, memory"
    monkeypatch.setattr(checks, "CHECKS", [("MPI", fails, "add it", False)])
    assert main(["doctor"]) == 0
    assert findings() == [Finding("MPI", False, "it is not there", "add it", False)]
    monkeypatch.setattr(checks, "CHECKS", [("BLAS", fails, "add it", True)])
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the notebooks cannot run: BLAS"
    assert table(findings()).splitlines()[:2] == ["BLAS       MISSING  it is not there", f"{'':<19} add it"]


SMALL = (Path(__file__).parents[1] / "parlab" / "training_run.toml").read_text(encoding="utf-8")
PLAN = ["plan", "--model", "8b", "--gpus", "8", "--batch", "8", "--sequence", "1024"]


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A folder with what bad command lines name; the command is called in it."""
    files = {
        "taken.py": "def two(comm, x):\n    pass\nclass Kind:\n    pass\nnumber = 3\n",
        "unfinished.py": "\ndef program(comm) pass\n",
        "leaves.py": "import sys\nsys.exit(3)\n",
        "divides.py": "def ratio():\n    return 1 / 0\nratio()\n",
        "leaves_later.py": "import sys\ndef program(comm):\n    sys.exit(3)\n",
        "wide.toml": SMALL.replace("hidden_size = 48", "hidden_size = 160000000"),
        "deep.toml": SMALL.replace("num_hidden_layers = 4", "num_hidden_layers = 4000000000"),
        "file": "",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def refuse_work(*args, **kwargs):
    raise AssertionError("work began before the command line was refused")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # sizes that only the command limits: nothing is built
        ("train --mesh dp=1000000000000", "--mesh dp=1000000000000: these are 1000000000000 ranks, one thread each"),
        ("trace out.json --mesh dp=16,tp=17", "--mesh dp=16,tp=17: these are 272 ranks"),
        (f"train --mesh dp={'9' * 5000}", "axes and sizes are needed"),
        ("train --mesh dp=²", "--mesh dp=²: axes and sizes are needed"),
        ("train --mesh zp=2", "--mesh zp=2: axes and sizes are needed"),
        ("train --mesh dp=0", "--mesh dp=0: dp=0: must be a whole number, at least 1"),
        ("train --mesh dp=2,dp=4", "--mesh dp=2,dp=4: dp is there twice; give it one size"),
        (
            "train --mesh pp=4 --microbatches 9000 --chunks 9",
            "--mesh pp=4, --microbatches=9000, --chunks=9: their product is 324000, and 262144 is the most",
        ),
        ("train --config wide.toml", "--config: the model has 3.07e+17 weights; use a model of at most 1e9"),
        ("trace out.json --config deep.toml", "num_hidden_layers=4000000000 in --config: use at most 1000"),
        ("run taken:two --ranks 1025", "--ranks=1025: must be a whole number from 1 to 1024"),
        ("plan --model 9b", "--model='9b': use one of "),
        ("plan --top 0", "--top=0: must be a whole number from 1 to 1000000"),
        ("plan --memory -1", "--memory=-1.0: must be a number greater than 0"),  # in GiB
        ("grade folder --extra 1001", "--extra=1001: must be a whole number from 0 to 1000"),
        ("grade folder --jobs 0", "--jobs=0: must be a whole number from 1 to 1000"),
        ("grade folder --seed -1", "--seed=-1: must be a whole number, at least 0"),
        ("grade folder --limit nan", "--limit=nan: must be a number greater than 0"),
        ("grade folder --seconds 0", "--seconds=0.0: must be a number greater than 0"),
        # programs
        ("run taken:two --ranks 2", "program='taken:two': it takes (comm, x); it must take comm alone"),
        ("run taken:Kind --ranks 2", "program='taken:Kind': it is a class; a function that takes comm is needed"),
        ("run taken:number --ranks 2", "program='taken:number': it is 3; a function that takes comm is needed"),
        ("run unfinished:program --ranks 2", "unfinished.py, line 2: expected ':'"),
        ("run leaves:program --ranks 2", "program='leaves:program': leaves calls sys.exit(3) when it is imported"),
        ("run divides:ratio --ranks 2", "divides.py, line 2: ZeroDivisionError: division by zero"),
        # paths
        ("run taken:two --ranks 2 --trace folder", "--trace='folder': it is a folder; a file is needed"),
        ("trace no/t.json", "file='no/t.json': there is no folder 'no'"),
        ("train --folder EMPTY", "argument --folder: the path is empty"),
        ("grade folder --out EMPTY", "argument --out: the path is empty"),
        ("train --folder file", "--folder='file': it is a file; use a folder"),
        ("train --folder file/run", "file/run: Not a directory"),
        ("train --config none.toml", "none.toml: No such file or directory"),
        ("grade file", "folder='file': it is a file; a folder is needed"),
        ("grade none", "folder='none': there is no such folder"),
        ("train --resume", "--resume needs --folder"),
        ("train --resume --folder nowhere", "nowhere has no index.json"),
        # the library's errors, by the names of the options
        ("train --microbatches 0", "--microbatches=0: must be a whole number, at least 1"),
        ("train --chunks 0 --schedule gpipe --mesh pp=2", "--chunks=0: must be a whole number, at least 1"),
        ("train --mesh pp=2 --schedule dualpipe --microbatches 3", "--microbatches=3: half of the microbatches enter"),
        ("train --mesh pp=3 --schedule dualpipe", "pp=3: two ranks share each stage"),
        ("train --mesh pp=2 --schedule best", "--schedule='best': use one of gpipe"),
        ("train --model gpt", "model='gpt': use one of llama-pocket, mixtral-pocket"),
        ("train --steps 0", "--steps=0: must be a whole number, at least 1"),
        ("train --every 0", "--every=0: must be a whole number, at least 1"),
        ("plan --gpus 17 --model gpt-1t", "--gpus=17, --batch=8, --sequence=1024: no layout is possible for these"),
        ("plan --gpus 100000000000000000000", "--gpus=100000000000000000000: must be at most 1048576"),
        ("plan --sequence 0", "--sequence=0: must be a whole number, at least 1"),
        ("plan --batch 0", "--batch=0: must be a whole number, at least 1"),
        ("plan --cluster moon", "--cluster='moon': use one of "),
        ("plan --memory 1", "--memory=1: none of "),
        # argparse's own
        ("run taken:two", "the following arguments are required: --ranks"),
        ("run taken:two --ranks two", "argument --ranks: invalid int value: 'two'"),
        ("learn", "argument word: invalid choice: 'learn'"),
    ],
)
def test_a_bad_command_line_is_refused_in_1_line_with_status_2_before_any_work(line, said, house, monkeypatch, capsys):
    monkeypatch.setattr("parlab.training_run.loop.run", refuse_work)
    monkeypatch.setattr("parlab.world.run", refuse_work)
    words = ["" if word == "EMPTY" else word for word in line.split()]
    assert main([*PLAN, *words[1:]] if words[0] == "plan" else words) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert said in found.err
    assert found.err.startswith(f"parlab {words[0]}: " if line != "learn" else "parlab: ")
    assert found.err.count("\n") == 1
    assert len(found.err) < 500


def test_a_file_that_may_not_be_written_is_refused_before_any_work(house, monkeypatch, capsys):
    monkeypatch.setattr("parlab.training_run.loop.run", refuse_work)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # an administrator may write everywhere
    assert main(["trace", "step.json"]) == 2
    assert capsys.readouterr().err == "parlab trace: file='step.json': it cannot be written: permission denied\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run of_a_learner:program --ranks 2 --engine gpu", "--engine='gpu': the engines are threads, mpi, nccl"),
        ("run of_a_learner:program --ranks 2 --collectives all", "--collectives='all': on threads they are ours"),
        ("train --zero 4", "--zero=4: the stages are 0, 1, 2 and 3"),
        ("train --attention flash", "--attention='flash': use one of ring, ulysses, allgather"),
        ("train --recompute some", "--recompute='some': use one of none, full"),
        ("train --mesh dp=2,ep=2", "ep=2: the model has no experts; use ep=1, or a Mixtral"),
        ("train --mesh dp=5", "dp=5: 16 rows do not divide"),
        ("train --mesh pp=3", "use a multiple of 6, or a number of microbatches that divides 16"),
    ],
)
def test_what_the_ranks_refuse_is_said_in_1_line_with_the_names_of_the_options_too(line, said, module, capsys):
    assert main(line.split()) == 2
    found = capsys.readouterr()
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert said in found.err


def test_a_program_that_calls_sys_exit_3_on_a_rank_is_status_2_and_said(house, capsys):
    assert main(["run", "leaves_later:program", "--ranks", "2"]) == 2
    assert capsys.readouterr().err == "parlab run: program='leaves_later:program': a rank calls sys.exit(3)\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full, a disk that is full")
def test_a_full_disk_is_said_with_the_path(module, capsys):
    assert main(["run", f"{module}:program", "--ranks", "2", "--trace", "/dev/full"]) == 2
    assert capsys.readouterr().err == "parlab run: /dev/full: No space left on device\n"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "parlab", *PLAN]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=BUFFERED)
    assert done.returncode == 2
    assert done.stderr == "parlab plan: standard output: No space left on device\n"


def test_too_little_memory_is_said_in_1_line(monkeypatch, capsys):
    def fails(*args, **kwargs):
        raise MemoryError("Unable to allocate 7.00 EiB")

    monkeypatch.setattr("parlab.training_run.train", fails)
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "parlab train: there is not enough memory: Unable to allocate 7.00 EiB\n"
