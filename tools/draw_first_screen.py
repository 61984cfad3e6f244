"""Draw the picture of README.md from the run in parlab's own docstring: `python tools/draw_first_screen.py`."""

import doctest
from pathlib import Path
from typing import Any

import parlab
from parlab import views

ROOT = Path(__file__).parents[1]


def draw() -> None:
    examples = doctest.DocTestParser().get_examples(parlab.__doc__ or "")
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example.source, "parlab", "exec"), names)
    views.timeline(names["ring"].timeline).savefig(ROOT / "docs/first_screen.png", dpi=100)


if __name__ == "__main__":
    draw()
