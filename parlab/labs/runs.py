"""An answer that runs on ranks: run it, explain its errors, and hold what was counted to the closed form."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from parlab.labs.exercise import NotWritten, Wrong
from parlab.world import Run, Timeline, WorldError, run

PARLAB = str(Path(__file__).parents[1])


def ran(program: Callable[..., Any], size: int, call: str, *args: Any, **options: Any) -> Run:
    """`run(program, size, *args, **options)`; `call` is how the answer in it is called, as it is shown.

    Raises:
        NotWritten: the answer is still the stub: it says so, or no rank sends or returns anything.
        Wrong: it raised an error, or the ranks cannot end.
    """
    try:
        with np.errstate(all="ignore"):  # an overflow is explained by the result that it gives
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


def learners_line(error: Exception) -> str:
    """The innermost line of the learner's that the error passed; "" if none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(PARLAB)]
    return f", at line {frames[-1].lineno} of {frames[-1].name}: {frames[-1].line}" if frames else ""


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


def elements_sent(timeline: Timeline, itemsize: int) -> int:
    """By all ranks together."""
    return sum(timeline.bytes_sent(rank) for rank in range(timeline.size)) // itemsize


def two_blocks(blocks: Sequence[int], order: Sequence[int]) -> int:
    """The most weights of two blocks that follow each other in `order`."""
    return max(blocks[one] + blocks[other] for one, other in pairwise(order))


def ranks_in_words(size: int) -> str:
    """So many, in words."""
    return "1 rank" if size == 1 else f"{size} ranks"


def listed(numbers: Sequence[int]) -> str:
    """`1, 2 and 3`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}"
