"""The film of a decoder block on two tensor-parallel ranks: the way forward and back, past eight places."""

from __future__ import annotations

from parlab.views.engine import theme
from parlab.views.engine.player import Film, box, chip, outline, shifted, word

RANKS = 2
STOPS = ("forward", "MLP", "backward", "attention", "done")
TOLD = (
    "Forward through attention: both GPUs pass the places 1 to 4.",
    "Forward through the MLP: both pass the places 5 to 8.",
    "Backward through the MLP: both pass the places 8 to 5.",
    "Backward through attention: both pass the places 4 to 1.",
)
ROWS = (("attention", "x", "W q, k, v", "W o"), ("MLP", "h", "W gate, up", "W down"))
STREAM, NORM, COLUMNS, MATRIX_ROWS, PLUS = 60, 166, 292, 458, 604  # the middles of a row's arrays, from left to right
PLACES = (116, 216, 378, 538)  # of the four places between them
MIDDLES = (118, 294)  # of the two rows, from the top
SIDE, SLOT = 68, 30  # of a matrix; of a place
CARD = 7  # from a copy to the next one
LANE = 28  # from the middle of a row to the way of each rank, above and below the places
NEAR = 0.08  # of the way: how long before and behind a place it is framed


def film_of_block() -> Film:
    """Film a block's forward and backward on two ranks. Nothing says at which of the places they add.

    Two copies of a norm and of the tokens lie behind each other; a matrix has each rank's part in its colour.
    """
    film = Film(
        "A block on two GPUs: forward past the places 1 to 8, and back",
        range(len(STOPS)),
        MIDDLES[-1] + 78,
        moving=12.0,
        resting=1.0,
        says=lambda stop: STOPS[stop],
    )
    for number, (names, middle) in enumerate(zip(ROWS, MIDDLES, strict=True)):
        _draw_row(film, names, middle, 4 * number + 1)
    for leg, line in enumerate(TOLD):
        backward = leg >= len(ROWS)
        row = len(TOLD) - 1 - leg if backward else leg
        film.tell(leg, line)
        _pass(film, leg, MIDDLES[row], backward)
    return film


def _draw_row(film: Film, names: tuple[str, str, str, str], middle: float, first: int) -> None:
    """A part of the block, from its input to the addition; its places are numbered from `first` on."""
    part, stream, columns, rows = names
    film.draw(f'<path d="M{STREAM} {middle - 52:g}V{middle - 84:g}H{PLUS}V{middle - 16:g}" class="trail"/>')
    film.draw(word(STREAM + 12, middle - 96, part, "strong left") + word(PLUS, middle, "⊕", "arrow"))
    film.draw(_copies(STREAM, middle, 48) + word(STREAM, middle + 48, f"{stream}, whole"))
    film.draw(_copies(NORM, middle, 12) + word(NORM, middle + 48, "norm"))
    for rank in range(RANKS):
        color, half, start = theme.rank_color(rank), SIDE / RANKS, SIDE / RANKS * rank - SIDE / 2
        film.draw(box(COLUMNS + start, middle - SIDE / 2, half - 2, SIDE, color))
        film.draw(box(MATRIX_ROWS - SIDE / 2, middle + start, SIDE, half - 2, color))
    for x, name, cut in ((COLUMNS, columns, "columns"), (MATRIX_ROWS, rows, "rows")):
        film.draw(word(x, middle - 48, name) + word(x, middle + 48, cut))
    for number, x in enumerate(PLACES, first):
        place = outline(x - SLOT / 2, middle - SLOT / 2, SLOT, SLOT, "letter open")
        film.draw(place + word(x, middle, number, "strong"))


def _copies(x: float, middle: float, wide: float) -> str:
    """A card for each rank, which has all of the array; rank 0's lies in front."""
    return "".join(
        box(
            x - wide / 2 + CARD * rank, middle - 24 - CARD * rank, wide, 48, theme.rank_color(rank), edge="currentColor"
        )
        for rank in reversed(range(RANKS))
    )


def _pass(film: Film, leg: int, middle: float, backward: bool) -> None:
    """Both ranks go through a row, and each place that they pass is framed."""
    start, end = (PLUS, STREAM) if backward else (STREAM, PLUS)
    arrow = word(-24 if backward else 24, 0, "←" if backward else "→", "strong")
    going = "".join(shifted(chip(-12, -10, 24, 20, rank) + arrow, 0, LANE * (2 * rank - 1)) for rank in range(RANKS))
    film.move(shifted(going, start, middle), leg, leg + 1, (end - start, 0))
    for x in PLACES:
        passed = leg + (x - start) / (end - start)
        frame = outline(x - SLOT / 2 - 2, middle - SLOT / 2 - 2, SLOT + 4, SLOT + 4, "frame")
        film.draw(frame, passed - NEAR, passed + NEAR)
