"""The reader of notebooks finds what is wrong with one, and nothing else."""

import nbformat
import pytest

from tests.browser.reader import FAILED, FOLDED, write

pytestmark = pytest.mark.slow
PICTURE = """
import io

import ipywidgets as widgets
from matplotlib.figure import Figure

def draw(*values):
    figure = Figure(figsize=(3, 2))
    figure.subplots().bar(range(len(values)), values)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()

controls = [
    widgets.FloatSlider(value=1, min=0, max=4, description="latency"),
    widgets.IntSlider(value=8, min=1, max=8, description="ranks"),
    widgets.SelectionSlider(options=[1, 2, 4], description="bytes", orientation="vertical"),
    widgets.Dropdown(options=[("ring", 1), ("tree", 2)], description="algorithm"),
    widgets.Checkbox(description="ports"),
    widgets.ToggleButtons(options=[1, 2]),
    widgets.RadioButtons(options=[1, 2]),
]
picture = widgets.Image(value=draw(*[control.value for control in controls]), format="png")

def redraw(_):
    picture.value = draw(*[control.value for control in controls])
"""
SHOW = "widgets.VBox([*controls, picture])"
IN_AN_OUTPUT_WIDGET = """
from IPython.display import display

area = widgets.Output()
slider = widgets.IntSlider(description="stages")

def redraw(_):
    with area:
        area.clear_output(wait=True)
        display(widgets.Image(value=draw(slider.value)))

redraw(None)
slider.observe(redraw, "value")
widgets.HBox([slider, area])
"""
AFTER_A_CLICK = """
answer = widgets.Image(layout={"display": "none"})
button = widgets.Button(description="Compare")

def show(_):
    answer.value, answer.layout.display = draw(3), None

button.on_click(show)
widgets.VBox([button, answer])
"""
DEAD_FILM = "widgets.VBox([widgets.Play(), picture])"


@pytest.fixture
def complaints(tmp_path, reader):
    def about(*cells):
        heading = nbformat.v4.new_markdown_cell("## Further", metadata={FOLDED: True})
        write(tmp_path / "throwaway.ipynb", heading, *cells)
        return reader.read(tmp_path / "throwaway.ipynb")

    return about


def test_a_sound_notebook_gets_no_complaint(complaints):
    live = "for control in controls:\n    control.observe(redraw, 'value')"
    assert complaints(PICTURE, live, SHOW, "", IN_AN_OUTPUT_WIDGET, AFTER_A_CLICK) == []


def test_a_control_without_effect_and_one_without_a_picture_are_named(complaints):
    dead = "del controls[2:]\ncontrols[1].observe(redraw, 'value')"
    assert complaints(PICTURE, dead, SHOW, "widgets.IntSlider(description='stages')", DEAD_FILM) == [
        "the control 'latency' changes no picture",
        "the control 'stages' changes no picture",
        "the control '' changes no picture",
    ]


def test_a_warning_and_the_error_that_stops_a_notebook_are_quoted(complaints):
    warning, error = complaints("import warnings\nwarnings.warn('slow')", "1 / 0", "print('never reached')")
    assert "UserWarning: slow" in warning
    assert "ZeroDivisionError" in error


def test_an_error_that_a_control_causes_is_quoted(complaints):
    fails = """
area = widgets.Output()

@area.capture()
def fail(change):
    redraw(change)
    raise ValueError("too many ranks")

controls[0].observe(fail, "value")
widgets.VBox([controls[0], picture, area])
"""
    (complaint,) = complaints(PICTURE, fails)
    assert "ValueError: too many ranks" in complaint


def test_a_widget_that_cannot_be_shown_is_quoted(complaints):
    (complaint,) = complaints("import ipywidgets\nipywidgets.Image(value=b'', tooltip='crashes its view')")
    assert "Failed to create view for 'ImageView'" in complaint


USED = []


@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_test_after_one_that_failed_gets_a_page_of_its_own(turn, reader, request):
    assert reader not in USED
    USED.append(reader)
    request.node.stash[FAILED] = True


def test_a_request_to_the_network_is_refused_and_named(complaints):
    asks = "from IPython.display import HTML\nHTML('<img src=\"http://example.org/logo.png\">')"
    assert complaints(asks) == ["asked the network for example.org"]
