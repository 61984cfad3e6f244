"""An answer that runs on ranks: run it, explain its errors, and hold what was counted to the closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.labs.exercise import NotWritten, Wrong
from parlab.labs.rank_programs import learners_line
from parlab.world import Run, Timeline, WorldError, run


def ran(program: Callable[..., Any], size: int, call: str, *args: Any, **options: Any) -> Run:
    """`run(program, size, *args, **options)`; `call` is how the answer in it is called, as it is shown.

    Raises:
        NotWritten: the answer is still the stub: it says so, or no rank sends or returns anything.
        Wrong: it raised an error, or the ranks cannot end.
    """
    try:
        done = run(program, size, *args, **options)
    except NotImplementedError:
        raise NotWritten from None
    except WorldError as error:
        raise Wrong(str(error)) from None
    except Exception as error:
        where = learners_line(error) or f"; it is called as {call}"
        raise Wrong(f"rank {error.rank} raised {type(error).__name__}: {error}{where}") from None  # type: ignore[attr-defined]
    if size > 1 and not done.timeline.transfers and all(result is None for result in done.results):
        raise NotWritten
    return done


def at_most(what: str, measured: int, formula: str, allowed: int, likely: str, show: Callable[[int], str] = str) -> str:
    """The line that shows both, where the results are right.

    Raises:
        Wrong: more was counted than the closed form says; `likely` is what usually makes it so.
    """
    if measured > allowed:
        raise Wrong(
            "the results are right, but not what was counted:",
            f"{what}: {show(measured)}, should be {formula} = {show(allowed)}",
            f"likely cause: {likely}",
        )
    return f"{what}: {show(measured)}; closed form: {formula} = {show(allowed)}"


def peak_bytes(timeline: Timeline, name: str) -> int:
    """The most bytes that any rank held under `name`."""
    changes = (timeline.held_by_name(rank).get(name, []) for rank in range(timeline.size))
    return max((total for of_rank in changes for _, total in of_rank), default=0)
