"""Schedules on a V: rank r has the stages r and 2p − 1 − r, so that a microbatch comes back to where it started.

Letters as in `parlab/pipeline/schedules.py`; a chunk is one of the two stages of a rank, half of its layers. F, I and W
are times of a chunk, and where they are equal one of them is a unit.
"""

from __future__ import annotations

from collections.abc import Iterator

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import UNIT_COSTS, Costs, Limit, as_limit, number_that_fits
from parlab.pipeline.schedule import Schedule, check_sizes, title
from parlab.pipeline.search.bounds import check_search
from parlab.pipeline.search.local import improve
from parlab.pipeline.search.timetable import LENGTH, Offsets, Timetable
from parlab.pipeline.search.weights import Filler, Rows, best_filled, order_of, skeleton_of


def zb_v(p: int, m: int) -> Schedule:
    """Two chunks a rank on a V, backwards in two halves: rank r starts with 2(p − r) − 1 forwards of its first chunk.
    No idle time by longest stage, p − 1 units by makespan, where F = I = W and m ≥ 2p − 1; keeps 2p chunks.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 6.

    >>> print(zb_v(p=1, m=2))
    rank 0: 0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1
    """
    check_sizes(p=p, m=m)
    # Where p < m < 2p − 1 this is the order of 2p − 1 microbatches, without those that are too many. With m ≤ p that
    # order would have waits that nobody needs
    m_of_order = m if m <= p else max(m, 2 * p - 1)
    ranks = [[action for action in _zb_v_rank(r, p, m_of_order) if action.microbatch < m] for r in range(p)]
    return Schedule(ranks, name=title("ZB-V", p, m))


def _zb_v_rank(r: int, p: int, m: int) -> list[Action]:
    """The actions of rank r, phase by phase: each repeats a few actions, on the next microbatch of their kind."""
    actions: list[Action] = []
    first, second = r, 2 * p - 1 - r
    done = {(kind, stage): 0 for kind in "FIW" for stage in (first, second)}

    def do(times: int, *cycle: tuple[str, int]) -> None:
        for _ in range(times):
            for kind, stage in cycle:
                actions.append(Action(kind, stage, done[kind, stage]))
                done[kind, stage] += 1

    do(2 * (p - r) - 1, ("F", first))
    do(r, ("F", second), ("F", first))
    do(p - r, ("F", second), ("I", second), ("W", second))
    returning = [("I", first), ("W", first), ("F", second), ("I", second), ("W", second)]
    do(m - done["F", first], ("F", first), *returning)
    do(m - done["F", second], *returning)
    do(r, ("I", first), ("I", second))
    do(p - r, ("I", first), ("W", first))
    for stage in (second, first):
        do(m - done["W", stage], ("W", stage))
    return actions


def v_half(p: int, m: int) -> Schedule:
    """Half of the activations of 1F1B: keeps p + 2 chunks (p + 1 for odd p), where 1F1B keeps p stages of two.

    Source: Pipeline Parallelism with Controllable Memory (Qi et al., 2024), section 3.3.

    >>> print(v_half(p=2, m=2))
    rank 0: 0F0 0F1 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1
    rank 1: 1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 1W0 2W1 1W1
    """
    check_sizes(p=p, m=m)
    return Schedule(_within_own_peak(Timetable(_v_half_block(p), "FFII", m)), name=title("V-Half", p, m))


def v_min(p: int, m: int) -> Schedule:
    """A third of the activations of 1F1B, towards large p: keeps 2⌊(p + 4)/3⌋ chunks, at least 4.

    Source: Pipeline Parallelism with Controllable Memory (Qi et al., 2024), section 3.3.

    >>> print(v_min(p=2, m=2))
    rank 0: 0F0 0F1 3F0 3I0 3F1 3W0 0I0 3I1 0W0 3W1 0I1 0W1
    rank 1: 1F0 2F0 1F1 2F1 2I0 1I0 2W0 1W0 2I1 1I1 2W1 1W1
    """
    check_sizes(p=p, m=m)
    return Schedule(_within_own_peak(Timetable(_first_free("FFII", p), "FFII", m)), name=title("V-Min", p, m))


def one_f_one_b_v(p: int, m: int) -> Schedule:
    """1F1B on a V, with full backwards: keeps 2⌊2p/3⌋ + 2 chunks, two thirds of 1F1B's activations.

    Source: Pipeline Parallelism with Controllable Memory (Qi et al., 2024), appendix.

    >>> print(one_f_one_b_v(p=2, m=2))
    rank 0: 0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1
    rank 1: 1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1
    """
    check_sizes(p=p, m=m)
    timetable = Timetable(_first_free("FFBB", p), "FFBB", m)
    timetable.squeeze(timetable.peak)
    return Schedule(timetable.rows(), name=title("1F1B-V", p, m))


