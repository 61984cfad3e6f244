"""The tensor-parallel GPT block: the serial one's numbers and masks, and the bytes that the papers count."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest

from parlab import Cluster, run
from parlab.arrays import asarray
from parlab.nn.gpt import Dropout, gpt_block
from parlab.tensor import gpt, kept_by_place, kept_items, parallel_gpt_block
from tests.nn.parity import worst_error
from tests.tensor.models import gpt_weights

# s, b, h, a: tiny, and with no two terms of the formulas alike
s, b, h, a = 8, 2, 16, 8
RECOMPUTE = ("none", "selective", "full")
both_ways = pytest.mark.parametrize("sequence_parallel", [False, True], ids=["whole", "sequence"])
sizes = pytest.mark.parametrize("size", [1, 2, 4, 8])
STATISTICS = ("mean", "inverse")


def inputs(library, dtype="float64"):
    draw = np.random.default_rng(7)
    xp = {"numpy": np, "strict": array_api_strict}[library]
    return (asarray(draw.normal(size=(b, s, h)), xp, getattr(xp, dtype)) for _ in range(2))


def own_tokens(x, comm, sequence_parallel):
    length = s // comm.size
    return x[:, comm.rank * length : (comm.rank + 1) * length, :] if sequence_parallel else x


def errors(size, library="numpy", rate=0.25, steps=2, **options):
    """How far y, dx and all gradients of the second of two steps are from the serial ones: masks must go on alike."""
    (x, dy), weights = inputs(library), gpt_weights(h, library=library)
    serial = gpt_block(weights, "h", h // a, dropout_rate=rate, seed=5)
    for _ in range(steps):
        y, cache = serial.forward(x)
        dx, gradients = serial.backward(dy, cache)

    def program(comm):
        own = [own_tokens(array, comm, options.get("sequence_parallel", False)) for array in (x, dy)]
        block = parallel_gpt_block(comm, weights, "h", h // a, dropout_rate=rate, seed=5, **options)
        for _ in range(steps):
            found, cache = block.forward(own[0])
            result = found, *block.backward(own[1], cache)
        return result

    wrong = {}
    for rank, (found, found_dx, found_gradients) in enumerate(run(program, size).results):
        place = SimpleNamespace(rank=rank, size=size)
        own_y, own_dx = (own_tokens(array, place, options.get("sequence_parallel", False)) for array in (y, dx))
        own_gradients = gpt.shard_gpt_block(gradients, "h", h // a, rank, size)
        pairs = {"y": (found, own_y), "dx": (found_dx, own_dx)}
        pairs |= {name: (found_gradients[name], gradient) for name, gradient in own_gradients.items()}
        for name, (one, other) in pairs.items():
            # the floor is for the bias of k, whose gradient is zero: it moves all scores of a query alike
            wrong[name] = max(wrong.get(name, 0.0), worst_error([one], [other], floor=1e-3))
    return wrong


@pytest.mark.parametrize("recompute", RECOMPUTE)
@both_ways
@pytest.mark.parametrize(("size", "library"), [(1, "numpy"), (2, "numpy"), (4, "numpy"), (8, "numpy"), (4, "strict")])
def test_block_with_dropout_within_1e_12_of_serial_with_the_same_masks(size, sequence_parallel, recompute, library):
    found = errors(size, library, sequence_parallel=sequence_parallel, recompute=recompute)
    assert max(found.values()) <= 1e-12, found


@both_ways
def test_block_without_dropout_within_1e_12_of_serial(sequence_parallel):
    assert max(errors(4, rate=0.0, sequence_parallel=sequence_parallel).values()) <= 1e-12


@both_ways
def test_recomputed_masks_are_the_first_forwards_where_two_microbatches_are_under_way(sequence_parallel):
    (x, dy), weights = inputs("numpy"), gpt_weights(h)

    def program(comm, recompute):
        options = {"sequence_parallel": sequence_parallel, "recompute": recompute}
        block = parallel_gpt_block(comm, weights, "h", h // a, dropout_rate=0.25, **options)
        own, down = (own_tokens(array, comm, sequence_parallel) for array in (x, dy))
        caches = [block.forward(own)[1] for _ in range(2)]
        dxs = [block.backward(down, cache)[0] for cache in caches]
        return [*dxs, block.forward(own)[0]]

    kept, selective, full = (run(program, 2, recompute).results for recompute in RECOMPUTE)
    for rank in range(2):
        assert all((one == other).all() for one, other in zip(kept[rank], selective[rank], strict=True))
        assert all((one == other).all() for one, other in zip(kept[rank], full[rank], strict=True))


def kept(size, **options):
    """Bytes that each rank keeps, by place in the cache, norms' statistics apart."""
    x, _ = inputs("numpy", "float16")
    weights = gpt_weights(h, "float16")
    dropout = options.pop("dropout", True)

    def program(comm):
        block = parallel_gpt_block(comm, weights, "h", h // a, dropout_rate=0.25 if dropout else 0.0, **options)
        y, cache = block.forward(own_tokens(x, comm, options.get("sequence_parallel", False)).copy())
        assert y.dtype == np.float16
        return kept_items(cache)

    return run(program, size).results


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@both_ways
@sizes
def test_kept_bytes_equal_the_closed_form_byte_for_byte(size, sequence_parallel, recompute, dropout):
    options = {"sequence_parallel": sequence_parallel, "recompute": recompute, "dropout": dropout}
    expected = kept_by_place(s, b, h, a, size, **options)
    for items in kept(size, **options):
        assert {place: n for place, n in items.items() if not place.endswith(STATISTICS)} == expected


@pytest.mark.parametrize("t", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({}, lambda t: s * b * h * (10 + 24 / t) + 5 * a * s * s * b / t),
        ({"sequence_parallel": True}, lambda t: 34 * s * b * h / t + 5 * a * s * s * b / t),
        ({"recompute": "selective"}, lambda t: s * b * h * (10 + 24 / t)),
        ({"recompute": "selective", "sequence_parallel": True}, lambda t: 34 * s * b * h / t),
        ({"recompute": "full"}, lambda t: 2 * s * b * h),
        ({"recompute": "full", "sequence_parallel": True}, lambda t: 2 * s * b * h / t),
        ({"dropout": False, "sequence_parallel": True}, lambda t: 32 * s * b * h / t + 2 * a * s * s * b / t),
    ],
    ids=["10_plus_24_over_t", "34_over_t", "selective", "selective_34_over_t", "full", "full_2_over_t", "no_dropout"],
)
def test_kept_bytes_of_korthikantis_table_2(t, options, formula):
    for items in kept(t, **options):
        assert sum(n for place, n in items.items() if not place.endswith(STATISTICS)) == formula(t)


