"""Two lanes: the results of the plain layer to the bit, and the time of the closed form."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import asarray
from parlab.experts import (
    ExpertParallel,
    OverlappedExperts,
    hidden_share,
    merged_pair,
    merged_seconds,
    own_weights,
    pair_in_turn,
)
from parlab.nn import MarkovSource
from parlab.nn.layers import Block
from parlab.nn.mixtral import Mixtral, MixtralConfig
from parlab.world import Cluster
from parlab.world.timeline import Timeline
from tests.libraries import EACH_LIBRARY

SIZES = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1}
PREFIX = "model.layers.0.block_sparse_moe"


def model(N, k, seed=3):
    sizes = {"num_attention_heads": 2, "num_local_experts": N, "num_experts_per_tok": k}
    return Mixtral.random(MixtralConfig(**SIZES, **sizes, initializer_range=0.5), seed=seed, xp=np, dtype="float64")


def arrays(size, tokens, xp=np):
    draw = np.random.default_rng(5)
    return [[asarray(draw.normal(size=(1, tokens, 8)), xp) for _ in range(size)] for _ in range(4)]


def layer(comm, kind, serial, N, k, **options):
    return kind(comm, own_weights(serial.weights, PREFIX, N, comm.rank, comm.size), PREFIX, N, k, **options)


def one_rank(comm, kind, serial, x, dy, N, k):
    made = layer(comm, kind, serial, N, k)
    y, cache = made.forward(x)
    dx, gradients = made.backward(dy, cache)
    return [y, dx, *(gradients[name] for name in sorted(gradients))]


@pytest.mark.parametrize(("size", "N", "k"), [(2, 4, 2), (3, 6, 1), (4, 8, 3), (1, 2, 1)])
def test_the_overlapped_layer_equals_the_plain_one_to_the_bit_and_sends_the_same(size, N, k):
    x, dy, *_ = arrays(size, 5)
    runs = [
        run(one_rank, size, kind, model(N, k), per_rank(x), per_rank(dy), N, k)
        for kind in (ExpertParallel, OverlappedExperts)
    ]
    for plain, overlapped in zip(*(done.results for done in runs), strict=True):
        assert all((a == b).all() for a, b in zip(plain, overlapped, strict=True))
    for rank in range(size):
        assert len({(done.timeline.messages(rank), done.timeline.bytes_sent(rank)) for done in runs}) == 1


@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
def test_arrays_of_other_libraries_overlap_too(xp):
    x, dy, *_ = arrays(2, 3, xp)
    made = model(4, 2)
    made = Mixtral(made.config, {n: asarray(w, xp) for n, w in made.weights.items()})
    assert len(run(one_rank, 2, OverlappedExperts, made, per_rank(x), per_rank(dy), 4, 2).results[0]) > 5


BANDWIDTH, FLOPS, T = 1e6, 1e6, 6
ROWS = T * 8 * 8 / BANDWIDTH  # seconds of a row for each token, in float64
EXPERT = 2 * T * 3 * 2 * 8 * 6 / FLOPS  # seconds of an expert on the tokens of both ranks


def block_of(comm, serial, N, k, **options):
    plain, mlp = serial.blocks[0], layer(comm, OverlappedExperts, serial, N, k, **options)
    return Block(plain.attention_norm, plain.attention, plain.mlp_norm, mlp)


def pair(comm, serial, first, dy, x, N, k, seconds, merged, **options):
    block = block_of(comm, serial, N, k, **options)
    _, cache = block.forward(first)
    comm.barrier()
    if merged:
        y, own, dx, gradients = merged_pair(block, x, dy, cache, seconds)
    else:
        y, own = block.forward(x)
        dx, gradients = block.backward(dy, cache)
    then, _ = block.backward(dy, own)  # the cache of the forward serves its backward
    return [y, dx, then, *(gradients[name] for name in sorted(gradients))]


@pytest.mark.parametrize("auxiliary", [0.0, 0.1])
@pytest.mark.parametrize(("size", "N", "k"), [(1, 2, 1), (2, 4, 2), (4, 8, 3)])
def test_a_merged_pair_equals_a_forward_and_a_backward_to_the_bit(size, N, k, auxiliary):
    """The router's gradient holds the auxiliary loss's, too: of the forward that was merged, in its later backward."""
    first, dy, x, _ = (per_rank(each) for each in arrays(size, 5))
    given = size, model(N, k), first, dy, x, N, k, None
    results = [run(pair, *given, merged, auxiliary=auxiliary).results for merged in (True, False)]
    for merged, plain in zip(*results, strict=True):
        assert all((a == b).all() for a, b in zip(merged, plain, strict=True))


def test_a_pair_in_turn_is_the_forward_and_the_backward_with_the_seconds_of_their_attention():
    first, dy, x, _ = (per_rank(each) for each in arrays(2, 5))

    def program(comm, first, dy, x, seconds):
        block = block_of(comm, model(4, 2), 4, 2)
        _, cache = block.forward(first)
        y, own, dx, gradients = pair_in_turn(block, x, dy, cache, seconds)
        then, _ = block.backward(dy, own)
        return [y, dx, then, *(gradients[name] for name in sorted(gradients))]

    plain = run(pair, 2, model(4, 2), first, dy, x, 4, 2, None, False).results
    timed = run(program, 2, first, dy, x, {"ATTN(F)": 3e-6, "ATTN(B)": 2e-6, "ATTN(W)": 1e-6})
    for ours, right in zip(timed.results, plain, strict=True):
        assert all((a == b).all() for a, b in zip(ours, right, strict=True))
    lasts = {span.name: span.end - span.start for span in timed.timeline.computes if span.rank == 0}
    assert lasts["ATTN(F)"] == lasts["ATTN(B) and (W)"] == 3_000_000  # picoseconds
    untimed = run(program, 2, first, dy, x, None).timeline
    assert all(span.end == span.start for span in untimed.computes if span.name.startswith("ATTN"))


def test_a_pair_in_turn_of_another_mlp_is_refused():
    def program(comm):
        pair_in_turn(model(2, 1).blocks[0], np.zeros((1, 1, 8)), np.zeros((1, 1, 8)), {})

    with pytest.raises(ValueError, match=r"block\.mlp"):
        run(program, 1)


CASES = {  # seconds of ATTN(F), ATTN(B), ATTN(W), in units of a dispatch
    "all travel hidden": (1.5, 1.5, 1.5),
    "short attention": (0.2, 0.3, 0.1),
    "no attention": (0, 0, 0),
    "long backward": (0.5, 4, 1),
}


@pytest.mark.parametrize("flops", [0.2, 1, 5])
@pytest.mark.parametrize("case", CASES)
def test_a_merged_pair_takes_the_time_of_its_closed_form_on_two_lanes(case, flops):
    first, dy, x, _ = (per_rank(each) for each in arrays(2, T))
    seconds = {f"ATTN({letter})": n * ROWS for letter, n in zip("FBW", CASES[case], strict=True)}

    def program(comm, first, dy, x):
        block = block_of(comm, model(2, 2), 2, 2)
        _, cache = block.forward(first)
        merged_pair(block, x, dy, cache, seconds)

    def alone(comm, first):
        block_of(comm, model(2, 2), 2, 2).forward(first)

    cluster = Cluster.uniform(0, BANDWIDTH, flops=flops * FLOPS)
    before = run(alone, 2, first, cluster=cluster).timeline.makespan
    both = run(program, 2, first, dy, x, cluster=cluster).timeline
    mlp = dict.fromkeys(("MLP(F)", "MLP(B)", "MLP(W)"), EXPERT / flops)
    travel = dict.fromkeys(("DISPATCH(F)", "COMBINE(F)", "DISPATCH(B)", "COMBINE(B)"), ROWS)
    took = merged_seconds({**seconds, **mlp, **travel, "PLAN(F)": 16 / BANDWIDTH})
    assert (both.makespan - before) * 1e-12 == pytest.approx(took, rel=1e-6)


def test_merged_microbatches_of_unit_parts_take_6_instead_of_10_and_12_where_travel_takes_3_each():
    parts = {"ATTN(F)": 1, "ATTN(B)": 1, "ATTN(W)": 1, "MLP(F)": 1, "MLP(B)": 1, "MLP(W)": 1, "PLAN(F)": 0}
    travel = dict.fromkeys(("DISPATCH(F)", "COMBINE(F)", "DISPATCH(B)", "COMBINE(B)"), 1)
    assert merged_seconds({**parts, **travel}) == 6  # all four are hidden behind six of work
    assert merged_seconds({**parts, **dict.fromkeys(travel, 3)}) == 12  # the four of 3, one behind the other
    assert sum({**parts, **travel}.values()) == 10


def test_what_cannot_overlap_is_refused_by_name():
    def program(comm):
        serial = model(2, 1)
        with pytest.raises(ValueError, match="exchange='all_gather': only all_to_all overlaps"):
            OverlappedExperts(comm, serial.weights, PREFIX, 2, 1, exchange="all_gather")
        x = np.ones((1, 2, 8))
        with pytest.raises(ValueError, match=r"block\.mlp=.*: must be an OverlappedExperts"):
            merged_pair(serial.blocks[0], x, x, {})

    run(program, 1)
    with pytest.raises(ValueError, match="rank=0: none of its messages takes time"):
        hidden_share(run(program, 1).timeline, 0)


@pytest.mark.parametrize(
    ("bandwidth", "of_all", "shares"),
    [(1e9, 0.65, (0.96, 0.96, 0.96, 0.96)), (0.25e9, 0.41, (0.62, 0.55, 0.70, 0.64))],
)
def test_the_merged_pair_of_lesson_10_hides_96_percent_of_its_own_messages_and_62_on_a_quarter_of_the_link(
    bandwidth, of_all, shares
):
    """The first forward is not merged with anything: the lesson's 65 % count its messages too, this share does not."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "initializer_range": 0.3}
    config = MixtralConfig(vocab_size=MarkovSource().vocab_size, **sizes, **experts)
    full = Mixtral.random(config, seed=2, dtype="float64", xp=np)
    prefix, hidden = "model.layers.0.block_sparse_moe", np.random.default_rng(7).normal(size=(3, 4, 2, 32, 16))

    def pair(comm):
        mlp = OverlappedExperts(comm, own_weights(full.weights, prefix, 8, comm.rank, comm.size), prefix, 8, 2)
        plain = full.blocks[0]
        block = Block(plain.attention_norm, plain.attention, plain.mlp_norm, mlp)
        first, dy, x = hidden[:, comm.rank]
        _, cache = block.forward(first)
        comm.barrier()
        merged_pair(block, x, dy, cache, {"ATTN(F)": 30e-6, "ATTN(B)": 30e-6, "ATTN(W)": 20e-6})

    timeline = run(pair, 4, cluster=Cluster.uniform(latency=1e-6, bandwidth=bandwidth, flops=1e10)).timeline
    assert round(hidden_share(timeline, 0), 2) == of_all
    begins = min(span.start for span in timeline.computes if span.name == "ATTN(F)")
    spans = zip(*[(c.rank, c.start, c.end, c.name) for c in timeline.computes], strict=True)
    late = [t for t in timeline.transfers if t.start >= begins]
    own = zip(*[(t.src, t.dst, t.nbytes, t.ready, t.start, t.end, t.name, t.label) for t in late], strict=True)
    alone = Timeline(4, timeline.makespan, computes=tuple(spans), transfers=tuple(own))
    assert [round(hidden_share(alone, rank), 2) for rank in range(4)] == list(shares)
