"""Experts on ranks: equal to the serial layer, bytes equal to the closed form, mistakes caught."""

from __future__ import annotations

import re

import numpy as np
import pytest

from parlab import Cluster, per_rank, run
from parlab.arrays import asarray, to_numpy
from parlab.experts import (
    ExpertParallel,
    all_to_all,
    combine_backward,
    combine_forward,
    dispatch,
    dispatch_backward,
    expert_cost,
    experts_of,
    layer,
)
from parlab.nn.moe import Experts, MixtureOfExperts, mix, mix_backward
from parlab.nn.permute import slots_of, sum_of_slots
from parlab.nn.router import Router
from parlab.nn.routing import Routing, route
from parlab.world import MismatchError
from tests.libraries import EACH_LIBRARY
from tests.nn.finite_differences import draw
from tests.nn.parity import relative_error

E, M = 6, 5


def weights_of(num_experts, xp=np):
    shapes = {"m.gate.weight": (E, num_experts)}
    for prefix in (f"m.experts.{expert}" for expert in range(num_experts)):
        shapes |= {f"{prefix}.w1.weight": (E, M), f"{prefix}.w3.weight": (E, M), f"{prefix}.w2.weight": (M, E)}
    return {name: draw(xp, *shape, seed=number) for number, (name, shape) in enumerate(shapes.items())}


def one_rank(comm, weights, x, dy, num_experts, k, options):
    made = ExpertParallel.from_full(comm, weights, "m", num_experts, k, **options)
    made.router.loss_weight = 1 / comm.size  # the ranks' tokens are parts of one mean
    y, cache = made.forward(x)
    dx, gradients = made.backward(dy, cache)
    return y, dx, gradients, getattr(cache.mix, "plan", None) and cache.mix.plan.counts


def serial_layer(weights, num_experts, k, **options):
    router = Router(weights, "m.gate.weight", num_experts, k, **options)
    return MixtureOfExperts(router, Experts(weights, "m.experts", range(num_experts)))


def serial(weights, x, dy, num_experts, k, options):
    options = {name: value for name, value in options.items() if name not in ("exchange", "ranks_per_node")}
    made = serial_layer(weights, num_experts, k, **options)
    y, cache = made.forward(x)
    return y, *made.backward(dy, cache)


def both(size, num_experts, k, tokens, xp=np, seed=0, **options):
    """Results of the ranks and of the serial layer on all their tokens, and the run."""
    weights = weights_of(num_experts, xp)
    x, dy = (draw(np, size * tokens, E, seed=seed + number) for number in (1, 2))
    shards = [per_rank([asarray(part, xp) for part in np.split(whole, size)]) for whole in (x, dy)]
    done = run(one_rank, size, weights, *shards, num_experts, k, options)
    return done, serial(weights, asarray(x, xp), asarray(dy, xp), num_experts, k, options)


def joined(done):
    """y, dx and the gradients of all ranks; those of replicated weights added up."""
    gradients = {}
    for _, _, own, _ in done.results:
        for name, gradient in own.items():
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
    y, dx = (np.concatenate([to_numpy(result[number]) for result in done.results]) for number in (0, 1))
    return y, dx, {name: to_numpy(gradient) for name, gradient in gradients.items()}


def assert_equals_serial(done, expected):
    y, dx, gradients = joined(done)
    assert relative_error(y, expected[0]) <= 1e-12
    assert relative_error(dx, expected[1]) <= 1e-12
    for name, gradient in expected[2].items():
        assert relative_error(gradients[name], gradient, floor=1e-3) <= 1e-12, name


