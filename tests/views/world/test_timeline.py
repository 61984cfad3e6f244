"""The bars of a timeline are the spans of the run, in the lane of their rank."""

import re

import numpy as np
import pytest

from parlab import run, views
from parlab.pipeline import Costs, one_f_one_b, simulate, zb_h1
from parlab.views.engine import theme
from parlab.views.engine.picture import percents
from tests.views.drawn import artists, boxes, coloured, lanes, ring, written

SIZES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def runs():
    return {size: run(ring, size, np.ones(256)) for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
def test_every_span_is_a_bar_in_the_lane_of_its_rank_and_every_bar_a_span(runs, size):
    shown, figure = runs[size].timeline, views.timeline(runs[size])
    for kind in ("compute", "send", "receive"):
        spans = sorted((s.rank, s.start, s.end) for s in shown.spans if s.kind == kind and s.end > s.start)
        assert lanes(figure, f"{kind}s") == spans
    check_waits(figure, shown, {rank: rank for rank in range(shown.size)})


def check_waits(figure, shown, lane_of):
    """Until the peer came in one pattern, until the message had passed in another."""
    waits = [wait for wait in shown.waits if wait.rank in lane_of]
    absent = sorted((lane_of[w.rank], w.start, w.came) for w in waits if w.came > w.start)
    under_way = sorted((lane_of[w.rank], w.came, w.end) for w in waits if w.end > w.came)
    assert (lanes(figure, "waits"), lanes(figure, "transfers")) == (absent, under_way)


@pytest.mark.parametrize("size", SIZES)
def test_rank_0_is_on_top_and_every_rank_has_a_lane(runs, size):
    axes = views.timeline(runs[size]).axes[0]
    bottom, top = axes.get_ylim()
    assert (bottom, top) == (size - 0.5, -0.5)
    labels = [(at, label.get_text()) for at, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)]
    assert labels[0] == (0, "rank 0")
    assert all(text == f"rank {round(at)}" for at, text in labels)
    assert len(labels) == size


@pytest.mark.parametrize(("unit", "size"), [("ps", 1), ("ns", 10**3), ("µs", 10**6), ("ms", 10**9), ("s", 10**12)])
def test_ticks_are_labelled_in_a_unit_that_suits_the_time(unit, size):
    axes = views.timeline(run(lambda comm: comm.compute("work", seconds=8e-12 * size), 1)).axes[0]
    assert axes.get_xlabel() == f"time ({unit})"
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_xticklabels()][:3] == ["0", "1", "2"]


def test_chosen_ranks_keep_their_names_and_colours(runs):
    figure = views.timeline(runs[8], ranks=[5, 2])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 5", "rank 2"]
    check_waits(figure, runs[8].timeline, {5: 0, 2: 1})


def test_a_rank_writes_that_it_waits_for_another_and_then_for_the_transfer():
    def late(comm, x):
        with comm.compute("work", seconds=5e-6 * comm.rank):
            comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank)

    figure = views.timeline(run(late, 2, np.ones(10**4)))
    said = written(figure, [f"{words} rank {rank}" for words in ("waits for", "transfer from") for rank in (0, 1)])
    assert [(lane, text) for _, lane, text in said] == [
        (0, "waits for rank 1"),  # and not 1 for 0, which was there first
        (0, "transfer from rank 1"),
        (1, "transfer from rank 0"),
    ]


@pytest.mark.parametrize("parts", [(1, 1, 1), (1, 2, 4, 8, 16), (1, 999), (1, 1, 1, 1, 1, 1), (5,), (33.5, 33.5, 33)])
def test_percents_are_whole_and_add_up_to_100(parts):
    shown = percents({str(number): part for number, part in enumerate(parts)})
    assert sum(int(text.removesuffix(" %")) for text in shown.values()) == 100
    for text, part in zip(shown.values(), parts, strict=True):
        assert abs(int(text.removesuffix(" %")) - 100 * part / sum(parts)) < 1


def test_a_rank_that_waits_for_what_it_started_waits_for_its_own_collective():
    def gathers(comm, x):
        request = comm.iall_gather(x)
        comm.compute("work", seconds=1e-6)
        request.wait()

    figure = views.timeline(run(gathers, 2, np.ones(10**4)))
    said = written(figure, ["waits for its own collective", "waits for rank 0", "waits for rank 1"])
    assert [(lane, text) for _, lane, text in said] == [(rank, "waits for its own collective") for rank in (0, 1)]


@pytest.mark.parametrize("size", [2, 4, 8])  # in larger ones a word stands over several waits
def test_no_word_is_wider_than_the_box_around_it(runs, size):
    figure = views.timeline(runs[size])
    to_pixels = figure.axes[0].transData.transform
    found = [box for name in ("computes", "waits", "transfers", "sends", "receives") for box in boxes(figure, name)]
    for words in artists(figure, "words"):
        scale = words.get_transform().get_matrix()[0, 0]  # pixels
        for path, (x, y) in zip(words.get_paths(), words.get_offsets(), strict=True):
            around = [box for box in found if box[0] <= x <= box[1] and box[2] <= y <= box[3]]
            left, right = min(box[0] for box in around), max(box[1] for box in around)
            room = to_pixels((right, y))[0] - to_pixels((left, y))[0]
            assert scale * np.ptp(path.vertices[:, 0]) <= room


@pytest.mark.parametrize("schedule", [one_f_one_b(8, 32), zb_h1(4, 8)])
def test_a_schedules_actions_are_drawn_by_their_letter(schedule):
    shown = simulate(schedule, Costs(forward=2, backward_input=2, backward_weight=1))
    figure = views.timeline(shown)
    kinds = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
    wanted = [(s.rank, s.start, s.end, theme.KINDS[kinds[re.sub(r"\d", "", s.name)]].color) for s in shown.computes]
    assert coloured(figure, "computes") == sorted(wanted)


def test_the_text_is_the_timelines_table(runs):
    assert repr(views.timeline(runs[4])) == repr(runs[4].timeline)
