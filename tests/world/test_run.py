"""What goes into a run and what comes out: arguments, contexts, results, prints, groups."""

from __future__ import annotations

import collections
import contextvars
import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from parlab.arrays import to_numpy
from parlab.world import CLASSROOM, Cluster, Run, per_rank, run


def test_the_default_cluster_is_the_classroom_and_repr_is_a_table_with_a_row_a_rank():
    done = run(lambda comm: comm.barrier(), 3)
    assert isinstance(done, Run)
    assert done.cluster is CLASSROOM
    lines = repr(done).splitlines()
    assert lines[0] == "Run: 3 ranks, makespan 2.00 µs on classroom"
    assert lines[1].split() == ["rank", "compute", "wait", "messages", "sent", "peak", "held"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2"]
    assert repr(run(lambda comm: None, 18)).splitlines()[-1] == "... and 2 more ranks"


Named = collections.namedtuple("Named", "a")
WRAPPED = {
    "x": lambda x: x,
    "list": lambda x: [x, (x,)],
    "dict": lambda x: {"a": {"b": x}},
    "named": lambda x: Named(x),
}


def arrays_in(x):
    if isinstance(x, dict):
        x = list(x.values())
    return [leaf for item in x for leaf in arrays_in(item)] if isinstance(x, list | tuple) else [x]


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_plain_arguments_arrive_read_only_also_nested_and_by_name(wrap):
    def program(comm, by_position, *, by_name):
        for array in arrays_in([by_position, by_name]):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 7
        return True

    x = np.ones(3)
    assert run(program, 2, wrap(x), by_name=wrap(x)).results == [True, True]
    x[0] = 2  # the caller's array is as writable as before


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_per_rank_arguments_are_the_ranks_own_copies_also_nested_and_by_name(xp, wrap):
    def program(comm, by_position, *, by_name):
        for array in arrays_in([by_position, by_name]):
            array += comm.rank + 1
        return [float(array[0]) for array in arrays_in([by_position, by_name])]

    x = xp.ones(3)
    first, second = run(program, 2, per_rank([wrap(x)] * 2), by_name=per_rank([wrap(x)] * 2)).results
    assert set(first) == {2.0}
    assert set(second) == {3.0}
    np.testing.assert_array_equal(to_numpy(x), np.ones(3))


def test_containers_of_plain_arguments_are_rebuilt_so_that_a_rank_changes_only_its_own():
    def program(comm, items, options):
        items.append(comm.rank)
        options["rank"] = comm.rank
        return len(items), options["rank"]

    items, options = [1], {}
    assert run(program, 3, items, options).results == [(2, 0), (2, 1), (2, 2)]
    assert (items, options) == ([1], {})


def test_arguments_that_nobody_can_change_or_copy_pass_as_they_are():
    lock, cluster = threading.Lock(), Cluster.uniform(1, 1)
    results = run(lambda comm, *args, **kwargs: (args, kwargs), 2, 3, "x", np, lock, cluster, k=np.float64(2)).results
    assert results[1] == ((3, "x", np, lock, cluster), {"k": np.float64(2)})
    assert results[1][0][4] is cluster


class Model:
    def __init__(self):
        self.weights, self.rng = np.zeros(2), np.random.default_rng(1)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: per_rank([x] * 4)], ids=["x", "list", "each"])
def test_a_model_among_the_arguments_is_the_ranks_own_as_in_a_process(wrap):
    def train(comm, model):
        (model,) = model if isinstance(model, list) else (model,)
        for _ in range(3):
            model.weights += comm.all_reduce(np.ones(2)) / comm.size
        return model.weights.tolist(), model.rng.normal()

    model, alone = Model(), np.random.default_rng(1).normal()
    assert run(train, 4, wrap(model)).results == [([3.0, 3.0], alone)] * 4
    assert model.weights.tolist() == [0, 0]


def test_what_two_arguments_share_their_copies_share_too():
    table = Model()
    first, second = SimpleNamespace(table=table), SimpleNamespace(table=table)
    assert run(lambda comm, a, b: a.table is b[0].table is not table, 2, first, b=[second]).results == [True, True]


def test_per_rank_takes_any_sequence_of_items():
    assert run(lambda comm, x: x, 3, per_rank(range(5, 8))).results == [5, 6, 7]
    assert run(lambda comm, x: x.tolist(), 2, per_rank(np.eye(2))).results == [[1, 0], [0, 1]]
    assert run(lambda comm, x: x, 2, per_rank(name for name in "ab")).results == ["a", "b"]


def test_np_errstate_and_context_variables_reach_the_ranks_and_do_not_come_back():
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("caller's")

    def program(comm):
        seen = variable.get()
        variable.set(f"rank {comm.rank}")
        return seen, np.geterr()["divide"], variable.get()

    with np.errstate(divide="raise"):
        results = run(program, 2).results
        with pytest.raises(FloatingPointError):
            run(lambda comm: np.ones(1) / np.zeros(1), 1)
    assert results == [("caller's", "raise", "rank 0"), ("caller's", "raise", "rank 1")]
    assert variable.get() == "caller's"


def test_the_garbage_collector_is_paused_in_a_run_and_on_again_after_it_also_after_an_error():
    assert run(lambda comm: gc.isenabled(), 2).results == [False, False]
    assert gc.isenabled()
    with pytest.raises(KeyError):
        run(lambda comm: {}["missing"], 2)
    assert gc.isenabled()


