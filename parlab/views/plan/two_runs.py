"""Meta's two runs of Llama 3 405B beside a planner's bill of memory, which fills up as the forwards pass."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from parlab.pipeline import looped_bfs, simulate
from parlab.plan import LLAMA_405B, Estimate, Layout, estimate
from parlab.views.engine import theme
from parlab.views.engine.player import WIDTH, Film, box, word
from parlab.views.plan.bills import MEMORY
from parlab.world import DGX_H100

RUN = Layout(pp=16, tp=8, chunks=8, zero=2, sequence_parallel=True)  # of both: Llama team 2024, table 4, section 3.3.2
REPLICAS = {16384: 128, 8192: 64}
STEP: dict[str, Any] = {"batch": 2048, "sequence": 8192}
CARD = 79.6  # GiB that an 80 GB H100 reports: NVIDIA/nccl issue 1264
GIB = 2**30
AXIS = 160  # GiB
FULLEST = 1  # the second stage: the first has a layer less

COLUMNS = {"1": ("weights", 172), "2": ("all else", 270), "3": ("a microbatch", 390), "4": ("kept", 496)}
COLORS = {"1": MEMORY["weights"], "2": MEMORY["working"], "3": MEMORY["activations"]}
SUM = 588  # the middle of the bill's last column
SIGNS = ((216, "+"), (322, "+"), (456, "×"), (532, "="))
TOPS, HIGH = (104, 190), 36  # of the two bars, and of each
LEFT, UNIT = 20, (WIDTH - 40) / AXIS  # of the bars, and of a GiB
PASSED = 1000  # the film's time when all forwards have passed; it counts thousandths


def meta_run(gpus: int, **turned: Any) -> Estimate:
    """The planner's bill of Meta's run on 16 384 or 8192 GPUs, with other fields of its layout where they are given."""
    return estimate(LLAMA_405B, DGX_H100, RUN.but(dp=REPLICAS[gpus], **turned), **STEP)


def two_runs() -> Film:
    """Film a planner's memory of the fullest GPU in Meta's two runs of table 4 with sequences of 8192 tokens.

    It takes their order to be breadth-first, and so each microbatch that passes leaves its activations: a box. The
    clock is that of the forwards, all of which pass before the first backward.

    >>> two_runs().lines[-1]
    '59 %: the card is full: on 8192 GPUs the planner asks for 134.9 GiB, on 16 384 for 71.0'
    """
    bills = {gpus: meta_run(gpus, schedule="looped_bfs") for gpus in REPLICAS}
    passed = {gpus: _passed(gpus) for gpus in REPLICAS}
    alone, kept = _parts(bills[8192], len(passed[8192]))
    full = next(time for n, time in enumerate(passed[8192], 1) if sum(alone) + n * kept > CARD)
    sums = {gpus: f"{found.total_bytes / GIB:.1f}" for gpus, found in bills.items()}
    film = Film(
        f"The planner asks for {sums[8192]} GiB of an 80 GB card. Meta ran it",
        [0, full, PASSED],
        TOPS[-1] + HIGH + 34,
        ends=(LEFT, WIDTH - 2 * LEFT),
        says=lambda time: f"{100 * time // PASSED} %",
    )
    for number, (name, x) in COLUMNS.items():
        color = COLORS.get(number)
        film.draw((box(x - 13, 4, 26, 22, color, number) if color else word(x, 15, number)) + word(x, 40, name))
    film.draw(word(SUM, 40, "GiB"))
    for top, (gpus, found) in zip(TOPS, bills.items(), strict=True):
        _draw_run(film, top, gpus, found, passed[gpus])
    card = LEFT + UNIT * CARD
    line = "".join(f"M{card:g} {top - 6}v{HIGH + 12}" for top in TOPS)
    film.draw(f'<path d="{line}" class="wait" style="stroke-width:3"/>')
    film.draw(word(card, TOPS[-1] + HIGH + 20, f"the card: {CARD} GiB"))
    film.tell(0, "all forwards pass, by the planner: a box is what a microbatch leaves on the fullest GPU")
    film.tell(
        full, f"the card is full: on 8192 GPUs the planner asks for {sums[8192]} GiB, on 16 384 for {sums[16384]}"
    )
    return film.finished()


def _passed(gpus: int) -> list[int]:
    """When the first, second, ... microbatch more is kept by the fullest stage, in thousandths of all forwards."""
    microbatches = STEP["batch"] // REPLICAS[gpus]
    order = simulate(looped_bfs(RUN.pp, microbatches, RUN.chunks))
    reached = dict(reversed([(chunks, time) for time, chunks in order.kept(FULLEST)]))  # a backward comes there again
    return [
        round(PASSED * reached[RUN.chunks * n] / reached[RUN.chunks * microbatches]) for n in range(1, microbatches + 1)
    ]


def _parts(found: Estimate, microbatches: int) -> tuple[tuple[float, float], float]:
    """GiB of the weights and of all else but activations; and of the activations of one microbatch."""
    weights, kept = (found.bytes[kind] / GIB for kind in ("weights", "activations"))
    return (weights, found.total_bytes / GIB - weights - kept), kept / microbatches


def _draw_run(film: Film, top: float, gpus: int, found: Estimate, passed: list[int]) -> None:
    """A run's bill, and below it the bar that it counts."""
    y = top - 22
    (weights, rest), kept = _parts(found, len(passed))
    film.draw(word(LEFT, y, f"{gpus:,} GPUs".replace(",", " " if gpus > 9999 else ""), "strong left"))
    bill = zip(COLUMNS.values(), (weights, rest, kept), strict=False)
    film.draw(
        "".join(word(x, y, f"{gib:.2f}") for (_, x), gib in bill) + "".join(word(x, y, sign) for x, sign in SIGNS)
    )
    for n, (start, end) in enumerate(pairwise([0, *passed, PASSED + 1])):
        said = word(COLUMNS["4"][1], y, n) + word(SUM, y, f"{weights + rest + n * kept:.1f}", "strong")
        film.draw(said, start, None if n == len(passed) else end, between=n < len(passed))
    film.draw(box(LEFT, top, UNIT * weights, HIGH, COLORS["1"]))
    film.draw(box(LEFT + UNIT * weights, top, UNIT * rest, HIGH, COLORS["2"]))
    for n, time in enumerate(passed, 1):
        reached = weights + rest + n * kept
        color = COLORS["3"] if reached <= CARD else theme.ALARM
        film.draw(box(round(LEFT + UNIT * (reached - kept), 1), top, UNIT * kept - 1, HIGH, color), time)
