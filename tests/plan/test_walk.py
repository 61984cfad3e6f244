"""A search by hand keeps the number of ranks, and refuses what is not possible."""

from __future__ import annotations

import pytest

from parlab.plan import LLAMA_8B, Layout, Walk, estimate, search
from parlab.world import DGX_H100

ASKED = {"batch": 128, "sequence": 8192}
PLANS = search(LLAMA_8B, DGX_H100, 64, **ASKED)


def test_dp_gives_or_takes_the_ranks_that_another_axis_takes_or_gives():
    walk = Walk(PLANS, Layout(dp=8, pp=8)).turn(tp=2).turn(pp=2).turn(dp=2, tp=16)
    assert [(e.layout.dp, e.layout.pp, e.layout.tp) for e in walk] == [(8, 8, 1), (4, 8, 2), (16, 2, 2), (2, 2, 16)]
    assert [e.layout.ranks for e in walk] == [64] * 4
    assert walk.moves == ["start", "dp 4, tp 2", "dp 16, pp 2", "dp 2, tp 16"]


def test_each_layout_has_the_planners_numbers_and_the_table_says_what_does_not_fit():
    walk = Walk(PLANS, Layout(dp=64)).turn(zero=3)
    assert walk[1] == estimate(LLAMA_8B, DGX_H100, Layout(dp=64, zero=3), **ASKED)
    assert [walk.fits(e) for e in walk] == [e.total_bytes <= PLANS.memory for e in walk]
    lines = str(walk).splitlines()
    assert [("does not fit" in line) for line in lines] == [not walk.fits(e) for e in walk]
    assert lines[0].startswith("start")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Walk(3, Layout()), "plans=3: must be a Plans"),
        (lambda: Walk(PLANS, 3), "layout=3: must be a Layout"),
        (lambda: Walk(PLANS, Layout(dp=64)).turn(speed=2), "speed=2: the fields are dp, pp"),
        (
            lambda: Walk(PLANS, Layout(dp=64)).turn(tp=2, zero=3),
            r"tp, zero: a move changes one field, and dp takes or gives the rest: \.turn\(tp=2\)\.turn\(zero=3\)",
        ),
        (lambda: Walk(PLANS, Layout(dp=64)).turn(tp=3), "63 ranks, and there are 64"),
        (lambda: Walk(PLANS, Layout(dp=64)).turn(dp=1), "1 rank, and there are 64"),
        (lambda: Walk(PLANS, Layout(dp=64)).turn(chunks=2), "chunks=2: one stage a rank where pp is 1"),
        (lambda: Walk(PLANS, Layout(dp=64)).turn(tp=0), "tp=0: must be at least 1|ranks, and there are 64"),
    ],
)
def test_bad_moves_are_refused_by_name(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_a_refused_move_leaves_the_walk_as_it_was():
    walk = Walk(PLANS, Layout(dp=64))
    with pytest.raises(ValueError, match="ranks"):
        walk.turn(tp=3)
    assert len(walk) == len(walk.moves) == 1
