"""What a step sends, counted and in closed form."""

from __future__ import annotations

import math

import pytest

from parlab import run
from parlab.nn.optimizer import AdamW
from parlab.pipeline import dualpipe, interleaved_one_f_one_b, one_f_one_b, zb_h1, zb_v
from parlab.train import Mesh, Trainer, bytes_by_strategy, step_bytes
from tests.train.models import Case, batches, drawn, model

FOUR = {"dp": 2, "pp": 2, "cp": 2, "tp": 2}


def case(axes, *, B=8, S=8, layers=4, tied=False, heads=2, **options):
    sizes = {"num_hidden_layers": layers, "tie_word_embeddings": tied, "num_key_value_heads": heads}
    return Case(axes, sizes, B, S, None, options)


def one_step(case):
    """The timeline of a step, and its closed forms."""
    start, (text,) = model(**case.model), batches(case.B, case.S)

    def program(comm):
        trainer = Trainer(Mesh(comm, **case.axes), start, AdamW(), max_norm=case.max_norm, **case.options)
        trainer.step(*text)
        trainer.finish()
        return step_bytes(trainer, case.B, case.S)

    done = run(program, math.prod(case.axes.values()))
    assert all(found == done.results[0] for found in done.results)
    return done.timeline, done.results[0]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bytes_of_all_four_strategies_are_the_closed_forms(zero):
    timeline, expected = one_step(case(FOUR, zero=zero, schedule=one_f_one_b(2, 4), sequence_parallel=zero % 2 == 0))
    assert bytes_by_strategy(timeline) == expected
    assert all(expected.values())


def test_bytes_of_recomputed_forwards_between_ranks_of_cp_and_tp_are_the_closed_forms():
    timeline, expected = one_step(case({"cp": 2, "tp": 2}, recompute="full"))
    assert bytes_by_strategy(timeline) == expected


@pytest.mark.parametrize(("zero", "reduce"), [(2, "accumulate"), (3, "each")])
@pytest.mark.parametrize("schedule", [one_f_one_b(2, 4), one_f_one_b(1, 3), dualpipe(2, 4)], ids=lambda x: x.name)
def test_bytes_of_a_tied_table_and_of_stages_on_two_ranks_are_the_closed_forms(zero, schedule, reduce):
    axes, m = {"dp": 2, "pp": schedule.num_ranks}, schedule.num_microbatches
    timeline, expected = one_step(case(axes, zero=zero, tied=True, schedule=schedule, reduce=reduce, B=2 * m, S=2))
    assert bytes_by_strategy(timeline) == expected


@pytest.mark.parametrize("seed", range(4))
def test_bytes_of_random_meshes_are_the_closed_forms(seed):
    timeline, expected = one_step(drawn(seed, ranks=8))
    assert bytes_by_strategy(timeline) == expected


NODES = [
    ({"dp": 4, "tp": 2}, 4),
    ({"dp": 2, "cp": 2, "tp": 2}, 4),
    ({"dp": 4, "pp": 2}, 4),
    ({"dp": 3, "cp": 2}, 2),
]


