"""The Zero Bubble paper's heuristic: split backwards on straight stages, stage r on rank r."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from parlab.pipeline.actions import Action
from parlab.pipeline.costs import UNIT_COSTS, Costs, Limit, as_limit, number_that_fits
from parlab.pipeline.schedule import Schedule, check_sizes, title
from parlab.pipeline.schedules import zb_h1, zb_h2
from parlab.pipeline.search.bounds import check_search
from parlab.pipeline.search.local import improve
from parlab.pipeline.search.weights import Filler, Rows, best_filled
from parlab.pipeline.simulate import simulate


def zb_auto(
    p: int,
    m: int,
    costs: Costs = UNIT_COSTS,
    memory_limit: Limit = None,
    *,
    tries: int | None = None,
    metric: str = "longest_stage",
) -> Schedule:
    """Backwards in two halves, ordered for these costs within this memory: ZB-1p and ZB-2p, with limits of p and 2p.

    The heuristic of the paper: forwards as memory allows until the first I arrives, then I and F in turn; a W where the
    wait is long enough for it, where waiting would exceed the most that a rank has stood idle, and where memory is
    full. All combinations of its three choices are tried (whether a forward may delay the first I; whether a rank may
    run more than two forwards ahead of the next one; whether a W may go into a gap that is too small for it), and of
    one more: whether a rank stays one forward behind a rank whose memory is full, or two. The best of them, of ZB-H1
    and of ZB-H2, where these keep to the limit, is then improved by local search.

    Args:
        memory_limit: chunks a rank, or a `MemoryLimit` in bytes. None: no limit.
        tries: of the local search. None: up to 5000, fewer the more actions there are.
        metric: the time that is to be short, `longest_stage` or `makespan` (see `ScheduleTimeline.bubble_fraction`).

    Raises:
        ValueError: a limit in which no activation fits, or an argument out of range.

    Source: Zero Bubble Pipeline Parallelism (Qi et al., 2024), section 3.1.

    >>> from parlab.pipeline import simulate, zb_h1
    >>> simulate(zb_h1(p=4, m=8)).longest_stage, simulate(zb_auto(p=4, m=8, memory_limit=8)).longest_stage
    (27, 24)
    """
    check_sizes(p=p, m=m)
    check_search(costs, metric, tries)
    costs = replace(costs, pair=None)  # which order is best does not depend on it
    limit = as_limit(memory_limit)
    fits = [int(min(m, number_that_fits(most, limit.activation))) for most in limit.of_ranks(p)]
    if min(fits) < 1:
        raise ValueError(f"memory_limit={memory_limit!r}: a rank must be able to keep the activations of one chunk")
    warmups = [
        _warmups(costs, fits, may_delay=may_delay, step=step, behind_full=behind_full)
        for behind_full in (1, 2)
        for may_delay in (False, True)
        for step in (2, m)
    ]  # the fourth choice is whether the filler is patient
    skeletons = [_in_turn(m, chosen) for chosen in dict.fromkeys(warmups)]
    filled = best_filled(Filler(skeletons[0], costs, memory_limit), skeletons, metric)
    known = [make(p, m) for make, keeps in ((zb_h1, p), (zb_h2, 2 * p - 1)) if min(fits) >= min(keeps, m)]
    best = min([Schedule(filled.rows), *known], key=lambda schedule: getattr(simulate(schedule, costs), metric))
    start = Schedule(best.ranks, name=title("ZB by search", p, m))
    return improve(start, costs, memory_limit, tries, metric)


def _warmups(costs: Costs, fits: Sequence[int], may_delay: bool, step: int, behind_full: int) -> tuple[int, ...]:
    """Forwards of each rank before its first I: as many as fit until that arrives, at most `step` more than the next
    rank's, and fewer than those of the rank before: by `behind_full`, if that one's memory is full then."""
    p = len(fits)
    forward, half, transfer = (costs.per_stage(name, p) for name in ("forward", "backward_input", "transfer"))
    free = [sum(forward[: r + 1]) + sum(transfer[:r]) for r in range(p)]  # after the first forward
    warmups = [1] * p
    arrival = free[-1] + half[-1] + transfer[-1]  # of the first gradient, at the rank before the last
    for r in reversed(range(p - 1)):
        most = min(fits[r], warmups[r + 1] + step)
        while warmups[r] < most:
            start, end = free[r], free[r] + forward[r]  # of one forward more
            in_time = start < arrival if may_delay else end <= arrival
            if not in_time:
                break
            warmups[r] += 1
            free[r] = end
        arrival = max(free[r], arrival) + half[r] + transfer[r]
    for r in range(1, p):  # a rank can forward only what the rank before it has forwarded
        fewer = behind_full if warmups[r - 1] == fits[r - 1] else 1
        warmups[r] = min(warmups[r], max(1, warmups[r - 1] - fewer))
    return tuple(warmups)


def _in_turn(m: int, warmups: Sequence[int]) -> Rows:
    """Each rank's forwards of its warm-up, then an I and an F in turn."""
    rows: Rows = []
    for r, warmup in enumerate(warmups):
        rows.append([Action("F", r, i) for i in range(warmup)])
        for i in range(m):
            rows[r].append(Action("I", r, i))
            rows[r] += [Action("F", r, warmup + i)] if warmup + i < m else []
    return rows
