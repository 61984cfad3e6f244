"""The film of one attention across ranks: a rectangle of tokens × heads on each rank, and its parts that travel."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from parlab.arguments import flag, one_of, whole
from parlab.views.engine import theme
from parlab.views.engine.lanes import timeline_of
from parlab.views.engine.player import WIDTH, Film, box, outline, word
from parlab.world import Run, Span, Timeline, Transfer
from parlab.world.units import several

METHODS = ("ring", "double ring", "Ulysses", "USP")
RANKS = (2, 4)  # how many a film has room for
ACROSS, DOWN, TOP, PANEL = 27, 25, 122, 143  # of a cell, and of a rank's rectangle
ABOVE, BELOW = -42, 34  # the way past the ranks between
LOWER = 8  # an output than a cell of K/V
LANE, LANES = 18, 82  # below the rectangles
WORK, ARRIVES = theme.KINDS["compute"].color, theme.KINDS["receive"].color
Cells = frozenset[tuple[int, int]]  # (shard of the tokens, part of the heads): as many of each as ranks
KV, QKV, OUT = "K/V", "q, k, v", "output"
APART = ("q", "k", "v")  # where an all-to-all turns each by itself


class Carried(NamedTuple):
    """The content of a message."""

    kind: str
    cells: Cells


class MethodPlan(NamedTuple):
    """The messages and the tiles of one method, for each rank."""

    sends: dict[tuple[int, int], list[Carried]]  # by sender and receiver, in their order
    attends: list[list[Cells]]  # for each rank the K/V that it attends, one after the other
    queries: list[Cells]  # of each rank: the queries that attend, whose output it finds


def _messages(plan: MethodPlan) -> Counter[tuple[int, int]]:
    """How many messages each rank sends to each other one."""
    return Counter({pair: len(parts) for pair, parts in plan.sends.items()})


def plan_of(
    shown: Timeline, method: str, *, causal: bool = False, ulysses: int | None = None, ranks_per_node: int | None = None
) -> MethodPlan:
    """The plan of `method`, which the run must have followed. A program may send q, k and v in messages of their own.

    Raises:
        ValueError: another number of ranks or method, sizes that do not divide the ranks, or other messages or work.
    """
    one_of("method", method, METHODS)
    flag("causal", causal)
    size = shown.size
    if size not in RANKS:
        raise ValueError(f"run: {size} ranks; attention on {' or '.join(map(str, RANKS))} can be filmed")
    if causal and method != "USP":
        raise ValueError(f"causal=True: only USP is filmed with a mask; views.ring_film shows that of a {method}")
    if ulysses is not None and method != "USP":
        raise ValueError(f"ulysses={ulysses!r}: the groups of USP; a {method} has none")
    for name, value in (("ulysses", ulysses), ("ranks_per_node", ranks_per_node)):
        if value is not None and size % whole(name, value, 1):
            raise ValueError(f"{name}={value}: must divide the {size} ranks")
    if method == "ring":
        plan = _ring(size)
    elif method == "double ring":
        plan = _double_ring(size, ranks_per_node or size)
    else:
        plan = _usp(size, size if method == "Ulysses" else ulysses or size)
    if causal:
        plan = _causal(plan)
    sent, parts, apart = Counter((t.src, t.dst) for t in shown.transfers), _messages(plan), _apart(plan)
    if sent == _messages(apart):
        plan = apart
    elif sent != parts:
        src, dst = min(pair for pair in {*sent, *parts} if sent[pair] != parts[pair])
        raise ValueError(
            f"run: rank {src} sends {several(sent[src, dst], 'message')} to rank {dst}; in {method} it sends "
            f"{parts[src, dst]}"
        )
    for rank, attended in enumerate(plan.attends):
        if len(_attends(shown, rank)) != len(attended):
            raise ValueError(
                f"run: rank {rank} computes {several(len(_attends(shown, rank)), 'time')}; in {method} it attends "
                f"{several(len(attended), 'time')}"
            )
    return plan


def _apart(plan: MethodPlan) -> MethodPlan:
    """The plan whose q, k and v travel in messages of their own."""
    sends = {
        pair: [Carried(kind, part.cells) for part in parts for kind in (APART if part.kind == QKV else (part.kind,))]
        for pair, parts in plan.sends.items()
    }
    return plan._replace(sends=sends)


def _causal(plan: MethodPlan) -> MethodPlan:
    """The plan without the K/V of later tokens, which a causal mask hides."""
    attends = [
        [cells for cells in of_rank if min(cells)[0] <= max(queries)[0]]
        for of_rank, queries in zip(plan.attends, plan.queries, strict=True)
    ]
    return plan._replace(attends=attends)


def attention_film(
    run: Run | Timeline,
    method: str,
    *,
    causal: bool = False,
    ulysses: int | None = None,
    ranks_per_node: int | None = None,
) -> Film:
    """The film of one forward on 2 or 4 ranks: each has a rectangle, down the tokens in shards, across the heads.

    A coloured cell is K/V that are here now, in the colour of the rank that owns the tokens; a lower one is output. The
    frame holds the queries that this rank attends. Below, bars are the times in which a rank attends, lines those in
    which a message arrives.

    Args:
        run: of the library's attention or of one's own, on contiguous shards.
        method: "ring", "double ring", "Ulysses" or "USP".
        causal: whether the run's attention has a causal mask; USP alone can be filmed with one.
        ulysses: the ranks of a group of USP.
        ranks_per_node: of the double ring; for the others the nodes that are drawn, None: one node.

    Raises:
        ValueError: another number of ranks or method, sizes that do not divide the ranks, or other messages or work
            than the method's.
    """
    shown = timeline_of(run)
    size, per_node = shown.size, ranks_per_node or shown.size
    plan = plan_of(shown, method, causal=causal, ulysses=ulysses, ranks_per_node=ranks_per_node)
    messages = _carried(shown, plan)
    begins = {t.start for t, _ in messages if t.src == 0} | {span.start for span in _attends(shown, 0)}
    begins -= {span.end for span in _attends(shown, 0)} - {t.start for t, _ in messages if t.src == 0}
    headline = f"{method[0].upper()}{method[1:]}, {size} ranks: {shown.format(shown.makespan)}"
    film = Film(headline, sorted({0, *begins, shown.makespan}), TOP + DOWN * size + LANES + LANE * size, moving=8)
    _draw_places(film, size, per_node)
    for rank in range(size):
        _draw_held(film, shown, plan, messages, rank)
        _draw_work(film, shown, rank)
    for t, part in messages:
        far = 0 if abs(t.dst - t.src) == 1 else (ABOVE if t.dst > t.src else BELOW)
        moving = _letter(t.src, part.cells, size) + _cells(t.src, part, size)
        film.move(moving, t.start, t.end, (_left(t.dst, size) - _left(t.src, size), 0), (0, far))
    for time, later in zip(film.times, film.times[1:], strict=False):
        alike = " (all alike)" if not time and not causal else ""
        film.tell(time, f"rank 0{alike} {_told(shown, plan, messages, time, later)}")
    return film.finished()


def _ring(P: int) -> MethodPlan:
    sends = {(r, (r + 1) % P): [Carried(KV, _rows([(r - hop) % P], P)) for hop in range(P - 1)] for r in range(P)}
    attends = [[_rows([(r - hop) % P], P) for hop in range(P)] for r in range(P)]
    return MethodPlan(sends, attends, [_rows([r], P) for r in range(P)])


def _double_ring(P: int, ranks_per_node: int) -> MethodPlan:
    g, nodes = ranks_per_node, P // ranks_per_node
    sends, attends = {}, []
    for r in range(P):
        node, place = divmod(r, g)
        order = [((node - turn) % nodes, (place - hop) % g) for turn, hop in product(range(nodes), range(g))]
        sources = [home * g + local for home, local in order]
        attends.append([_rows([source], P) for source in sources])
        inside = [source for number, source in enumerate(sources) if number % g < g - 1]
        sends[r, node * g + (place + 1) % g] = [Carried(KV, _rows([source], P)) for source in inside]
        sends[r, (r + g) % P] = [Carried(KV, _rows([source], P)) for source in sources[::g][:-1]]
    return MethodPlan(_some(sends), attends, [_rows([r], P) for r in range(P)])


def _usp(P: int, U: int) -> MethodPlan:
    sends: dict[tuple[int, int], list[Carried]] = defaultdict(list)
    attends, queries, each = [], [], P // U
    for r in range(P):
        group, place = divmod(r, U)
        first = group * U
        mine = range(place * each, (place + 1) * each)
        queries.append(_rectangle(range(first, first + U), mine))
        homes = [(group - hop) % each for hop in range(each)]
        attends.append([_rectangle(range(home * U, (home + 1) * U), mine) for home in homes])
        for dst in range(first, first + U):  # tokens turn into heads
            heads = range((dst - first) * each, (dst - first + 1) * each)
            sends[r, dst].append(Carried(QKV, _rectangle([r], heads)))
        if each > 1:
            sends[r, (r + U) % P] += [Carried(KV, cells) for cells in attends[r][:-1]]
        for dst in range(first, first + U):  # and back
            sends[r, dst].append(Carried(OUT, _rectangle([dst], mine)))
    return MethodPlan(_some(sends), attends, queries)


def _rectangle(tokens: Iterable[int], heads: Iterable[int]) -> Cells:
    return frozenset(product(tokens, heads))


def _rows(tokens: Iterable[int], size: int) -> Cells:
    return _rectangle(tokens, range(size))


def _some(sends: dict[tuple[int, int], list[Carried]]) -> dict[tuple[int, int], list[Carried]]:
    """The messages that go to another rank."""
    return {pair: parts for pair, parts in sends.items() if pair[0] != pair[1] and parts}


def _attends(shown: Timeline, rank: int) -> list[Span]:
    return [span for span in shown.computes if span.rank == rank]


def _carried(shown: Timeline, plan: MethodPlan) -> list[tuple[Transfer, Carried]]:
    """Every message and what it carries: from one rank to another they come in the plan's order."""
    left = {pair: iter(parts) for pair, parts in plan.sends.items()}
    return [(t, next(left[t.src, t.dst])) for t in sorted(shown.transfers, key=lambda t: t.start)]


