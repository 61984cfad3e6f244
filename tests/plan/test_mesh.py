"""A step of all four strategies at once, run on 16 ranks: the planner's bytes are those that the messages had."""

from __future__ import annotations

import pytest

from parlab.pipeline import interleaved_one_f_one_b, looped_bfs, one_f_one_b
from parlab.plan import Layout, estimate
from parlab.train import bytes_by_strategy
from parlab.world import CLASSROOM
from parlab.zero import StateBytes
from tests.train.models import model
from tests.train.test_costs import FOUR, case, one_step

NUMBER = 8  # bytes of a loss: the trainer sums those too


@pytest.mark.parametrize(
    ("schedule", "knobs"),
    [
        (one_f_one_b(2, 4), dict(zero=0)),
        (one_f_one_b(2, 4), dict(zero=1, sequence_parallel=True)),
        (one_f_one_b(2, 4), dict(zero=2, recompute="full")),
        (one_f_one_b(2, 4), dict(zero=3, sequence_parallel=True, recompute="full")),
        (interleaved_one_f_one_b(2, 4, 2), dict(zero=1, chunks=2)),
        (looped_bfs(2, 4, 2), dict(zero=1, chunks=2, schedule="looped_bfs", sequence_parallel=True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("tied", [False, True])
def test_bytes_of_a_mesh_of_2_by_2_by_2_by_2_equal_the_counted_ones(schedule, knobs, tied):
    options = {name: value for name, value in knobs.items() if name not in ("chunks", "schedule")}
    reduce = {"reduce": "each"} if knobs["zero"] == 2 else {}
    timeline, _ = one_step(case(FOUR, schedule=schedule, tied=tied, **options, **reduce))
    counted = bytes_by_strategy(timeline)
    counted["dp"] -= 3 * (2 * 2) * 2 * NUMBER  # among the 4 ranks of dp × cp, once for each of pp × tp
    counted["pp"] -= (2 * 2 * 2) * 2 * NUMBER
    config = model(num_hidden_layers=4, tie_word_embeddings=tied).config
    layout = Layout(**FOUR, **knobs)
    found = estimate(config, CLASSROOM, layout, batch=8, sequence=8, state=StateBytes(8, 8, 16), itemsize=8).sent
    assert found == {name: counted[name] for name in found}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_tied_table_on_1_stage_is_gathered_and_summed_at_both_of_its_ends(zero):
    axes = {"dp": 2, "cp": 2}
    timeline, _ = one_step(case(axes, zero=zero, tied=True, schedule=one_f_one_b(1, 2)))
    config = model(num_hidden_layers=4, tie_word_embeddings=True).config
    asked = dict(batch=8, sequence=8, state=StateBytes(8, 8, 16), itemsize=8)
    found = estimate(config, CLASSROOM, Layout(**axes, zero=zero, microbatch=2), **asked).sent
    assert found["dp"] == bytes_by_strategy(timeline)["dp"] - 3 * 2 * NUMBER
