"""Ctrl-C in every state: the run ends, nothing is left behind, and the next run works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from parlab.world import run

pytestmark = [
    pytest.mark.threads,  # Ctrl-C reaches a rank on a thread of its own alone
    pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT, which Windows has not"),
]
X = np.ones(4)
SOON = 30  # seconds, on a busy machine too; a run that does not end lasts for ever
SLOW = pytest.mark.slow


def computing_in_python(comm):
    total = 0
    while True:
        total += 1


def one_computes_the_others_wait(comm):
    if comm.rank == 0:
        computing_in_python(comm)
    comm.barrier()


def interrupted(program, size, *after, ready=None):
    """Run `program`, and press Ctrl-C so many seconds after the run began to handle it, and the event `ready`; returns
    how long it lasted from the first press on.

    Before that, a KeyboardInterrupt is Python's, which drops one that falls into a callback of the garbage collector:
    hypothesis has one.
    """
    running = threading.Event()
    pressed = []

    def press():
        running.wait()
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            time.sleep(1e-4)
        if ready is not None:
            ready.wait(SOON)
        for pause in after:
            time.sleep(pause)
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()  # before the run, so that the interrupt falls into the run and not into this start
    running.set()
    with pytest.raises(KeyboardInterrupt):
        run(program, size)
    lasted = time.monotonic() - pressed[0]
    presser.join()
    return lasted


def ranks():
    return [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def ranks_left():
    """Threads of ranks that are still there a moment later."""
    deadline = time.monotonic() + 5
    while (left := ranks()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


@SLOW
@pytest.mark.parametrize("size", [30, 300])
def test_ctrl_c_at_any_moment_of_starting_ranks_leaves_no_thread(size):
    for after in (0.001, 0.003, 0.005, 0.01, 0.02, 0.03):
        assert interrupted(one_computes_the_others_wait, size, after * size / 300) < SOON
        assert not ranks_left()
    assert run(lambda comm: comm.rank, 3).results == [0, 1, 2]


@SLOW
def test_ctrl_c_during_a_busy_exchange_of_8_ranks_at_20_random_moments():
    def exchange(comm):
        while True:
            comm.sendrecv(X, comm.right, comm.left)
            comm.iall_reduce(X).wait()

    for after in np.random.default_rng(0).uniform(0.005, 0.05, 20):
        assert interrupted(exchange, 8, after) < SOON
        assert not ranks_left()


class Presses:
    """Its destructor is where Ctrl-C falls; Python drops a KeyboardInterrupt that is raised there."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_destructor_of_the_main_thread_is_not_lost(monkeypatch):
    start = threading.Thread.start

    def start_and_destroy(thread):
        start(thread)
        if thread.name == "rank 3":
            Presses()

    monkeypatch.setattr(threading.Thread, "start", start_and_destroy)
    with pytest.raises(KeyboardInterrupt):
        run(one_computes_the_others_wait, 4)


class TakesLongToDie:
    def __del__(self):
        for _ in range(2000):
            pass


@SLOW
def test_ctrl_c_ends_5_ranks_that_spend_half_their_time_in_destructors(monkeypatch):
    """One exception each would end half of them, on average, and be dropped by the others."""

    def program(comm):
        while True:
            TakesLongToDie()
            for _ in range(2000):
                pass

    monkeypatch.setattr(sys, "unraisablehook", lambda what: None)
    assert interrupted(program, 5, 0.05) < SOON


def test_an_interrupt_while_a_collective_starts_in_the_background_ends_its_program_there(monkeypatch):
    went_on = []

    def program(comm):
        engine, new_strand = comm._engine, comm._engine.new_strand

        def interrupted_start(work, name):
            strand = new_strand(work, name)
            start = strand.start

            def press_then_start():
                engine.interrupt()
                while not engine.ending:
                    time.sleep(0.001)
                start()

            strand.start = press_then_start
            return strand

        engine.new_strand = interrupted_start
        comm.iall_reduce(X)
        went_on.append(True)

    with pytest.raises(KeyboardInterrupt):
        run(program, 1)
    assert went_on == []


@SLOW
def test_a_second_ctrl_c_leaves_a_rank_behind_that_does_not_end():
    go = threading.Event()
    interrupted(lambda comm: go.wait(SOON), 2, 0.1, 0.2)
    behind = ranks()
    go.set()
    assert behind
    assert not ranks_left()


def test_after_a_run_ctrl_c_is_handled_as_before_it():
    before = signal.getsignal(signal.SIGINT)
    run(lambda comm: None, 2)
    assert signal.getsignal(signal.SIGINT) is before
    handled = []
    signal.signal(signal.SIGINT, lambda number, frame: handled.append(number))
    try:
        run(lambda comm: comm.rank or signal.raise_signal(signal.SIGINT), 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handled == [signal.SIGINT]


def test_finally_blocks_run_on_every_rank():
    left, all_began = [], threading.Event()

    def program(comm):
        try:
            comm.barrier()
            all_began.set()
            one_computes_the_others_wait(comm)
        finally:
            left.append(comm.rank)

    interrupted(program, 4, 0, ready=all_began)
    assert sorted(left) == [0, 1, 2, 3]


@SLOW
def test_a_finally_that_communicates_does_not_block_the_interrupt():
    def program(comm):
        request = comm.irecv(comm.left, X)
        try:
            while True:
                time.sleep(0.005)
        finally:
            try:
                request.wait()
            finally:
                comm.barrier()

    assert interrupted(program, 4, 0.05) < SOON


@SLOW
def test_a_script_that_is_interrupted_ends_with_keyboard_interrupt_and_not_with_a_hang():
    script = """
        import numpy as np
        from parlab import run
        print("running", flush=True)
        def program(comm):
            if comm.rank == 0:
                while True: pass
            comm.recv(0, np.ones(1))
        run(program, 16)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "running\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Exception in thread" not in errors


KERNEL = """
    import threading
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")

    def cell(code):
        reply = client.execute_interactive(textwrap.dedent(code), timeout=60)["content"]
        print(reply.get("ename", reply["status"]), flush=True)

    cell("import numpy as np, threading; from parlab import run")
    threading.Timer(1, manager.interrupt_kernel).start()
    cell("run(lambda comm: comm.barrier() if comm.rank else [0 for _ in iter(int, 1)], 8)")
    cell("print([t.name for t in threading.enumerate() if t.name.startswith('rank')])")
    cell("print(run(lambda comm: int(comm.all_reduce(np.ones(1))[0]), 4).results)")
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""


@SLOW
def test_interrupting_a_jupyter_kernel_ends_the_ranks_and_the_next_cell_runs():
    script = "import textwrap\n" + textwrap.dedent(KERNEL)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["ok", "KeyboardInterrupt", "[]", "ok", "[4, 4, 4, 4]", "ok"]


# Many ranks


@pytest.mark.parametrize("size", [128, pytest.param(1024, marks=SLOW)])
def test_many_ranks_run_a_ring_all_reduce_and_a_barrier(size):
    before = threading.active_count()

    def program(comm):
        comm.barrier()
        small = comm.split(comm.rank // 16)
        return float(small.all_reduce(np.full(16, comm.rank, dtype=np.float64))[0])

    results = run(program, size).results
    assert results[-1] == sum(range(size - 16, size))
    assert threading.active_count() == before


@SLOW
def test_1024_ranks_that_wait_in_a_circle_are_named():
    with pytest.raises(RuntimeError, match="no rank can move: 1024 blocked, 0 finished"):
        run(lambda comm: comm.recv(comm.left, X), 1024)
