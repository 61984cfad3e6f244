"""The bars are the formula's, in the paper's numbers; points are what runs held."""

import pytest

from parlab import views
from parlab.views.zero_redundancy.model_state import COLORS, NAMES, decimal_bytes, spoken, state_formula
from parlab.zero import MIXED, StateBytes
from tests.views.drawing.test_theme import NOTICEABLE, VISIONS, closest
from tests.views.drawn import artists, boxes
from tests.views.zero_redundancy.zero_runs import PSI, step

BOOKS = {"mixed": MIXED, "Megatron": StateBytes(gradient=4), "float32": StateBytes(4, 4, 8), "odd": StateBytes(1, 0, 3)}


@pytest.mark.parametrize(
    ("ranks", "gigabytes"),
    [(4, ["120", "52.5", "41.3", "30"]), (64, ["120", "31.4", "16.6", "1.88"])],
)
def test_the_papers_figure_of_7p5_billion_on_4_and_64_devices(ranks, gigabytes):
    formulas = ("16Ψ", "4Ψ + 12Ψ/P", "2Ψ + 14Ψ/P", "16Ψ/P")
    written = [text.get_text().partition("\n")[0] for text in views.zero(7.5e9, ranks).axes[0].texts]
    assert written == [f"{number} GB = {formula}" for number, formula in zip(gigabytes, formulas, strict=True)]


@pytest.mark.parametrize("ranks", [1, 3, 1024])
@pytest.mark.parametrize("state", BOOKS.values(), ids=BOOKS)
def test_the_parts_of_a_bar_follow_each_other(state, ranks):
    parts = [boxes(views.zero(1e9, ranks, state=state), part) for part in ("weights", "gradients", "optimizer")]
    for of_stage in zip(*parts, strict=True):
        assert [box[0] for box in of_stage] == [0, of_stage[0][1], of_stage[1][1]]
        assert of_stage[0][1] in (1e9 * state.weight, pytest.approx(1e9 * state.weight / ranks))


@pytest.mark.parametrize("size", [3, 4])
def test_counted_points_are_the_ends_of_the_bars_even_where_3_ranks_do_not_divide(size):
    counted = {stage: step(stage, size=size) for stage in range(4)}
    figure = views.zero(7.5e9, size, runs=counted, runs_params=PSI)
    points = [artists(figure, f"runs {stage}")[0].get_xdata()[0] for stage in range(4)]
    assert points == pytest.approx([box[1] for box in boxes(figure, "optimizer")], rel=1e-12)
    assert repr(figure).count("bytes, = formula") == 4


def test_a_run_in_float32_is_not_the_formula_of_mixed_precision():
    counted = {1: step(1, dtype="float32")}
    figure = views.zero(PSI, 4, runs=counted)
    assert f"held by a run at stage 1: {8 * PSI + 8 * PSI // 4} bytes, NOT the formula's {7 * PSI}" in repr(figure)
    right = views.zero(PSI, 4, state=StateBytes(4, 4, 8), runs=counted)
    assert f"{10 * PSI} bytes, = formula" in repr(right)


def test_without_runs_nothing_is_counted():
    figure = views.zero(7.5e9, 64)
    assert not [artist for stage in range(4) for artist in artists(figure, f"runs {stage}")]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(NAMES)


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 KB"),
        (41.25e9, "41.3 GB"),
        (999.4e9, "999 GB"),
        (18e12, "18 TB"),
        (2e15, "2 PB"),
    ],
)
def test_bytes_in_powers_of_1000_to_three_digits(nbytes, said):
    assert decimal_bytes(nbytes) == said


def test_formulas_of_18_and_of_8_bytes():
    assert [state_formula(stage, StateBytes(gradient=4)) for stage in range(4)] == [
        "18Ψ", "6Ψ + 12Ψ/P", "2Ψ + 16Ψ/P", "18Ψ/P",
    ]  # fmt: skip
    assert [state_formula(stage, StateBytes(2, 2, 0)) for stage in range(4)] == ["4Ψ", "4Ψ", "2Ψ + 2Ψ/P", "4Ψ/P"]
    assert spoken(1.75e11) == "175 billion"


@pytest.mark.parametrize("vision", VISIONS)
def test_the_parts_differ_by_more_than_15(vision):
    assert closest(list(COLORS.values()), vision) > NOTICEABLE


@pytest.mark.parametrize(("end", "cut"), [(160e9, 2), (320e9, 1), (1200e9, 0)])
def test_bars_beyond_the_end_of_the_axis_are_cut_there(end, cut):
    figure = views.zero(70e9, 64, end=end)
    assert figure.axes[0].get_xlim() == (0, end)
    assert len(artists(figure, "longer")) == cut
    assert max(box[1] for box in boxes(figure, "optimizer")) == min(end, 16 * 70e9)


@pytest.mark.parametrize("end", [79e9, 0, float("nan")])
def test_an_axis_that_ends_before_80_gb_is_refused(end):
    with pytest.raises(ValueError, match="end="):
        views.zero(end=end)
