"""The most bytes that each rank held in a step, for several schedules and numbers of microbatches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parlab.pipeline import Schedule, simulate
from parlab.pipeline.whole import StepRun
from parlab.views.drawing import marks, theme
from parlab.views.drawing.picture import Picture, panel, scale, sheet, short_bytes, write

HEIGHT, TOP, LEFT, WIDTH = 3.4, 0.85, 0.3, 4.5  # inches: of the picture; of a panel, its top, first left and width
BAR = 0.2  # of the distance of two groups


def bytes_held(
    makers: Mapping[str, Callable[[int, int], Schedule]],
    p: int,
    across: Sequence[int],
    run: Callable[[Schedule], StepRun],
) -> Picture:
    """Run steps, and draw the most bytes that each rank held in them: a panel a schedule, a group of bars an m.

    Below an m stands how much of the makespan is idle. (Makespans themselves are not compared: of a batch that is cut
    into twice the microbatches, a microbatch takes half the time.)

    Args:
        makers: `{name: make}` of one or two, where `make(p, m)` is a schedule.
        p: ranks, at most 4.
        across: the numbers of microbatches m.
        run: executes a schedule, as `step_of_ranks` does.

    Raises:
        ValueError: more than two schedules or 4 ranks, or none.
    """
    if not 1 <= len(makers) <= 2 or not 1 <= p <= 4 or not across:
        raise ValueError(f"makers={list(makers)!r:.60}, p={p!r:.20}: one or two schedules, 1 to 4 ranks, an m at least")
    made = {name: [make(p, m) for m in across] for name, make in makers.items()}
    held = {name: [_peaks(run(schedule), p) for schedule in row] for name, row in made.items()}
    idle = {name: [100 * simulate(schedule).bubble_fraction() for schedule in row] for name, row in made.items()}
    highest = max(max(peaks) for row in held.values() for peaks in row)
    lines = ["schedule     m   idle   held at most on rank " + "".join(f"{rank:>10}" for rank in range(p))]
    for name in makers:
        for m, part, peaks in zip(across, idle[name], held[name], strict=True):
            lines.append(f"{name:<10}{m:>4}{part:>5.0f} %{'':25}" + "".join(f"{short_bytes(of):>10}" for of in peaks))
    last = {name: max(row[-1]) / max(row[0]) for name, row in held.items()}
    said = ", and ".join(f"{_change(part)} in {name}" for name, part in last.items())
    headline = f"From m = {across[0]} to {across[-1]} the fullest rank's bytes {said}"
    figure = sheet([headline, *lines], HEIGHT, headline)
    for number, name in enumerate(makers):
        left = LEFT + number * (WIDTH + 0.4)
        write(figure, left + 0.1, 0.55, f"{name}: KiB held at most on ranks 0 to {p - 1}", theme.TEXT)
        axes = panel(figure, left, TOP, WIDTH, HEIGHT - TOP - 0.6)
        axes.set_ylim(0, 1.12 * highest)
        ticks = [f"m = {m}\nidle {part:.0f} %" for m, part in zip(across, idle[name], strict=True)]
        scale(axes.xaxis, ends=(-0.5, len(across) - 0.5), ticks=range(len(across)), says=ticks)
        for group, peaks in enumerate(held[name]):
            for rank, peak in enumerate(peaks):
                x = group + BAR * (rank - (p - 1) / 2)
                color = theme.rank_color(rank)
                marks.rectangles(axes, f"{name} {rank}", x - BAR / 2, x + BAR / 2, 0, peak, color)
                marks.word(axes, x, peak + 0.045 * highest, f"{peak / 1024:.0f}", 8.5, ha="center")
    return figure


def _change(part: float) -> str:
    percent = f"{100 * part:.0f} %"
    return "stay equal" if percent == "100 %" else f"{'fall' if part < 1 else 'grow'} to {percent}"


def _peaks(done: StepRun, p: int) -> list[int]:
    return [done.timeline.peak_bytes(rank) for rank in range(p)]
