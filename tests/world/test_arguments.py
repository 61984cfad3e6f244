"""Bad input is refused before any work, with the argument's name, its value and what would be right: each rule with
every kind of bad value once, and each argument that it guards with one.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from parlab.world import CLASSROOM, Cluster, Device, Link, fit_cluster, per_rank, run

X = np.ones((4, 2))
FLAT = X[:, 0]
LINK = Link(1e-6, 1e9)
DEVICE = CLASSROOM.device
READ_ONLY = np.ones(8)
READ_ONLY.flags.writeable = False
DONE = run(lambda comm: None, 2)
NAN, INF = float("nan"), float("inf")


def of(call, /, *args, size=2, **how):
    """`comm.call(...)` on every rank of `size`."""
    return lambda: run(lambda comm: getattr(comm, call)(*args, **how), size)


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


TAKES_AN_AXIS = ("all_gather", "reduce_scatter", "scatter", "gather", "iall_gather", "ireduce_scatter")
COLLECTIVES = ("all_reduce", "reduce", "broadcast", "iall_reduce", *TAKES_AN_AXIS)
SUMS = ("all_reduce", "reduce", "reduce_scatter")
ALGORITHMS = {
    "all_reduce": "ring, recursive_doubling, rabenseifner, circulant, hierarchical, rings",
    "all_gather": "ring, bruck, recursive_doubling, circulant, hierarchical",
    "reduce_scatter": "ring, recursive_halving, circulant, hierarchical",
}
hierarchical = partial(of, "all_reduce", X, algorithm="hierarchical")
two_levels = "the hierarchical algorithm needs a divisor of"

ROWS = [
    # run
    (lambda: run(None, 2), "program=None: must be a function whose first parameter is the rank's comm"),
    *[
        (lambda f=f: run(f, 2), ": it yields, so a call would run nothing of it; return instead")
        for f in (Yields(), partial(yields, x=1), awaits_and_yields)
    ],
    (lambda: run(awaits, 2), ": it is async, so a call would run nothing of it; use plain def"),
    *[(lambda v=v: run(print, v), f"size={v!r}: must be a whole number") for v in (True, 2.0, "2")],
    *[(lambda v=v: run(print, v), f"size={v}: needs at least 1 rank") for v in (0, -3)],
    (lambda: run(print, 2, engine="mpi!"), "engine='mpi!': the engines are threads, mpi"),
    (lambda: run(print, 2, cluster="fast"), "cluster='fast': must be a Cluster"),
    (lambda: run(print, 2, collectives="native"), "collectives='native': on threads they are ours"),
    (lambda: run(print, 2, engine="mpi", collectives=None), "collectives=None: on mpi they are ours, or native"),
    (lambda: run(print, 3, per_rank([1, 2])), "items: per_rank has 2, but size=3: give one a rank"),
    (lambda: run(print, 2, [per_rank([1, 2])]), "per_rank inside a list or dict: wrap the whole argument"),
    (lambda: run(print, 2, x={"w": per_rank([1, 2])}), "per_rank inside a list or dict: wrap the whole"),
    *[(lambda v=v: per_rank(v), f"items={v}: per_rank takes a list, one item a rank") for v in (5, {"a": 1}, {1, 2})],
    (lambda: per_rank("ab"), "items='ab': per_rank takes a list, one item a rank"),
    (lambda: DONE.on(None), "cluster=None: must be a Cluster"),
    (lambda: fit_cluster("threads", 1), "size=1: needs at least 2 ranks"),
    # Link, Device, Cluster
    *[
        (lambda v=v: Link(v, 1), f"latency={v!r}: must be a number, at least 0 and less than 1e+18")
        for v in (-1, NAN, "1", 1e300)
    ],
    *[(lambda v=v: Link(0, v), f"bandwidth={v}: must be a number greater than 0") for v in (0, NAN, None)],
    (lambda: Link(0, 0.5), "bandwidth=0.5: must be at least 1 byte a second"),
    *[(lambda v=v: LINK.picoseconds(v), f"nbytes={v}: must be a whole number, at least 0") for v in (-1, 1.5)],
    (device(name=None), "name=None: must be a string"),
    *[(device(**{f: 0}), f"{f}=0: must be a number greater than 0") for f in ("flops", "memory_bandwidth", "memory")],
    (lambda: DEVICE.seconds(-1, 0), "flops=-1: must be a number, at least 0 and finite"),
    (lambda: DEVICE.seconds(0, None), "nbytes=None: must be a number, at least 0 and finite"),
    (
        lambda: Device("slow", 1e-320, 1e9).seconds(1, 0),
        "flops=1, nbytes=0: they take inf seconds on slow (9.99989e-321 a second, memory 1e+09 bytes a second)",
    ),
    (
        lambda: run(lambda c: c.compute("f", bytes=1e300), 2, cluster=Cluster.uniform(0, 1)).timeline,
        "flops=0, nbytes=1e+300: they take 1e+289 seconds on uniform",
    ),
    (cluster(name=3), "name=3: must be a string"),
    (cluster(device="A100"), "device='A100': must be a Device"),
    (cluster(device=()), "device=(): must be a Device"),
    (cluster(ranks_per_node=0), "ranks_per_node=0: must be a whole number, at least 1"),
    (cluster(intra=1e9), "intra=1000000000.0: must be a Link"),
    (cluster(ports=0), "ports=0: must be a whole number, at least 1, or None"),
    (lambda: Cluster.uniform(0, 1, flops=-1), "flops=-1: must be a number greater than 0"),
    (lambda: Cluster.uniform(0, 1, memory_bandwidth=0), "memory_bandwidth=0: must be a number greater than 0"),
    (lambda: CLASSROOM.reaching(0), "kernel=0: must be a number greater than 0"),
    (lambda: CLASSROOM.reaching(1.01), "kernel=1.01: must be at most 1, the peak"),
    # values
    (of("send", None, 0), "x is None (NoneType): a message carries arrays"),
    (of("send", [X, "text"], 0), "x[1] is 'text' (str): a message carries arrays"),
    (of("send", {"k": [1]}, 0), "x['k'][0] is 1 (int): a message carries arrays"),
    (of("send", {1: X}, 0), "x has the key 1: the keys of a message are strings"),
    (of("send", np.array(["a"]), 0), "x has dtype <U1: a message carries numbers"),
    (of("send", np.array([{}]), 0), "x has dtype object: a message carries numbers"),
    (of("send", X.astype(">f8"), 0), "x has dtype >f8: a message carries numbers in this machine's byte order"),
    (of("send", np.ma.ones(3), 0), "x is a masked array: a message carries no mask; fill it, or"),
    (of("sendrecv", 5, 0, 0), "x is 5 (int): a message carries arrays"),
    (of("sendrecv", X, 0, 0, like="X"), "like is 'X' (str): a message carries arrays"),
    (of("recv", 0, None), "like is None (NoneType): a message carries arrays"),
    (of("irecv", 0, (2, 3)), "like[0] is 2 (int): a message carries arrays"),
    (of("hold", "x", X, 3), "arrays[1] is 3 (int): a message carries arrays"),
    *[(of(name, 2), "x is 2 (int): a message carries arrays") for name in COLLECTIVES],
    *[(of(name, [X]), "x is a list: a collective takes one array") for name in COLLECTIVES],
    (of("all_to_all", (X,), 0, 0), "x is a tuple: a collective takes one array"),
    # ranks
    *[(of("send", X, v), f"dst={v!r}: must be a whole number") for v in ("0", 1.5, None)],
    *[(of("send", X, v), f"dst={v}: the ranks of this group are 0 to 1") for v in (2, -1)],
    (of("sendrecv", X, 7, 0), "dst=7: the ranks of this group are 0 to 1"),
    (of("sendrecv", X, 0, 7), "src=7: the ranks of this group are 0 to 1"),
    (of("recv", -1, X), "src=-1: the ranks of this group are 0 to 1"),
    (of("irecv", np.ones(2), X), "src=array([1., 1.]): must be a whole number"),
    *[
        (of(name, X, root=2), "root=2: the ranks of this group are 0 to 1")
        for name in ("reduce", "broadcast", "scatter", "gather")
    ],
    # collectives
    *[(of(name, X, axis=2), "axis=2: the array has 2 axes") for name in TAKES_AN_AXIS],
    *[(of("all_gather", X, v), f"axis={v!r}: must be a whole number") for v in (None, "1")],
    (of("all_gather", X, -3), "axis=-3: the array has 2 axes"),
    (of("all_to_all", X, 5, 0), "split_axis=5: the array has 2 axes"),
    (of("all_to_all", X, 0, "1"), "concat_axis='1': must be a whole number"),
    (of("all_to_all", X, 1, 0, size=3), "split_axis=1: 2 elements along this axis do not divide among 3 ranks"),
    (of("scatter", X, size=3), "axis=0: 4 elements along this axis do not divide among 3"),
    *[
        (of(name, X, size=3), "do not divide among 3 ranks; use a multiple of 3, or pad, or give counts=")
        for name in ("reduce_scatter", "ireduce_scatter")
    ],
    *[(of(name, X, op="mean"), "op='mean': the operations are sum, prod, max, min") for name in SUMS],
    *[(of("all_reduce", X, op), "the operations are sum, prod, max, min") for op in (np.add, ["sum"], None)],
    (of("all_reduce", X > 0), "op='sum': x is an array of booleans"),
    *[(of("all_reduce", X + 1j, op), f"op='{op}': complex numbers have no order") for op in ("max", "min")],
    *[(of(n, X, algorithm="tree"), f"algorithm='tree': {n} has {known}") for n, known in ALGORITHMS.items()],
    (of("all_to_all", X, 0, 0, "ring"), "algorithm='ring': all_to_all has pairwise, bruck, grid, hierarchical"),
    (of("all_gather", X, algorithm="recursive_doubling", size=3), "needs a power of two of ranks, not 3; use ring"),
    (
        of("reduce_scatter", np.ones(6), algorithm="recursive_halving", size=6),
        "needs a power of two of ranks, not 6; use ring",
    ),
    (hierarchical(), f"ranks_per_node=None: {two_levels} 2"),
    (hierarchical(ranks_per_node=3, size=4), f"ranks_per_node=3: {two_levels} 4"),
    (hierarchical(ranks_per_node=0), f"ranks_per_node=0: {two_levels} 2"),
    (hierarchical(ranks_per_node="2"), "ranks_per_node='2': must be a whole number"),
    (of("all_reduce", X, ranks_per_node=2), "ranks_per_node=2: only the algorithms hierarchical, rings, grid take it"),
    *[
        (of("all_gather", X, counts=v), f"counts={v}: needs one length, at least 0, for each of 2 ranks")
        for v in ([4], 8, [4, -4], [4.0, 4.0], [True, True])
    ],
    (of("all_gather", X, counts=[1, 2], size=1), "at least 0, for each of 1 rank"),
    (of("all_gather", X, counts=[4, 3]), "counts=[4, 3]: rank 1 has 4 elements along the axis, not 3"),
    (of("all_gather", X, algorithm="bruck", counts=[4, 4]), "algorithm='bruck' needs equal pieces; use ring or hiera"),
    (of("iall_gather", X, counts=[1]), "counts=[1]: needs one length"),
    (of("reduce_scatter", X, counts=[1, 2]), "counts=[1, 2]: they add up to 3, but the axis has 4 elements"),
    (of("all_gather", X, out=np.ones((8, 2))), "x has shape (4, 2): with out=, arrays of one axis are gathered"),
    (of("all_gather", FLAT, out=np.ones(4)), "out is (4,) float64: an array (8,) of float64 is needed"),
    (of("all_gather", FLAT, out=np.ones(8, "f4")), "out is (8,) float32: an array (8,) of float64 is needed"),
    (of("all_gather", FLAT, out=8), "out is int: an array (8,) of float64 is needed"),
    (of("iall_gather", READ_ONLY, out=READ_ONLY, size=1), "out is read-only: the result is written there;"),
    (lambda: run(lambda c: c.rank or c.all_gather(FLAT, out=READ_ONLY), 2), "out is read-only"),  # before they meet
    # groups and notes
    *[(of("split", v), f"color={v!r}: must be a whole number") for v in ("red", 0.5)],
    (of("split", 0, key="first"), "key='first': must be a whole number"),
    (of("split", 0, name=5), "name=5: must be a string"),
    (of("compute", 5), "name=5: must be a string"),
    (of("compute", "f", flops=-1), "flops=-1: must be a number, at least 0 and finite"),
    *[(of("compute", "f", seconds=v), f"seconds={v}: must be a number, at least 0") for v in (INF, NAN, 1e300)],
    (of("hold", X), "must be a string"),
    # timelines
    *[(lambda v=v: DONE.timeline.held(v), f"rank={v!r}: must be a whole number") for v in ("0", 0.5)],
    *[
        (lambda m=m, v=v: getattr(DONE.timeline, m)(v), f"rank={v}: the timeline has ranks 0 to 1")
        for m in ("messages", "bytes_sent", "held", "held_by_name", "peak_bytes", "busy", "waited")
        for v in (2, -1)
    ],
    *[(lambda v=v: DONE.timeline.save_chrome_trace(v), f"path={v}: must be a path") for v in (None, 3)],
]


@pytest.mark.parametrize(("call", "message"), ROWS, ids=[f"{i} {row[1]:.30}" for i, row in enumerate(ROWS)])
def test_bad_input_is_a_value_error_that_says_what_would_be_right(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_numpy_integers_are_as_good_as_pythons():
    def program(comm):
        one = np.int64(1)
        comm.send(X, one) if comm.rank == 0 else comm.recv(np.uint8(0), X)
        comm.split(np.int32(3), key=one)
        comm.all_gather(X, np.int64(0), counts=np.array([4, 4]))
        comm.all_reduce(X, algorithm="hierarchical", ranks_per_node=np.int64(2))
        return comm.broadcast(X, one).shape

    assert run(program, np.int64(2)).results == [(4, 2)] * 2
