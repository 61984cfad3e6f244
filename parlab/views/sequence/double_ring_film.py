"""The film of a double ring on two nodes of two: the grammar of the ring's film, with a way to the other node."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from parlab.arguments import flag, one_of
from parlab.sequence import LAYOUTS, RingSchedule, Tile
from parlab.views.engine import theme
from parlab.views.engine.lanes import timeline_of
from parlab.views.engine.player import Film, box, outline, word
from parlab.views.sequence.ring_film import (
    CHIP,
    LENGTH,
    ROW,
    TOP,
    attended,
    chip,
    draw_rows,
    draw_tile,
    tell_end,
    timed_tiles,
)
from parlab.world import Run, Span, Timeline, Transfer
from parlab.world.units import several

SIZE, INSIDE = 4, 2  # ranks, and how many of them share a node
NOW, NODE, OTHER = 236, 272, 308  # the left edges of K/V: attended now, come from the node, come from the other node
ASIDE = {(INSIDE, 1): 40, (INSIDE, -1): 80, (1, 1): 12, (1, -1): 50}  # by rows and way: down, or up beside those
LANES, END = 400, 604
PORTS = {"node": (6, 37), "other": (0, 43)}  # below a lane's top: of the in-port, and of the out-port
PORT, WORK = 5, (14, 20)  # the height of a port's bar; where the work begins, and its height


class Crossed(NamedTuple):
    """A message of the double ring: the K/V of rank `source`, inside its node or to the other one."""

    t: Transfer
    source: int

    @property
    def crosses(self) -> bool:
        """Whether it goes to the other node."""
        return abs(self.t.dst - self.t.src) == INSIDE


class DoubleRing(NamedTuple):
    """A run of the double ring: each rank's tiles, in their order with the times of their work, and all messages."""

    tiles: list[list[tuple[Span, int, Tile]]]
    messages: list[Crossed]


def double_ring_of(shown: Timeline, causal: bool, layout: str) -> DoubleRing:
    """The double ring that ran forward on two nodes of two ranks.

    Raises:
        ValueError: another number of ranks, or other messages or work than its.
    """
    flag("causal", causal)
    one_of("layout", layout, LAYOUTS)
    if shown.size != SIZE:
        raise ValueError(f"run: {shown.size} ranks; this film has two nodes of two")
    tiles, messages = [], []
    for rank in range(SIZE):
        schedule = RingSchedule(rank, SIZE)
        found = [(s, schedule.tile(s, LENGTH, layout, causal=causal)) for s in _sources(rank)]
        sent = sorted((t for t in shown.transfers if t.src == rank), key=lambda t: t.start)
        inside, across = ([t for t in sent if abs(t.dst - rank) == far] for far in (1, INSIDE))
        if (len(inside), len(across)) != (INSIDE, 1):
            raise ValueError(
                f"run: rank {rank} sends {several(len(inside), 'message')} inside its node and {len(across)} to the "
                f"other; in a double ring {INSIDE} and 1"
            )
        tiles.append(timed_tiles(shown, rank, found, causal=causal, layout=layout))
        turns = _sources(rank)[::INSIDE]  # of each turn the K/V that begin it
        messages += [Crossed(t, source) for t, source in zip(inside, turns, strict=True)]
        messages.append(Crossed(across[0], rank))
    return DoubleRing(tiles, messages)


