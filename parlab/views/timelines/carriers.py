"""How long a message takes, by who carries it."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.ticker import LogLocator

from parlab.arguments import instance, positive, whole
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, plot, scale, short_bytes, short_time, write

LOOKS = (
    {"marker": "o", "linestyle": "-", "linewidth": 1.5, "markersize": 7, "color": theme.INK},
    {"marker": "s", "linestyle": "-", "linewidth": 1.5, "markersize": 6, "color": theme.RANKS[0]},
    {"marker": "^", "linestyle": "--", "linewidth": 1.5, "markersize": 7, "color": theme.ALARM},
)


def carried_times(seconds: Mapping[str, Mapping[int, float]]) -> Picture:
    """Draw how long a message takes by two or three ways, over its bytes. The first way is what the others are held to.

    The headline has how many times as long the others take, for the smallest and for the largest message. Below stands
    the same as a table, and so does it in the picture's text.

    Args:
        seconds: by the name of a way: the seconds by the bytes of the message, of the same sizes for each way.

    Raises:
        ValueError: another number of ways, no sizes or different ones, or a time that is not positive.
    """
    if not isinstance(seconds, Mapping) or not 2 <= len(seconds) <= len(LOOKS):
        raise ValueError(f"seconds={seconds!r:.60}: must have the times of 2 or 3 ways by name")
    for way, of_way in seconds.items():
        instance(f"seconds[{way!r}]", of_way, Mapping)
    first, *others = seconds
    sizes = sorted(seconds[first])
    if not sizes or any(sorted(of_way) != sizes for of_way in seconds.values()):
        raise ValueError(f"seconds={seconds!r:.60}: must have the same sizes for each way, one or more")
    for nbytes, time in (item for of_way in seconds.values() for item in of_way.items()):
        whole("nbytes", nbytes, 1)
        positive("seconds", time, finite=True)

    def times_as_long(nbytes: int) -> str:
        return ", ".join(f"{way} {_times(seconds[way][nbytes] / seconds[first][nbytes])}" for way in others)

    ends = [f"{short_bytes(nbytes)}: {times_as_long(nbytes)}" for nbytes in dict.fromkeys((sizes[0], sizes[-1]))]
    headline = ". ".join([f"The time of {first} is 1", *ends])
    rows = {nbytes: [short_bytes(nbytes), *(_said(of_way[nbytes]) for of_way in seconds.values())] for nbytes in sizes}
    table = zip(["message", *seconds], *rows.values(), strict=True)
    below = 0.5 + 0.18 * len(others)
    text = [headline, *("".join(f"{entry:>10}" for entry in row) for row in table)]
    figure, axes = plot(text, 4.2, headline, top=0.85, bottom=0.25 + below)
    scale(axes.xaxis, log=2, ticks=sizes, says=list(map("\n".join, rows.values())), size=theme.SMALL)
    write(figure, 0.15, 4.03 - below, "\n".join(["message", *seconds]))
    every = [time for of_way in seconds.values() for time in of_way.values()]
    ticks = LogLocator(numticks=12)
    scale(axes.yaxis, ends=(min(every) / 2, max(every) * 2), log=10, ticks=ticks, says=_said)
    looks = dict(zip(seconds, LOOKS, strict=False))
    for way, of_way in seconds.items():
        axes.plot(sizes, [of_way[nbytes] for nbytes in sizes], **looks[way], gid=way)
    line_legend(figure, list(looks.items()))
    return figure


def _said(seconds: float) -> str:
    return short_time(round(seconds * 10**12))


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
