"""Runs and timelines as the last line of a cell: they draw themselves. Their text is still their `repr`."""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython

from parlab.pipeline import Schedule, ScheduleTimeline
from parlab.views.engine.defaults import by_defaults
from parlab.views.engine.picture import Picture
from parlab.views.pipeline.schedule import schedule
from parlab.views.world.timeline import timeline
from parlab.world import Run, Timeline


def register(shell: Any = None) -> None:
    """Tell `shell` (None: the running one, if any) how runs, timelines and our figures look."""
    shell = shell or get_ipython()
    if shell is None:
        return
    png = shell.display_formatter.formatters["image/png"]
    png.for_type(Run, lambda run: by_defaults(timeline)(run)._repr_png_())
    png.for_type(Timeline, lambda shown: by_defaults(timeline)(shown)._repr_png_())
    text = shell.display_formatter.formatters["text/plain"]
    for kind in (Schedule, ScheduleTimeline):
        png.for_type(kind, lambda shown: by_defaults(schedule)(shown)._repr_png_())
        text.for_type(kind, lambda shown, printer, cycle: printer.text(repr(by_defaults(schedule)(shown))))
    png.for_type(Picture, Picture._repr_png_)  # before the one that `%matplotlib inline` registers for all figures
