"""Programs that disagree or raise: what is shown, who is blamed, and what is left behind."""

from __future__ import annotations

import functools
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from parlab.world import MismatchError, WorldError, per_rank, run


def mismatch_of(program, size=2, *args):
    with pytest.raises(MismatchError) as caught:
        run(program, size, *args)
    return str(caught.value)


EIGHT = np.ones(8)
SQUARE = EIGHT.reshape(4, 2)
BY_1 = {"algorithm": "hierarchical", "ranks_per_node": 1}
COLLECTIVE_MISMATCHES = [  # of ranks 0 and 1: the call, and the words that show it
    (("all_reduce", EIGHT), "all_reduce(float64[8], op=sum)", ("barrier",), "barrier()"),
    (("split", 0), "split", ("barrier",), "barrier()"),
    (("all_reduce", EIGHT), "op=sum", ("all_reduce", EIGHT, "max"), "op=max"),
    (("all_gather", EIGHT, 0, "bruck"), "=bruck", ("all_gather", EIGHT, 0, "circulant"), "algorithm=circulant"),
    (("all_gather", EIGHT), "all_gather(float64[8], axis=0)", ("all_gather", EIGHT, 0, "bruck"), "algorithm=bruck"),
    (("all_reduce", EIGHT), "float64[8]", ("all_reduce", SQUARE), "float64[4, 2]"),
    (("all_reduce", EIGHT), "float64[8]", ("all_reduce", EIGHT.astype(np.float32)), "float32[8]"),
    (("broadcast", EIGHT, 0), "root=0", ("broadcast", EIGHT, 1), "root=1"),
    (("all_gather", SQUARE, 0), "axis=0", ("all_gather", SQUARE, 1), "axis=1"),
    (("all_to_all", SQUARE, 0, 1), "split_axis=0, concat_axis=1", ("all_to_all", SQUARE, 1, 0), "split_axis=1, con"),
    (
        ("iall_reduce", EIGHT),
        "all_reduce(float64[8], op=sum)",
        ("iall_gather", EIGHT),
        "all_gather(float64[8], axis=0)",
    ),
    (
        ("reduce_scatter", EIGHT, {"counts": [3, 5]}),
        "counts=[3, 5]",
        ("reduce_scatter", EIGHT, {"counts": [5, 3]}),
        "counts=[5, 3]",
    ),
    (("all_reduce", EIGHT, BY_1), "ranks_per_node=1", ("all_reduce", EIGHT, BY_1 | {"ranks_per_node": 2}), "node=2"),
]


@pytest.mark.parametrize(("first", "shown_first", "second", "shown_second"), COLLECTIVE_MISMATCHES)
def test_collectives_that_differ_are_shown_as_both_calls(first, shown_first, second, shown_second):
    def program(comm):
        name, *arguments = second if comm.rank else first
        how = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        started = getattr(comm, name)(*arguments, **how)
        return started.wait() if name.startswith("i") else started

    text = mismatch_of(program, 2)
    before, after = text.split("rank 1 calls")
    assert "entered different collectives: rank 0 calls" in before
    assert shown_first in before
    assert shown_second in after


def test_asking_for_the_default_algorithm_by_name_is_the_same_call():
    def program(comm):
        named = comm.rank == 1
        comm.all_reduce(EIGHT, algorithm="ring" if named else None)
        comm.all_gather(EIGHT, algorithm="ring" if named else None)
        comm.reduce_scatter(EIGHT, algorithm="ring" if named else None)
        return comm.all_to_all(EIGHT, 0, 0, "pairwise" if named else None).size

    assert run(program, 2).results == [8, 8]


def test_of_several_ranks_that_differ_the_first_is_named():
    def program(comm):
        comm.broadcast(EIGHT, root=max(0, comm.rank - 1))

    assert "rank 0 calls broadcast(float64[8], root=0), rank 2 calls broadcast(float64[8], root=1)" in mismatch_of(
        program, 4
    )


@pytest.mark.parametrize(("shapes", "differ"), [([(2, 1, 3), (2, 4, 3)], False), ([(2, 1, 3), (9, 4, 3)], True)])
@pytest.mark.parametrize("turned", [False, True])
def test_gathered_with_counts_arrays_may_differ_along_the_axis_and_nowhere_else(shapes, differ, turned):
    xs = [np.ones(shape[::-1] if turned else shape) for shape in shapes]
    gather = lambda comm, x: comm.all_gather(x, axis=1, counts=[1, 4]).shape  # noqa: E731
    if differ:
        assert "counts, " in mismatch_of(gather, 2, per_rank(xs))
    else:
        assert run(gather, 2, per_rank(xs)).results == [(3, 5, 2) if turned else (2, 5, 3)] * 2


def test_a_mismatch_in_a_subgroup_names_the_group_and_the_ranks_of_the_run():
    def program(comm):
        group = comm.split(comm.rank % 2)
        if comm.rank == 3:
            group.barrier()
        else:
            group.all_reduce(EIGHT)

    text = mismatch_of(program, 4)
    assert "group world/1:1" in text
    assert "rank 1 calls all_reduce(float64[8], op=sum), rank 3 calls barrier()" in text


