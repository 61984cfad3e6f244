"""Ranks as processes: everything as on threads, to the bit; and however a job ends, no process is left."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.world import DeadlockError, RemoteError, WorldError
from parlab.world.engines.tasks import Task
from parlab.world.processes import launch, machine, records
from tests.world.processes.process_job import PARITY
from tests.world.processes.test_engine import receives_and_drops

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the mpich wheel is for Linux and macOS")
ROOT = Path(__file__).parents[3]
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
slow = pytest.mark.slow
every_size = pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=slow) for size in (1, 2, 4))])


def environment():
    return {**os.environ, **machine.POLITE, "PYTHONPATH": str(ROOT)}


@cache
def job(size):
    """Name: [what differs from threads, the error with native collectives], of all programs of `process_job`."""
    seeds = "4" if size == 3 else "12"
    command = [MPIEXEC, "-n", str(size), sys.executable, "-m", "tests.world.processes.process_job", seeds]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}


@every_size
def test_programs_of_all_rooms_and_random_ones_have_the_bits_trace_words_and_makespan_of_threads(size):
    found = job(size)
    assert len(found) >= 36
    assert {name: rest[0] for name, rest in found.items() if rest[0]} == {}


@every_size
def test_with_mpis_own_collectives_results_are_those_of_threads_to_1e_12(size):
    errors = {name: rest[1] for name, rest in job(size).items() if len(rest) > 1}
    assert len(errors) >= 8
    assert {
        name: error for name, error in errors.items() if not (isinstance(error, float | int) and error <= PARITY)
    } == {}


# Two ranks that are asked for many things in one run


def three_ways(comm):
    """A message that is asked for before two collectives and sent after them, of which rank 0 posts the one beside its
    program first, and rank 1 last.
    """
    asked, engine = comm.irecv(1 - comm.rank, np.zeros(1)), comm._engine

    def late(post, task, *arguments, **options):
        time.sleep(0.2 if task.is_background else 0)
        return post(task, *arguments, **options)

    if comm.rank:
        engine.post_send, engine.post_receive = partial(late, engine.post_send), partial(late, engine.post_receive)
    beside = comm.iall_reduce(np.full(1, 10.0))
    time.sleep(0 if comm.rank else 0.1)
    total = comm.all_reduce(np.ones(1))
    comm.isend(np.full(1, 100.0), 1 - comm.rank).wait()
    return [float(x[0]) for x in (asked.wait(), beside.wait(), total)]


def memory_lost():
    """The collectives of MPI during which an array that MPI works on dies."""
    from parlab.world.processes.mpi_collectives import MPICollectives

    memory = []

    class Forgetful:
        rank, size = 0, 2

        def __getattr__(self, name):
            return self.start

        def start(self, *arguments):
            arrays = [argument[0] if isinstance(argument, list) else argument for argument in arguments]
            memory.extend(weakref.ref(x if x.base is None else x.base) for x in arrays if isinstance(x, np.ndarray))

    x, blocks = np.arange(8.0), [slice(0, 4), slice(4, 8)]
    lost = []
    for name, *arguments in (
        ("ring_all_reduce", x, np.add),
        ("ring_all_gather", np.repeat(x, 2)[::2], blocks),
        ("ring_reduce_scatter", x, blocks, np.add),
        ("pairwise_all_to_all", [x, x]),
        ("binomial_broadcast", x, 0),
        ("binomial_reduce", x, 0, np.add),
        ("linear_scatter", [x, x], 0),
        ("linear_gather", x, 0),
    ):
        memory.clear()
        under_way, _ = getattr(MPICollectives(Forgetful()), name)(*arguments)
        _ = None
        lost += [name for of in memory if of() is None] + [name] * (not memory)
        del under_way
    return lost


def of_cell(factor):
    """A function of a cell with a global `factor`, which it uses in a lambda alone."""
    exec("def scale(x):\n    return (lambda y: y * factor)(x)", cell := {"factor": factor, "__name__": "__main__"})
    return cell["scale"]


@pytest.fixture(scope="module")
def answers():
    """Of two ranks, on threads and as processes."""
    first, second, x = of_cell(2.0), of_cell(5.0), np.arange(6.0)

    def program(comm, given, kind):
        with np.errstate(invalid="ignore"):
            inner = np.geterr()
        alike = {
            "errors": (np.geterr(), inner),
            "scaled": (first(1.0), second(1.0)),
            "owned": (x.flags.owndata, given.base is None or given.base.flags.owndata),
            "dead": receives_and_drops(comm),
        }
        return alike, kind == "mpi" and {"stdin": sys.stdin.read(), "lost": memory_lost(), "ways": three_ways(comm)}

    with np.errstate(divide="raise", over="ignore"):
        return [run(program, 2, x, kind, engine=kind).results for kind in ("threads", "mpi")]


def test_numpys_error_settings_functions_of_one_name_and_memory_are_on_processes_as_on_threads(answers):
    threads, ours = ([alike for alike, _ in results] for results in answers)
    assert ours == threads
    assert ours[1]["errors"][0]["divide"] == "raise"
    assert (ours[1]["scaled"], ours[1]["owned"]) == ((2.0, 5.0), (True, True))


def test_standard_input_of_every_rank_ends_at_once(answers):
    assert [only["stdin"] for _, only in answers[1]] == ["", ""]


def test_mpis_own_collectives_keep_the_memory_that_they_work_on_until_they_are_done(answers):
    assert [only["lost"] for _, only in answers[1]] == [[], []]


def test_messages_collectives_and_collectives_beside_the_program_do_not_take_each_others_place(answers):
    assert [only["ways"] for _, only in answers[1]] == [[100.0, 20.0, 2.0]] * 2


# What `run` starts itself


CELL = """
from dataclasses import dataclass
import numpy as np
factor = 3

