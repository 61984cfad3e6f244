"""Until `wait()` returns, the memory of an `isend` belongs to the message: a program that changes it is named."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

import array_api_strict
import numpy as np
import pytest

from parlab import run
from parlab.world import RequestError
from parlab.world.send_buffer import SMALL, fingerprint
from tests.device import guarded, on_device


def exchange(comm, x, change, *, undo=None):
    """Each rank sends `x` to its right, and changes it before the wait; returns what came."""
    arriving = comm.irecv(comm.left, x)
    sent = comm.isend(x, comm.right)  # the line that the error names
    change(x)
    came = arriving.wait()
    if undo is not None:
        undo(x)
    sent.wait()
    return came


def add_to_first(x):
    x[0] += 1


def test_a_change_before_the_wait_names_the_rank_the_line_of_the_isend_and_what_to_do():
    def program(comm):
        exchange(comm, np.zeros(4), add_to_first if comm.rank == 1 else lambda x: None)

    with pytest.raises(RequestError) as caught:
        run(program, 3)
    lines, first = inspect.getsourcelines(exchange)
    number = next(number for number, line in enumerate(lines, first) if "comm.isend" in line)
    assert caught.value.rank == 1
    assert str(caught.value) == (
        f"rank 1 changed x between isend(to 2) and its wait(), at line {number} of exchange in test_send_buffer.py: "
        "sent = comm.isend(x, comm.right)  # the line that the error names\n"
        "until wait() returns, x belongs to the message: MPI or NCCL might send what it was, or what it has become; "
        "wait first, or send a copy"
    )


def test_a_change_in_a_cell_that_is_no_file_is_named_without_a_file():
    code = "def program(comm):\n    sent = comm.isend(x := np.ones(1), 0)\n    x[0] = 2\n"
    code += "    comm.recv(0, x)\n    sent.wait()\n"
    namespace = {"np": np}
    exec(compile(code, "/no/such/cell.py", "exec"), namespace)
    with pytest.raises(RequestError, match=re.escape("isend(to 0) and its wait(), at line 2 of program\nuntil")):
        run(namespace["program"], 1)


@pytest.mark.parametrize("size", [1, SMALL // 8, SMALL // 8 + 1, 5000, 2**17 + 3])
def test_any_one_number_that_changes_is_seen_at_every_size(size):
    x = np.random.default_rng(size).normal(size=size)
    before = fingerprint(x)
    for place in {0, size // 3, size - 1}:
        kept, x[place] = x[place], np.nextafter(x[place], np.inf)
        assert fingerprint(x) != before
        x[place] = kept
    assert fingerprint(x) == before


def test_two_numbers_or_two_rows_that_change_places_are_seen():
    x = np.random.default_rng(0).normal(size=(300, 300))
    before = fingerprint(x)
    for one, other in [((0, 0), (299, 299)), ((7, 0), (7, 299)), ((0, 7), (299, 7)), (0, 1)]:
        y = x.copy()
        y[one], y[other] = x[other], x[one]
        assert fingerprint(y) != before


class Pair(NamedTuple):
    k: np.ndarray
    v: np.ndarray


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((40, 50))[::2, ::3],
        lambda: np.asfortranarray(np.ones((30, 20))),
        lambda: np.zeros(3, dtype=bool),
        lambda: np.zeros((), dtype=np.int8)[None],
        lambda: np.full(1000, np.nan),
        lambda: np.zeros(2000, dtype=np.complex64),
        lambda: np.zeros(3, dtype=np.float16),
    ],
    ids=["strided", "Fortran", "bool", "int8", "NaN", "complex", "float16"],
)
def test_arrays_of_every_kind_may_stay_as_they_are_and_not_change(make):
    def fill(x):
        x[...] = 1 - x if x.dtype != bool else True

    def nan_to_1(x):
        x[...] = 1

    same = run(lambda comm: exchange(comm, make(), lambda x: None), 2).results
    assert all(np.array_equal(came, make(), equal_nan=came.dtype.kind == "f") for came in same)
    with pytest.raises(RequestError, match="rank 0 changed x"):
        run(lambda comm: exchange(comm, make(), nan_to_1 if np.isnan(make()).any() else fill), 2)


def test_in_a_nested_value_each_array_belongs_to_the_message():
    def program(comm, which):
        value = {"pair": Pair(np.zeros(3), np.zeros(500)), "rest": [np.zeros((2, 2))]}
        exchange(comm, value, lambda value: (*value["pair"], *value["rest"])[which].fill(1))

    for which in range(3):
        with pytest.raises(RequestError, match="rank 0 changed x"):
            run(program, 2, which)


def test_what_is_no_part_of_the_message_may_change_and_what_came_too():
    """Other parts of the same memory; and the value that arrived, before its sender waits."""

    def program(comm):
        memory = np.zeros(10)
        arriving, sent = comm.irecv(comm.left, memory[:5]), comm.isend(memory[:5], comm.right)
        memory[5:] = 1
        came = arriving.wait()
        came += 1
        comm.barrier()
        sent.wait()
        return came.sum()

    assert run(program, 2).results == [5.0, 5.0]


def test_a_change_that_is_undone_before_the_wait_is_not_seen_and_what_travelled_was_there_at_the_isend():
    def take_1(x):
        x[0] -= 1

    def program(comm):
        return exchange(comm, np.full(4, float(comm.rank)), add_to_first, undo=take_1)[0]

    assert run(program, 3).results == [2.0, 0.0, 1.0]


def test_on_a_device_no_number_is_looked_at_before_the_program_ends_and_a_change_is_named_then():
    """Sums along the first and last axis stay there; a NaN is as good as another."""
    numbers = np.arange(12.0).reshape(3, 4)
    numbers[1, 1] = np.nan

    def program(comm, change):
        for x in (numbers, numbers[0] > 1, np.asarray(7)):
            exchange(comm, on_device(x), change)
        return True

    def swap_rows(x):
        if x.ndim == 2:
            first, last = (array_api_strict.asarray(x[row, :], copy=True) for row in (0, 2))
            x[0, :], x[2, :] = last, first

    with guarded() as seen:
        assert run(program, 2, lambda x: None).results == [True, True]
        with pytest.raises(RequestError, match="rank 0 changed x between isend"):
            run(program, 2, swap_rows)
    assert {place.partition(":")[0] for place in seen.explicit} == {"world/send_buffer.py"}