def sends(value, like, **labels):
    def program(comm):
        if comm.rank == 0:
            comm.send(value, 1, label=labels.get("sent"))
        else:
            comm.recv(0, like, label=labels.get("expected"))

    return program


MESSAGE_MISMATCHES = {
    "shape": (np.ones(3), np.ones((3, 1)), "float64[3]", "float64[3, 1]"),
    "dtype": (np.ones(3), np.ones(3, dtype=int), "float64[3]", "int64[3]"),
    "nesting": ((np.ones(3), np.ones(2)), np.ones(3), "(float64[3], float64[2])", "float64[3]"),
    "tuple and list": ((np.ones(3),), [np.ones(3)], "(float64[3])", "[float64[3]]"),
    "length": ([np.ones(3)] * 2, [np.ones(3)] * 3, "[float64[3], float64[3]]", "[float64[3], float64[3], float64[3]]"),
    "keys": ({"k": np.ones(3)}, {"v": np.ones(3)}, "{'k': float64[3]}", "{'v': float64[3]}"),
    "inner dtype": ({"k": [np.ones(3)]}, {"k": [np.ones(3) > 0]}, "{'k': [float64[3]]}", "{'k': [bool[3]]}"),
}


@pytest.mark.parametrize(("value", "like", "sent", "expected"), MESSAGE_MISMATCHES.values(), ids=MESSAGE_MISMATCHES)
def test_a_message_of_another_form_is_shown_with_both_forms(value, like, sent, expected):
    text = mismatch_of(sends(value, like))
    assert text.startswith(f"a message from rank 0 to rank 1 holds {sent}, but rank 1 expects {expected};")


def test_labels_that_differ_are_shown_both_and_a_missing_one_is_not_checked():
    text = mismatch_of(sends(EIGHT, EIGHT, sent="F of microbatch 4", expected="F of microbatch 3"))
    assert text.startswith("rank 1 expected F of microbatch 3 from rank 0, got F of microbatch 4;")
    run(sends(EIGHT, EIGHT, sent="F"), 2)
    run(sends(EIGHT, EIGHT, expected="F"), 2)
    run(sends(EIGHT, EIGHT, sent=("F", 1), expected=("F", 1)), 2)
    run(sends(EIGHT, EIGHT, sent=np.arange(3), expected=np.arange(3)), 2)
    assert "[0 1]" in mismatch_of(sends(EIGHT, EIGHT, sent=np.arange(2), expected=np.arange(3)))


# Mismatches of every kind, on every engine: `process_job` runs what takes a comm alone


def enters_another_collective(comm):
    comm.barrier() if comm.rank == 1 else comm.all_reduce(EIGHT)


def enters_a_collective_with_another_root(comm):
    comm.broadcast(EIGHT, root=0 if comm.rank == 0 else comm.size - 1)


def sends_another_form(comm):
    value = {"k": EIGHT, "v": (EIGHT[:3], EIGHT)}
    if comm.rank == 0:
        comm.isend(value, comm.size - 1, label="K/V").wait()
    elif comm.rank == comm.size - 1:
        comm.recv(0, {"k": EIGHT, "v": (EIGHT[:2], EIGHT)}, label="K/V")


def sends_another_label(comm):
    if comm.rank == 0:
        comm.isend(EIGHT, comm.size - 1, label="F of microbatch 4").wait()
    elif comm.rank == comm.size - 1:
        comm.recv(0, EIGHT, label="F of microbatch 3")


# What is sent belongs to the message


def changes_what_it_sends(comm):
    """On every engine the words are the same: `process_job` runs this one too."""
    x = np.zeros(1000)
    if comm.rank == 0:
        sent = comm.isend(x, comm.right)
        x[7] = 1
        if comm.size == 1:
            comm.recv(0, x)
        sent.wait()
    elif comm.rank == 1:
        comm.recv(0, x)


# A rank that raises


def test_the_error_of_the_lowest_rank_that_raises_arrives_with_its_rank_run_note_and_line():
    def program(comm):
        with comm.compute("before", seconds=1e-6):
            pass
        if comm.rank >= 2:
            raise KeyError(f"from rank {comm.rank}")
        comm.barrier()

    with pytest.raises(KeyError, match="from rank 2") as caught:
        run(program, 4)
    error = caught.value
    assert error.rank == 2
    assert error.__notes__ == ["raised on rank 2 of 4"]
    assert error.run.timeline.makespan == 1_000_000
    assert any('raise KeyError(f"from rank' in line for line in traceback.format_tb(error.__traceback__))


def test_a_rank_that_raises_leaves_the_others_their_work():
    done = []

    def program(comm):
        if comm.rank == 0:
            raise KeyError
        comm.sendrecv(np.ones(1), 3 - comm.rank, 3 - comm.rank)
        done.append(comm.rank)

    with pytest.raises(KeyError):
        run(program, 3)
    assert sorted(done) == [1, 2]