def test_the_10_that_every_rank_keeps_are_norm_inputs_column_inputs_and_output_masks():
    one, eight = kept(1)[0], kept(8)[0]
    whole = {place: n / (s * b * h) for place, n in eight.items() if n == one[place] and not place.endswith(STATISTICS)}
    twice = dict.fromkeys(("attention_norm.x", "attention.x", "mlp_norm.x", "mlp.x"), 2)
    assert whole == twice | {"attention.output_keep": 1, "mlp.output_keep": 1}


def test_norm_statistics_apart_are_4_float32_a_token_that_sequence_parallelism_cuts_too():
    for size, sequence_parallel, expected in ((4, False, 4 * 4 * s * b), (4, True, 4 * 4 * s * b // 4)):
        items = kept(size, sequence_parallel=sequence_parallel)[0]
        assert sum(n for place, n in items.items() if place.endswith(STATISTICS)) == expected


@both_ways
@pytest.mark.parametrize(("recompute", "forwards"), [("none", 1), ("selective", 1), ("full", 2)])
def test_full_recomputation_sends_the_forward_again_and_selective_nothing(recompute, forwards, sequence_parallel):
    x, dy = inputs("numpy")

    def program(comm, backward):
        options = {"sequence_parallel": sequence_parallel, "recompute": recompute}
        block = parallel_gpt_block(comm, gpt_weights(h), "h", h // a, **options)
        _, cache = block.forward(own_tokens(x, comm, sequence_parallel))
        if backward:
            block.backward(own_tokens(dy, comm, sequence_parallel), cache)

    forward, both = (run(program, 2, backward).timeline.messages(0) for backward in (False, True))
    backward = 6 + 4 * 2 if sequence_parallel else 2 * 2  # 6 halves of an all-reduce, and those of 4 norm gradients
    assert both == forward + backward + (forwards - 1) * forward


def test_unless_told_otherwise_both_all_reduces_of_a_backward_hide_behind_the_weights_gradients():
    """On a link on which one takes less than those: 2sbh/2 numbers out of either of 2 ranks."""
    x, dy = inputs("numpy")
    cluster = Cluster.uniform(latency=0, bandwidth=1e9, flops=1e9)

    def program(comm, overlap=None):
        block = parallel_gpt_block(comm, gpt_weights(h), "h", h // a)
        for part in (block.attention, block.mlp) if overlap is False else ():
            part.stages[0].overlap = False
        block.backward(dy, block.forward(x)[1])

    shown, hidden = (run(program, 2, cluster=cluster, **how).timeline.makespan for how in ({"overlap": False}, {}))
    assert shown - hidden == 2 * s * b * h * 8 * 1000  # picoseconds


def test_a_bias_added_by_every_rank_counts_t_times(monkeypatch):
    monkeypatch.delattr(gpt.PartialSums, "project")
    assert errors(2)["y"] > 0.1


def test_masks_drawn_by_each_rank_for_itself_are_caught(monkeypatch):
    monkeypatch.setattr(gpt.ShardedDropout, "mask", Dropout.mask)
    assert errors(2)["y"] > 0.1
    assert max(errors(1).values()) <= 1e-12


def test_masks_not_set_back_before_a_recomputation_are_caught_and_only_backward(monkeypatch):
    monkeypatch.setattr("parlab.tensor.recompute.set_back", lambda generators, states: nullcontext())
    for recompute in ("selective", "full"):
        found = errors(2, recompute=recompute, steps=1)
        assert found["y"] <= 1e-12
        assert found["h.attention.q_proj.weight"] > 0.01


def test_layer_norms_left_unsynchronised_are_caught(monkeypatch):
    monkeypatch.setattr(gpt, "SequenceParallelNorm", lambda comm, norm: norm)
    wrong = {name for name, error in errors(2, sequence_parallel=True).items() if error > 1e-3}
    assert wrong == {f"h.{norm}_norm.{kind}" for norm in ("attention", "mlp") for kind in ("weight", "bias")}


@pytest.mark.parametrize(
    ("options", "head_dim", "message"),
    [
        ({"recompute": "some"}, 2, "recompute='some': use one of none, selective, full"),
        ({}, 4, "num_attention_heads 4 do not divide among 8 tensor-parallel ranks: use a multiple of 8"),
    ],
)
def test_bad_blocks_are_refused(options, head_dim, message):
    with pytest.raises(ValueError, match=message):
        run(lambda comm: parallel_gpt_block(comm, gpt_weights(h), "h", head_dim, **options), 8)


def test_kept_formula_refuses_what_does_not_divide():
    with pytest.raises(ValueError, match="num_attention_heads 8 do not divide among 3"):
        kept_by_place(s, b, h, a, 3)
    with pytest.raises(ValueError, match="sequence length 6 does not divide among 4"):
        kept_by_place(6, b, h, a, 4, sequence_parallel=True)
