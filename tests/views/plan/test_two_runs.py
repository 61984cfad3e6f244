"""Meta's two runs, the dial between their orders, and which plans a card refutes."""

import pytest

from parlab import views
from parlab.pipeline import interleaved_one_f_one_b, looped_bfs, simulate
from parlab.plan import LLAMA_405B, estimate, validation
from parlab.views.engine import theme
from parlab.views.plan.refuted import held_over_planned
from parlab.views.plan.two_runs import CARD, LEFT, RUN, STEP, UNIT, meta_run
from parlab.world import DGX_H100
from parlab.zero import StateBytes
from tests.views.drawn import artists, title
from tests.views.filmed import check_film, marks, tree_of

GIB = 2**30


def test_the_film_ends_with_the_planners_two_bills_and_what_the_card_lacks_is_in_alarm():
    film = views.two_runs()
    check_film(film)
    found = [meta_run(gpus, schedule="looped_bfs") for gpus in (16384, 8192)]
    assert [e.total_bytes / GIB for e in found] == pytest.approx([71.02, 134.91], abs=0.01)
    stay = [said for numbers, said in marks(film, "see") if said and "b" not in numbers][:2]
    assert stay == [["16", "71.0"], ["32", "134.9"]]  # the microbatches that are kept, and the sums
    boxes = [part.attrib for part in tree_of(film).iter("rect") if part.get("height") == "36"]
    ends = [(float(part["x"]) + float(part["width"]) - LEFT) / UNIT for part in boxes]
    assert max(ends) == pytest.approx(134.91, abs=0.4)
    assert all((part["fill"] == theme.ALARM) == (end > CARD) for part, end in zip(boxes, ends, strict=True))
    assert len(boxes) == 16 + 32 + 2 * 2  # weights and all else


def test_the_microbatches_of_both_runs_come_evenly_while_the_forwards_pass():
    boxes = [(numbers["a"], said) for numbers, said in marks(views.two_runs(), "see") if numbers.keys() == {"a"}]
    times = [time for time, said in boxes if not said]
    for first, count in ((0, 16), (16, 32)):
        own = times[first : first + count]
        assert own == sorted(own)
        assert own[-1] == max(times)


@pytest.mark.parametrize(("n", "gib", "longer"), [(16, 77.8, 0), (18, 84.8, 3), (31, 129.9, 39), (32, 133.4, 0)])
def test_each_microbatch_more_in_a_row_costs_3_5_gib_and_between_16_and_32_the_step_is_longer(n, gib, longer):
    figure = views.dial(n)
    said = f", and the step is {f'{longer} % longer than' if longer else 'as short as'} with 16"
    assert title(figure) == f"N = {n}: {gib} GiB" + said * (n > 16)
    if n == 16:
        assert meta_run(8192).total_bytes / GIB == pytest.approx(gib, abs=0.05)
    (curve,) = artists(figure, "kept")
    assert max(curve.get_ydata()) == (7 * n + 29) / 8  # of the second stage: 7N + 2 * 15 - 1 chunks of 8
    assert len(artists(figure, "too large")) == (n > 16)


def test_the_slider_begins_at_32_where_the_planner_is_wrong_and_ends_at_16():
    widget = views.explore_dial()
    assert title(widget.figure).startswith("N = 32")
    widget.controls["microbatches"].value = 16
    assert title(widget.figure).startswith("N = 16")
    with pytest.raises(ValueError, match="microbatches=15: must be from 16 to 32"):
        views.dial(15)


def test_with_16_microbatches_both_orders_keep_16_and_with_32_all_in_a_row_keep_all():
    kept = [
        simulate(order(16, m, 8)).peak_activations[1] / 8
        for m in (16, 32)
        for order in (interleaved_one_f_one_b, looped_bfs)
    ]
    assert kept == [16, 16, 17.625, 32]


def test_only_135_gib_is_refuted_if_runs_hold_0_91_to_1_29_of_their_plans():
    rows = [row for row in validation() if row.unit == "GiB"]
    assert held_over_planned() == (
        min(r.published / r.predicted for r in rows),
        max(r.published / r.predicted for r in rows),
    )
    assert [round(end, 2) for end in held_over_planned()] == [0.91, 1.29]
    figure = views.refuted({"all": 134.9, "some": 84.8, "few": 77.8})
    assert title(figure) == "A card of 79.6 GiB refutes 1 of 3 plans"
    (bar,) = artists(figure, "some")
    assert list(bar.get_xdata()) == pytest.approx([84.8 * end for end in held_over_planned()])


def test_float32_sums_make_whole_gradients_88_8_gib_which_the_card_refutes_by_1_gib():
    """Llama team 2024, section 3.3.2: gradients of several microbatches are summed in float32."""
    named = {"bf16": 2, "float32": 4}
    layout = RUN.but(dp=64, zero=1)
    found = {
        name: estimate(LLAMA_405B, DGX_H100, layout, state=StateBytes(2, size, 12), **STEP).total_bytes / GIB
        for name, size in named.items()
    }
    assert found == pytest.approx({"bf16": 82.9, "float32": 88.8}, abs=0.05)
    low, _ = held_over_planned()
    assert [gib * low for gib in found.values()] == pytest.approx([75.4, 80.8], abs=0.05)
    assert title(views.refuted(found)) == "A card of 79.6 GiB refutes 1 of 2 plans"


def test_by_the_runs_with_a_pipeline_alone_no_plan_would_be_left():
    held = [row.published / row.predicted for row in validation() if row.family == "torchtitan, table 6 (pp 8)"]
    assert min(held) == pytest.approx(1.14, abs=0.005)
    assert 77.8 * min(held) > CARD
