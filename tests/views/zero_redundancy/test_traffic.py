"""The bars are the counted bytes, by collective; the marks are the formula."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from parlab import run, views
from parlab.views.drawing import theme
from parlab.views.zero_redundancy.traffic import COLORS
from parlab.zero import elements_sent
from tests.views.drawn import artists, boxes, title
from tests.views.zero_redundancy.zero_runs import PSI, stages, step

FORMULA = {f"stage {stage}": elements_sent(PSI, 4, stage) for stage in range(4)}


def heights(figure, kind):
    return [high - low for _, _, low, high in boxes(figure, kind)]


def marks_of(figure):
    (lines,) = artists(figure, "formula")
    colors = {to_hex(color).upper() for color in lines.get_colors()}
    return [segment[0][1] for segment in lines.get_segments()], colors


def test_2_2_2_3_passes_of_which_collective_and_the_formula_on_each_bar():
    figure = views.zero_traffic(stages(), FORMULA, PSI)
    assert heights(figure, "all_reduce")[0] == 2
    assert heights(figure, "reduce_scatter") == pytest.approx([0, 1, 1, 1])
    assert heights(figure, "all_gather") == pytest.approx([0, 1, 1, 2])
    assert marks_of(figure) == ([2, 2, 2, 3], {theme.INK})
    assert title(figure).endswith("counted = formula")
    words = [text.get_text() for text in figure.axes[0].texts]
    assert [word.partition("\n")[0] for word in words] == ["2 passes", "2 passes", "2 passes", "3 passes"]


def test_the_text_counts_2_3_psi_2_bytes_and_the_48_of_the_norm_apart():
    """A ring all-reduce of one float64 among 4 ranks: over 3 links to be summed, over 3 to be known, 8 bytes each."""
    rows = [row.split() for row in repr(views.zero_traffic(stages(), FORMULA, PSI)).splitlines()[2:]]
    expected = 2 * 3 * PSI * 2
    assert rows[0] == ["stage", "0", "2", str(expected), str(expected)]
    assert rows[1][:5] == ["stage", "1", "2", str(expected), str(expected)]
    assert rows[3][2:5] == ["3", str(3 * expected // 2), str(3 * expected // 2)]
    assert all(row[-5:] == ["and", "48", "for", "the", "norm"] for row in rows[1:])


@pytest.mark.parametrize(("stage", "passes"), [(0, 2), (1, 2), (2, 5), (3, 12)])
def test_4_microbatches_send_2_2_5_12_passes(stage, passes):
    done = {"run, 4 microbatches": step(stage, rows=4, microbatches=4)}
    figure = views.zero_traffic(done, {"run, 4 microbatches": elements_sent(PSI, 4, stage, microbatches=4)}, PSI)
    assert title(figure).endswith("counted = formula")
    assert sum(heights(figure, kind)[0] for kind in COLORS) == pytest.approx(passes, rel=1e-3)  # and the norm
    assert marks_of(figure)[0] == [passes]
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert ticks == ["run\n4 microbatches"]


def test_uneven_shards_are_counted_to_the_element():
    done = {f"stage {stage}": step(stage, size=3) for stage in range(4)}
    formula = {f"stage {stage}": elements_sent(PSI, 3, stage) for stage in range(4)}
    assert title(views.zero_traffic(done, formula, PSI)).endswith("counted = formula")


def test_a_wrong_formula_is_said_and_marked_in_red():
    figure = views.zero_traffic(stages(), FORMULA | {"stage 2": FORMULA["stage 2"] + 1}, PSI)
    assert title(figure).endswith("NOT the formula at stage 2")
    (lines,) = artists(figure, "formula")
    reds = [to_hex(color).upper() == theme.ALARM for color in lines.get_colors()]
    assert reds == [False, False, True, False]


def test_float32_travels_in_4_bytes_and_has_no_norm_to_agree_on():
    figure = views.zero_traffic({"one": step(1, dtype="float32")}, {"one": elements_sent(PSI, 4, 1)}, PSI, itemsize=4)
    assert title(figure).endswith("counted = formula")
    assert "norm" not in repr(figure)


def test_the_small_all_reduce_of_plain_data_parallelism_is_a_gradient_and_no_norm():
    done = run(lambda comm: comm.all_reduce(np.ones(2)), 2)
    figure = views.zero_traffic({"one": done}, {"one": 4}, 2, itemsize=8)
    assert title(figure).endswith("counted = formula")
    assert "norm" not in repr(figure)
