"""Read back from a figure what it draws, and the runs that the tests draw."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from parlab import run
from parlab.views.engine import marks
from parlab.world import DeadlockError


def artists(figure, name):
    return figure.findobj(lambda artist: artist.get_gid() == name)


def boxes(figure, name):
    """(left, right, low, high) of every box drawn under `name`."""
    found = []
    for artist in artists(figure, name):
        paths = artist.get_paths() if hasattr(artist, "get_paths") else [artist.get_path()]
        for path in paths:
            for polygon in path.to_polygons(closed_only=False):
                (left, low), (right, high) = polygon.min(axis=0), polygon.max(axis=0)
                found.append((left, right, low, high))
    return found


def lanes(figure, name):
    """(lane, left, right) of every box drawn under `name`, in order."""
    return sorted((round((low + high) / 2), left, right) for left, right, low, high in boxes(figure, name))


def coloured(figure, name):
    """(lane, left, right, colour) of every box drawn under `name`, in order."""
    found = []
    for artist in artists(figure, name):
        for path, color in zip(artist.get_paths(), artist.get_facecolors(), strict=True):
            (left, low), (right, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.append((round((low + high) / 2), left, right, to_hex(color).upper()))
    return sorted(found)


def written(figure, texts, name="words"):
    """(x, lane, text) wherever one of these texts is drawn as outlines under `name`, in order."""
    known = {marks._outline(text).vertices.tobytes(): text for text in texts}
    found = []
    for artist in artists(figure, name):
        for path, (x, y) in zip(artist.get_paths(), artist.get_offsets(), strict=True):
            found.append((x, round(float(y)), known.get(path.vertices.tobytes())))
    return sorted(place for place in found if place[2] is not None)


def title(figure):
    (text,) = artists(figure, "title")
    return text.get_text()


def words(figure):
    """The texts in the panels, without those of the axes."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def texts(figure):
    """Every text that is shown, with its place in pixels."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    shown = figure.findobj(
        lambda artist: isinstance(artist, Text) and artist.get_visible() and artist.get_text().strip()
    )
    ticks = {id(label) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in _unseen_ticks(axis)}
    return [(text.get_text(), text.get_window_extent(renderer)) for text in shown if id(text) not in ticks]


def check_text(figure):
    """All text is on the canvas, large enough, and free of other text."""
    shown, canvas = texts(figure), figure.bbox
    for number, (text, place) in enumerate(shown):
        assert place.x0 >= 0, text
        assert place.y0 >= 0, text
        assert place.x1 <= canvas.x1, text
        assert place.y1 <= canvas.y1, text
        for other, its_place in shown[:number]:
            wide = min(place.x1, its_place.x1) - max(place.x0, its_place.x0)
            tall = min(place.y1, its_place.y1) - max(place.y0, its_place.y0)
            assert wide <= 1 or tall <= 1, (text, other)
    assert min(text.get_size() for text in figure.findobj(Text) if text.get_text()) >= 7


def _unseen_ticks(axis):
    """Labels of ticks beyond the axis's ends, which matplotlib keeps but does not draw."""
    low, high = sorted(axis.get_view_interval())
    unseen = [] if axis.axes.axison else [axis.label]
    for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
        if not axis.axes.axison or not low - 1e-9 * (high - low) <= tick.get_loc() <= high + 1e-9 * (high - low):
            unseen += [tick.label1, tick.label2]
    return unseen


def ring(comm, x):
    """Ranks that come at different times, then an all-reduce, with something held."""
    weights = np.ones(100 * (comm.rank + 1))
    comm.hold("weights", weights)
    with comm.compute("forward", seconds=1e-6 * (comm.rank % 3)):
        total = comm.all_reduce(x)
    return total + weights[0]


def nothing(comm):
    """A program that takes no time."""


def both_send_first(comm, x):
    comm.send(x, comm.right)
    comm.recv(comm.left, like=x)


def last_returns_early(comm, x):
    if comm.rank < comm.size - 1:
        comm.recv(comm.right, like=x)


def one_skips(comm, x):
    if comm.rank != 1:
        comm.all_reduce(x)


def stuck(program, size):
    """The deadlock of `program`."""
    try:
        run(program, size, np.ones(4))
    except DeadlockError as error:
        return error
    raise AssertionError("no deadlock")


def check_refused(call, *said):
    """A ValueError that says what was given, and what would be right."""
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    for words in said:
        assert words in str(caught.value)


def check_controls(explorer):
    """Values of every control have pictures of their own: the first two, the last two, and where it starts."""
    for name, control in explorer.controls.items():
        default, before, found = control.index, explorer.picture.value, set()
        last = len(control.options) - 1
        others = {0, 1, last - 1, last} - {default}
        for index in others:
            control.index = index
            found.add(explorer.picture.value)
        control.index = default
        assert explorer.picture.value == before, name
        assert len(found - {before}) == len(others), name
