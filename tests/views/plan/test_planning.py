"""The planner's figures show the planner's numbers, and all of their text can be read."""

import re
from dataclasses import replace

import pytest

from parlab import views
from parlab.plan import LLAMA_3, LLAMA_405B, Layout, estimate, search, validation
from parlab.views.plan.predicted_and_measured import COLORS
from parlab.views.plan.two_runs import meta_run
from parlab.world import DGX_H100
from parlab.world.units import format_bytes
from tests.views.drawn import artists, boxes, title

META = Layout(dp=128, pp=16, tp=8, chunks=8, zero=2, schedule="looped_bfs", sequence_parallel=True)


def test_predicted_and_measured_draws_every_rows_error():
    table = validation()
    figure = views.predicted_and_measured(table)
    for family in table.errors:
        (points,) = artists(figure, family)
        rows = [row for row in table if row.family == family]
        assert points.get_xdata() == pytest.approx([100 * row.error for row in rows])
        assert points.get_color() == COLORS[rows[0].kind]
        (bar,) = artists(figure, f"mean of {family}")
        mean = 100 * table.errors[family][0]
        both = [-mean * any(row.error < 0 for row in rows), mean * any(row.error > 0 for row in rows)]
        assert list(bar.get_xdata()) == pytest.approx(both)
    assert len({COLORS[row.kind] for row in table}) == 3
    assert str(table) in repr(figure)


def test_a_forgotten_term_is_the_end_of_its_bar_in_a_frame_and_the_rest_is_what_was_promised(monkeypatch):
    """Llama 3's layout waits 0.08 s for dp; a planner that forgets dp chooses one that waits 3.69."""
    monkeypatch.setattr("parlab.plan.software.LLAMA_3", LLAMA_3.but(sends_by_group=False))
    tried = {"cp": 1, "zero": [1, 2], "recompute": ["none", "full"]}
    plans = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, **tried)
    chosen = {}
    for kind in ("dp", "tp", "bubble"):
        blind = replace(plans, grid=replace(plans.grid, seconds=plans.grid.seconds | {kind: 0.0})).best
        chosen[kind] = estimate(layout=blind.layout, **plans.asked)
        assert chosen[kind].total_seconds - chosen[kind].seconds[kind] == pytest.approx(blind.total_seconds)
        assert chosen[kind].total_seconds > plans.best.total_seconds
    figure = views.forgotten(chosen)
    assert title(figure) == "Without dp a planner promises 6.5 s, and its layout takes 10.2 s"
    promised, missing = boxes(figure, "promised"), boxes(figure, "forgotten")
    for (kind, e), (_, end, *_), (start, total, *_) in zip(chosen.items(), promised, missing, strict=True):
        assert end == start == pytest.approx(e.total_seconds - e.seconds[kind])
        assert total == pytest.approx(e.total_seconds)
    assert [f"{e.total_seconds:.2f}" for e in chosen.values()] == ["10.19", "7.23", "8.61"]
    assert round(plans.best.seconds["dp"], 2) == 0.08
    errors = {kind: validation(without=kind).errors["Narayanan 2021, table 1"][0] for kind in chosen}
    figure = views.forgotten(chosen, best=plans.best, errors=errors)
    (line,) = artists(figure, "best")
    assert line.get_xdata()[0] == plans.best.total_seconds
    assert [text.get_text() for text in figure.texts if re.fullmatch(r"\d\.\d%", text.get_text())] == [
        "4.5%",
        "7.7%",
        "7.1%",
    ]


# ---- a layout of one's own


def test_a_layout_of_ones_own_stands_below_llama_3s_on_axes_that_never_change():
    figures = [views.layout(), views.layout(tp=8, pp=16, chunks=8), views.layout(tp=8, pp=4)]
    assert len({axes.get_xlim() for figure in figures for axes in figure.axes[:2]}) == 2
    for figure, how in zip(figures, ({"tp": 16}, {"chunks": 8}, {"pp": 4}), strict=True):
        own = META.but(**{"chunks": 1, "zero": 1, "schedule": "1f1b"} | how)
        found = estimate(LLAMA_405B, DGX_H100, own.but(dp=16384 // own.pp // own.tp), batch=2048, sequence=8192)
        _, (left, right, *_) = boxes(figure, "products")
        assert right - left == pytest.approx(found.seconds["products"])
        fits = found.total_bytes <= 80e9
        said = (
            f"{found.total_seconds:.2f} s and {format_bytes(found.total_bytes)}: {'fits' if fits else 'does not fit'}"
        )
        assert title(figure).startswith(said)
        assert len(artists(figure, "over")) == (not fits)
        cut = [f"{found.total_seconds:.1f} s ▸"] * (found.total_seconds > 12)  # the axis ends there
        assert [words.get_text() for words in artists(figure, "cut")] == cut
        own = [words.get_text() for words in artists(figure, "sum") if words.get_position()[1] == 1]
        assert own[not cut :] == [format_bytes(found.total_bytes)]


def test_half_the_pipeline_fits_if_a_layer_or_swiglu_is_computed_again_and_is_3_or_5_percent_faster():
    half = {"tp": 8, "pp": 8, "chunks": 16, "zero": 2}
    said = ", {} % faster than Llama 3's layout"
    assert title(views.layout(**half)) == "6.23 s and 77.0 GiB: does not fit" + said.format(5)
    assert title(views.layout(**half, recompute_layers=1)) == "6.36 s and 73.7 GiB: fits" + said.format(3)
    figure = views.layout(**half, recompute="mlp.hidden")
    assert title(figure) == "6.24 s and 64.1 GiB: fits" + said.format(5)
    (goal,) = artists(figure, "goal")
    assert goal.get_xdata()[0] == meta_run(16384).total_seconds


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"tp": 4}, "dp is 256: a replica has 8 microbatches for 16 pipeline stages."),
        ({"tp": 8, "pp": 32, "chunks": 8}, "32 stages · 8 chunks: the model has 126 layers."),
        ({"tp": 3}, "tp 3 · pp 16 does not divide 16384 GPUs"),
    ],
)
def test_for_a_layout_that_is_not_possible_the_reason_stands_there(asked, reason):
    figure = views.layout(**asked)
    assert title(figure) == "This layout is not possible"
    assert f"your layout: {reason}" in [text.get_text() for text in figure.texts]