@dataclass
class Pair:
    a: int
    b: object

def scaled(x, depth=2):
    return x * factor if depth == 0 else scaled(x, depth - 1)

def made(offset):
    def program(comm, x, y, *, stop=False):
        comm.print("offset", offset)
        if stop:
            comm.recv(comm.right, x)
        with comm.compute("work", seconds=1e-3):
            z = scaled(x) + offset
        return Pair(comm.rank, comm.all_reduce(z + y))
    return program
"""


@pytest.fixture(scope="module")
def cell():
    """The globals of a notebook's cell: `__main__` cannot be imported by others, and its text is in no file."""
    import linecache

    name = "/tmp/ipykernel_1/2.py"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    module = sys.modules["__main__"]
    before = dict(vars(module))
    exec(compile(CELL, name, "exec"), vars(module))
    yield vars(module)
    vars(module).clear()
    vars(module).update(before)


def test_a_function_of_a_cell_with_its_globals_closure_and_class_runs_on_2_processes(cell, capsys):
    arguments = (np.ones((2, 3)).T, per_rank([np.zeros(2), np.ones(2)]))
    threads, ours = (run(cell["made"](5), 2, *arguments, engine=engine) for engine in ("threads", "mpi"))
    assert [type(result) for result in ours.results] == [cell["Pair"]] * 2
    for one, other in zip(threads.results, ours.results, strict=True):
        assert one.a == other.a
        assert np.array_equal(one.b, other.b)
    assert ours._trace == threads._trace
    assert capsys.readouterr().out == "rank 0: offset 5\nrank 1: offset 5\n" * 2
    assert threads.wallclock is None
    measured = ours.wallclock
    assert [span.name for span in measured.computes] == ["work"] * 2
    assert [measured.messages(rank) for rank in range(2)] == [2, 2]
    assert all(t.ready <= t.end <= measured.makespan for t in measured.transfers)


