"""The run behind the film of an MLP's step, and the bill that closes lesson 05."""

import math

import numpy as np
import pytest

from parlab.labs import first_stage, mlp_run, mlp_step
from parlab.nn.published import LLAMA_405B


def with_both_sums_at_the_end(comm, x, A, C, dy):
    z = (x @ A).clip(0)
    dz = (dy @ C.T) * (z > 0)
    y, dx = comm.all_reduce(z @ C), comm.all_reduce(dz @ A.T)
    return y, dx, x.T @ dz, z.T @ dy


@pytest.mark.parametrize("step", [mlp_step, with_both_sums_at_the_end])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_rank_computes_six_products_of_2_60_64_240_over_t_flops_around_two_all_reduces(step, size):
    shown = mlp_run(step, size).timeline
    names = ["columns", "rows", "rows, back", "columns, back", "gradients"]
    for rank in range(size):
        spans = [span for span in shown.computes if span.rank == rank]
        assert [span.name for span in spans] == names
        lengths = [span.end - span.start for span in spans]
        assert lengths == [lengths[0]] * 4 + [pytest.approx(2 * lengths[0], abs=1)]
    assert shown.messages(0) == 2 * 2 * (size - 1)


@pytest.mark.parametrize("step", [mlp_step, with_both_sums_at_the_end])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_by_tokens_a_rank_ends_with_its_own_rows_of_both_sums_and_sends_5_pieces_for_each_other_rank(step, size):
    whole, cut = mlp_run(step, size), mlp_run(step, size, by_tokens=True)
    for summed in (0, 1):  # y and dx
        parts = [results[summed] for results in cut.results]
        assert [part.shape for part in parts] == [(60 // size, 64)] * size
        assert (np.concatenate(parts) == whole.results[0][summed]).all()
    for one, other in zip(whole.results, cut.results, strict=True):  # dA and dC
        assert all((a == b).all() for a, b in zip(one[2:], other[2:], strict=True))
    assert cut.timeline.messages(0) == 5 * (size - 1)


@pytest.mark.parametrize(
    ("answer", "size", "how", "says"),
    [
        (3, 2, {}, "step=3: must be a function"),
        (mlp_step, 7, {}, "size=7: must divide M = 240"),
        (mlp_step, 8, {"by_tokens": True}, "size=8: must divide the 60 tokens"),
    ],
)
def test_no_function_and_ranks_that_do_not_divide_what_is_cut_are_refused(answer, size, how, says):
    with pytest.raises(ValueError, match=says):
        mlp_run(answer, size, **how)


def test_the_first_of_16_stages_of_405b_fits_80_gb_on_8_ranks_only_with_sequence_parallelism_and_zero_2():
    """A block keeps 4 E-wide inputs (2 of norms, 2 of columns), q and the heads' output, k, v, 3 M-wide arrays of each
    token in 16 bits, and two norms' and 128 heads' statistics in 32."""
    E, M, KV, heads, S, GB = 16384, 53248, 8 * 128, 128, 8192, 1e9
    whole, cut = 2 * 4 * E + 4 * 2, 2 * (2 * E + 2 * KV + 3 * M) + 4 * heads

    def kept(t, tokens):
        return 126 * S * (whole / (t if tokens else 1) + cut / t) / GB

    assert [round(kept(*how)) for how in ((1, False), (8, False), (8, True))] == [537, 186, 67]
    weights = 2 * E * E + 2 * E * KV + 3 * E * M + 2 * E
    assert weights == sum(math.prod(s) for name, s in LLAMA_405B.weight_shapes.items() if ".layers.0." in name)
    mine = 126 / 16 * weights / 8
    assert first_stage(1) == pytest.approx((kept(1, False), 18 * 8 * mine / GB), rel=1e-9)
    states = [18 * mine, (6 + 12 / 64) * mine, (2 + 16 / 64) * mine]
    for stage, nbytes in enumerate(states):
        expected = kept(8, stage > 0), nbytes / GB
        assert first_stage(8, sequence_parallel=stage > 0, zero=stage) == pytest.approx(expected, rel=1e-9)
    assert [round(kept(8, True) + nbytes / GB) for nbytes in states] == [124, 87, 74]
    assert round(kept(8, False) + states[2] / GB) > 80
    assert round(kept(8, True) + 16 * mine / GB) == 117