def v_controlled(
    p: int, m: int, costs: Costs = UNIT_COSTS, memory_limit: Limit = None, *, tries: int | None = None
) -> Schedule:
    """The best on a V within a limit. It tries ZB-V, V-Half, V-Min and slower blocks, if they keep to the limit, each
    moved left as far as the limit allows. The one with the least makespan is improved by local search.

    Args:
        costs: of a chunk, half of a rank's layers.
        memory_limit: chunks a rank, at least 2, or a `MemoryLimit` in bytes. None: no limit.
        tries: as of `zb_auto`.

    Raises:
        ValueError: a limit below two chunks: a microbatch keeps both of a rank's.

    Source: Pipeline Parallelism with Controllable Memory (Qi et al., 2024), section 3.

    >>> from parlab.pipeline import simulate
    >>> [simulate(v_controlled(p=4, m=8, memory_limit=limit)).makespan for limit in (2, 4, 6, 8)]
    [101, 59, 53, 51]
    """
    check_sizes(p=p, m=m)
    check_search(costs, tries=tries)
    fits = _whole_chunks(memory_limit, p)
    if fits < 2:
        raise ValueError(
            f"memory_limit={memory_limit!r}: a rank must be able to keep two chunks, one of each of its stages"
        )
    filled = [best_filled(Filler(rows, costs, memory_limit), [rows], "makespan") for rows in _blocks_within(p, m, fits)]
    start = Schedule(min(filled, key=order_of("makespan")).rows, name=title("V by search", p, m))
    return improve(start, costs, memory_limit, tries, "makespan")


def _within_own_peak(timetable: Timetable) -> Rows:
    """The order of a block that is squeezed and keeps no more than before, with the W's in their best places."""
    rows = timetable.order_within(timetable.peak)
    return best_filled(Filler(rows, UNIT_COSTS, timetable.peak), [rows], "makespan").rows


def _blocks_within(p: int, m: int, fits: int) -> Iterator[Rows]:
    """The orders of F's and I's of the blocks that keep at most `fits` chunks."""
    if fits >= 2 * p:  # ZB-V
        yield skeleton_of(zb_v(p, m).actions)
    timetable = Timetable(_v_half_block(p), "FFII", m)
    if fits >= timetable.peak:  # V-Half
        yield timetable.order_within(fits)
    period = 6  # V-Min; then slower and slower blocks, of which p + 1 microbatches show the peak
    while Timetable(_first_free("FFII", p, period), "FFII", min(m, p + 1), period).peak > fits:
        period += 1
    yield Timetable(_first_free("FFII", p, period), "FFII", m, period).order_within(fits)


def _whole_chunks(memory_limit: Limit, p: int) -> int:
    """How many whole chunks fit on every rank of a V, as far as that matters."""
    limit = as_limit(memory_limit)
    return int(min(number_that_fits(min(limit.of_ranks(p)), limit.activation), 2**31))


def _v_half_block(p: int) -> Offsets:
    """On the way down the V a microbatch passes a rank every two units, on the way up every unit; its backward too."""
    shift = 3 if p % 2 == 0 else 0
    return [(2 * r, 3 * p - 2 - r, 3 * p - 1 + shift + 2 * r, 6 * p - 2 + shift - r) for r in range(p)]


def _first_free(kinds: str, p: int, period: int = 6) -> Offsets:
    """A block in which each action takes the first unit that is free on its rank when the block is repeated."""
    taken: list[set[int]] = [set() for _ in range(p)]
    offsets: Offsets = [()] * p
    down, up = range(p), range(p)[::-1]
    unit = 0
    for kind, ranks in zip(kinds, (down, up, down, up), strict=True):
        for r in ranks:
            while not _fits(_units_of(kind, unit, period), taken[r], period):
                unit += 1
            taken[r] |= _units_of(kind, unit, period)
            offsets[r] += (unit,)
            unit += LENGTH[kind]
    return offsets


def _units_of(kind: str, unit: int, period: int) -> set[int]:
    """The units of a period that an action takes if it starts in `unit`."""
    return {(unit + i) % period for i in range(LENGTH[kind])}


def _fits(own: set[int], taken: set[int], period: int) -> bool:
    """Whether an action can have these units; a full backward leaves two for the other one that lie side by side."""
    left = sorted(set(range(period)) - taken - own)
    return not own & taken and (len(own) == 1 or not left or left[1] - left[0] in (1, period - 1))
