"""A bar while something long runs, which leaves nothing behind: not in the cell, not in the stored notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ipywidgets as widgets
from IPython.core.getipython import get_ipython
from IPython.display import clear_output, display

from parlab.arguments import whole

REDRAW = 0.1  # seconds between two drawings
VIEW = "application/vnd.jupyter.widget-view+json"
WIDTH = 40  # characters, in a terminal


@contextmanager
def progress(steps: int, label: str = "training") -> Iterator[Callable[[int, float], None]]:
    """Show a bar in a notebook or a terminal, and remove it at the end. What the cell prints should come after it.

    It gives a function to call with `(step, loss)` after each of `steps` steps, counted from 0:

        with progress(300) as on_step:
            losses = train(model, batches, optimizer, on_step=on_step)

    Raises:
        ValueError: `steps` is not a positive number.
    """
    whole("steps", steps, 1)
    show, remove = _in_notebook(steps) if _kernel_runs() else _in_terminal(steps)
    drawn = -REDRAW

    def on_step(step: int, loss: float) -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= REDRAW or step + 1 == steps:
            drawn = time.monotonic()
            show(step + 1, f"{label} {step + 1}/{steps}, loss {loss:.3f}")

    try:
        yield on_step
    finally:
        remove()


Pair = tuple[Callable[[int, str], None], Callable[[], None]]


def _in_notebook(steps: int) -> Pair:
    bar, text = widgets.IntProgress(max=steps), widgets.Label("")
    row = widgets.HBox([bar, text])
    # Only the view: stored notebooks are compared by their text, and this one's is different each time.
    display({VIEW: row._repr_mimebundle_()[VIEW]}, raw=True)  # type: ignore[no-untyped-call]

    def show(done: int, words: str) -> None:
        bar.value, text.value = done, words

    def remove() -> None:
        for widget in (row, bar, text):
            widget.close()
        clear_output()  # type: ignore[no-untyped-call]

    return show, remove


def _in_terminal(steps: int) -> Pair:
    stream = sys.stderr
    line = stream.write if stream.isatty() else lambda _: 0

    def show(done: int, words: str) -> None:
        filled = WIDTH * done // steps
        line(f"\r\x1b[K{'█' * filled}{'░' * (WIDTH - filled)} {words}")
        stream.flush()

    def remove() -> None:
        line("\r\x1b[K")
        stream.flush()

    return show, remove


def _kernel_runs() -> bool:
    return getattr(get_ipython(), "kernel", None) is not None
