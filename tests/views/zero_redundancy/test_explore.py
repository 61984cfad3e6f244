"""The widget's bars, verdicts and limits are the formula's."""

import pytest

from parlab import views
from parlab.views.zero_redundancy.model_state import BOOKS, DEVICE, END
from parlab.zero import MIXED, StateBytes, model_state_bytes
from tests.views.drawn import artists, boxes, title

SLIDERS = {name: [value for _, value in control.options] for name, control in views.explore_zero().controls.items()}


def held(params, P, stage, state=MIXED, offload=False):
    on_device = StateBytes(state.weight, state.gradient, 0) if offload and stage else state
    return model_state_bytes(params, P, stage, state=on_device)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("book", BOOKS)
def test_every_bar_ends_at_the_formula_or_where_the_axis_does(book, offload):
    for params in SLIDERS["params"][::3]:
        figure = views.zero(params, 64, 2, BOOKS[book], offload)
        expected = [held(params, 64, stage, BOOKS[book], offload) for stage in range(4)]
        assert [box[1] for box in boxes(figure, "optimizer")] == pytest.approx([min(END, total) for total in expected])
        assert len(artists(figure, "longer")) == sum(total > END for total in expected)
        fits = [row.split()[-1] for row in repr(figure).splitlines()[2:6]]
        assert fits == ["yes" if total <= DEVICE else "no" for total in expected]


def test_5_billion_parameters_at_16_bytes_are_80_gb_and_fit_and_one_more_does_not():
    assert "80 GB of model state, fits an 80 GB device" in title(views.zero(5e9, 64, 0))
    assert "does not fit an 80 GB device" in title(views.zero(5e9 + 1, 64, 0))


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("params", [1e9, 7.5e9, 19e9, 20e9, 39e9, 40e9, 1e12])
def test_the_fewest_devices_are_the_first_that_fit(params, stage, offload):
    said = repr(views.zero(params, 64, stage, offload=offload)).splitlines()[-2]
    fitting = [P for P in range(1, 3000) if held(params, P, stage, offload=offload) <= DEVICE]
    assert ("fits from P = " in said) == bool(fitting)
    if fitting:
        assert said.endswith(f"fits from P = {fitting[0]} on.")
    else:
        assert "no P is enough" in said


@pytest.mark.parametrize("stage", range(4))
def test_the_largest_model_is_the_one_that_fills_80_gb(stage):
    said = repr(views.zero(7.5e9, 64, stage)).splitlines()[-2]
    number, word = said.partition("up to Ψ = ")[2].partition(";")[0].split()
    most = float(number) * {"billion": 1e9, "trillion": 1e12}[word]
    assert held(most, 64, stage) == pytest.approx(DEVICE, rel=5e-3)  # three digits


def test_activations_are_said_to_come_on_top():
    figure = views.zero()
    (words,) = [text.get_text() for text in figure.texts if "Activations" in text.get_text()]
    assert words == "Activations, buffers and the blocks in use come on top: ZeRO shards the model's state alone."
    assert repr(figure).endswith(words)


def test_offloaded_state_is_in_the_text_but_not_in_the_bars():
    figure = views.zero(7.5e9, 64, 1, offload=True)
    assert [box[1] - box[0] for box in boxes(figure, "optimizer")] == [90e9, 0, 0, 0]
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "120 GB = 16Ψ\ndoes not fit",
        "30 GB = 4Ψ\nfits; 1.41 GB on the host",
        "15.2 GB = 2Ψ + 2Ψ/P\nfits; 1.41 GB on the host",
        "469 MB = 4Ψ/P\nfits; 1.41 GB on the host",
    ]


def test_the_line_is_at_80_gb_and_the_axis_stands_still():
    for params in (1e9, 1e12):
        figure = views.zero(params)
        (line,) = artists(figure, "device")
        assert set(line.get_xdata()) == {80e9}
        assert figure.axes[0].get_xlim() == (0, 160e9)


def test_18_and_20_bytes_are_gradients_in_float32_and_in_both():
    assert [sum(state) for state in BOOKS.values()] == [16, 18, 20, 16]
    assert "= 6Ψ + 12Ψ/P" in views.zero(stage=1, state=BOOKS["18: gradients in float32"]).axes[0].texts[1].get_text()


def test_all_corners_of_the_sliders_draw():
    for params in (SLIDERS["params"][0], SLIDERS["params"][-1]):
        for P in (SLIDERS["P"][0], SLIDERS["P"][-1]):
            for stage in range(4):
                assert repr(views.zero(params, P, stage, offload=True)).startswith(f"Stage {stage}, Ψ = 1 ")
