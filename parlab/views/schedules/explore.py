"""Pipeline schedules under the learner's hands: schedule, ranks, microbatches, chunks, costs, transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from parlab.arguments import amount, whole
from parlab.pipeline import Costs, Schedule, schedules, simulate
from parlab.pipeline.schedule import title
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, sheet, write
from parlab.views.schedules.schedule import compare_schedules
from parlab.views.schedules.schedule import schedule as draw
from parlab.views.widgets.explorer import Explorer, choice, steps

SCHEDULES = {
    "naive": schedules.naive,
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "ZB-H1": schedules.zb_h1,
    "ZB-H2": schedules.zb_h2,
}
CHUNKED = {"GPipe": schedules.looped_bfs, "1F1B": schedules.interleaved_one_f_one_b}  # with several chunks a rank
NOTHING, PATH = "nothing", "critical path"
MOST_WAITS = 30  # that the slider offers
Maker = Callable[[int, int], Schedule]
PAIR: Mapping[str, Maker] = {"GPipe": schedules.gpipe, "1F1B": schedules.one_f_one_b}


def pipeline(
    schedule: str = "1F1B",
    p: int = 4,
    m: int = 8,
    v: int = 1,
    forward: float = 1,
    backward_input: float = 1,
    backward_weight: float = 1,
    transfer: float = 0,
    mark: str | int = NOTHING,
) -> Picture:
    """Draw a schedule of the papers, as `explore_schedules` does. Where a schedule refuses the numbers, draw why.

    Args:
        schedule: one of `SCHEDULES`; GPipe with several chunks is looped breadth-first, 1F1B is interleaved.
        p: ranks.
        m: microbatches.
        v: chunks a rank, for GPipe and 1F1B.
        forward: F, the time of all layers of a rank, so that each chunk takes 1/v of it.
        backward_input: I, likewise.
        backward_weight: W, likewise; a full backward takes I + W.
        transfer: time of a message between two ranks.
        mark: "nothing", "critical path", or a number: explain the longest wait (1), the next (2), ... or the last.

    Raises:
        ValueError: an unknown schedule or mark, chunks that are no number from 1 on, or a negative cost.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r}: choose one of {', '.join(SCHEDULES)}")
    if mark not in (NOTHING, PATH) and not (isinstance(mark, int) and mark >= 1):
        raise ValueError(f"mark={mark!r}: choose {NOTHING}, {PATH}, or the number of a wait, from 1")
    whole("v", v, 1)
    costs = Costs(forward / v, backward_input / v, backward_weight / v, transfer)
    if reason := _misfit(schedule, p, m, v):
        figure = sheet(f"{schedule}: {reason}", 1.0, f"{schedule} does not fit these numbers")
        write(figure, 0.15, 0.5, reason, theme.TEXT, color=theme.ALARM)
        return figure
    made = CHUNKED[schedule](p, m, v) if v > 1 else SCHEDULES[schedule](p, m)
    shown = simulate(made, costs)
    longest = sorted(shown.waits, key=lambda wait: wait.start - wait.end)[: mark if isinstance(mark, int) else 0]
    wait = (longest[-1].rank, longest[-1].start) if longest else None
    return draw(shown, critical_path=mark == PATH, why=wait, end=_round_above(shown.makespan))


def _misfit(schedule: str, p: int, m: int, v: int) -> str | None:
    """Why a schedule does not exist for these numbers, in the words of the sliders."""
    if v > 1 and schedule not in CHUNKED:
        return f"it has 1 chunk a rank: v is for {' and '.join(CHUNKED)}"
    if v > 1 and schedule == "1F1B" and m % max(1, m // p):
        return f"with chunks, microbatches go around in whole groups of at least p = {p}: m = {m} is not a multiple"
    return None


def _round_above(makespan: float) -> float:
    """An axis that stands still while a slider moves a little: two digits, the second in steps of 2.5."""
    step = 10 ** math.floor(math.log10(makespan or 1)) / 4
    return math.ceil((makespan or 1) / step) * step


def explore_schedules() -> Explorer:
    """Sliders for `pipeline`: p, m, v, the costs F, I, W and of a transfer; the critical path, or why a rank waits."""
    costs = (0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4)
    waits = [(f"wait {number}", number) for number in range(1, MOST_WAITS + 1)]
    controls = {
        "schedule": choice("schedule", SCHEDULES, "1F1B"),
        "mark": steps("mark", [NOTHING, PATH, *waits], NOTHING),
        "p": steps("ranks p", (1, 2, 3, 4, 5, 6, 8, 12, 16), 4),
        "m": steps("microbatches m", (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64), 8),
        "v": steps("chunks a rank v", (1, 2, 4), 1),
        "forward": steps("forward F", costs[1:], 1),
        "backward_input": steps("for the input I", costs[1:], 1),
        "backward_weight": steps("for the weights W", costs, 1),
        "transfer": steps("transfer", (0, 0.125, 0.25, 0.5, 1, 2), 0),
    }
    return Explorer("explore_schedules", controls, pipeline)


def transfers(transfer: float = 1 / 32, makers: Mapping[str, Maker] = PAIR, p: int = 4, m: int = 8) -> Picture:
    """Draw what a transfer time costs two schedules, with the chain of messages for which each step waits.

    Args:
        transfer: time of a message, in forwards; a backward takes two.
        makers: two functions of (p, m) by their names; the second is compared to the first.
        p: ranks.
        m: microbatches.

    Raises:
        ValueError: a negative time, not two functions, or sizes that one of them refuses.
    """
    _check_pair(makers)
    amount("transfer", transfer)
    made = [_named(make(p, m), name) for name, make in makers.items()]
    one, other = shown = [simulate(each, Costs(transfer=transfer)) for each in made]
    percent = 100 * (other.makespan / one.makespan - 1)
    first, second = makers
    longer = f"{abs(percent):.1f} % {'longer' if percent > 0 else 'less'} than" if round(percent, 1) else "as long as"
    headline = f"Transfer {_in_forwards(transfer)}: {second} takes {longer} {first}"
    end = _round_above(max(one.makespan, other.makespan))
    figure = compare_schedules(shown, memory=False, journeys=True, end=end, headline=headline)
    figure.text_shown = f"{headline}\n{figure.text_shown}"
    return figure


def _named(made: Schedule, name: str) -> Schedule:
    """With the name of its maker, if it has none: a student's need not have one."""
    return made if made.name else Schedule(made.ranks, name=title(name, made.num_ranks, made.num_microbatches))


def _in_forwards(transfer: float) -> str:
    """As a fraction where it is one half, a half of that, and so on."""
    return f"{Fraction(transfer) if Fraction(transfer).denominator <= 64 else f'{transfer:g}'} F"


def _check_pair(makers: Any) -> None:
    if not isinstance(makers, Mapping) or len(makers) != 2 or not all(map(callable, makers.values())):
        raise ValueError(f"makers={makers!r:.60}: must be two functions of (p, m) by their names")
