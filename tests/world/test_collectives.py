"""Every collective and algorithm: its values against NumPy, its messages, bytes and picoseconds against closed forms.

Two closed forms stand beside each count: `<name>_cost`, which the notebooks print, and the formulas of the papers,
written here again without looking at the code, so that code and cost cannot be wrong together.
"""

from __future__ import annotations

from math import ceil, floor, log2

import numpy as np
import pytest

from parlab.arrays import asarray, owning_buffer, to_numpy
from parlab.world import CLASSROOM, Cluster, Link, collectives, per_rank, run
from tests.libraries import EACH_LIBRARY

SIZES = range(1, 18)
POWERS_OF_TWO = (1, 2, 4, 8, 16)
EVEN = Cluster.uniform(latency=3e-7, bandwidth=7e9)  # no step lasts a round number of picoseconds
LINK = EVEN.intra
OPERATIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
DTYPES = ("float64", "float32", "int64", "int8")
ALL_REDUCES = ("ring", "recursive_doubling", "rabenseifner")


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


def assert_cost(done, cost):
    assert counted(done) == (cost.messages, cost.nbytes, cost.picoseconds)


def assert_each_rank_has(results, expected):
    for result in results:
        np.testing.assert_array_equal(to_numpy(result), expected, strict=True)


def assert_bitwise_equal(results):
    first = to_numpy(results[0]).tobytes()
    assert all(to_numpy(result).tobytes() == first for result in results)


def some_lengths(size, xp=np):
    """Nothing, less than one element a rank, not a multiple, a multiple; of a slow library one, uneven."""
    return sorted({0, 1, size - 1, size + 2, 3 * size}) if xp is np else [size + 2]


# All-reduce


@each(("size",), [(size,) for size in SIZES], strict=[(7,)])
@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_all_reduce_equals_numpy_and_its_cost_at_even_and_uneven_lengths(xp, algorithm, size):
    cost = getattr(collectives, f"{algorithm}_all_reduce_cost")
    for length in some_lengths(size, xp):
        xs = draw(xp, size, length)
        done = run(lambda comm, x: comm.all_reduce(x, algorithm=algorithm), size, per_rank(xs), cluster=EVEN)
        assert_each_rank_has(done.results, sum_of(xs))
        assert_cost(done, cost(size, length, 8, LINK))


@each(
    ("algorithm", "dtype"), [(a, d) for a in ALL_REDUCES for d in DTYPES], strict=[(a, "float32") for a in ALL_REDUCES]
)
@pytest.mark.parametrize("op", OPERATIONS)
def test_all_reduce_of_7_ranks_does_sum_prod_max_min_in_the_arrays_own_dtype(xp, algorithm, op, dtype):
    xs = draw(xp, 7, 2, 5, dtype=dtype)
    done = run(lambda comm, x: comm.all_reduce(x, op, algorithm), 7, per_rank(xs))
    assert_each_rank_has(done.results, OPERATIONS[op].reduce([to_numpy(x) for x in xs], axis=0, dtype=dtype))


