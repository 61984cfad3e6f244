"""Every collective and algorithm: its values against NumPy, its messages, bytes and picoseconds against closed forms.

Two closed forms stand beside each count: `<name>_cost`, which the notebooks print, and the formulas of the papers,
written here again without looking at the code, so that code and cost cannot be wrong together.
"""

from __future__ import annotations

from itertools import accumulate, pairwise, product
from math import ceil, floor, log2

import numpy as np
import pytest

from parlab.arrays import asarray, owning_buffer, to_numpy
from parlab.world import CLASSROOM, Cluster, Link, collectives, per_rank, run
from parlab.world.collectives.common import label_of, read_label
from tests.libraries import EACH_LIBRARY

SIZES = (1, 2, 3, 6, 8)  # of a ring, a power of two, odd, even: 1 to 17 find no other mistake
NODES = [(size, g) for size in SIZES for g in range(1, size + 1) if size % g == 0]
EVEN = Cluster.uniform(latency=3e-7, bandwidth=7e9)  # no step lasts a round number of picoseconds
LINK = EVEN.intra
INTRA, INTER = Link(1e-6, 5e9), Link(4e-6, 1e9)
OPERATIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
DTYPES = ("float32", "int8")  # one that rounds, one that overflows
ALL_REDUCES = ("ring", "recursive_doubling", "rabenseifner", "circulant", "hierarchical", "rings")


def nodes_of(g):
    return Cluster("nodes", CLASSROOM.device, g, INTRA, INTER, ports="a level")


def of_nodes(algorithm, g):
    """The argument of an algorithm that must know the nodes."""
    return {"ranks_per_node": g} if algorithm in ("hierarchical", "rings", "grid") else {}


def each(names, cases, strict):
    """The cases on NumPy, and those that are `strict` on the other libraries too: one a collective and algorithm."""
    chosen = [
        pytest.param(*library.values, *case, id="-".join(map(str, (library.id, *case))), marks=library.marks)
        for library in EACH_LIBRARY
        for case in cases
        if library.id == "numpy" or case in strict
    ]
    return pytest.mark.parametrize(("xp", *names), chosen)


def draw(xp, size, *shape, dtype="float64"):
    """One array a rank; whole numbers, so that every order of summation gives the same bits."""
    numbers = np.random.default_rng([size, *shape]).integers(-8, 9, (size, *shape))
    return [asarray(own, xp, dtype=getattr(xp, dtype)) for own in numbers]


def sum_of(xs):
    return np.sum([to_numpy(x) for x in xs], axis=0)


def counted(done):
    """What a run sent and how long it took: messages and bytes of each rank, makespan."""
    timeline = done.timeline
    ranks = range(timeline.size)
    return [timeline.messages(r) for r in ranks], [timeline.bytes_sent(r) for r in ranks], timeline.makespan