def double_ring_film(run: Run | Timeline, causal: bool = False, layout: str = "contiguous") -> Film:
    """The film of one double ring on two nodes of two ranks, with any layout and mask, forward.

    As in the film of a ring: a row is a rank, its row of the mask fills on the left, its K/V are in the middle, in the
    colour of the rank that owns them; those that come from the other node have a place of their own. On the right the
    thin bars of each port lie beside each other: outside those between the nodes, inside those in the node.

    Args:
        run: of `double_ring_attention` with `ranks_per_node=2` on 4 ranks.
        causal: whether the run's attention has a causal mask.
        layout: the run's.

    Raises:
        ValueError: another number of ranks, or other messages or work than a double ring's.
    """
    shown = timeline_of(run)
    ring = double_ring_of(shown, causal, layout)
    busy = sum(span.end - span.start for tiles in ring.tiles for span, _, _ in tiles)
    headline = f"Double ring forward, 2 nodes of 2 ranks: {shown.format(shown.makespan)}"
    begins = {span.start for tiles in ring.tiles for span, _, _ in tiles} | {one.t.start for one in ring.messages}
    stops = sorted(begins | {0, shown.makespan})
    film = Film(headline, stops, TOP + ROW * SIZE, says=shown.format, ends=(LANES, END), moving=12)
    draw_rows(film, SIZE)
    for x, above, name in ((NOW, "K/V", "now"), (NODE + 5, "K/V", "next"), (OTHER + 22, "other", "node")):
        film.draw(word(x + CHIP / 2, 10, above) + word(x + CHIP / 2, 28, name))
    film.draw(word(LANES, 10, "outer bars: the network", "left"))
    film.draw(word(LANES, 28, "inner bars: NVLink", "left"))
    for node in range(SIZE // INSIDE):
        film.draw(word(24, TOP + ROW * (INSIDE * node + 1) - 17, f"node {node}", "small"))
    film.draw(f'<path class="wait" d="M4 {TOP + ROW * INSIDE - 17}H{END}"/>')  # between the nodes
    for rank, tiles in enumerate(ring.tiles):
        y = TOP + ROW * rank
        for span, source, tile in tiles:
            draw_tile(film, span, source, tile, y)
        _draw_lane(film, ring, rank, y)
        _draw_here(film, ring, rank, y)
    for message in ring.messages:
        _travels(film, message)
    for start, end in pairwise(film.times):
        film.tell(start, _line(ring, start, end))
    tell_end(film, shown, busy)
    return film.finished()


def _sources(rank: int) -> list[int]:
    """The ranks whose K/V a rank has, one after the other: a turn of its own node, then one of the other node."""
    node, place = divmod(rank, INSIDE)
    nodes = SIZE // INSIDE
    return [(node - t) % nodes * INSIDE + (place - hop) % INSIDE for t in range(nodes) for hop in range(INSIDE)]


def _draw_lane(film: Film, ring: DoubleRing, rank: int, y: float) -> None:
    marks, (top, high) = "", WORK
    for span, source, _ in ring.tiles[rank]:
        width = film.x(span.end) - film.x(span.start)
        marks += box(film.x(span.start), y + top, round(width - 1, 1), high, theme.rank_color(source), source, "small")
    for message in ring.messages:
        for port, below in zip(
            (message.t.dst, message.t.src), PORTS["other" if message.crosses else "node"], strict=True
        ):
            if port == rank:
                x, width = film.x(message.t.start), film.x(message.t.end) - film.x(message.t.start) - 1
                color = theme.rank_color(message.source)
                marks += (
                    f'<rect x="{x:g}" y="{y + below:g}" width="{max(width, 1):.1f}" height="{PORT}" fill="{color}"/>'
                )
    film.reveal(marks)


def _draw_here(film: Film, ring: DoubleRing, rank: int, y: float) -> None:
    """The K/V that a rank attends; before, those that came, at the place of their way."""
    came = {m.source: (m.t.end, OTHER if m.crosses else NODE) for m in ring.messages if m.t.dst == rank}
    works = {source: span for span, source, _ in ring.tiles[rank]}
    for number, source in enumerate(works):
        begins, last = works[source].start, number == len(works) - 1
        if source in came and came[source][0] < begins:
            film.draw(chip(came[source][1], y + 9, source), came[source][0], begins - 1)
        film.draw(chip(NOW, y + 9, source), begins or None, None if last else works[source].end - 1)


def _travels(film: Film, message: Crossed) -> None:
    t, y = message.t, TOP + ROW * message.t.src + 9
    rows, way = abs(t.dst - t.src), 1 if t.dst > t.src else -1
    mark = outline(NOW - 3, y - 3, CHIP + 6, CHIP + 6, "letter") + chip(NOW, y, message.source)
    across = (OTHER if message.crosses else NODE) - NOW
    film.move(mark, t.start, t.end, (across, ROW * way * rows), (ASIDE[rows, way], 0))


def _line(ring: DoubleRing, start: int, end: int) -> str:
    works = {
        rank: source for rank, tiles in enumerate(ring.tiles) for span, source, _ in tiles if start <= span.start < end
    }
    said = [attended(works, SIZE)] if works else []
    gone = {m.crosses for m in ring.messages if start <= m.t.start < end}
    ways = [name for crosses, name in ((False, "inside the node"), (True, "to the other node")) if crosses in gone]
    said += [f"K/V go {' and '.join(ways)}"] if ways else []
    if any(m.crosses and m.t.start < start < m.t.end for m in ring.messages):
        said.append("those of the other node are on their way")
    return "; ".join(said)