CASES = {
    "mixtral P 2": (2, 4, 2, 7, {}),
    "switch P 3": (3, 6, 1, 5, {"scores": "softmax"}),
    "deepseek P 4": (4, 16, 4, 9, {"scores": "sigmoid", "groups": 4, "group_limit": 2}),
    "all experts P 5": (5, 5, 5, 3, {}),
    "prime P 7": (7, 14, 3, 4, {}),
    "one expert a rank P 8": (8, 8, 2, 1, {}),
    "one rank": (1, 4, 2, 6, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_y_dx_and_every_gradient_equal_serial_to_1e_12(name):
    size, num_experts, k, tokens, options = CASES[name]
    assert_equals_serial(*both(size, num_experts, k, tokens, **options))


@pytest.mark.parametrize("exchange", ["all_to_all", "all_gather"])
def test_an_auxiliary_loss_counts_the_pairs_of_all_4_ranks_and_its_gradient_equals_serial_to_1e_12(exchange):
    assert_equals_serial(*both(4, 8, 2, 5, auxiliary=0.5, exchange=exchange))


def mixed(comm, weights, x, dy, routing, num_experts, k):
    made = ExpertParallel.from_full(comm, weights, "m", num_experts, k)
    y, cache = made.mix.forward(made.experts, x, routing[comm.rank])
    return y, *made.mix.backward(made.experts, dy, cache)[:2]


@pytest.mark.parametrize("name", CASES)
def test_with_the_same_routing_the_sums_of_the_experts_equal_serial_to_the_bit(name):
    size, num_experts, k, tokens, options = CASES[name]
    weights, (x, dy) = weights_of(num_experts), (draw(np, size * tokens, E, seed=seed) for seed in (1, 2))
    xs, dys = np.split(x, size), np.split(dy, size)
    routings = [route(part, weights["m.gate.weight"], k, **options) for part in xs]  # products of the same sizes
    experts = Experts(weights, "m.experts", range(num_experts))
    parts = [np.concatenate([getattr(r, field) for r in routings]) for field in ("chosen", "gates", "affinities")]
    whole = Routing(*parts, routings[0].scores)
    y, cache = mix(experts, x, whole)
    expected = y, *mix_backward(experts, dy, cache)[:2]
    done = run(mixed, size, weights, per_rank(xs), per_rank(dys), routings, num_experts, k)
    for found, array in zip(zip(*done.results, strict=True), expected, strict=True):
        assert (np.concatenate(found) == array).all()


EXCHANGES = [{"exchange": "all_gather"}, *({"exchange": "hierarchical", "ranks_per_node": g} for g in (1, 2, 3, 4, 6))]


@pytest.mark.parametrize("how", EXCHANGES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_the_other_exchanges_equal_serial_to_1e_12(size, how):
    if size % how.get("ranks_per_node", 1):
        with pytest.raises(ValueError, match=f"must divide the {size} rank"):
            both(size, 12, 4, 5, **how)
    else:
        assert_equals_serial(*both(size, 12, 4, 5, **how))
        assert_equals_serial(*both(size, 12, 1, 5, scores="softmax", **how))


@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
def test_arrays_of_other_libraries_equal_serial_to_1e_12_by_each_exchange(xp):
    assert_equals_serial(*both(2, 4, 2, 5, xp=xp))
    assert_equals_serial(*both(4, 8, 2, 3, xp=xp, exchange="hierarchical", ranks_per_node=2))
    assert_equals_serial(*both(2, 4, 2, 3, xp=xp, exchange="all_gather"))


def test_between_nodes_travels_one_copy_a_node_with_its_choices_and_gates():
    size, g, num_experts, k, tokens = 6, 2, 12, 4, 5
    weights = weights_of(num_experts)
    x, dy = (np.split(draw(np, size * tokens, E, seed=seed), size) for seed in (1, 2))
    options = {"exchange": "hierarchical", "ranks_per_node": g}
    done = run(one_rank, size, weights, per_rank(x), per_rank(dy), num_experts, k, options)
    sent = [0] * size
    for t in done.timeline.transfers:
        sent[t.src] += t.nbytes if t.src // g != t.dst // g else 0
    out, back = [0] * size, [0] * size  # copies that a rank sends between nodes, and that it receives
    for rank in range(size):
        for chosen in route(x[rank], weights["m.gate.weight"], k).chosen:
            for node in {expert // (num_experts // (size // g)) for expert in chosen} - {rank // g}:
                out[rank] += 1
                back[node * g + rank % g] += 1
    counts = 8 * (size // g) * (size // g - 1)  # of the hop's table
    for rank in range(size):
        forward = out[rank] * (8 * E + 8 * k + 8 * k) + back[rank] * 8 * E
        backward = out[rank] * 8 * E + back[rank] * (8 * E + 8 * k)
        assert sent[rank] == counts + forward + backward


def test_an_all_gather_sends_its_closed_form():
    done, _ = both(4, 8, 2, 5, exchange="all_gather")
    forward = 5 * E + 5 * (2 + 2) + 5 * E  # x, the experts and gates of each of 5 tokens; the sums
    backward = 5 * E + 5 * E + 5 * 2
    assert done.timeline.bytes_sent(1) == (forward + backward) * 8 * 3


@pytest.mark.parametrize("name", CASES)
def test_messages_and_bytes_of_each_rank_equal_the_closed_form_of_its_plan(name):
    size, num_experts, k, tokens, options = CASES[name]
    done, _ = both(size, num_experts, k, tokens, **options)
    counts = done.results[0][3]
    assert all(result[3] == counts for result in done.results)
    assert [sum(row) for row in counts] == [tokens * k] * size
    for rank in range(size):
        ways = [expert_cost(counts, rank, E, 8, backward=backward) for backward in (False, True)]
        assert done.timeline.messages(rank) == sum(way.messages for way in ways)
        assert done.timeline.bytes_sent(rank) == sum(way.nbytes for way in ways)
        own = experts_of(rank, num_experts, size)
        sent = sum(n for expert, n in enumerate(counts[rank]) if expert not in own)
        received = sum(counts[other][expert] for other in range(size) for expert in own if other != rank)
        assert ways[0].nbytes + ways[1].nbytes == 2 * (sent + received) * 8 * E + 8 * num_experts * (size - 1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"exchange": "ring"}, "exchange='ring': use one of all_to_all, hierarchical, all_gather"),
        ({"ranks_per_node": 2}, "ranks_per_node=2: only exchange='hierarchical' takes it"),
        ({"exchange": "hierarchical"}, "ranks_per_node=None: exchange='hierarchical' needs a divisor of 4"),
        ({"exchange": "hierarchical", "ranks_per_node": 0}, "ranks_per_node=0: must divide the 4 ranks: use one of"),
    ],
)
def test_an_exchange_that_there_is_not_and_nodes_that_it_does_not_know_are_refused(how, said):
    with pytest.raises(ValueError, match=said):
        both(4, 8, 2, 3, **how)


def test_a_rank_keeps_the_router_and_its_own_2_of_4_experts():
    def program(comm):
        return {name.split(".")[2] for name in ExpertParallel.from_full(comm, weights_of(4), "m", 4, 2).weights}

    assert run(program, 2).results == [{"weight", "0", "1"}, {"weight", "2", "3"}]


def test_experts_compute_6_e_m_flops_a_row_and_as_many_for_each_part_of_the_backward_and_hold_drows():
    x, dy = (per_rank(np.split(draw(np, 14, E, seed=seed), 2)) for seed in (1, 2))
    cluster = Cluster.uniform(latency=0, bandwidth=1e9, flops=1e12)  # one takes a picosecond
    done = run(one_rank, 2, weights_of(4), x, dy, 4, 2, {}, cluster=cluster)
    for rank in range(2):
        rows = sum(sum(counts[2 * rank : 2 * rank + 2]) for counts in done.results[0][3])
        spans = [span for span in done.timeline.computes if span.rank == rank and span.name.startswith("experts")]
        took = {span.name: span.end - span.start for span in spans}
        assert took == dict.fromkeys(("experts", "experts (B)", "experts (W)"), rows * 6 * E * M)
        assert max(nbytes for _, nbytes in done.timeline.held_by_name(rank)["drows"]) == rows * E * 8


def pairings(comm, x, gates, rows, dy):
    """Sums of products by which each backward is held to its forward, which is linear in rows, and in gates."""
    routing = Routing(route(x, np.eye(E, 6), 2).chosen, gates)
    came, plan = dispatch(comm, x, routing, 6)
    rows = rows[: came.shape[0]]  # any answers
    y, cache = combine_forward(comm, rows, plan, gates)
    drows, dgates = combine_backward(comm, dy, plan, cache)
    dx = dispatch_backward(comm, rows, plan)
    return [(a * b).sum() for a, b in ((y, dy), (rows, drows), (gates, dgates), (came, rows), (x, dx))]


def test_combines_backward_takes_combines_cache_and_each_backward_is_its_forward_transposed_to_1e_13():
    arrays = [per_rank(list(draw(np, 3, *shape, seed=n))) for n, shape in enumerate([(7, E), (7, 2), (42, E), (7, E)])]
    y_dy, rows_drows, gates_dgates, came_rows, x_dx = np.sum(run(pairings, 3, *arrays).results, axis=0)
    assert rows_drows == pytest.approx(y_dy, rel=1e-13)
    assert gates_dgates == pytest.approx(y_dy, rel=1e-13)
    assert x_dx == pytest.approx(came_rows, rel=1e-13)


# Mutants: the mistakes of a first attempt


def reversed_within_an_expert(x, pairs, permute=all_to_all.permute):
    """Two sorts, of which one is unstable: rows of one expert leave in another order than they are expected back in."""
    order, start = pairs.order.copy(), 0
    for count in pairs.counts:
        order[start : start + count] = order[start : start + count][::-1].copy()
        start += count
    return permute(x, pairs._replace(order=order))


def doubled_gates(comm, rows, sent, received, label, exchange_rows=all_to_all.exchange_rows):
    return exchange_rows(comm, rows, sent, received, label) * (0.5 if label == "combine" else 1)


def sorted_by_rank_only(rows, counts):
    """Rows of one source stay together; experts read their neighbours'."""
    return rows


def neighbours_experts(rank, num_experts, size, experts_of=layer.experts_of):
    return experts_of((rank + 1) % size, num_experts, size)


def ungated(dy, cache, unpermute_backward=all_to_all.unpermute_backward):
    return unpermute_backward(dy, cache._replace(gates=np.ones_like(cache.gates)))


def last_slot_forgotten(rows, pairs, gates, unpermute=all_to_all.unpermute):
    _, cache = unpermute(rows, pairs, gates)
    return sum_of_slots(cache.slots[:, :-1, :], gates[:, :-1]), cache


def last_slot_forgotten_backward(drows, pairs):
    return sum_of_slots(slots_of(drows, pairs)[:, :-1, :])


MUTANTS = {
    "the pairs of one expert in another order": (all_to_all, "permute", reversed_within_an_expert),
    "the gates twice": (all_to_all, "exchange_rows", doubled_gates),
    "sorted by rank and not by expert": (all_to_all, "by_expert", sorted_by_rank_only),
    "the neighbour's experts": (layer, "experts_of", neighbours_experts),
    "gates forgotten backward": (all_to_all, "unpermute_backward", ungated),
    "the last slot forgotten": (all_to_all, "unpermute", last_slot_forgotten),
    "the last slot forgotten backward": (all_to_all, "permute_backward", last_slot_forgotten_backward),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_of_7_mutants_is_caught(monkeypatch, name):
    module, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(module, attribute, mutant)
    with pytest.raises(AssertionError):
        assert_equals_serial(*both(4, 8, 2, 9))


def kept(comm, weights, x, num_experts, k, options):
    made = ExpertParallel.from_full(comm, weights, "m", num_experts, k, **options)
    _, cache = made.forward(x)
    comm.barrier()
    return getattr(cache.mix, "plan", None) and cache.mix.plan.counts, cache  # held until the run ends


def bytes_kept(size, num_experts, k, tokens, **options):
    x = np.split(draw(np, size * tokens, E, seed=1), size)
    done = run(kept, size, weights_of(num_experts), per_rank(x), num_experts, k, options)
    ends = [sum(steps[-1][1] for steps in done.timeline.held_by_name(rank).values()) for rank in range(size)]
    return done.results[0][0], ends


@pytest.mark.parametrize("name", CASES)
def test_held_bytes_at_the_end_of_a_forward_equal_the_closed_form(name):
    size, num_experts, k, tokens, options = CASES[name]
    counts, ends = bytes_kept(size, num_experts, k, tokens, **options)
    assert ends == [expert_cost(counts, rank, E, 8).held for rank in range(size)]
    assert expert_cost(counts, 0, E, 8, backward=True).held == 0


@pytest.mark.parametrize(
    "how", [{"exchange": "all_gather"}, {"exchange": "hierarchical", "ranks_per_node": 2}], ids=str
)
def test_where_all_experts_are_chosen_each_rank_has_all_tokens_and_keeps_their_rows_and_slots(how):
    _, ends = bytes_kept(4, 8, 8, 5, **how)
    assert ends == [(4 + 1) * 5 * 8 * E * 8] * 4  # 5 · 8 rows of its experts, and 8 answers for 4 · 5 tokens


@pytest.mark.parametrize(
    ("sent", "received", "said"),
    [
        # without this a part of the rows would stay behind: a slice beyond the end is shorter, and no error
        ([1, 2], [1, 2], "sent=[1, 2]: adds up to 3, and 4 rows are given; in dispatch it counts"),
        ([4], [2, 2], "sent=[4]: 2 whole numbers are needed, how many rows go to each rank"),
        (np.array([[2], [2]]), [2, 2], "2 whole numbers are needed, how many rows go to each rank"),
        (4, [2, 2], "sent=4: 2 whole numbers"),
        ([2, 2], [1, 1, 2], "received=[1, 1, 2]: 2 whole numbers are needed, how many rows come from each rank"),
    ],
)
def test_counts_that_are_not_one_number_a_rank_or_do_not_add_up_to_the_rows_are_refused_by_name(sent, received, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        run(lambda comm: all_to_all.exchange_rows(comm, np.ones((4, 2)), sent, received), 2)


def own_plan_of_rank_1(comm, x):
    """Rank 1 expects a row more from rank 0 than rank 0 sends."""
    routing = route(x, np.eye(2, 4), 1)
    plan = all_to_all.make_plan(comm, routing, 4)
    if comm.rank == 1:
        plan.counts[0][2] += 1
    rows = all_to_all.permute(x, plan.pairs)
    return all_to_all.exchange_rows(comm, rows, plan.sent, plan.received, "dispatch")


def test_a_plan_that_differs_on_one_rank_hangs_nothing_and_the_error_says_which_rank_expects_other_rows():
    said = r"from rank 0 to rank 1 \(dispatch\) holds float64\[0, 2\], but rank 1 expects float64\[1, 2\]"
    with pytest.raises(MismatchError, match=said):
        run(own_plan_of_rank_1, 2, np.ones((3, 2)))
