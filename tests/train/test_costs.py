"""Bytes that a step sends and holds, beside closed forms; `tests/plan/test_mesh.py` has those of all strategies."""

from __future__ import annotations

import math

import pytest

from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.pipeline import dualpipe, one_f_one_b
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
        trainer.finish()

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


NODES = [({"dp": 2, "cp": 2, "tp": 2}, 4), ({"dp": 4, "pp": 2}, 4), ({"dp": 3, "cp": 2}, 2)]


@pytest.mark.parametrize(("axes", "per_node"), NODES, ids=str)
def test_of_n_minus_1_psi_of_an_exchange_k_minus_1_psi_cross_between_k_nodes_and_bytes_in_all_are_a_rings(
    axes, per_node
):
    start, (text,) = model(), batches(24, 8)
    m, ranks, N = 2, math.prod(axes.values()), axes["dp"] * axes.get("cp", 1)
    schedule = one_f_one_b(axes.get("pp", 1), m)

    def program(comm, zero):
        mesh = Mesh(comm, **axes, ranks_per_node=per_node)
        trainer = Trainer(mesh, start, AdamW(), zero=zero, schedule=schedule)
        trainer.step(*text)
        return sum(x.size * trainer.own.model.slices[name].shared_by for name, x in start.weights.items())

    of_losses = 0  # all-reduced in a ring: at zero 1 nothing else is
    for zero, passes in ((1, 2), (3, 3 * m), (0, 2)):
        done = run(program, ranks, zero)
        psi = passes * done.results[0] * NUMBER  # bytes
        assert bytes_by_strategy(done.timeline)["dp"] == (N - 1) * (psi + 2 * ranks // N * NUMBER)
        crossing = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), 0)
        for t in done.timeline.transfers:
            if t.src // per_node != t.dst // per_node and t.name.startswith("data: "):
                crossing[t.name.removeprefix("data: ")] += t.nbytes
        of_losses = of_losses or crossing["all_reduce"]
        assert sum(crossing.values()) - of_losses == (ranks // per_node - 1) * psi


def test_a_last_block_that_is_kept_is_gathered_once_in_each_microbatch():
    """The head: 17 · 8 numbers, on each of two ranks."""
    options = {"zero": 3, "schedule": one_f_one_b(1, 3), "B": 6, "S": 2}
    plain, kept = (
        bytes_by_strategy(one_step(case({"dp": 2}, keep_last_block=keep, **options))) for keep in (False, True)
    )
    assert plain["dp"] - kept["dp"] == 3 * 17 * 8 * NUMBER


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
