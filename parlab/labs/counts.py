"""Counts of a run, compared with their closed forms, and numbers in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from parlab.labs.wrong import Wrong
from parlab.world import Cluster, Run, Timeline
from parlab.world.units import format_time, several

ITEMSIZE = 8  # bytes: of float64
ONE_STEP = Cluster.uniform(latency=1e-6, bandwidth=math.inf)  # a message takes 1 µs: a clock that counts steps


@dataclass(frozen=True)
class Count:
    """A quantity that was counted.

    Attributes:
        what: its name, as it is shown: "bytes a rank sends".
        numbers: one for each rank, or one for all ranks.
        show: turns a number into text.
        unit: the unit behind a number that is shown with all its digits.
    """

    what: str
    numbers: Sequence[int]
    show: Callable[[int], str] = str
    unit: str = ""

    def check(
        self,
        formula: str,
        allowed: int,
        likely: str,
        exact: bool = False,
        early: bool = False,
        limit: bool = False,
    ) -> str:
        """The line that shows the largest number and the closed form.

        Args:
            formula: the closed form, as it is shown.
            allowed: its value, the largest number that is right.
            likely: the usual cause of a larger number.
            exact: a smaller number is wrong, too.
            early: the results are compared only later.
            limit: the exercise states a limit, and no closed form.

        Raises:
            Wrong: a number is larger than the closed form, or, if `exact`, not equal to it.
        """
        worst = max(self.numbers, key=lambda number: abs(number - allowed) if exact else number)
        found, right = self.show(worst), self.show(allowed)
        if worst != allowed and found == right:
            found, right = f"{worst}{self.unit}", f"{allowed}{self.unit}"
        right = right if formula == right else f"{formula} = {right}"
        if worst > allowed or (exact and worst < allowed):
            title = [] if early else ["the results are right, but not what was counted:"]
            where = f" (rank {self.numbers.index(worst)})" if len(set(self.numbers)) > 1 else ""
            raise Wrong(*title, f"{self.what}: {found}{where}, should be {right}", f"likely cause: {likely}")
        word = "at most" if limit or worst < allowed else "closed form:"
        return f"{self.what}: {found}; {word} {right}"


def messages(done: Run) -> Count:
    """The messages that each rank sends."""
    return Count("messages a rank sends", [done.timeline.messages(rank) for rank in range(done.timeline.size)])


def bytes_sent(done: Run) -> Count:
    """The bytes that each rank sends."""
    return Count("bytes a rank sends", [done.timeline.bytes_sent(rank) for rank in range(done.timeline.size)])


def elements_sent(done: Run, what: str = "elements that all ranks send") -> Count:
    """The float64 elements that all ranks send together."""
    return Count(what, [sum(bytes_sent(done).numbers) // ITEMSIZE])


def steps(done: Run, clock: Cluster = ONE_STEP) -> Count:
    """The longest chain of messages: the makespan if each message takes one tick, and nothing else takes time."""
    return Count("steps", [round(done.on(clock).makespan / 10**6)])


def makespan(done: Run) -> Count:
    """The makespan, in picoseconds."""
    return Count("makespan", [done.timeline.makespan], format_time, " ps")


def peak_bytes(timeline: Timeline, name: str) -> int:
    """The most bytes that any rank held under `name`."""
    changes = (timeline.held_by_name(rank).get(name, []) for rank in range(timeline.size))
    return max((total for of_rank in changes for _, total in of_rank), default=0)


def two_blocks(blocks: Sequence[int], order: Sequence[int]) -> int:
    """The most weights of two blocks that follow each other in `order`."""
    return max(blocks[one] + blocks[other] for one, other in pairwise(order))


def ranks_in_words(size: int) -> str:
    """`1 rank` or `4 ranks`."""
    return several(size, "rank")


def microbatches_in_words(number: int) -> str:
    """`1 microbatch` or `4 microbatches`."""
    return f"{number} microbatch" + "es" * (number != 1)


def listed(numbers: Sequence[int]) -> str:
    """`1, 2 and 3`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}"


def right_and_wrong(right: Sequence[int], wrong: Sequence[int]) -> list[str]:
    """The line that names the ranks with right and with wrong results; none if no rank is right."""
    if not right:
        return []
    return [f"right on ranks: {', '.join(map(str, right))}; wrong on: {', '.join(map(str, wrong))}"]
