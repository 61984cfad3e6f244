"""Exercises whose answer is a plain function: call it, and explain what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.labs.exercise import NotWritten, Wrong
from parlab.labs.runs import learners_line


def called(answer: Callable[..., Any], call: str, *arguments: Any) -> Any:
    """What `answer(*arguments)` returns; `call` is how it is called, as it is shown.

    Raises:
        NotWritten: it is still the stub.
        Wrong: it raised an error.
    """
    try:
        result = answer(*arguments)
    except NotImplementedError:
        raise NotWritten from None
    except Exception as error:
        line = learners_line(error) or f"; it is called as {call}"
        raise Wrong(f"it raised {type(error).__name__}: {error}{line}") from None
    if result is None:
        raise NotWritten
    return result


def brief(result: Any) -> str:
    """What was returned instead of what was expected."""
    return f"{type(result).__name__} {result!r:.60}"
