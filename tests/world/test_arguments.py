"""Bad input, one row for each argument of each public function: refused before any work, with the argument's name, its
value and what would be right.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from parlab.world import CLASSROOM, Cluster, Device, Link, per_rank, run

X = np.ones((4, 2))
LINK = Link(1e-6, 1e9)
DEVICE = CLASSROOM.device


def on(size, call):
    """`call(comm)` on every rank of `size`."""
    return lambda: run(call, size)


def comm(call):
    return on(2, call)


def cluster(**changed):
    fields = {"name": "x", "device": DEVICE, "ranks_per_node": 1, "intra": LINK, "inter": LINK, "ports": 1, **changed}
    return lambda: Cluster(**fields)


def device(**changed):
    return lambda: Device(**{"name": "x", "flops": 1e9, "memory_bandwidth": 1e9, "memory": 1e9, **changed})


def yields(comm, x=0):
    yield comm.rank


class Yields:
    def __call__(self, comm):
        yield comm.rank


async def awaits(comm):
    return comm.rank


async def awaits_and_yields(comm):
    yield comm.rank


READ_ONLY = np.ones(8)
READ_ONLY.flags.writeable = False
DONE = run(lambda comm: None, 2)
NOT_A_RANK = ["0", 1.5, None, [1], np.ones(2)]

ROWS = [
    # run
    ("program", lambda: run(None, 2), "program=None: must be a function whose first parameter is the rank's comm"),
    ("program", lambda: run(yields, 2), ": it yields, so a call would run nothing of it; return instead"),
    ("program", lambda: run(Yields(), 2), ": it yields, so a call would run nothing of it; return instead"),
    ("program", lambda: run(partial(yields, x=1), 2), ": it yields, so a call would run nothing of it; return instead"),
    ("program", lambda: run(awaits, 2), ": it is async, so a call would run nothing of it; use plain def"),
    ("program", lambda: run(awaits_and_yields, 2), ": it yields, so a call would run nothing of it; return instead"),
    ("size", lambda: run(print, True), "size=True: must be a whole number"),
    ("size", lambda: run(print, 0), "size=0: needs at least 1 rank"),
    ("size", lambda: run(print, -3), "size=-3: needs at least 1 rank"),
    ("size", lambda: run(print, 2.0), "size=2.0: must be a whole number"),
    ("size", lambda: run(print, "2"), "size='2': must be a whole number"),
    ("engine", lambda: run(print, 2, engine="mpi!"), "engine='mpi!': the engines are threads, mpi"),
    ("engine", lambda: run(print, 2, engine=None), "engine=None: the engines are threads, mpi"),
    ("cluster", lambda: run(print, 2, cluster="fast"), "cluster='fast': must be a Cluster"),
    ("collectives", lambda: run(print, 2, collectives="native"), "collectives='native': on threads they are ours"),
    (
        "collectives",
        lambda: run(print, 2, engine="mpi", collectives=None),
        "collectives=None: on mpi they are ours, or native",
    ),
    (
        "cluster",
        lambda: run(print, 3, cluster=Cluster("pair", (DEVICE, DEVICE), 1, LINK, LINK)),
        "cluster=pair: has 2 devices, but there are 3 ranks",
    ),
    ("args", lambda: run(print, 3, per_rank([1, 2])), "items: per_rank has 2, but size=3: give one a rank"),
    ("kwargs", lambda: run(print, 3, x=per_rank([1] * 4)), "items: per_rank has 4, but size=3: give one a rank"),
    ("args", lambda: run(print, 2, [per_rank([1, 2])]), "per_rank inside a list or dict: wrap the whole argument"),
    ("kwargs", lambda: run(print, 2, x={"w": per_rank([1, 2])}), "per_rank inside a list or dict: wrap the whole"),
    ("items", lambda: per_rank(5), "items=5: per_rank takes a list, one item a rank"),
    ("items", lambda: per_rank("ab"), "items='ab': per_rank takes a list, one item a rank"),
    ("items", lambda: per_rank({"a": 1}), "items={'a': 1}: per_rank takes a list, one item a rank"),
    ("items", lambda: per_rank({1, 2}), "items={1, 2}: per_rank takes a list, one item a rank"),
    ("cluster of on", lambda: DONE.on(None), "cluster=None: must be a Cluster"),
    (
        "cluster of on",
        lambda: DONE.on(Cluster("one", (DEVICE,), 1, LINK, LINK)),
        "cluster=one: has 1 device, but there are 2 ranks",
    ),
    # Link, Device, Cluster
    ("latency", lambda: Link(-1, 1), "latency=-1: must be a number, at least 0 and less than 1e+18"),
    ("latency", lambda: Link(float("nan"), 1), "latency=nan: must be a number, at least 0 and less than 1e+18"),
    ("latency", lambda: Link("1", 1), "latency='1': must be a number, at least 0 and less than 1e+18"),
    ("latency", lambda: Link(1e300, 1), "latency=1e+300: must be a number, at least 0 and less than 1e+18"),
    ("bandwidth", lambda: Link(0, 0), "bandwidth=0: must be a number greater than 0"),
    ("bandwidth", lambda: Link(0, 0.5), "bandwidth=0.5: must be at least 1 byte a second"),
    ("bandwidth", lambda: Link(0, float("nan")), "bandwidth=nan: must be a number greater than 0"),
    ("bandwidth", lambda: Link(0, None), "bandwidth=None: must be a number greater than 0"),
    ("nbytes of a link", lambda: LINK.picoseconds(-1), "nbytes=-1: must be a whole number, at least 0"),
    ("nbytes of a link", lambda: LINK.picoseconds(1.5), "nbytes=1.5: must be a whole number"),
    ("name of a device", device(name=None), "name=None: must be a string"),
    ("flops of a device", device(flops=0), "flops=0: must be a number greater than 0"),
    ("flops of a device", device(flops="fast"), "flops='fast': must be a number greater than 0"),
    ("memory_bandwidth", device(memory_bandwidth=-1), "memory_bandwidth=-1: must be a number greater than 0"),
    ("memory", device(memory=float("nan")), "memory=nan: must be a number greater than 0"),
    ("flops of seconds", lambda: DEVICE.seconds(-1, 0), "flops=-1: must be a number, at least 0 and finite"),
    ("nbytes of seconds", lambda: DEVICE.seconds(0, None), "nbytes=None: must be a number, at least 0 and finite"),
    (
        "flops of seconds",
        lambda: Device("slow", 1e-320, 1e9).seconds(1, 0),
        "flops=1, nbytes=0: they take inf seconds on slow (9.99989e-321 a second, memory 1e+09 bytes a second)",
    ),
    (
        "bytes of compute",
        lambda: run(lambda c: c.compute("f", bytes=1e300), 2, cluster=Cluster.uniform(0, 1)).timeline,
        "flops=0, nbytes=1e+300: they take 1e+289 seconds on uniform",
    ),
    ("name of a cluster", cluster(name=3), "name=3: must be a string"),
    ("device", cluster(device="A100"), "device='A100': must be a Device"),
    ("device", cluster(device=(DEVICE, None)), "device=None: must be a Device"),
    ("device", cluster(device=()), "device=(): must be a Device"),
    ("ranks_per_node", cluster(ranks_per_node=0), "ranks_per_node=0: must be a whole number, at least 1"),
    ("ranks_per_node", cluster(ranks_per_node=1.5), "ranks_per_node=1.5: must be a whole number"),
    ("intra", cluster(intra=1e9), "intra=1000000000.0: must be a Link"),
    ("inter", cluster(inter=None), "inter=None: must be a Link"),
    ("ports", cluster(ports=0), "ports=0: must be a whole number, at least 1, or None"),
    ("ports", cluster(ports=1.5), "ports=1.5: must be a whole number"),
    ("source", cluster(source=None), "source=None: must be a string"),
    (
        "latency of uniform",
        lambda: Cluster.uniform(-1, 1),
        "latency=-1: must be a number, at least 0 and less than 1e+18",
    ),
    ("bandwidth of uniform", lambda: Cluster.uniform(0, 0), "bandwidth=0: must be a number greater than 0"),
    ("flops of uniform", lambda: Cluster.uniform(0, 1, flops=-1), "flops=-1: must be a number greater than 0"),
    (
        "memory_bandwidth of uniform",
        lambda: Cluster.uniform(0, 1, memory_bandwidth=0),
        "memory_bandwidth=0: must be a number greater than 0",
    ),
    (
        "ports of uniform",
        lambda: Cluster.uniform(0, 1, ports=0),
        "ports=0: must be a whole number, at least 1, or None",
    ),
    ("kernel", lambda: CLASSROOM.reaching(0), "kernel=0: must be a number greater than 0"),
    ("kernel", lambda: CLASSROOM.reaching(1.01), "kernel=1.01: must be at most 1, the peak"),
    # messages
    ("x of send", comm(lambda c: c.send(3.0, c.right)), "x is 3.0 (float): a message carries arrays"),
    ("x of send", comm(lambda c: c.send(None, c.right)), "x is None (NoneType): a message carries arrays"),
    ("x of send", comm(lambda c: c.send([X, "text"], 1)), "x[1] is 'text' (str): a message carries arrays"),
    ("x of send", comm(lambda c: c.send({"k": [1]}, 1)), "x['k'][0] is 1 (int): a message carries arrays"),
    ("x of send", comm(lambda c: c.send({1: X}, 1)), "x has the key 1: the keys of a message are strings"),
    ("x of send", comm(lambda c: c.send(np.array(["a"]), 1)), "x has dtype <U1: a message carries numbers"),
    ("x of send", comm(lambda c: c.send(np.array([{}]), 1)), "x has dtype object: a message carries numbers"),
    *[
        (f"x of {name}", comm(lambda c, f=f: f(c, X.astype(">f8"))), "has dtype >f8: a message carries numbers in this")
        for name, f in {
            "send": lambda c, x: c.send(x, c.right),
            "recv": lambda c, x: c.recv(c.left, x),
            "isend": lambda c, x: c.isend([x], c.right),
            "reduce": lambda c, x: c.reduce(x),
            "all_reduce": lambda c, x: c.all_reduce(x),
            "iall_gather": lambda c, x: c.iall_gather(x),
            "hold": lambda c, x: c.hold("x", x),
        }.items()
    ],
    (
        "x of send",
        comm(lambda c: c.send(np.ma.ones(3), 1)),
        "x is a masked array: a message carries no mask; fill it, or",
    ),
    ("x of reduce", comm(lambda c: c.reduce(np.ma.ones(3))), "x is a masked array: a message carries no mask; fill it"),
    ("x of isend", comm(lambda c: c.isend(object, 1)), "x is <class 'object'> (type): a message carries arrays"),
    ("x of sendrecv", comm(lambda c: c.sendrecv(5, 1, 1)), "x is 5 (int): a message carries arrays"),
    ("like of recv", comm(lambda c: c.recv(c.right, None)), "like is None (NoneType): a message carries arrays"),
    ("like of recv", comm(lambda c: c.recv(c.right, (2, 3))), "like[0] is 2 (int): a message carries arrays"),
    ("like of irecv", comm(lambda c: c.irecv(c.right, 0)), "like is 0 (int): a message carries arrays"),
    ("like of sendrecv", comm(lambda c: c.sendrecv(X, 0, 0, like="X")), "like is 'X' (str): a message carries arrays"),
    ("dst of send", comm(lambda c: c.send(X, 2)), "dst=2: the ranks of this group are 0 to 1"),
    ("dst of send", comm(lambda c: c.send(X, -1)), "dst=-1: the ranks of this group are 0 to 1"),
    ("src of recv", comm(lambda c: c.recv(-1, X)), "src=-1: the ranks of this group are 0 to 1"),
    ("dst of sendrecv", comm(lambda c: c.sendrecv(X, 7, 0)), "dst=7: the ranks of this group are 0 to 1"),
    ("src of sendrecv", comm(lambda c: c.sendrecv(X, c.rank, 7)), "src=7: the ranks of this group are 0 to 1"),
    *[("dst of isend", comm(lambda c, d=d: c.isend(X, d)), f"dst={d!r}: must be a whole number") for d in NOT_A_RANK],
    *[("src of irecv", comm(lambda c, s=s: c.irecv(s, X)), f"src={s!r}: must be a whole number") for s in NOT_A_RANK],
    # collectives
    ("x of all_reduce", comm(lambda c: c.all_reduce(2)), "x is 2 (int): a message carries arrays"),
    ("x of all_reduce", comm(lambda c: c.all_reduce([X])), "x is a list: a collective takes one array"),
    ("x of all_reduce", comm(lambda c: c.all_reduce(X > 0)), "op='sum': x is an array of booleans"),
    ("x of all_reduce", comm(lambda c: c.all_reduce(X + 1j, "max")), "op='max': complex numbers have no order"),
    ("op of all_reduce", comm(lambda c: c.all_reduce(X, "mean")), "op='mean': the operations are sum, prod, max, min"),
    ("op of all_reduce", comm(lambda c: c.all_reduce(X, np.add)), "op=<ufunc 'add'>: the operations are sum"),
    ("op of all_reduce", comm(lambda c: c.all_reduce(X, ["sum"])), "op=['sum']: the operations are sum"),
    (
        "algorithm of all_reduce",
        comm(lambda c: c.all_reduce(X, algorithm="tree")),
        "algorithm='tree': all_reduce has ring, recursive_doubling, rabenseifner, circulant, hierarchical, rings",
    ),
    ("algorithm", comm(lambda c: c.all_reduce(X, algorithm=["ring"])), "algorithm=['ring']: all_reduce has ring,"),
    (
        "ranks_per_node",
        comm(lambda c: c.all_reduce(X, algorithm="hierarchical")),
        "ranks_per_node=None: the hierarchical algorithm needs a divisor of 2",
    ),
    (
        "ranks_per_node",
        on(4, lambda c: c.all_reduce(X, algorithm="hierarchical", ranks_per_node=3)),
        "ranks_per_node=3: the hierarchical algorithm needs a divisor of 4",
    ),
    (
        "ranks_per_node",
        comm(lambda c: c.all_reduce(X, algorithm="hierarchical", ranks_per_node=0)),
        "ranks_per_node=0: the hierarchical algorithm needs a divisor of 2",
    ),
    (
        "ranks_per_node",
        comm(lambda c: c.all_reduce(X, algorithm="hierarchical", ranks_per_node="2")),
        "ranks_per_node='2': must be a whole number",
    ),
    (
        "ranks_per_node",
        comm(lambda c: c.all_reduce(X, ranks_per_node=2)),
        "ranks_per_node=2: only the algorithms hierarchical, rings, grid take it",
    ),
    ("x of reduce", comm(lambda c: c.reduce({})), "x is a dict: a collective takes one array"),
    ("root of reduce", comm(lambda c: c.reduce(X, root=2)), "root=2: the ranks of this group are 0 to 1"),
    ("op of reduce", comm(lambda c: c.reduce(X, op=None)), "op=None: the operations are sum, prod, max, min"),
    ("x of broadcast", comm(lambda c: c.broadcast("X")), "x is 'X' (str): a message carries arrays"),
    ("root of broadcast", comm(lambda c: c.broadcast(X, "0")), "root='0': must be a whole number"),
    ("x of all_gather", comm(lambda c: c.all_gather(None)), "x is None (NoneType): a message carries arrays"),
    ("axis of all_gather", comm(lambda c: c.all_gather(X, 2)), "axis=2: the array has 2 axes"),
    ("axis of all_gather", comm(lambda c: c.all_gather(X, None)), "axis=None: must be a whole number"),
    ("axis of all_gather", comm(lambda c: c.all_gather(np.asarray(1.0))), "axis=0: the array has 0 axes"),
    (
        "algorithm of all_gather",
        comm(lambda c: c.all_gather(X, algorithm="tree")),
        "algorithm='tree': all_gather has ring, bruck, recursive_doubling, circulant, hierarchical",
    ),
    (
        "algorithm of all_gather",
        on(3, lambda c: c.all_gather(X, algorithm="recursive_doubling")),
        "algorithm='recursive_doubling': needs a power of two of ranks, not 3; use ring",
    ),
    ("counts of all_gather", comm(lambda c: c.all_gather(X, counts=[4])), "counts=[4]: needs one length, at least 0"),
    ("counts of one rank", lambda: run(lambda c: c.all_gather(X, counts=[1, 2]), 1), "at least 0, for each of 1 rank"),
    ("counts", comm(lambda c: c.all_gather(X, counts=8)), "counts=8: needs one length, at least 0, for each of 2"),
    ("counts", comm(lambda c: c.all_gather(X, counts=[4, -4])), "counts=[4, -4]: needs one length, at least 0"),
    ("counts", comm(lambda c: c.all_gather(X, counts=[4.0, 4.0])), "counts=[4.0, 4.0]: needs one length, at least 0"),
    ("counts", comm(lambda c: c.all_gather(X[:1], counts=[True, True])), "counts=[True, True]: needs one length, at"),
    (
        "counts of all_gather",
        comm(lambda c: c.all_gather(X, counts=[3, 4])),
        "counts=[3, 4]: rank 0 has 4 elements along the axis, not 3",
    ),
    (
        "counts of all_gather",
        comm(lambda c: c.all_gather(X, algorithm="bruck", counts=[4, 4])),
        "counts=[4, 4]: algorithm='bruck' needs equal pieces; use ring or hierarchical",
    ),
    (
        "out of all_gather",
        comm(lambda c: c.all_gather(X, out=np.ones((8, 2)))),
        "x has shape (4, 2): with out=, arrays of one axis are gathered",
    ),
    (
        "out of all_gather",
        comm(lambda c: c.all_gather(X[:, 0], out=np.ones(4))),
        "out is (4,) float64: an array (8,) of float64 is needed",
    ),
    (
        "out of all_gather",
        comm(lambda c: c.all_gather(X[:, 0], counts=[4, 4], out=np.ones(8, "f4"))),
        "out is (8,) float32: an array (8,) of float64 is needed",
    ),
    ("out", comm(lambda c: c.all_gather(X[:, 0], out=8)), "out is int: an array (8,) of float64 is needed"),
    ("out", comm(lambda c: c.all_gather(X[:, 0], out=READ_ONLY)), "out is read-only: the result is written there;"),
    ("out", on(1, lambda c: c.iall_gather(READ_ONLY, out=READ_ONLY)), "out is read-only: the result is written there;"),
    ("out", comm(lambda c: c.rank or c.all_gather(X[:, 0], out=READ_ONLY)), "out is read-only"),  # before they meet
    ("x of reduce_scatter", comm(lambda c: c.reduce_scatter((X,))), "x is a tuple: a collective takes one array"),
    (
        "axis of reduce_scatter",
        on(3, lambda c: c.reduce_scatter(X)),
        "axis=0: 4 elements along this axis do not divide among 3 ranks; use a multiple of 3, or pad, or give counts=",
    ),
    ("axis of reduce_scatter", comm(lambda c: c.reduce_scatter(X, -3)), "axis=-3: the array has 2 axes"),
    ("op of reduce_scatter", comm(lambda c: c.reduce_scatter(X, 0, "avg")), "op='avg': the operations are sum, prod"),
    (
        "algorithm of reduce_scatter",
        comm(lambda c: c.reduce_scatter(X, algorithm="bruck")),
        "algorithm='bruck': reduce_scatter has ring, recursive_halving, circulant, hierarchical",
    ),
    (
        "algorithm of reduce_scatter",
        on(6, lambda c: c.reduce_scatter(np.ones(6), algorithm="recursive_halving")),
        "algorithm='recursive_halving': needs a power of two of ranks, not 6; use ring",
    ),
    (
        "counts of reduce_scatter",
        comm(lambda c: c.reduce_scatter(X, counts=[1, 2])),
        "counts=[1, 2]: they add up to 3, but the axis has 4 elements",
    ),
    ("x of all_to_all", comm(lambda c: c.all_to_all([], 0, 0)), "x is a list: a collective takes one array"),
    ("split_axis", comm(lambda c: c.all_to_all(X, 5, 0)), "split_axis=5: the array has 2 axes"),
    (
        "split_axis",
        on(3, lambda c: c.all_to_all(X, 1, 0)),
        "split_axis=1: 2 elements along this axis do not divide among 3 ranks",
    ),
    ("concat_axis", comm(lambda c: c.all_to_all(X, 0, "1")), "concat_axis='1': must be a whole number"),
    (
        "algorithm of all_to_all",
        comm(lambda c: c.all_to_all(X, 0, 0, "ring")),
        "algorithm='ring': all_to_all has pairwise, bruck, grid, hierarchical",
    ),
    ("x of scatter", comm(lambda c: c.scatter(1)), "x is 1 (int): a message carries arrays"),
    ("root of scatter", comm(lambda c: c.scatter(X, root=-1)), "root=-1: the ranks of this group are 0 to 1"),
    ("axis of scatter", on(3, lambda c: c.scatter(X)), "axis=0: 4 elements along this axis do not divide among 3"),
    ("x of gather", comm(lambda c: c.gather({})), "x is a dict: a collective takes one array"),
    ("root of gather", comm(lambda c: c.gather(X, root=9)), "root=9: the ranks of this group are 0 to 1"),
    ("axis of gather", comm(lambda c: c.gather(X, axis=2)), "axis=2: the array has 2 axes"),
    ("x of iall_reduce", comm(lambda c: c.iall_reduce(1)), "x is 1 (int): a message carries arrays"),
    ("op of iall_reduce", comm(lambda c: c.iall_reduce(X, "mean")), "op='mean': the operations are sum"),
    ("algorithm", comm(lambda c: c.iall_reduce(X, algorithm="tree")), "algorithm='tree': all_reduce has ring"),
    (
        "algorithm of iall_reduce",
        comm(lambda c: c.iall_reduce(X, algorithm="hierarchical")),
        "ranks_per_node=None: the hierarchical algorithm needs a divisor of 2",
    ),
    ("x of iall_gather", comm(lambda c: c.iall_gather(None)), "x is None (NoneType): a message carries arrays"),
    ("axis of iall_gather", comm(lambda c: c.iall_gather(X, 3)), "axis=3: the array has 2 axes"),
    ("counts", comm(lambda c: c.iall_gather(X, counts=[1])), "counts=[1]: needs one length"),
    ("x of ireduce_scatter", comm(lambda c: c.ireduce_scatter(None)), "x is None (NoneType): a message carries"),
    ("axis", on(3, lambda c: c.ireduce_scatter(X)), "axis=0: 4 elements along this axis do not divide"),
    ("op", comm(lambda c: c.ireduce_scatter(X, 0, 5)), "op=5: the operations are sum, prod, max, min"),
    ("counts", comm(lambda c: c.ireduce_scatter(X, counts=[1, 1])), "counts=[1, 1]: they add up to 2, but"),
    # groups and notes
    ("color", comm(lambda c: c.split("red")), "color='red': must be a whole number"),
    ("color", comm(lambda c: c.split(0.5)), "color=0.5: must be a whole number"),
    ("key", comm(lambda c: c.split(0, key="first")), "key='first': must be a whole number"),
    ("name of split", comm(lambda c: c.split(0, name=5)), "name=5: must be a string"),
    ("name of compute", comm(lambda c: c.compute(5)), "name=5: must be a string"),
    ("flops of compute", comm(lambda c: c.compute("f", flops=-1)), "flops=-1: must be a number, at least 0 and finite"),
    ("bytes of compute", comm(lambda c: c.compute("f", bytes="9")), "bytes='9': must be a number, at least 0"),
    ("seconds", comm(lambda c: c.compute("f", seconds=float("inf"))), "seconds=inf: must be a number, at least 0"),
    ("seconds", comm(lambda c: c.compute("f", seconds=float("nan"))), "seconds=nan: must be a number, at least 0"),
    ("seconds", comm(lambda c: c.compute("f", seconds=1e300)), "seconds=1e+300: must be a number, at least 0 and less"),
    ("name of hold", comm(lambda c: c.hold(X)), "must be a string"),
    ("arrays of hold", comm(lambda c: c.hold("x", X, 3)), "arrays[1] is 3 (int): a message carries arrays"),
    # timelines
    *[
        (f"rank of {method}", lambda m=method, r=rank: getattr(DONE.timeline, m)(r), message)
        for method in ("messages", "bytes_sent", "held", "held_by_name", "peak_bytes", "busy", "waited")
        for rank, message in (
            (2, "rank=2: the timeline has ranks 0 to 1"),
            (-1, "rank=-1: the timeline has ranks 0 to 1"),
            ("0", "rank='0': must be a whole number"),
            (0.5, "rank=0.5: must be a whole number"),
        )
    ],
    ("path", lambda: DONE.timeline.save_chrome_trace(None), "path=None: must be a path"),
    ("path", lambda: DONE.timeline.save_chrome_trace(3), "path=3: must be a path"),
]


@pytest.mark.parametrize(("argument", "call", "message"), ROWS, ids=[f"{i} {row[0]}" for i, row in enumerate(ROWS)])
def test_bad_input_is_a_value_error_that_says_what_would_be_right(argument, call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_the_table_has_a_row_for_every_argument_of_every_public_function():
    import inspect

    from parlab.world import Comm, Run, Timeline

    named = {row[0].split(" ")[0] for row in ROWS}
    free = {
        "self",
        "cls",
        "label",
        "expected",
        "objects",
        "time",
    }  # anything is right: labels and prints are shown as text
    for owner in (Comm, Run, Timeline, Link, Device, Cluster):
        for name, function in inspect.getmembers(owner, callable):
            if not name.startswith("_") and inspect.isroutine(function) and name not in ("device_of", "link"):
                assert set(inspect.signature(function).parameters) - free <= named, (owner.__name__, name)
    for function in (run, per_rank, Link, Device, Cluster):
        assert set(inspect.signature(function).parameters) - free <= named, function


def test_numpy_integers_are_as_good_as_pythons():
    def program(comm):
        one = np.int64(1)
        comm.send(X, one) if comm.rank == 0 else comm.recv(np.uint8(0), X)
        comm.split(np.int32(3), key=one)
        comm.all_gather(X, np.int64(0), counts=np.array([4, 4]))
        comm.all_reduce(X, algorithm="hierarchical", ranks_per_node=np.int64(2))
        return comm.broadcast(X, one).shape

    assert run(program, np.int64(2)).results == [(4, 2)] * 2
