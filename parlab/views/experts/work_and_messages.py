"""The time of a layer of experts, in stacked bars: work and messages of the fullest rank."""

from __future__ import annotations

from collections.abc import Mapping

from parlab.arguments import checked
from parlab.views.engine import marks, theme
from parlab.views.engine.arguments import mapping
from parlab.views.engine.lanes import name_rows
from parlab.views.engine.picture import Picture, key, panel, scale, sheet

COLORS = {"work": theme.KINDS["compute"].color, "messages": theme.KINDS["send"].color}
LEFT, RIGHT, TOP, ROW, BELOW = 3.0, 0.9, 0.85, 0.42, 0.6  # inches


@checked({"times": mapping})
def work_and_messages(times: Mapping[str, tuple[float, float]], headline: str) -> Picture:
    """Draw a bar for each way to compute a layer: its work, behind it its messages; their sum stands beside it.

    Args:
        times: by name milliseconds of work and of messages.
        headline: above the figure.

    Raises:
        ValueError: no times.

    >>> work_and_messages({"one": (4.0, 0.0), "two": (2.0, 1.0)}, "Two are faster")
    Two are faster
    one: 4.0 ms = 4.0 work + 0.0 messages
    two: 3.0 ms = 2.0 work + 1.0 messages
    """
    lines = [headline]
    lines += [f"{n}: {w + m:.1f} ms = {w:.1f} work + {m:.1f} messages" for n, (w, m) in times.items()]
    figure = sheet(lines, TOP + ROW * len(times) + BELOW, headline)
    for place, (part, color) in enumerate(COLORS.items()):
        key(figure, LEFT + 1.1 * place, 0.62, color, part)
    axes = panel(figure, LEFT, TOP, theme.WIDTH - LEFT - RIGHT, ROW * len(times))
    sums = [sum(parts) for parts in times.values()]
    scale(axes.xaxis, "ms", ends=(0, max(sums)), grid=True)
    name_rows(axes, len(times), list(times))
    marks.stacked(axes, dict(zip(COLORS, zip(*times.values(), strict=True), strict=True)), COLORS)
    for row, length in enumerate(sums):
        marks.word(axes, length + 0.01 * max(sums), row, f"{length:.1f}", theme.TEXT)
    return figure