def _left(rank: int, size: int) -> float:
    return (WIDTH - PANEL * size) / 2 + PANEL * rank + (PANEL - ACROSS * size) / 2


def _draw_places(film: Film, size: int, per_node: int) -> None:
    """The still parts: the nodes, the ranks' rectangles, the names."""
    for node in range(size // per_node):
        first = _left(node * per_node, size) - 14
        wide = _left(node * per_node + per_node - 1, size) + ACROSS * size + 14 - first
        film.draw(outline(first, TOP - 92, wide, DOWN * size + 106, "empty"))
        film.draw(word(first + wide / 2, TOP - 104, f"node {node}"))
    for rank in range(size):
        x = _left(rank, size)
        film.draw(word(x + ACROSS * size / 2, TOP - 72, f"rank {rank}", "strong"))
        film.draw(outline(x - 1, TOP - 1, ACROSS * size, DOWN * size, "empty"))


def _draw_held(
    film: Film, shown: Timeline, plan: MethodPlan, messages: list[tuple[Transfer, Carried]], rank: int
) -> None:
    """The cells of a rank: K/V from when they come until they were attended and sent on, then its output."""
    size, spans = shown.size, _attends(shown, rank)
    first, last = spans[0].start, spans[-1].end
    home = _rows([rank], size)
    came = dict.fromkeys(home, 0)
    for t, part in messages:
        if t.dst == rank and part.kind in (KV, QKV, *APART):
            came |= dict.fromkeys(part.cells - home, t.end)
    gone = dict.fromkeys(came, first)
    for span, cells in zip(spans, plan.attends[rank], strict=True):
        gone |= dict.fromkeys(cells, span.end)
    for t, part in messages:
        if t.src == rank and part.kind in (KV, QKV, *APART):
            gone |= {cell: max(gone[cell], t.start) for cell in part.cells}
    _draw_groups(film, rank, KV, came, gone, size)
    film.draw(_frame(rank, plan.queries[rank], size), first, last)
    made = dict.fromkeys(plan.queries[rank], last)
    leaves = max([last, *(t.end for t, part in messages if rank in (t.src, t.dst) and part.kind == OUT)])
    for t, part in messages:
        if t.dst == rank and part.kind == OUT:
            made |= {cell: t.end for cell in part.cells if cell not in made}
    stays = {cell: None if cell in home else leaves for cell in made}
    _draw_groups(film, rank, OUT, made, stays, size)


def _draw_groups(film: Film, rank: int, kind: str, came: dict, gone: dict, size: int) -> None:
    """Draw cells together that come and go together."""
    groups: dict[tuple[int, int | None], set[tuple[int, int]]] = defaultdict(set)
    for cell, start in came.items():
        if gone[cell] is None or gone[cell] > start:
            groups[start, gone[cell]].add(cell)
    for (start, end), cells in groups.items():
        film.draw(_cells(rank, Carried(kind, frozenset(cells)), size), start or None, end)


def _draw_work(film: Film, shown: Timeline, rank: int) -> None:
    """The lane of a rank: a bar for each time in which it attends, a line below for each message that arrives."""
    y = TOP + DOWN * shown.size + LANES + LANE * rank - 14
    film.draw(word(film.x(0) - 14, y + LANE / 2 - 2, rank))
    if rank == 0:
        film.draw(
            word(
                film.x(0), y - 12, "heads →, tokens ↓; low cell: output; bar: attends, line: a message arrives", "left"
            )
        )
    arrives = [t for t in shown.transfers if t.dst == rank and t.end > t.start]
    marks = "".join(_bar(film, span, y, LANE - 8, WORK) for span in _attends(shown, rank))
    film.reveal(marks + "".join(_bar(film, t, y + LANE - 7, 4, ARRIVES) for t in arrives))


def _bar(film: Film, span: Span | Transfer, y: float, height: float, color: str) -> str:
    width = film.x(span.end) - film.x(span.start) - 0.5  # a gap between neighbours
    return f'<rect x="{film.x(span.start):g}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{color}"/>'


def _runs(cells: Cells) -> list[tuple[int, int, int]]:
    """(shard of the tokens, first part of the heads, last one and one more), of neighbours together."""
    runs: list[tuple[int, int, int]] = []
    for token, head in sorted(cells):
        if runs and runs[-1][0] == token and runs[-1][2] == head:
            runs[-1] = (token, runs[-1][1], head + 1)
        else:
            runs.append((token, head, head + 1))
    return runs


def _cells(rank: int, part: Carried, size: int) -> str:
    """The cells on a rank, in the colour of the rank that owns the tokens, with its number; outputs are lower."""
    x, marks = _left(rank, size), ""
    less = LOWER if part.kind == OUT else 0
    for token, first, stop in _runs(part.cells):
        said = "o" * (part.kind == OUT) + str(token)
        top, height = TOP + DOWN * token + less / 2, DOWN - 2 - less
        place = x + ACROSS * first, top, ACROSS * (stop - first) - 2, height
        marks += box(*place, theme.rank_color(token), said, "small")
    return marks


def _bounds(cells: Cells) -> tuple[int, int, int, int]:
    tokens, heads = [token for token, _ in cells], [head for _, head in cells]
    return min(tokens), max(tokens) + 1, min(heads), max(heads) + 1


def _letter(rank: int, cells: Cells, size: int) -> str:
    top, bottom, first, stop = _bounds(cells)
    x, y = _left(rank, size) + ACROSS * first, TOP + DOWN * top
    return outline(x - 3, y - 3, ACROSS * (stop - first) + 4, DOWN * (bottom - top) + 4, "letter")


def _frame(rank: int, cells: Cells, size: int) -> str:
    top, bottom, first, stop = _bounds(cells)
    x, y = _left(rank, size) + ACROSS * first, TOP + DOWN * top
    return outline(x - 3, y - 3, ACROSS * (stop - first) + 4, DOWN * (bottom - top) + 4, "frame")


def _told(shown: Timeline, plan: MethodPlan, messages: list[tuple[Transfer, Carried]], time: int, later: int) -> str:
    """In words what rank 0 begins between two stops."""
    size = shown.size
    goes = [(_said(part, size), t.dst) for t, part in messages if t.src == 0 and time <= t.start < later]
    told = [f"sends {part} to rank {dst}" for part, dst in goes]
    spans = zip(_attends(shown, 0), plan.attends[0], strict=True)
    seen = frozenset[tuple[int, int]]().union(*(cells for span, cells in spans if time <= span.start < later))
    if seen:
        attended = _said(Carried(KV, seen), size)
        told.append("attends " + ("them" if [part for part, _ in goes] == [attended] else attended))
    return ", ".join(told)


def _said(part: Carried, size: int) -> str:
    """The cells in words, in the shortest way: their kind, the shards, the heads if not all."""
    _, _, first, stop = _bounds(part.cells)
    tokens, heads = sorted({token for token, _ in part.cells}), range(first, stop)
    shards = ", ".join(map(str, tokens)) if len(tokens) < size else "of all tokens"
    if len(heads) == size:
        return f"{part.kind} {shards}"
    return f"{part.kind} {shards} (head{'s' * (len(heads) > 1)} {', '.join(map(str, heads))})"