@pytest.mark.parametrize("size", [2, 3, 6, 8, 13])
@pytest.mark.parametrize("algorithm", [*ALL_REDUCES, "hierarchical"])
def test_all_ranks_of_an_all_reduce_hold_the_same_bits_even_where_sums_round(algorithm, size):
    xs = [np.random.default_rng([size, rank]).standard_normal(101) for rank in range(size)]
    node = {"ranks_per_node": 2 if size % 2 == 0 else 1} if algorithm == "hierarchical" else {}
    results = run(lambda comm, x: comm.all_reduce(x, algorithm=algorithm, **node), size, per_rank(xs)).results
    assert_bitwise_equal(results)
    np.testing.assert_allclose(results[0], sum_of(xs), rtol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_ring_all_reduce_takes_2_N_minus_1_steps_and_sends_2_n_N_minus_1_over_N(size):
    n = 8 * 5 * size
    done = run(lambda comm: comm.all_reduce(np.ones(5 * size)), size, cluster=EVEN)
    time_ = 2 * (size - 1) * LINK.picoseconds(n // size)
    assert counted(done) == ([2 * (size - 1)] * size, [2 * n * (size - 1) // size] * size, time_)


@pytest.mark.parametrize("size", SIZES)
def test_recursive_doubling_takes_log2_N_steps_of_the_whole_array_and_2_more_with_n_more_bytes_where_N_is_no_power(
    size,
):
    n = 8 * 11
    done = run(lambda comm: comm.all_reduce(np.ones(11), algorithm="recursive_doubling"), size, cluster=EVEN)
    steps = floor(log2(size))
    extra = size - 2**steps  # ranks beyond the power of two; of as many pairs one rank sends once and receives once
    folded = [r % 2 == 0 for r in range(2 * extra)]
    messages = [1 if outside else steps + 1 for outside in folded] + [steps] * (size - 2 * extra)
    time_ = (steps + 2 * (extra > 0)) * LINK.picoseconds(n)
    assert counted(done) == (messages, [n * count for count in messages], time_)


@pytest.mark.parametrize("size", SIZES)
def test_rabenseifner_takes_2_log2_N_steps_and_sends_2_n_N_minus_1_over_N_with_folding_where_N_is_no_power(size):
    steps = floor(log2(size))
    core, extra = 2**steps, size - 2**steps
    n = 8 * 3 * core
    done = run(lambda comm: comm.all_reduce(np.ones(3 * core), algorithm="rabenseifner"), size, cluster=EVEN)
    inside = 2 * n * (core - 1) // core
    nbytes = [n if r % 2 == 0 else inside + n for r in range(2 * extra)] + [inside] * (size - 2 * extra)
    messages = [1 if r % 2 == 0 else 2 * steps + 1 for r in range(2 * extra)] + [2 * steps] * (size - 2 * extra)
    halves = sum(LINK.picoseconds(n // 2**step) for step in range(1, steps + 1))
    time_ = 2 * halves + 2 * (extra > 0) * LINK.picoseconds(n)
    assert counted(done) == (messages, nbytes, time_)


HIERARCHIES = [(nodes, per_node) for nodes in range(1, 6) for per_node in range(1, 6)]


@each(("nodes", "per_node"), HIERARCHIES, strict=[(2, 3)])
def test_hierarchical_sends_2_n_g_minus_1_over_g_inside_and_2_n_k_minus_1_over_gk_between(xp, nodes, per_node):
    size, length = nodes * per_node, 3 * nodes * per_node
    cluster = Cluster("nodes", CLASSROOM.device, per_node, Link(1e-6, 5e9), Link(4e-6, 1e9))
    xs = draw(xp, size, length)
    done = run(
        lambda comm, x: comm.all_reduce(x, algorithm="hierarchical", ranks_per_node=per_node),
        size,
        per_rank(xs),
        cluster=cluster,
    )
    assert_each_rank_has(done.results, sum_of(xs))
    n = 8 * length
    inside, between = [0] * size, [0] * size
    for t in done.timeline.transfers:
        (inside if t.src // per_node == t.dst // per_node else between)[t.src] += t.nbytes
    assert inside == [2 * n * (per_node - 1) // per_node] * size
    assert between == [2 * n * (nodes - 1) // (nodes * per_node)] * size
    piece, part = n // per_node, n // per_node // nodes
    time_ = 2 * (per_node - 1) * cluster.intra.picoseconds(piece) + 2 * (nodes - 1) * cluster.inter.picoseconds(part)
    assert done.timeline.makespan == time_


@pytest.mark.parametrize(("size", "per_node"), [(n, g) for n in SIZES for g in range(1, n + 1) if n % g == 0])
def test_hierarchical_equals_its_cost_at_even_and_uneven_lengths(size, per_node):
    cluster = Cluster("nodes", CLASSROOM.device, per_node, Link(1e-6, 5e9), Link(4e-6, 1e9))
    for length in some_lengths(size):
        xs = draw(np, size, length)
        done = run(
            lambda comm, x: comm.all_reduce(x, algorithm="hierarchical", ranks_per_node=per_node),
            size,
            per_rank(xs),
            cluster=cluster,
        )
        assert_each_rank_has(done.results, sum_of(xs))
        cost = collectives.hierarchical_all_reduce_cost(size, length, 8, per_node, cluster.intra, cluster.inter)
        assert_cost(done, cost)


# All-gather and reduce-scatter


def usable(algorithm):
    return POWERS_OF_TWO if algorithm in ("recursive_doubling", "recursive_halving") else SIZES


GATHERS = [(name, size) for name in ("ring", "bruck", "recursive_doubling") for size in usable(name)]
SCATTERS = [(name, size) for name in ("ring", "recursive_halving") for size in usable(name)]


@each(("algorithm", "size"), GATHERS, strict=[(algorithm, 8) for algorithm, _ in GATHERS])
def test_all_gather_joins_by_rank_and_sends_n_N_minus_1_over_N(xp, algorithm, size):
    xs = draw(xp, size, 2, 3, 4)
    for axis in (0, 1, -1):
        done = run(lambda comm, x: comm.all_gather(x, axis, algorithm), size, per_rank(xs), cluster=EVEN)  # noqa: B023
        assert_each_rank_has(done.results, np.concatenate([to_numpy(x) for x in xs], axis=axis))
        own = 8 * 24
        assert_cost(done, getattr(collectives, f"{algorithm}_all_gather_cost")([own] * size, LINK))
        if algorithm == "ring":
            steps = [own] * (size - 1)
        else:
            steps = [min(2**k, size - 2**k) * own for k in range(ceil(log2(size)))]
        assert sum(steps) == size * own * (size - 1) // size
        assert counted(done) == ([len(steps)] * size, [sum(steps)] * size, sum(map(LINK.picoseconds, steps)))


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


@each(("algorithm", "size"), SCATTERS, strict=[(algorithm, 8) for algorithm, _ in SCATTERS])
def test_reduce_scatter_gives_rank_r_piece_r_and_sends_n_N_minus_1_over_N(xp, algorithm, size):
    for axis, shape in ((0, (2 * size, 3)), (1, (3, size)), (-1, (1, 2, 3 * size))):
        xs = draw(xp, size, *shape)
        done = run(lambda comm, x: comm.reduce_scatter(x, axis, "sum", algorithm), size, per_rank(xs), cluster=EVEN)  # noqa: B023
        for result, piece in zip(done.results, np.split(sum_of(xs), size, axis), strict=True):
            np.testing.assert_array_equal(to_numpy(result), piece, strict=True)
        n = 8 * int(np.prod(shape))
        assert_cost(done, getattr(collectives, f"{algorithm}_reduce_scatter_cost")([n // size] * size, LINK))
        steps = [n // size] * (size - 1)
        if algorithm == "recursive_halving":
            steps = [n // 2**k for k in range(1, ceil(log2(size)) + 1)]
        assert counted(done) == (
            [len(steps)] * size,
            [n * (size - 1) // size] * size,
            sum(map(LINK.picoseconds, steps)),
        )


@each(("size",), [(size,) for size in SIZES], strict=[(5,)])
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


# All-to-all


@each(("size",), [(size,) for size in SIZES], strict=[(7,)])
@pytest.mark.parametrize("algorithm", ["pairwise", "bruck"])
def test_all_to_all_transposes_pieces_and_sends_what_its_formula_says(xp, algorithm, size):
    for split_axis, concat_axis in ((0, 0), (1, 0), (0, 1), (-1, 2)):
        xs = draw(xp, size, 2 * size, size, 3 * size)
        done = run(
            lambda comm, x: comm.all_to_all(x, split_axis, concat_axis, algorithm),  # noqa: B023
            size,
            per_rank(xs),
            cluster=EVEN,
        )
        pieces = [np.split(to_numpy(x), size, split_axis) for x in xs]
        for rank, result in enumerate(done.results):
            expected = np.concatenate([pieces[src][rank] for src in range(size)], axis=concat_axis)
            np.testing.assert_array_equal(to_numpy(result), expected, strict=True)
        piece = 8 * 6 * size**3 // size
        if algorithm == "pairwise":
            steps = [piece] * (size - 1)
        else:
            steps = [sum(1 for i in range(size) if i >> k & 1) * piece for k in range(ceil(log2(size)))]
        assert counted(done) == ([len(steps)] * size, [sum(steps)] * size, sum(map(LINK.picoseconds, steps)))
        assert_cost(done, getattr(collectives, f"{algorithm}_all_to_all_cost")(size, piece, LINK))


def test_bruck_all_to_all_of_5_ranks_sends_5_blocks():
    done = run(lambda comm: comm.all_to_all(np.ones(5), 0, 0, "bruck"), 5, cluster=EVEN)
    assert counted(done)[1] == [5 * 8] * 5


# One special rank: trees, incast, fan-out


@each(("size",), [(size,) for size in SIZES], strict=[(7,)])
def test_broadcast_and_reduce_take_ceil_log2_N_steps_from_every_root(xp, size):
    n, steps = 8 * 6, ceil(log2(size))
    xs = draw(xp, size, 2, 3)
    for root in {0, size // 2, size - 1}:
        done = run(lambda comm, x: comm.broadcast(x, root), size, per_rank(xs), cluster=EVEN)  # noqa: B023
        assert_each_rank_has(done.results, to_numpy(xs[root]))
        assert_cost(done, collectives.binomial_broadcast_cost(size, n, root, LINK))
        messages, nbytes, time_ = counted(done)
        assert sum(messages) == size - 1
        assert messages[root] == steps == max(messages)
        assert nbytes == [n * count for count in messages]
        assert time_ == steps * LINK.picoseconds(n)

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