BLOCKING = {  # every call in which a rank can be parked
    "send": lambda comm: comm.send(EIGHT, 0),
    "sendrecv": lambda comm: comm.sendrecv(EIGHT, 0, 0),
    "irecv": lambda comm: comm.irecv(0, EIGHT).wait(),
    "barrier": lambda comm: comm.barrier(),
    "iall_reduce": lambda comm: comm.iall_reduce(EIGHT).wait(),
}
CALLS = BLOCKING | {
    "split": lambda comm: comm.split(0),
    "compute": lambda comm: comm.compute("late", seconds=1.0),
    "hold": lambda comm: comm.hold("late", EIGHT),
    "print": lambda comm: comm.print("late"),
}


@pytest.mark.parametrize("blocked", BLOCKING.values(), ids=BLOCKING)
def test_unwinding_runs_finally_and_with_blocks_and_except_exception_cannot_swallow_it(blocked):
    left = []

    def program(comm):
        if comm.rank == 0:
            raise KeyError("the cause")
        try:
            while True:
                try:
                    blocked(comm)
                except Exception:
                    left.append("swallowed")
        finally:
            left.append(comm.rank)

    with pytest.raises(KeyError, match="the cause"):
        run(program, 3)
    assert sorted(left) == [1, 2]


@pytest.mark.parametrize("blocked", BLOCKING.values(), ids=BLOCKING)
def test_a_finally_that_communicates_again_ends_too_and_what_it_raises_hides_no_cause(blocked):
    def program(comm):
        request = comm.irecv(comm.size - 1, np.ones(1)) if comm.rank else None
        if comm.rank == 0:
            raise KeyError("the cause")
        try:
            blocked(comm)
        finally:
            try:
                request.wait()
            finally:
                blocked(comm)
                raise ValueError("from the finally")

    with pytest.raises(KeyError, match="the cause"):
        run(program, 3)


def test_sys_exit_and_keyboard_interrupt_in_a_rank_arrive_as_such():
    def program(comm, error):
        if comm.rank == 1:
            raise error
        comm.barrier()

    for error in (SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            run(functools.partial(program, error=error), 2)
        assert caught.value is error


def test_a_failed_mismatch_or_deadlock_keeps_what_was_printed(capsys):
    def program(comm):
        comm.print("before")
        comm.barrier() if comm.rank else comm.all_reduce(np.ones(1))

    with pytest.raises(MismatchError):
        run(program, 2)
    assert capsys.readouterr().out == "rank 0: before\nrank 1: before\n"


@pytest.mark.threads
@pytest.mark.parametrize(
    ("size", "few", "program"),
    [(9, 5, lambda comm: comm.barrier()), (4, 6, lambda comm: comm.iall_reduce(EIGHT).wait())],
    ids=["of ranks", "beside them"],
)
def test_where_no_more_threads_can_be_started_those_that_were_end_and_so_does_the_run(monkeypatch, size, few, program):
    start, started = threading.Thread.start, []

    def start_few(thread):
        if len(started) == few:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_few)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run(program, size)
    monkeypatch.undo()
    assert len(started) == few
    run(program, size)


# Whose comm, whose run


def test_run_inside_a_rank_is_refused():
    with pytest.raises(WorldError, match=r"run\(\) inside a rank"):
        run(lambda comm: run(lambda inner: None, 2), 2)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_comm_used_after_its_run_is_refused_outside_and_inside_another_run_and_notes_nothing(call):
    kept = []
    done = run(lambda comm: kept.append(comm), 2)
    with pytest.raises(WorldError, match="the run is over: a Comm works only inside the program that it was given to"):
        call(kept[1])
    with pytest.raises(WorldError, match="the run is over"):
        run(lambda comm: call(kept[1]), 2)
    assert (done.timeline.makespan, done.timeline.held(1)) == (0, [])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_two_threads_of_one_rank_in_comm_at_once_are_named_and_no_deadlock_is_invented(call):
    def program(comm):
        if comm.rank == 0:
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(call, comm)
                comm.recv(1, np.ones(2))
                other.result()
        else:
            comm.send(np.ones(2), 0)
            comm.recv(0, np.ones(2))

    with pytest.raises(WorldError, match=r"rank 0: comm is called from another thread than the rank's own") as caught:
        run(program, 2)
    assert caught.value.rank == 0


def test_a_request_of_a_rank_is_waited_for_on_its_own_thread():
    def program(comm):
        request = comm.iall_reduce(np.ones(2))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(request.wait).result()

    with pytest.raises(WorldError, match="comm is called from another thread"):
        run(program, 2)


def test_a_request_kept_after_its_run_is_refused_and_does_not_hang():
    kept = []

    def program(comm):
        kept.append(comm.irecv(1 - comm.rank, np.ones(1)))

    with pytest.raises(WorldError, match="without waiting"):
        run(program, 2)
    with pytest.raises(WorldError, match="the run is over"):
        kept[0].wait()
