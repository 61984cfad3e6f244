"""Errors of answers, explained by the learner's own line of code; functions that cannot be tried."""

from __future__ import annotations

import dis
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from parlab.labs.wrong import NotWritten, Wrong

SHOWN = 400  # characters of an error's message


def explained(error: BaseException, call: str) -> str:
    """`raised ValueError: ..., at line 3 of f: ...`; if the call itself failed: `...; it is called as f(x)`."""
    try:
        text = f": {error!s:.{SHOWN}}" if str(error) else ""
    except Exception:
        text = ""
    lines = learners(traceback.extract_tb(error.__traceback__))
    last = lines[-1] if lines else None
    where = f", at line {last.lineno} of {last.name}: {last.line}" if last else f"; it is called as {call}"
    return f"raised {type(error).__name__}{text}{where}"


ZIPPED = [place for place in sys.path if place.endswith(".zip")]  # the standard library, in a browser
LIBRARIES = (
    str(Path(__file__).parents[1]),
    *{sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")},
    *ZIPPED,
)


def learners(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames of the learner's own code, without ours and those of libraries."""
    return [frame for frame in frames if is_learners(frame.filename)]


@cache
def is_learners(filename: str) -> bool:
    """Whether a file, or a notebook's cell, holds the learner's own code."""
    library = filename.startswith((*LIBRARIES, "<frozen", "<__array"))
    return not library and not {"site-packages", "dist-packages"} & set(Path(filename).parts)


EMPTY = ("RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS")  # of `def f(): pass`


def check_callable(answer: Any) -> None:
    """Raise `Wrong` if `answer` is no function that can be called, and `NotWritten` if there is nothing in it."""
    if not callable(answer):
        raise Wrong(f"answer={answer!r:.60}: must be the function that you wrote")
    if inspect.isgeneratorfunction(answer) or inspect.isasyncgenfunction(answer):
        raise Wrong("it holds a `yield`, so a call runs nothing of it: use `return`")
    if inspect.iscoroutinefunction(answer):
        raise Wrong("it is an `async def`, so a call runs nothing of it: use `def`")
    steps = list(dis.get_instructions(answer.__code__)) if inspect.isfunction(answer) else []
    if steps and all(step.opname in EMPTY and ("CONST" not in step.opname or step.argval is None) for step in steps):
        raise NotWritten