@pytest.mark.parametrize(("axes", "per_node"), NODES, ids=str)
def test_of_n_minus_1_psi_of_an_exchange_k_minus_1_psi_cross_between_k_nodes_and_bytes_in_all_are_a_rings(
    axes, per_node
):
    start, (text,) = model(), batches(24, 8)
    schedule = one_f_one_b(axes.get("pp", 1), 2)
    ranks, N = math.prod(axes.values()), axes["dp"] * axes.get("cp", 1)

    def program(comm, zero):
        mesh = Mesh(comm, **axes, ranks_per_node=per_node)
        trainer = Trainer(mesh, start, AdamW(), zero=zero, schedule=schedule)
        trainer.step(*text)
        return step_bytes(trainer, 24, 8)

    of_losses = 0  # all-reduced in a ring: at zero 1 nothing else is
    for zero in (1, 2, 3, 0):
        done = run(program, ranks, zero)
        expected = done.results[0]
        assert bytes_by_strategy(done.timeline) == expected
        crossing = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), 0)
        for t in done.timeline.transfers:
            if t.src // per_node != t.dst // per_node and t.name.startswith("data: "):
                crossing[t.name.removeprefix("data: ")] += t.nbytes
        of_losses = of_losses or crossing["all_reduce"]
        psi = expected["dp"] / (N - 1) - 2 * ranks / N * 8  # bytes; the loss's ring is left out
        assert sum(crossing.values()) - of_losses == (ranks // per_node - 1) * psi


@pytest.mark.parametrize(
    ("schedule", "pp"),
    [
        (one_f_one_b(1, 3), 1),
        (one_f_one_b(2, 3), 2),
        (interleaved_one_f_one_b(2, 4, 2), 2),
        (zb_h1(2, 3), 2),
        (zb_v(2, 2), 2),
        (dualpipe(2, 4), 2),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_last_block_that_is_kept_is_gathered_once_between_its_forward_and_its_backward(schedule, pp):
    options = {"zero": 3, "schedule": schedule, "tied": True, "B": 2 * schedule.num_microbatches, "S": 2}
    plain, whole = (one_step(case({"dp": 2, "pp": pp}, keep_last_block=keep, **options)) for keep in (False, True))
    assert bytes_by_strategy(whole[0]) == whole[1]
    assert whole[1]["dp"] < plain[1]["dp"]


def test_new_weights_gathered_in_the_next_forward_are_as_many_bytes():
    timeline, expected = one_step(case({"dp": 2, "pp": 2}, zero=2, overlap_gather=True))
    assert bytes_by_strategy(timeline) == expected


def gathered(timeline):
    """Bytes of weights that ZeRO gathered, all ranks together."""
    return sum(t.nbytes for t in timeline.transfers if t.name == "data: all_gather" and t.src != t.dst)


@pytest.mark.parametrize(
    ("schedule", "pp"),
    [
        (one_f_one_b(2, 3), 2),
        (interleaved_one_f_one_b(2, 4, 2), 2),
        (zb_h1(2, 3), 2),
        (zb_v(2, 2), 2),
        (dualpipe(2, 4), 2),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_zero_3_under_a_pipeline_gathers_exactly_2_m_psi_whatever_it_gathers_ahead(schedule, pp):
    m, data = schedule.num_microbatches, 2
    timeline, _ = one_step(case({"dp": data, "pp": pp}, zero=3, schedule=schedule, B=data * m, S=2))
    psi = sum(weight.size for weight in model(num_hidden_layers=4).weights.values())
    assert gathered(timeline) == 2 * m * psi * (data - 1) * 8


@pytest.mark.parametrize(("reduce", "times"), [("each", 3), ("accumulate", 1)])
def test_zero_2_reduces_m_psi_at_once_or_psi_when_accumulated_and_then_holds_psi(reduce, times):
    timeline, _ = one_step(case({"dp": 2}, zero=2, reduce=reduce, schedule=one_f_one_b(1, 3), B=6, S=2))
    psi = sum(weight.size for weight in model(num_hidden_layers=4).weights.values())
    sent = sum(t.nbytes for t in timeline.transfers if t.name == "data: reduce_scatter" and t.src != t.dst)
    held = max(total for _, total in timeline.held_by_name(0)["gradients"])
    assert sent == times * psi * 8
    assert held == (psi * 8 if reduce == "accumulate" else psi * 8 / 2)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("pp", [1, 2])
def test_zero_2_and_3_hold_gradients_of_one_block_and_their_shards_and_never_those_of_a_stage(zero, pp):
    weights = model().weights
    block = 8 * sum(x.size for name, x in weights.items() if "layers.0." in name)  # larger than the table and the head
    timeline, _ = one_step(case({"dp": 2, "pp": pp}, zero=zero, schedule=one_f_one_b(pp, 4)))
    held = {name: max(total for _, total in steps) for name, steps in timeline.held_by_name(0).items()}
    assert held["new gradients"] == held["gradients on their way"] == block
    assert held["gradients"] <= 8 * sum(x.size for x in weights.values()) // pp // 2 + 8 * 17 * 8