def between_nodes(done, g):
    """Bytes that each rank sent to other nodes of g ranks."""
    sent = [0] * done.timeline.size
    for t in done.timeline.transfers:
        sent[t.src] += t.nbytes * (t.src // g != t.dst // g)
    return sent


def cost_of(collective, algorithm, size, length, g):
    """The closed form in the package, of `length` float64 a rank; in an all-gather, of all ranks together."""
    cost = getattr(collectives, f"{algorithm}_{collective}_cost")
    links = (g, INTRA, INTER) if of_nodes(algorithm, g) else (LINK,)
    if collective == "all_reduce":
        return cost(size, length, 8, *links)
    piece = 8 * length // size
    in_pieces = collective in ("all_gather", "reduce_scatter") and algorithm != "hierarchical"
    return cost([piece] * size, *links) if in_pieces else cost(size, piece, *links)


def assert_cost(done, cost):
    assert counted(done) == (cost.messages, cost.nbytes, cost.picoseconds)


def assert_each_rank_has(results, expected):
    for result in results:
        np.testing.assert_array_equal(to_numpy(result), expected, strict=True)


# What each algorithm sends, if pieces are equal: (bytes of a rank's messages inside nodes, and between nodes), one
# after the other. N ranks, in k nodes of g; a piece has p bytes, and N pieces are an array


def windows(N):
    """Pieces that travel in each step of a circulant graph."""
    return [w - ceil(w / 2) for w in (ceil(N / 2**step) for step in range(ceil(log2(N))))]


def doublings(N):
    return [min(2**step, N - 2**step) for step in range(ceil(log2(N)))]


def halvings(N):
    return [N // 2**step for step in range(1, round(log2(N)) + 1)]


def with_bit(N):
    """The distances whose bit k is set, for each k."""
    return [sum(distance >> k & 1 for distance in range(N)) for k in range(ceil(log2(N)))]


SENT = {
    ("all_reduce", "ring"): lambda N, g, p: ([p] * 2 * (N - 1), []),
    ("all_reduce", "circulant"): lambda N, g, p: ([p * count for count in 2 * windows(N)], []),
    ("all_reduce", "hierarchical"): lambda N, g, p: ([N // g * p] * 2 * (g - 1), [p] * 2 * (N // g - 1)),
    ("all_reduce", "rings"): lambda N, g, p: (
        [p // g] * (2 * (N - 1) * (g if g == N else g - 1)),
        [p // g] * (2 * (N - 1) * (g < N)),
    ),
    ("all_gather", "ring"): lambda N, g, p: ([p] * (N - 1), []),
    ("all_gather", "bruck"): lambda N, g, p: ([p * count for count in doublings(N)], []),
    ("all_gather", "recursive_doubling"): lambda N, g, p: ([p * count for count in doublings(N)], []),
    ("all_gather", "circulant"): lambda N, g, p: ([p * count for count in windows(N)], []),
    ("all_gather", "hierarchical"): lambda N, g, p: ([N // g * p] * (g - 1), [p] * (N // g - 1)),
    ("reduce_scatter", "ring"): lambda N, g, p: ([p] * (N - 1), []),
    ("reduce_scatter", "recursive_halving"): lambda N, g, p: ([p * count for count in halvings(N)], []),
    ("reduce_scatter", "circulant"): lambda N, g, p: ([p * count for count in windows(N)], []),
    ("reduce_scatter", "hierarchical"): lambda N, g, p: ([N // g * p] * (g - 1), [p] * (N // g - 1)),
    ("all_to_all", "pairwise"): lambda N, g, p: ([p] * (N - 1), []),
    ("all_to_all", "bruck"): lambda N, g, p: ([p * count for count in with_bit(N)], []),
    ("all_to_all", "grid"): lambda N, g, p: ([p] * (g - 1), [p] * (N - g)),
    ("all_to_all", "hierarchical"): lambda N, g, p: ([N // g * p] * (g - 1), [g * p] * (N // g - 1)),
}  # fmt: skip


def usable(algorithm):
    """The (ranks, ranks a node) on which an algorithm is tried."""
    flat = [(size, size) for size in SIZES if "recursive" not in algorithm or size in (1, 2, 8)]
    return NODES if of_nodes(algorithm, 1) else flat


CASES = [(*which, *case) for which in SENT for case in usable(which[1])]
SHAPES = {  # of a rank's array, for N ranks, with the axis or axes
    "all_reduce": lambda N, g: [((2 * N * g,), {})],
    "all_gather": lambda N, g: [((2, 3, 4), {"axis": axis}) for axis in (0, 1, -1)],
    "reduce_scatter": lambda N, g: [
        ((2 * N, 3), {"axis": 0}),
        ((3, N), {"axis": 1}),
        ((1, 2, 3 * N), {"axis": -1}),
    ],
    "all_to_all": lambda N, g: [
        ((2 * N, N, 3 * N), {"split_axis": split, "concat_axis": concat})
        for split, concat in ((0, 0), (1, 0), (0, 1), (-1, 2))
    ],
}


def expected(collective, xs, axis=0, split_axis=0, concat_axis=0):
    """Each rank's result, from NumPy."""
    size, whole = len(xs), [to_numpy(x) for x in xs]
    if collective == "all_reduce":
        return [np.sum(whole, axis=0)] * size
    if collective == "all_gather":
        return [np.concatenate(whole, axis=axis)] * size
    if collective == "reduce_scatter":
        return np.split(np.sum(whole, axis=0), size, axis)
    pieces = [np.split(x, size, split_axis) for x in whole]
    return [np.concatenate([of_rank[rank] for of_rank in pieces], axis=concat_axis) for rank in range(size)]


@each(
    ("collective", "algorithm", "size", "g"),
    CASES,
    strict=[(*which, 8, 8) for which in SENT] + [(*which, 6, 3) for which in SENT],
)
def test_values_equal_numpys_and_messages_bytes_and_time_those_of_the_papers(xp, collective, algorithm, size, g):
    cluster = nodes_of(g) if of_nodes(algorithm, g) else EVEN
    for shape, axes in SHAPES[collective](size, g):
        xs = draw(xp, size, *shape)
        how = {**axes, **of_nodes(algorithm, g), "algorithm": algorithm}
        done = run(lambda comm, x: getattr(comm, collective)(x, **how), size, per_rank(xs), cluster=cluster)  # noqa: B023
        for result, right in zip(done.results, expected(collective, xs, **axes), strict=True):
            np.testing.assert_array_equal(to_numpy(result), right, strict=True)
        length = int(np.prod(shape)) * (size if collective == "all_gather" else 1)
        inside, between = SENT[collective, algorithm](size, g, 8 * length // size)
        near = cluster.intra if of_nodes(algorithm, g) else LINK
        times = sum(map(near.picoseconds, inside)), sum(map(INTER.picoseconds, between))
        time = max(times) if algorithm == "rings" else sum(times)  # rings cross beside what stays inside
        count, nbytes = len(inside + between), sum(inside + between)
        assert counted(done) == ([count] * size, [nbytes] * size, time)
        cost = cost_of(collective, algorithm, size, length, g)
        assert_cost(done, cost)
        if of_nodes(algorithm, g):
            assert between_nodes(done, g) == [sum(between)] * size


def test_every_algorithm_by_name_is_one_of_those():
    from parlab.world.collectives import algorithms

    tables = {name: getattr(algorithms, name.upper()) for name in SHAPES}
    folded = {("all_reduce", "recursive_doubling"), ("all_reduce", "rabenseifner")}
    assert {(name, algorithm) for name, known in tables.items() for algorithm in known} == SENT.keys() | folded


# All-reduce: any length, operation and dtype; recursive doubling and Rabenseifner, where ranks do not all send the same


def all_reduce_cases():
    return [(name, size, g) for name in ALL_REDUCES for size, g in (NODES if of_nodes(name, 1) else zip(SIZES, SIZES))]  # noqa: B905


@each(("algorithm", "size", "g"), all_reduce_cases(), strict=[(name, 6, g) for name in ALL_REDUCES for g in (3, 6)])
def test_all_reduce_of_every_length_equals_numpy_and_its_cost(xp, algorithm, size, g):
    """Nothing, less than one element a rank, not a multiple, a multiple; of a slow library one, uneven."""
    cluster = nodes_of(g) if of_nodes(algorithm, g) else EVEN
    for length in sorted({0, 1, size - 1, size + 2, 3 * size, size * g + 1}) if xp is np else [size + 2]:
        xs = draw(xp, size, length)
        how = {"algorithm": algorithm, **of_nodes(algorithm, g)}
        done = run(lambda comm, x: comm.all_reduce(x, **how), size, per_rank(xs), cluster=cluster)  # noqa: B023
        assert_each_rank_has(done.results, sum_of(xs))
        cost = cost_of("all_reduce", algorithm, size, length, g)
        messages, nbytes, time = counted(done)
        assert (messages, nbytes) == (cost.messages, cost.nbytes)
        if algorithm == "rings":  # its form is the longest piece's time
            assert time <= cost.picoseconds
        else:
            assert time == cost.picoseconds


@each(
    ("algorithm", "dtype"), [(a, d) for a in ALL_REDUCES for d in DTYPES], strict=[(a, "float32") for a in ALL_REDUCES]
)
@pytest.mark.parametrize("op", OPERATIONS)
def test_all_reduce_of_6_ranks_does_sum_prod_max_min_in_the_arrays_own_dtype(xp, algorithm, op, dtype):
    xs = draw(xp, 6, 2, 5, dtype=dtype)
    done = run(lambda comm, x: comm.all_reduce(x, op, algorithm, **of_nodes(algorithm, 3)), 6, per_rank(xs))
    assert_each_rank_has(done.results, OPERATIONS[op].reduce([to_numpy(x) for x in xs], axis=0, dtype=dtype))


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_all_ranks_of_an_all_reduce_hold_the_same_bits_even_where_sums_round(algorithm, size):
    xs = [np.random.default_rng([size, rank]).standard_normal(101) for rank in range(size)]
    how = of_nodes(algorithm, 2 if size % 2 == 0 else 3)
    results = run(lambda comm, x: comm.all_reduce(x, algorithm=algorithm, **how), size, per_rank(xs)).results
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], sum_of(xs), rtol=1e-12)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", ["recursive_doubling", "rabenseifner"])
def test_doubling_takes_log2_N_steps_and_2_more_with_n_more_bytes_where_N_is_no_power(algorithm, size):
    steps = floor(log2(size))
    core, extra = 2**steps, size - 2**steps  # ranks beyond the power of two; of as many pairs one rank folds away
    n = 8 * 3 * core
    halves = [n // 2**step for step in range(1, steps + 1)]  # a reduce-scatter, then an all-gather
    sent = [n] * steps if algorithm == "recursive_doubling" else halves + halves[::-1]
    done = run(lambda comm: comm.all_reduce(np.ones(3 * core), algorithm=algorithm), size, cluster=EVEN)
    messages = [1 if r % 2 == 0 else len(sent) + 1 for r in range(2 * extra)] + [len(sent)] * (size - 2 * extra)
    nbytes = [n if r % 2 == 0 else sum(sent) + n for r in range(2 * extra)] + [sum(sent)] * (size - 2 * extra)
    time = sum(map(LINK.picoseconds, sent)) + 2 * (extra > 0) * LINK.picoseconds(n)
    assert counted(done) == (messages, nbytes, time)


# Pieces of other lengths, and a result that is written where the caller says


@each(("size",), [(size,) for size in SIZES], strict=[(3,)])
def test_ring_all_gather_and_reduce_scatter_take_counts_of_every_kind(xp, size):
    for counts in ([(3 * r + size) % 4 for r in range(size)], [0] * size, [5] + [0] * (size - 1)):
        nbytes = [8 * 2 * count for count in counts]
        shards = [asarray(np.full((2, count), r), xp, xp.float64) for r, count in enumerate(counts)]
        done = run(lambda comm, x: comm.all_gather(x, 1, counts=counts), size, per_rank(shards), cluster=EVEN)  # noqa: B023
        assert_each_rank_has(done.results, np.concatenate([to_numpy(x) for x in shards], axis=1))
        assert_cost(done, collectives.ring_all_gather_cost(nbytes, LINK))
        total = sum(nbytes)
        assert counted(done)[1] == [total - nbytes[(r + 1) % size] for r in range(size)]  # all but what comes back last

        xs = draw(xp, size, 2, sum(counts))
        done = run(lambda comm, x: comm.reduce_scatter(x, 1, counts=counts), size, per_rank(xs), cluster=EVEN)  # noqa: B023
        pieces = np.split(sum_of(xs), np.cumsum(counts)[:-1], axis=1)
        for result, piece in zip(done.results, pieces, strict=True):
            np.testing.assert_array_equal(to_numpy(result), piece, strict=True)
        assert_cost(done, collectives.ring_reduce_scatter_cost(nbytes, LINK))
        assert counted(done)[1] == [total - own for own in nbytes]


@pytest.mark.parametrize(("size", "g"), [(1, 1), (3, 3), (6, 1), (6, 2), (8, 4)])
def test_uneven_pieces_cross_to_each_other_node_once_at_once_and_in_the_background(size, g):
    """Pieces of 0, 1, 2, ... elements: all ranks together send N − 1 times all of them, (k − 1) times between nodes."""
    counts = [(3 * rank) % 5 for rank in range(size)]
    total, k = sum(counts), size // g
    xs = draw(np, size, total)
    own = [np.arange(start, stop) for start, stop in pairwise(accumulate(counts, initial=0))]

    def program(comm, x, mine):
        how = {"algorithm": "hierarchical", "counts": counts, "ranks_per_node": g}
        return comm.all_gather(mine, **how), comm.reduce_scatter(x, **how)

    done = run(program, size, per_rank(xs), per_rank(own), cluster=nodes_of(g))
    gathered, scattered = zip(*done.results, strict=True)
    assert all(np.array_equal(x, np.arange(total)) for x in gathered)
    assert np.array_equal(np.concatenate(scattered), np.sum(xs, axis=0))
    assert sum(counted(done)[1]) == 2 * (size - 1) * total * 8
    assert sum(between_nodes(done, g)) == 2 * (k - 1) * total * 8


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("counts", [None, [2, 2, 2], [4, 0, 2]])
def test_all_gather_writes_into_out_where_each_rank_may_hold_its_own_part_already(xp, counts, beside):
    whole = np.arange(6.0)

    def program(comm):
        start = sum((counts or [2, 2, 2])[: comm.rank])
        own = slice(start, start + (counts or [2, 2, 2])[comm.rank])
        out = xp.zeros((6,), dtype=xp.float64)
        out[own] = asarray(whole[own], xp)
        if beside:
            result = comm.iall_gather(out[own], counts=counts, out=out).wait()
        else:
            result = comm.all_gather(out[own], counts=counts, out=out)
        return result, owning_buffer(result) is owning_buffer(out)

    for result, in_place in run(program, 3).results:
        np.testing.assert_array_equal(to_numpy(result), whole)
        assert in_place


# One special rank: trees, incast, fan-out


@each(("size",), [(size,) for size in SIZES], strict=[(6,)])
def test_broadcast_and_reduce_take_ceil_log2_N_steps_from_every_root(xp, size):
    n, steps = 8 * 6, ceil(log2(size))
    xs = draw(xp, size, 2, 3)
    for root in {0, size // 2, size - 1}:
        done = run(lambda comm, x: comm.broadcast(x, root), size, per_rank(xs), cluster=EVEN)  # noqa: B023
        assert_each_rank_has(done.results, to_numpy(xs[root]))
        assert_cost(done, collectives.binomial_broadcast_cost(size, n, root, LINK))
        messages, nbytes, time = counted(done)
        assert sum(messages) == size - 1
        assert messages[root] == steps == max(messages)
        assert nbytes == [n * count for count in messages]
        assert time == steps * LINK.picoseconds(n)

        done = run(lambda comm, x: comm.reduce(x, root), size, per_rank(xs), cluster=EVEN)  # noqa: B023
        np.testing.assert_array_equal(to_numpy(done.results[root]), sum_of(xs), strict=True)
        assert [rank for rank, result in enumerate(done.results) if result is not None] == [root]
        assert_cost(done, collectives.binomial_reduce_cost(size, n, root, LINK))
        assert counted(done)[0] == [int(rank != root) for rank in range(size)]
        assert counted(done)[2] == steps * LINK.picoseconds(n)


@each(("size",), [(size,) for size in SIZES], strict=[(6,)])
def test_gather_is_an_incast_and_scatter_a_fan_out_of_N_minus_1_messages_one_after_the_other(xp, size):
    piece = 8 * 6
    for root in {0, size // 2, size - 1}:
        for axis in (0, -1):
            xs = draw(xp, size, 2, 3)
            done = run(lambda comm, x: comm.gather(x, root, axis), size, per_rank(xs), cluster=EVEN)  # noqa: B023
            joined = np.concatenate([to_numpy(x) for x in xs], axis=axis)
            np.testing.assert_array_equal(to_numpy(done.results[root]), joined, strict=True)
            assert [rank for rank, result in enumerate(done.results) if result is not None] == [root]
            assert_cost(done, collectives.linear_gather_cost(size, piece, root, LINK))
            assert counted(done)[2] == (size - 1) * LINK.picoseconds(piece)

            whole = asarray(joined, xp)
            done = run(lambda comm: comm.scatter(whole, root, axis), size, cluster=EVEN)  # noqa: B023
            for result, x in zip(done.results, xs, strict=True):
                np.testing.assert_array_equal(to_numpy(result), to_numpy(x), strict=True)
            assert_cost(done, collectives.linear_scatter_cost(size, piece, root, LINK))
            assert counted(done)[2] == (size - 1) * LINK.picoseconds(piece)


@pytest.mark.parametrize("size", SIZES)
def test_barrier_takes_ceil_log2_N_latencies_and_no_bytes(size):
    done = run(lambda comm: comm.barrier(), size, cluster=EVEN)
    steps = ceil(log2(size))
    assert counted(done) == ([steps] * size, [0] * size, steps * 300_000)
    assert_cost(done, collectives.dissemination_barrier_cost(size, LINK))


# Numbers from elsewhere


PUBLISHED = {7: (99.75, 105.75, 197.4), 12: (179.9, 193.9, 359.6)}


@pytest.mark.parametrize("size", PUBLISHED)
def test_8000_bytes_a_block_at_1_us_and_1024_MB_a_second_take_the_published_times(size):
    link = Link(1e-6, 1.024e9)
    costs = [getattr(collectives, f"{name}_all_reduce_cost") for name in ("circulant", "ring", "rabenseifner")]
    found = [cost(size, 1000 * size, 8, link).picoseconds / 1e6 for cost in costs]
    assert found == pytest.approx(PUBLISHED[size], abs=0.1)


@pytest.mark.parametrize("parts", [1, 2, 5, 6])
def test_a_label_is_read_as_the_pieces_that_it_was_written_for_and_no_other_text_is(parts):
    for how, first, count in product(("add", "take"), range(parts), range(1, parts + 1)):
        pieces = sorted((first + number) % parts for number in range(count))
        assert read_label(label_of(how, first, count, parts), parts) == (how, pieces)
    for label in (None, "", "add", "add piece", f"add piece {parts}", "keep piece 0", "add piece 0 of 4", "ring"):
        assert read_label(label, parts) is None