def two_groups_of_the_same_two(comm):
    """Ranks 2 and 3 form a pair, and in it the same pair again. Their messages are posted in one order here and in
    another there. Rank 0 starts a collective beside the second split, and rank 3 enters it before it makes the group.
    """
    pair, engine = comm.split(comm.rank // 2), comm._engine
    if comm.rank == 0:
        comm.recv(2, np.zeros(0))
    beside = comm.iall_reduce(np.ones(4))
    if comm.rank == 3:
        subgroup = engine.subgroup
        engine.subgroup = lambda *call: (beside.wait(), subgroup(*call))[1]
    again = pair.split(0)
    if comm.rank == 2:
        comm.send(np.zeros(0), 0)
        for request in [pair.isend(np.ones(1), 1), again.isend(2 * np.ones(1), 1)]:
            request.wait()
    requests = [again.irecv(0, np.zeros(1)), pair.irecv(0, np.zeros(1))] if comm.rank == 3 else []
    if comm.rank < 3:
        beside.wait()
    return [float(request.wait()[0]) for request in requests]


def test_a_group_inside_a_group_of_the_same_ranks_has_messages_of_its_own():
    assert run(two_groups_of_the_same_two, 4, engine="mpi").results[3] == [2.0, 1.0]


def test_mpis_own_collectives_in_a_group_its_halves_and_beside_it_send_no_message():
    def program(comm, x):
        half = comm.split(comm.rank % 2)
        beside = comm.iall_reduce(x)
        return comm.all_reduce(x) + half.all_reduce(x) + beside.wait()

    native = run(program, 4, np.ones(4), engine="mpi", collectives="native")
    assert [list(x) for x in native.results] == [[4.0 + 2 + 4] * 4] * 4
    assert native.wallclock.transfers == []


def a_collective_over_and_one_not(comm):
    """Of two collectives in the background nobody waits for either; rank 0 alone starts the second. Then all wait."""
    first = comm.iall_reduce(np.ones(4))
    while not first.met:
        time.sleep(0.001)
    if comm.rank == 0:
        comm.iall_gather(np.ones(4))
    comm.recv(1 - comm.rank, np.ones(4))


@pytest.mark.parametrize("engine", ["threads", "mpi"])
def test_a_deadlock_names_the_collective_that_is_not_over_and_not_the_one_that_is(engine):
    with pytest.raises(DeadlockError) as caught:
        run(a_collective_over_and_one_not, 2, engine=engine)
    assert [caught.value.waiting[rank].unmet for rank in range(2)] == [("iall_gather",), ()]


def test_a_deadlock_of_a_cell_on_2_processes_shows_its_lines_as_on_threads(cell):
    texts = []
    for engine in ("threads", "mpi"):
        with pytest.raises(DeadlockError) as caught:
            run(cell["made"](5), 2, np.ones(2), 0.0, stop=True, engine=engine)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "comm.recv(comm.right, x)" in texts[1]


def test_an_error_of_a_class_of_a_cell_comes_back_as_that_class_with_its_rank_and_its_traceback_there(cell):
    code = "class MyError(Exception):\n    pass\n\ndef fails(comm):\n    raise MyError(comm.rank)\n"
    exec(compile(code, "/tmp/ipykernel_1/3.py", "exec"), cell)
    with pytest.raises(cell["MyError"]) as caught:
        run(cell["fails"], 2, engine="mpi")
    assert (caught.value.args, caught.value.rank) == ((0,), 0)
    assert '"/tmp/ipykernel_1/3.py", line 5, in fails' in str(caught.value.__cause__)


class OfTwoError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_an_error_that_cannot_be_made_again_from_its_arguments_comes_back_as_text():
    task = Task(0)
    task.error = OfTwoError(1, 2)
    error = pickle.loads(records._packed_error(task).data)
    assert (type(error), str(error)) == (RemoteError, "OfTwoError: 1 and 2")


def test_what_cannot_travel_is_refused_before_any_process_starts(monkeypatch):
    monkeypatch.setattr(launch, "_started", None)
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"cannot be handed to another process: cannot pickle '_thread\.lock' object"):
        run(lambda comm: lock, 2, engine="mpi")


# Endings


SCRIPT = """
import os, sys, time
from parlab import run

def program(comm, how):
    if comm.rank == 0:
        print("ready", flush=True)
    if how == "killed" and comm.rank == 1:
        os.kill(os.getpid(), 9)
    if how == "raises" and comm.rank == 1:
        raise KeyError("rank 1 it is")
    while how == "computes" or comm.rank == 0:
        time.sleep(0.001)
        if how in ("killed", "raises"):
            comm.barrier()
    comm.barrier()

run(program, 3, sys.argv[1], engine="mpi")
"""


def left(*marks):
    """The processes whose environment has one of the marks, when those that are about to end have had a minute."""
    deadline = time.monotonic() + 60
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                known = (entry / "environ").read_bytes()
                found += [mark for mark in marks if f"PARLAB_TEST={mark}".encode() in known]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


IN_PROC = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
ENDINGS = [
    ("killed", None),
    ("raises", None),
    ("computes", signal.SIGINT),
    ("waits", signal.SIGINT),
    ("waits", signal.SIGTERM),
    ("waits", signal.SIGKILL),
]


