"""Figures are drawn by matplotlib's defaults, whatever a matplotlibrc or a style says.

Matplotlib is loaded here first, and in silence: it writes to standard error that its cache folder cannot be written, or
that its first look for fonts takes a while, and a notebook's test takes such words for an error of the cell.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Let the logger of this name say nothing but errors."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


with _quiet("matplotlib"):
    import matplotlib
    import matplotlib.font_manager

DEFAULTS = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}


def by_defaults(function: Function) -> Function:
    """A decorator: `function` draws by matplotlib's defaults, and leaves the user's settings as they were."""

    @functools.wraps(function)
    def drawing(*args: Any, **kwargs: Any) -> Any:
        others = {name: value for name, value in DEFAULTS.items() if matplotlib.rcParams[name] != value}
        if not others:
            return function(*args, **kwargs)
        with matplotlib.rc_context(others):
            return function(*args, **kwargs)

    return drawing  # type: ignore[return-value]


def draw_by_defaults(names: dict[str, Any]) -> None:
    """Let each public function among these names of a package draw by the defaults: parts take their look when made."""
    for name, value in names.items():
        if inspect.isfunction(value) and not name.startswith("_"):
            names[name] = by_defaults(value)
