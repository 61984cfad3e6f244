"""The film of gathers: a block's weights travel beside the work of the block before, and the waiting is told."""

import re

import numpy as np
import pytest

from parlab import views
from parlab.views.zero.gather_film import gathers
from parlab.views.zero.zero_film import step_of
from parlab.world import Cluster, Device, Link
from tests.views.filmed import check_film, tree_of
from tests.views.zero.zero_runs import PSI, step

FEW, MANY = step(3, rows=1), step(3, rows=20)  # 8 and 160 tokens a rank
BOTH = {"few": FEW, "many": MANY}
THIN = 1  # in the legend: what a thin line is


def drawn(film, look):
    return [part for part in tree_of(film).iter() if part.get("class") == look]


def test_two_steps_of_stage_3_are_12_gathers_and_6_reductions_each_with_a_line_to_each_work():
    film = views.film(BOTH)
    check_film(film)
    uses = [use for run in BOTH.values() for use in step_of(run.timeline).uses if use.end > use.start]
    assert len(drawn(film, "trail")) == len(uses) + 1  # and the hand of the clock
    for color, count in (("#0072B2", 12), ("#B35806", 6)):
        assert len(
            [part for part in tree_of(film).iter("rect") if part.get("fill") == color]
        ) == 2 * count + 1 + THIN * (count == 12)


def test_the_waiting_that_is_told_is_the_time_in_which_rank_0_does_not_work():
    film = views.film({"many": MANY})
    shown = step_of(MANY.timeline)
    last = max(trip.end for trip in shown.reductions)
    idle = last - sum(use.end - use.start for use in shown.uses)
    assert film.headline == f"Waiting, of a step of ZeRO-3: many {idle / MANY.timeline.makespan:.0%}"
    assert film.lines[-1].endswith(f"waited {MANY.timeline.format(idle)} so far")


def told(film, part):
    (line,) = [line for line in film.lines if f", {part}: " in line]
    return line.partition("waited ")[2]


def test_with_many_tokens_the_forward_adds_nothing_to_the_waiting_and_with_few_it_does():
    for name, run, adds in (("many", MANY, False), ("few", FEW, True)):
        film = views.film({name: run})
        assert (told(film, "forward") != told(film, "first gather")) == adds


def test_blocks_whose_messages_are_too_short_for_their_names_stand_in_the_legend():
    said = [part.text for part in tree_of(views.film({"many": MANY})).iter("text")]
    assert "embedding, head" in said


def test_with_many_tokens_each_inner_layer_is_gathered_while_the_one_before_works():
    found = step_of(MANY.timeline)
    before, trips = found.uses[1:4], found.gathers[2:5]
    assert all(use.start <= trip.start and trip.end <= use.end for use, trip in zip(before, trips, strict=True))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_step_of_another_stage_is_no_film_of_gathers(stage):
    assert not gathers({"few": FEW, "other": step(stage)})


def test_three_steps_are_refused():
    with pytest.raises(ValueError, match=re.escape("with 1 to 2 of them")):
        views.film(BOTH | {"third": FEW})


def test_two_levels_are_2_messages_a_rank_in_each_of_12_gathers_and_wait_less_than_a_flat_ring():
    nodes = Cluster("two nodes", Device("device", 1e11, np.inf), 2, intra=Link(0, 12e9), inter=Link(0, 1e9))
    ways = {"ring": step(3, rows=4, cluster=nodes), "levels": step(3, rows=4, cluster=nodes, ranks_per_node=2)}
    check_film(views.film(ways))
    levels = step_of(ways["levels"].timeline)
    assert len(levels.gathers) == 12
    assert all(trip.end <= use.start for use, trip in zip(levels.uses, levels.gathers, strict=True))
    sent = {0: 0, 1: 0}  # of the gathers, inside and between nodes
    for t in ways["levels"].timeline.transfers:
        sent[t.src // 2 != t.dst // 2] += t.nbytes * (t.name == "all_gather")
    assert sent == {0: 2 * 2 * PSI * 2, 1: 2 * 2 * PSI}  # twice 2 bytes a weight: half a block a rank, and a quarter
    waits = [step_of(run.timeline).uses[3].start - step_of(run.timeline).uses[2].end for run in ways.values()]
    assert waits[0] > 0 == waits[1]


def test_shards_that_are_repeated_on_nodes_are_no_film_of_gathers():
    assert not gathers({"hybrid": step(3, ranks_per_node=2, repeat_on_nodes=True)})
