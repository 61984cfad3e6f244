"""The words of the command `parlab` that run things: what they print, and their status."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from parlab.cli import main
from parlab.world import doctor
from parlab.world.doctor import Finding, findings, table


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
    with subprocess.Popen([*command, "--sequence", "2048"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
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
    assert f"program={program!r}: " in capsys.readouterr().err


def test_the_doctor_tries_ten_things_and_the_notebooks_can_run_where_these_tests_do(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == "the notebooks can run"
    assert all(f"{name:<10} " in said for name, *_ in doctor.CHECKS)
    assert len(doctor.CHECKS) == 10


def test_what_is_missing_is_named_with_the_command_and_only_what_is_needed_makes_the_status_1(monkeypatch, capsys):
    def fails():
        raise RuntimeError("it is not there\nat all")

    monkeypatch.setattr(doctor, "CHECKS", [("MPI", fails, "add it", False)])
    assert main(["doctor"]) == 0
    assert findings() == [Finding("MPI", False, "it is not there", "add it", False)]
    monkeypatch.setattr(doctor, "CHECKS", [("BLAS", fails, "add it", True)])
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "the notebooks cannot run: BLAS"
    assert table(findings()).splitlines()[:2] == ["BLAS       MISSING  it is not there", f"{'':<19} add it"]
