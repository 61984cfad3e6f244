"""A step of all four strategies at once, run on 16 ranks: the planner's bytes are those that the messages had."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import gpipe, interleaved_one_f_one_b, looped_bfs, one_f_one_b
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
        (one_f_one_b(2, 4), dict(zero=2, recompute="full")),
        (one_f_one_b(2, 4), dict(zero=3, sequence_parallel=True, recompute="full")),
        (looped_bfs(2, 4, 2), dict(zero=1, chunks=2, schedule="looped_bfs", sequence_parallel=True)),
    ],
    ids=["ZeRO-2", "ZeRO-3", "breadth-first"],
)
def test_bytes_of_a_mesh_of_2_by_2_by_2_by_2_equal_the_counted_ones(schedule, knobs):
    options = {name: value for name, value in knobs.items() if name not in ("chunks", "schedule")}
    reduce = {"reduce": "each"} if knobs["zero"] == 2 else {}
    timeline = one_step(case(FOUR, schedule=schedule, tied=True, **options, **reduce))
    counted = bytes_by_strategy(timeline)
    counted["dp"] -= 3 * (2 * 2) * 2 * NUMBER  # among the 4 ranks of dp × cp, once for each of pp × tp
    counted["pp"] -= (2 * 2 * 2) * 2 * NUMBER
    config = model(num_hidden_layers=4, tie_word_embeddings=True).config
    layout = Layout(**FOUR, **knobs)
    found = estimate(config, CLASSROOM, layout, batch=8, sequence=8, state=StateBytes(8, 8, 16), itemsize=8).sent
    assert found == {name: counted[name] for name in found}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_tied_table_on_1_stage_is_gathered_and_summed_at_both_of_its_ends(zero):
    axes = {"dp": 2, "cp": 2}
    timeline = one_step(case(axes, zero=zero, tied=True, schedule=one_f_one_b(1, 2)))
    config = model(num_hidden_layers=4, tie_word_embeddings=True).config
    asked = dict(batch=8, sequence=8, state=StateBytes(8, 8, 16), itemsize=8)
    found = estimate(config, CLASSROOM, Layout(**axes, zero=zero, microbatch=2), **asked).sent
    assert found["dp"] == bytes_by_strategy(timeline)["dp"] - 3 * 2 * NUMBER


@st.composite
def pipelines(draw):
    """A schedule, its name in a layout, its ranks and chunks, and a number of layers that its stages share unevenly."""
    kind, p = draw(st.sampled_from(["1f1b", "gpipe", "looped_bfs"])), draw(st.integers(1, 2))
    v = draw(st.integers(1, 2)) if p > 1 and kind != "gpipe" else 1
    m = draw(st.integers(1, 2)) * p
    schedule = {
        "1f1b": one_f_one_b(p, m) if v == 1 else interleaved_one_f_one_b(p, m, v),
        "gpipe": gpipe(p, m),
        "looped_bfs": looped_bfs(p, m, v),
    }[kind]
    layers = draw(st.sampled_from([L for L in range(p * v, 2 * p * v + 1) if -L % (p * v) <= 2]))
    return schedule, kind, p, v, layers


@settings(max_examples=12, deadline=None)
@given(pipelines(), st.integers(0, 3), st.sampled_from([(2, 1), (1, 2), (3, 1)]), st.booleans())
def test_data_and_pipeline_bytes_of_a_tied_or_untied_model_equal_the_counted_ones(pipeline, zero, data, tied):
    """Stage 2 reduces each microbatch's gradients under 1F1B alone; elsewhere it keeps them whole and reduces once."""
    (schedule, kind, p, v, layers), (dp, cp) = pipeline, data
    axes, m = {"dp": dp, "pp": p, "cp": cp}, schedule.num_microbatches
    reduce = {"reduce": "each" if kind == "1f1b" else "accumulate"} if zero == 2 else {}
    timeline = one_step(case(axes, B=dp * m, layers=layers, tied=tied, schedule=schedule, zero=zero, **reduce))
    counted = bytes_by_strategy(timeline)
    counted["dp"] -= (dp * cp - 1) * p * 2 * NUMBER
    counted["pp"] -= dp * cp * 2 * (p - 1) * NUMBER
    config = model(num_hidden_layers=layers, tie_word_embeddings=tied).config
    asked = dict(batch=dp * m, sequence=8, state=StateBytes(8, 8, 16), itemsize=8)
    found = estimate(config, CLASSROOM, Layout(**axes, zero=zero, schedule=kind, chunks=v), **asked).sent
    assert (found["dp"], found["pp"], found["cp"]) == (counted["dp"], counted["pp"], counted["cp"])


@pytest.mark.parametrize(("schedule", "sent"), [("1f1b", 9792), ("gpipe", 8704), ("looped_bfs", 8704)])
def test_a_tied_table_on_1_stage_at_zero_2_of_2_ranks_sends_9792_bytes_or_8704_if_gradients_are_kept_whole(
    schedule, sent
):
    """The table has 17 · 8 numbers of 8 bytes: 1088."""
    axes = {"dp": 2}
    one_stage = {"1f1b": one_f_one_b(1, 1), "gpipe": gpipe(1, 1), "looped_bfs": looped_bfs(1, 1, 1)}[schedule]
    reduce = "each" if schedule == "1f1b" else "accumulate"
    timeline = one_step(case(axes, B=2, layers=1, tied=True, zero=2, schedule=one_stage, reduce=reduce))
    config = model(num_hidden_layers=1, tie_word_embeddings=True).config
    asked = dict(batch=2, sequence=8, state=StateBytes(8, 8, 16), itemsize=8)
    found = estimate(config, CLASSROOM, Layout(dp=2, zero=2, schedule=schedule), **asked).sent["dp"]
    assert found == bytes_by_strategy(timeline)["dp"] - 2 * NUMBER == sent
