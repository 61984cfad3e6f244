"""Bytes that a step sends and holds, beside closed forms; `tests/plan/test_mesh.py` has those of all strategies."""

from __future__ import annotations

import math

import pytest

from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.pipeline import dualpipe, interleaved_one_f_one_b, one_f_one_b, zb_v
from parlab.train import Mesh, Trainer, bytes_by_strategy
from tests.train.models import batches, model, ranks_of
from tests.train.models import case as on_mesh

FOUR = {"dp": 2, "pp": 2, "cp": 2, "tp": 2}
NUMBER = 8  # bytes of a loss, a weight or a sum of squares


def case(axes, **how):
    return on_mesh(**axes, **how)


def one_step(case):
    """The timeline of a step."""
    start, (text,) = model(**case.model), batches(case.B, case.S)

    def program(comm):
        trainer = Trainer(Mesh(comm, **case.axes), start, AdamW(), max_norm=case.max_norm, **case.options)
        trainer.step(*text)

    return run(program, ranks_of(case.axes)).timeline


def psi_of(**sizes):
    return sum(weight.size for weight in model(**sizes).weights.values())


@pytest.mark.parametrize(("zero", "together"), [(0, 4), (3, 16)])
def test_the_sum_of_squares_goes_by_recursive_doubling_over_all_16_ranks_or_at_zero_0_over_the_4_of_a_replica(
    zero, together
):
    timeline = one_step(case(FOUR, zero=zero, schedule=one_f_one_b(2, 4), sequence_parallel=zero == 0))
    assert bytes_by_strategy(timeline)["norm"] == 16 * math.log2(together) * NUMBER


def test_stages_on_two_ranks_sum_each_gradient_once_and_a_tied_table_is_gathered_at_both_ends():
    """DualPipe: both ranks of pp hold all weights, and each microbatch crosses once, forward and back."""
    m, dp, pp = 4, 2, 2
    timeline = one_step(case({"dp": dp, "pp": pp}, zero=3, tied=True, schedule=dualpipe(pp, m), B=dp * m, S=2))
    psi, table = psi_of(num_hidden_layers=4, tie_word_embeddings=True), 17 * 8
    counted = bytes_by_strategy(timeline)
    assert counted["dp"] == NUMBER * (pp * psi + 2 * m * (psi + table)) + dp * pp * NUMBER
    assert counted["pp"] == dp * NUMBER * (2 * m * 2 * 8 + 2 * psi + 2)  # a row of 2 tokens of 8 numbers; the loss


@pytest.mark.parametrize(
    "schedule", [one_f_one_b(2, 3), interleaved_one_f_one_b(2, 4, 2), zb_v(2, 2)], ids=lambda schedule: schedule.name
)
def test_zero_3_under_a_pipeline_gathers_exactly_2_m_psi_whatever_it_gathers_ahead(schedule):
    m, data = schedule.num_microbatches, 2
    timeline = one_step(case({"dp": data, "pp": 2}, zero=3, schedule=schedule, B=data * m, S=2))
    gathered = sum(t.nbytes for t in timeline.transfers if t.name == "data: all_gather" and t.src != t.dst)
    assert gathered == 2 * m * psi_of(num_hidden_layers=4) * (data - 1) * NUMBER


@pytest.mark.parametrize(("reduce", "times"), [("each", 3), ("accumulate", 1)])
def test_zero_2_reduces_m_psi_at_once_or_psi_when_accumulated_and_then_holds_psi(reduce, times):
    timeline = one_step(case({"dp": 2}, zero=2, reduce=reduce, schedule=one_f_one_b(1, 3), B=6, S=2))
    psi = psi_of(num_hidden_layers=4)
    sent = sum(t.nbytes for t in timeline.transfers if t.name == "data: reduce_scatter" and t.src != t.dst)
    held = max(total for _, total in timeline.held_by_name(0)["gradients"])
    assert sent == times * psi * 8
    assert held == (psi * 8 if reduce == "accumulate" else psi * 8 / 2)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("pp", [1, 2])
def test_zero_2_and_3_hold_gradients_of_one_block_and_their_shards_and_never_those_of_a_stage(zero, pp):
    weights = model().weights
    block = 8 * sum(x.size for name, x in weights.items() if "layers.0." in name)  # larger than the table and the head
    timeline = one_step(case({"dp": 2, "pp": pp}, zero=zero, schedule=one_f_one_b(pp, 4)))
    held = {name: max(total for _, total in steps) for name, steps in timeline.held_by_name(0).items()}
    assert held["new gradients"] == held["gradients on their way"] == block
    assert held["gradients"] <= 8 * sum(x.size for x in weights.values()) // pp // 2 + 8 * 17 * 8
