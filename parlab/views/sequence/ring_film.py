"""The film of ring attention: the mask fills tile by tile, K/V go around; each rank's work and ports."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from parlab.arguments import flag, one_of
from parlab.sequence import LAYOUTS, RingSchedule, Tile
from parlab.views.engine import theme
from parlab.views.engine.lanes import timeline_of
from parlab.views.engine.player import Film, box, outline, thinned, word
from parlab.views.engine.words import do, the_ranks
from parlab.world import Run, Span, Timeline, Transfer
from parlab.world.units import several

MOST_RANKS = 4  # that a film has room for
LENGTH = 8  # tokens of a shard, for the shape of a tile
TOP, ROW, SIDE, MASK = 46, 72, 38, 52  # the first row's top, a row's height; a tile's side, where the mask begins
CHIP, HERE, HOME = 26, (236, 272), 350  # K/V that are attended, and K/V that came; gradients
LANES, END = {False: 352, True: 434}, 604  # where the lanes begin, forward and backward, and their end
DOWN, UP = 12, (62, 50)  # how far aside K/V go to the next row; K/V and gradients to the first, beside what lies there
PORT, WORK = 8, 20  # heights of a lane's bars
MOST_STOPS = 12


class RingHop(NamedTuple):
    """A message of the ring: the K/V of rank `source`, or the gradients of these."""

    t: Transfer
    source: int
    gradients: bool


class Ring(NamedTuple):
    """A run of ring attention: each rank's tiles, in their order with the times of their work, and all messages."""

    tiles: list[list[tuple[Span, int, Tile]]]
    hops: list[RingHop]
    backward: bool


