"""What was counted in a run, held to its closed form, and how numbers are said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from parlab.labs.trial import Wrong
from parlab.world import Timeline


def wrong_count(shown: str, likely: str, results_right: bool = True) -> Wrong:
    """What to raise where a count, as it is `shown`, is not the closed form; `likely` is what usually makes it so."""
    title = ["the results are right, but not what was counted:"] if results_right else []
    return Wrong(*title, shown, f"likely cause: {likely}")


def at_most(what: str, measured: int, formula: str, allowed: int, likely: str, show: Callable[[int], str] = str) -> str:
    """The line that shows both, where the results are right.

    Raises:
        Wrong: more was counted than the closed form says.
    """
    if measured > allowed:
        raise wrong_count(f"{what}: {show(measured)}, should be {formula} = {show(allowed)}", likely)
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