@slow
@IN_PROC
@pytest.mark.parametrize("started", ["by run", "by mpiexec"])
def test_whatever_ends_a_job_no_process_is_left_the_status_is_not_0_and_an_error_is_shown_once(started, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    command = command if started == "by run" else [MPIEXEC, "-n", "3", *command]
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    marks = [f"{tmp_path}/{number}" for number in range(len(ENDINGS))]
    jobs = [
        subprocess.Popen([*command, how], env={**environment(), "PARLAB_TEST": mark}, **options)
        for (how, _), mark in zip(ENDINGS, marks, strict=True)
    ]
    outputs = []
    for (_, press), job in zip(ENDINGS, jobs, strict=True):
        outputs.append("")
        while press and "ready" not in outputs[-1]:
            outputs[-1] += job.stdout.readline()
        if press:
            job.send_signal(press)
        outputs[-1] += job.communicate(timeout=120)[0]
    assert not left(*marks)
    for ending, job, output in zip(ENDINGS, jobs, outputs, strict=True):
        assert job.returncode != 0, (ending, output)
        assert output.count("KeyError: 'rank 1 it is'\n\n") == (ending[0] == "raises"), output


def test_the_processes_of_a_run_that_is_over_end_by_themselves_with_status_0(monkeypatch):
    started, jobs = launch._started, []

    @contextmanager
    def patient(*arguments):
        with started(*arguments) as job:
            jobs.append(job)
            wait = job.wait
            job.wait = lambda seconds=None: wait(seconds and 60)
            yield job

    monkeypatch.setattr(launch, "_started", patient)
    assert run(lambda comm: comm.rank, 2, engine="mpi").results == [0, 1]
    assert [job.returncode for job in jobs] == [0]


@IN_PROC
def test_a_rank_that_does_not_end_by_itself_is_ended_and_leaves_no_memory_and_no_line_is_lost(
    monkeypatch, tmp_path, capsys
):
    def program(comm):
        atexit.register(time.sleep, 600)
        sys.stdout.write(f"of rank {comm.rank}; ")  # in one piece: pieces of two ranks may come in turns
        mapped = Path("/proc/self/maps").read_text("utf-8").splitlines()
        return [line for line in mapped if "/dev/shm/mpich" in line and not line.endswith("(deleted)")]

    monkeypatch.setenv("PARLAB_TEST", str(tmp_path))
    assert run(program, 2, engine="mpi").results == [[], []]
    assert not left(str(tmp_path))
    assert sorted(capsys.readouterr().out.split("; ")) == ["", "of rank 0", "of rank 1"]


# Strangers, and what is missing


def test_the_door_is_in_a_folder_of_mode_700_and_the_job_that_ends_early_is_an_error(monkeypatch):
    modes = []

    @contextmanager
    def ends_at_once(command, environment):
        modes.append(stat.S_IMODE(os.stat(command[-2]).st_mode))
        yield SimpleNamespace(poll=lambda: 7, returncode=7)

    monkeypatch.setattr(launch, "_started", ends_at_once)
    with pytest.raises(WorldError, match="a process ended before its program did: the status is 7"):
        run(print, 2, engine="mpi")
    assert modes == [0o700]


def test_without_mpi_the_error_names_the_command_that_adds_it(monkeypatch):
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="mpi4py is not installed; python -m pip install mpi4py mpich"):
        run(print, 2, engine="mpi")


def test_an_mpiexec_of_another_mpi_that_leaves_each_process_alone_is_an_error_and_no_sum_of_1(monkeypatch, capfd):
    monkeypatch.setattr(machine, "command", lambda engine, size: ["/bin/sh", "-c", '"$@" & "$@"; wait', "twice"])
    with pytest.raises(ValueError, match=r"size=2: 2 processes were started, and each finds 1: mpiexec and mpi4py bel"):
        run(lambda comm: comm.all_reduce(np.ones(3)), 2, engine="mpi")
    assert "Traceback" not in capfd.readouterr().out


def test_another_number_of_processes_than_size_is_refused_with_the_command(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setattr(launch, "transport_of", lambda engine: SimpleNamespace(size=4))
    with pytest.raises(ValueError, match=r"size=3: this script runs on 4 processes; use size=4, or .* -n 3 python"):
        run(print, 3, engine="mpi")