def ring_of(shown: Timeline, causal: bool, layout: str, *, backward: bool = False, most: int = MOST_RANKS) -> Ring:
    """The ring that ran. Work is any computation: one for each tile that the mask leaves.

    Raises:
        ValueError: more than `most` ranks, other messages than a ring's, or other work than the mask's.
    """
    flag("causal", causal)
    one_of("layout", layout, LAYOUTS)
    flag("backward", backward)
    size = shown.size
    if not 2 <= size <= most:
        raise ValueError(f"run: {size} ranks; a ring of 2 to {most} can be drawn")
    tiles, hops = [], []
    for rank in range(size):
        ring = RingSchedule(rank, size)
        found = [(s, ring.tile(s, LENGTH, layout, causal=causal)) for s in ((rank - hop) % size for hop in range(size))]
        sent = sorted((t for t in shown.transfers if t.src == rank), key=lambda t: (t.start, -t.nbytes))
        # at one time dK/dV leave, then the next K/V, which are no wider
        order = [(hop // 2, bool(hop % 2)) for hop in range(2 * size - 2)] + [(size - 1, True)]
        order = order if backward else [(hop, False) for hop in range(size - 1)]
        right = (rank + 1) % size
        if len(sent) != len(order) or any(t.dst != right for t in sent):
            to = ", ".join(str(t.dst) for t in sent) or "nobody"
            way = "backward" if backward else "forward"
            raise ValueError(
                f"run: rank {rank} sends to {to}; in a ring it sends {len(order)} messages to rank {right}, {way}"
            )
        tiles.append(timed_tiles(shown, rank, found, causal=causal, layout=layout))
        hops += [RingHop(t, (rank - hop) % size, of_dkv) for t, (hop, of_dkv) in zip(sent, order, strict=True)]
    return Ring(tiles, hops, backward)


def timed_tiles(
    shown: Timeline, rank: int, found: list[tuple[int, Tile | None]], *, causal: bool, layout: str
) -> list[tuple[Span, int, Tile]]:
    """The tiles that the mask leaves of those `found`, by source, each with the time in which `rank` computes it.

    Raises:
        ValueError: the rank computes more or fewer times.
    """
    work = [(source, tile) for source, tile in found if tile is not None]
    spans = [span for span in shown.computes if span.rank == rank]
    if len(spans) != len(work):
        raise ValueError(
            f"run: rank {rank} computes {several(len(spans), 'time')}; with causal={causal} and "
            f"layout={layout!r} it attends {several(len(work), 'tile')}"
        )
    return [(span, *one) for span, one in zip(spans, work, strict=True)]


def ring_film(run: Run | Timeline, causal: bool = False, layout: str = "contiguous", *, backward: bool = False) -> Film:
    """The film of one ring attention on 2 to 4 ranks, with any layout and mask, forward or backward.

    A row is a rank. On the left its row of the mask fills, a tile for each K/V that it attends, in the colour of the
    rank that owns the keys. In the middle are the K/V that it attends and, beside them, those that came. On the right
    are three bars: what comes by the in-port, the work, what leaves by the out-port. Gradients are frames.

    Args:
        run: of `ring_attention` or of a ring of one's own: K/V go to the right, and each tile is a computation.
        causal: whether the run's attention has a causal mask.
        layout: the run's.
        backward: whether it is a backward, whose dK/dV travel, too.

    Raises:
        ValueError: another number of ranks, other messages than a ring's, or other work than the mask's.
    """
    shown = timeline_of(run)
    ring, size = ring_of(shown, causal, layout, backward=backward), shown.size
    pass_ = "backward" if ring.backward else "forward"
    busy = sum(span.end - span.start for tiles in ring.tiles for span, _, _ in tiles)
    headline = f"Ring attention {pass_}, {size} ranks: {shown.format(shown.makespan)}"
    film = Film(
        headline, _stops(shown, ring), TOP + ROW * size, says=shown.format, ends=(LANES[ring.backward], END), moving=12
    )
    _draw_places(film, size, ring.backward)
    for rank, tiles in enumerate(ring.tiles):
        y = TOP + ROW * rank
        for span, source, tile in tiles:
            draw_tile(film, span, source, tile, y)
        _draw_lane(film, ring, rank, y)
        _draw_here(film, ring, rank, size, y)
    for hop in ring.hops:
        _travels(film, hop, size)
    if ring.backward:
        _draw_gradients(film, ring)
    for start, end in pairwise(film.times):
        film.tell(start, _line(ring, start, end))
    tell_end(film, shown, busy)
    return film.finished()


def tell_end(film: Film, shown: Timeline, busy: int) -> None:
    """The share of work, at the end of the story: above the film it would answer the question that a lesson asks."""
    part = busy / (shown.size * shown.makespan)
    film.lines.append(f"{shown.format(shown.makespan)}: all ranks are done, {part:.0%} of the time was work")


def _stops(shown: Timeline, ring: Ring) -> list[int]:
    """The times at which work or a message begins; those that lie closest to the one before share its stop."""
    begins = {span.start for tiles in ring.tiles for span, _, _ in tiles} | {hop.t.start for hop in ring.hops}
    return thinned(begins | {0, shown.makespan}, MOST_STOPS)


def _draw_places(film: Film, size: int, backward: bool) -> None:
    """The still parts: the rows, and the words above the other columns."""
    draw_rows(film, size)
    film.draw(word(HERE[0] + CHIP / 2, 10, "K/V") + word(HERE[0] + CHIP / 2, 28, "now"))
    film.draw(word(HERE[1] + CHIP / 2 + 5, 10, "K/V") + word(HERE[1] + CHIP / 2 + 5, 28, "next"))
    if backward:
        film.draw(word(HOME + CHIP / 2, 28, "dK/dV"))
    film.draw(word(LANES[backward], 10, "from the top:", "left"))
    film.draw(word(LANES[backward], 28, "in-port, work, out-port", "left"))


def draw_rows(film: Film, size: int) -> None:
    """The ranks' names, the empty mask beside each, and the words above both."""
    film.draw(word(24, 28, "rank"))
    film.draw(word(MASK, 10, "its queries ×", "left"))
    film.draw(word(MASK, 28, "keys of rank 0, 1, …", "left"))
    for rank in range(size):
        y = TOP + ROW * rank
        film.draw(word(24, y + SIDE / 2, rank, "strong"))
        film.draw("".join(_place(MASK + SIDE * s, y) for s in range(size)))


def _place(x: float, y: float) -> str:
    """A tile that is not attended, or not yet: empty, since grey is what the mask hides of one that is."""
    side = f'width="{SIDE - 3:g}" height="{SIDE - 3:g}"'
    return f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" {side} fill="none" stroke="currentColor" stroke-opacity=".3"/>'


def draw_tile(film: Film, span: Span, source: int, tile: Tile, y: float) -> None:
    """A tile of the mask in the colour of its keys, from when its work begins; framed until the work ends.

    As in the picture of the masks, grey pairs are masked, and those without a fill are skipped.
    """
    unit, (x, y) = (SIDE - 2) / LENGTH, (MASK + SIDE * source, y)
    left, top = x + unit * tile.keys.start, y + unit * tile.queries.start
    right, low = x + unit * tile.keys.stop, y + unit * tile.queries.stop
    color = theme.rank_color(source)
    if tile.diagonal is None:
        shape = f'<path d="M{left:g} {top:g}H{right:g}V{low:g}H{left:g}Z" fill="{color}"/>'
    else:
        shape = outline(left, top, right - left, low - top, "empty")
        shape += f'<path d="M{left:g} {top:g}L{right:g} {low:g}H{left:g}Z" fill="{color}"/>'
    film.draw(shape, span.start)
    film.draw(outline(x - 1, y - 1, SIDE, SIDE, "frame"), span.start, span.end - 1)


def _draw_lane(film: Film, ring: Ring, rank: int, y: float) -> None:
    """Three bars over the time: the messages that come, the work, the messages that leave."""
    marks = ""
    for span, source, _ in ring.tiles[rank]:
        width = film.x(span.end) - film.x(span.start)
        text = source if width > 14 else ""
        marks += box(film.x(span.start), y + 11, round(width - 1, 1), WORK, theme.rank_color(source), text, "small")
    for hop in ring.hops:
        for port, top in ((hop.t.dst, y), (hop.t.src, y + 34)):
            if port == rank:
                x, width = film.x(hop.t.start), film.x(hop.t.end) - film.x(hop.t.start) - 1
                color = theme.rank_color(hop.source)
                fill = f'fill="none" stroke="{color}" stroke-width="2"' if hop.gradients else f'fill="{color}"'
                inset = 1 if hop.gradients else 0
                marks += (
                    f'<rect x="{x + inset:g}" y="{top + inset:g}" width="{max(width - 2 * inset, 1):.1f}" '
                    f'height="{PORT - 2 * inset}" {fill}/>'
                )
    film.reveal(marks)


def _draw_here(film: Film, ring: Ring, rank: int, size: int, y: float) -> None:
    """The K/V that a rank attends or passes on, then those that came and wait."""
    came = {hop.source: hop.t.end for hop in ring.hops if hop.t.dst == rank and not hop.gradients} | {rank: 0}
    left = {hop.source: hop.t for hop in ring.hops if hop.t.src == rank and not hop.gradients}
    worked = {source: span for span, source, _ in ring.tiles[rank]}
    order = [(rank - hop) % size for hop in range(size)]
    now = 0
    for number, source in enumerate(order):
        begins = max(now, came[source], worked[source].start if source in worked else 0)
        ends = max([begins, *(one[source].end for one in (worked, left) if source in one)])
        if came[source] < begins:
            film.draw(chip(HERE[1], y + 9, source), came[source], begins - 1)
        if ends > begins:
            film.draw(chip(HERE[0], y + 9, source), begins or None, ends - 1 if number < size - 1 else None)
        now = ends


def _draw_gradients(film: Film, ring: Ring) -> None:
    """The gradients that rest at a rank: until they leave it with its share, and at home."""
    leaves = {(hop.t.src, hop.source): hop.t.start for hop in ring.hops if hop.gradients}
    made = [(rank, rank, span.end) for rank, tiles in enumerate(ring.tiles) for span, s, _ in tiles if s == rank]
    came = [(hop.t.dst, hop.source, hop.t.end) for hop in ring.hops if hop.gradients]
    for rank, source, start in made + came:
        y = TOP + ROW * rank + 9
        complete = rank == source and (rank, source, start) in came
        frame = outline(HOME - 4, y - 4, CHIP + 8, CHIP + 8, "frame") if complete else ""
        film.draw(_gradient(y, source) + frame, start, None if complete else leaves[rank, source])


def _travels(film: Film, hop: RingHop, size: int) -> None:
    """A message on its way to the next row; or around to the first, beside what lies between."""
    up = hop.t.dst < hop.t.src
    far, y = (-ROW * (size - 1) if up else ROW), TOP + ROW * hop.t.src + 9
    x, across = (HOME, 0) if hop.gradients else (HERE[0], HERE[1] - HERE[0])
    aside = UP[hop.gradients] if up else 0 if hop.gradients else DOWN
    inside = (_gradient if hop.gradients else partial(chip, HERE[0]))(y, hop.source)
    mark = outline(x - 3, y - 3, CHIP + 6, CHIP + 6, "letter") + inside
    film.move(mark, hop.t.start, hop.t.end, (across, far), (aside, 0))


def _gradient(y: float, source: int) -> str:
    """The gradients of a rank's K/V: a frame in its colour."""
    frame = f'<rect x="{HOME + 1.5:g}" y="{y + 1.5:g}" width="{CHIP - 3}" height="{CHIP - 3}" fill="none" '
    frame += f'stroke="{theme.rank_color(source)}" stroke-width="3"/>'
    return frame + word(HOME + CHIP / 2, y + CHIP / 2, source)


def chip(x: float, y: float, source: int) -> str:
    """The K/V of rank `source`: a box with its number, in its colour."""
    return box(x, y, CHIP, CHIP, theme.rank_color(source), source)


def _line(ring: Ring, start: int, end: int) -> str:
    """The work and the hops that begin from `start` on and before `end`, and ranks that see nothing of what came.

    Where hops alone begin: the ranks that still work.
    """
    works = {
        rank: source for rank, tiles in enumerate(ring.tiles) for span, source, _ in tiles if start <= span.start < end
    }
    size = len(ring.tiles)
    said = [attended(works, size)] if works else []
    for gradients, name in ((False, "K/V"), (True, "dK/dV")):
        gone = [hop for hop in ring.hops if hop.gradients == gradients and start <= hop.t.start < end]
        home = all(hop.gradients and hop.t.dst == hop.source for hop in gone)
        if gone:
            which = f"all {name}" if len(gone) == size else f"{name} {_listed(sorted(hop.source for hop in gone))}"
            said.append(f"{which} {'come home' if home else 'go to the next rank'}")
    works_on = {rank for rank, tiles in enumerate(ring.tiles) for span, _, _ in tiles if span.start < start < span.end}
    if said and not works and works_on:
        said[-1] += f" while {_ranks(sorted(works_on), size)} still {do(len(works_on), 'work')}"
    seen = {(rank, source) for rank, tiles in enumerate(ring.tiles) for _, source, _ in tiles}
    came = {(hop.t.dst, hop.source) for hop in ring.hops if not hop.gradients and start <= hop.t.end < end}
    skips = sorted({rank for rank, _ in came - seen})
    return "; ".join([*said, *([f"{_ranks(skips, size)} may see nothing of what came"] if skips else [])])


def attended(works: dict[int, int], size: int) -> str:
    """Which K/V each of some ranks attends: its own, or those of the rank that is named."""
    if len(works) == size and all(rank == source for rank, source in works.items()):
        return "each rank attends its own K/V"
    (first, source), *others = works.items()
    return _listed([f"rank {first} attends K/V {source}", *(f"rank {rank} K/V {s}" for rank, s in others)])


def _ranks(ranks: Collection[int], size: int) -> str:
    return "all ranks" if len(ranks) == size else the_ranks(ranks, _listed(ranks))


def _listed(parts: Iterable[object]) -> str:
    return ", ".join(map(str, parts))