def test_of_two_runs_at_once_the_one_that_began_first_puts_the_blas_threads_back():
    before = threadpool_info()
    first_is_in, second_is_in, first_is_out = threading.Event(), threading.Event(), threading.Event()
    first = threading.Thread(target=run, args=(lambda comm: (first_is_in.set(), second_is_in.wait(10)), 1))
    second = threading.Thread(target=run, args=(lambda comm: (second_is_in.set(), first_is_out.wait(10)), 1))
    first.start()
    first_is_in.wait(10)
    second.start()
    first.join()
    first_is_out.set()
    second.join()
    assert threadpool_info() == before


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks for a policy of Linux's scheduler")


def policies(comm):
    request = comm.iall_reduce(np.ones(1))
    return os.sched_getscheduler(0), float(request.wait()[0])


@LINUX
def test_ranks_are_batch_work_to_the_scheduler_and_their_caller_is_not():
    before = os.sched_getscheduler(0)
    assert run(policies, 2).results == [(os.SCHED_BATCH, 2.0)] * 2
    assert os.sched_getscheduler(0) == before


@LINUX
def test_ranks_keep_a_policy_that_their_caller_chose():
    seen = []

    def caller():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread alone
        seen.extend(run(policies, 2).results)

    thread = threading.Thread(target=caller)
    thread.start()
    thread.join()
    assert seen == [(os.SCHED_IDLE, 2.0)] * 2


@LINUX
def test_ranks_run_where_a_sandbox_forbids_to_change_the_policy(monkeypatch):
    def forbidden(*arguments):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    assert run(policies, 2).results == [(os.sched_getscheduler(0), 2.0)] * 2


def test_on_another_cluster_runs_no_rank_again():
    runs = []
    done = run(lambda comm: runs.append(comm.rank) or comm.all_reduce(np.ones(4)), 4)
    slow = done.on(Cluster.uniform(1, 1))
    assert len(runs) == 4
    assert slow.makespan == 6 * (10**12 + 8 * 10**12)
    assert done.timeline.makespan < slow.makespan


def test_a_memory_map_is_as_good_as_an_array(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6.0))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")

    def program(comm, given):
        own = np.load(tmp_path / "x.npy", mmap_mode="r")
        comm.hold("file", own)
        received = comm.sendrecv({"k": own[1:]}, comm.right, comm.left)["k"]
        gathered = comm.iall_gather(own).wait()
        return type(received), received.sum() + comm.all_reduce(given).sum() + comm.scatter(own).sum() + gathered.sum()

    done = run(program, 2, x)
    assert done.results == [(np.ndarray, 15 + 30 + 3 + 30), (np.ndarray, 15 + 30 + 12 + 30)]
    assert done.timeline.held_by_name(0)["file"][0] == (0, 48)


def test_messages_arrive_c_ordered_from_every_memory_order():
    views = [np.arange(6.0).reshape(2, 3).T, np.asfortranarray(np.ones((3, 2))), np.ones((6, 4))[::2, ::2]]

    def program(comm):
        return [comm.sendrecv(view, comm.right, comm.left) for view in views]

    for view, received in zip(views, run(program, 2).results[0], strict=True):
        assert received.flags.c_contiguous
        assert received.flags.writeable
        np.testing.assert_array_equal(received, view)


def test_split_orders_by_key_then_rank_and_none_joins_no_group():
    def program(comm):
        group = comm.split(None if comm.rank == 4 else comm.rank % 2, key=comm.rank // 2 * -1)
        if group is None:
            return None
        nested = group.split(0)
        return group.rank, group.size, nested.rank, repr(group)

    assert run(program, 6).results == [
        (1, 2, 1, "Comm(rank 1 of 2, group world/1:0)"),
        (2, 3, 2, "Comm(rank 2 of 3, group world/1:1)"),
        (0, 2, 0, "Comm(rank 0 of 2, group world/1:0)"),
        (1, 3, 1, "Comm(rank 1 of 3, group world/1:1)"),
        None,
        (0, 3, 0, "Comm(rank 0 of 3, group world/1:1)"),
    ]


def test_colours_that_are_equal_numbers_of_other_types_are_one_group():
    def program(comm):
        color = [True, 1, np.int64(1)][comm.rank]
        return comm.split(color).all_reduce(np.ones(1))[0]

    assert run(program, 3).results == [3.0] * 3


def test_all_values_of_the_contract_travel_arrays_tuples_lists_dicts_named_tuples_and_numpy_scalars():
    pair = collections.namedtuple("pair", "k v")
    value = (np.ones(2), [np.zeros((1, 2), dtype=np.int8)], {"b": np.float32(3), "a": pair(np.ones(0), np.ones(1) > 0)})
    received = run(lambda comm: comm.sendrecv(value, comm.right, comm.left), 2).results[0]
    assert isinstance(received, tuple)
    assert list(received[2]) == ["a", "b"]
    assert received[2]["a"]._fields == ("k", "v")
    assert received[1][0].dtype == np.int8
    assert float(received[2]["b"]) == 3
    timeline = run(lambda comm: comm.sendrecv(value, comm.right, comm.left), 2).timeline
    assert (timeline.messages(0), timeline.bytes_sent(0)) == (1, 16 + 2 + 4 + 1)


def test_runs_started_from_several_threads_at_once_do_not_mix():
    def one(number):
        return run(lambda comm: float(comm.all_reduce(np.full(3, float(number)))[0]), 4).results

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(12))) == [[4.0 * number] * 4 for number in range(12)]
    assert gc.isenabled()
