"""The page of the views: its examples run as they stand there, and it has a row for each public name."""

import inspect
import re
from pathlib import Path

import pytest

from parlab import views
from parlab.views.engine.explore import Explorer
from parlab.views.engine.player import Film
from tests.views.drawn import check_controls, check_text, title
from tests.views.filmed import check_film, marks

PAGE = Path(views.__file__).with_name("README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MOST_LINES = 40


def made(example):
    """What the last line of an example, an expression, is; and the names that the example has defined."""
    names = {}
    *body, last = example.rstrip().split("\n")
    exec("\n".join(body), names)
    return eval(last, names), names


@pytest.mark.parametrize("example", EXAMPLES, ids=["figure", "film"])
def test_an_example_has_at_most_40_lines(example):
    assert len(example.splitlines()) <= MOST_LINES


def test_the_example_of_a_figure_has_a_slider_whose_every_value_draws_another_picture():
    """Amdahl: with s serial, P ranks are 1/(s + (1 − s)/P) times as fast."""
    explorer, names = made(EXAMPLES[0])
    assert isinstance(explorer, Explorer)
    check_controls(explorer)
    assert title(explorer.figure) == "With 5% serial, 64 ranks are 15.4 times as fast"
    explorer.controls["serial"].value = 0
    assert title(explorer.figure) == "With 0% serial, 64 ranks are 64.0 times as fast"
    check_text(names["speedup"]())


def test_the_example_of_a_film_tells_3_works_and_2_messages():
    film, _ = made(EXAMPLES[1])
    assert isinstance(film, Film)
    check_film(film)
    assert [line.partition(": ")[2] for line in film.lines] == [
        "rank 0 works",
        "x travels",
        "rank 1 works",
        "x travels",
        "rank 2 works",
    ]
    assert [words for _, words in marks(film, "go")] == [["64 B"]] * 2


def test_every_public_name_has_a_row():
    public = {name for name, value in vars(views).items() if not name.startswith("_") and not inspect.ismodule(value)}
    rows = set(re.findall(r"`(\w+)", "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))))
    assert public <= rows, public - rows
    assert rows <= public, rows - public
