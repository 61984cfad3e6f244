"""What a schedule's figure draws is what was simulated: bars, numbers, memory, the critical path, idle slots."""

import re
from functools import cache
from itertools import pairwise

import pytest

from parlab import views
from parlab.pipeline import (
    Costs,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    one_f_one_b,
    simulate,
    zb_h2,
)
from parlab.views.engine import marks, theme
from parlab.views.pipeline import panels
from tests.pipeline.models import DATA
from tests.views.drawn import artists, boxes, coloured, lanes, texts, written

DUALPIPEV = Schedule.from_csv(DATA / "pytorch_dualpipev_4rank_10mb.csv")
SHOWN = [
    simulate(one_f_one_b(1, 2)),
    simulate(one_f_one_b(6, 9), Costs(1, 2, 1.5, 0.25)),
    simulate(interleaved_one_f_one_b(4, 8, 2), Costs(0.5, 0.5, 0.5)),
    simulate(looped_bfs(2, 4, 4)),
    simulate(zb_h2(3, 6), Costs(2, 2, 1, 1)),
    simulate(DUALPIPEV, Costs(pair=3)),
]
IDS = [f"{shown.schedule.name}, {shown.costs.transfer}, {shown.costs.pair}" for shown in SHOWN]
each_shown = pytest.mark.parametrize("shown", SHOWN, ids=IDS)


@cache
def schedule(shown, **how):
    """Each figure is drawn once, and no test changes it."""
    return views.schedule(shown, **how)


def actions(shown):
    """(rank, start, end, kind, stage, microbatch) of every action, from the schedule and the times of its steps."""
    found = []
    for span in shown.computes:
        for stage, kind, microbatch in re.findall(r"(\d+)([FBIW])(\d+)", span.name):
            found.append((span.rank, span.start, span.end, kind, int(stage), int(microbatch)))
    return found


@each_shown
def test_every_action_is_a_bar_of_its_kinds_colour_in_its_ranks_lane(shown):
    shades = panels.chunks_of(shown.schedule)
    assert coloured(schedule(shown), "actions") == sorted(
        (rank, start, end, panels.color_of(kind, shades[rank, stage]))
        for rank, start, end, kind, stage, _ in actions(shown)
    )


@pytest.mark.parametrize("shown", [SHOWN[2], SHOWN[4], SHOWN[5]])
def test_every_bar_of_a_schedule_of_usual_size_has_its_microbatchs_number(shown):
    middles = [((start + end) / 2, rank, str(microbatch)) for rank, start, end, _, _, microbatch in actions(shown)]
    assert written(schedule(shown), map(str, range(shown.schedule.num_microbatches))) == sorted(middles)


@each_shown
def test_the_memory_strip_is_as_high_as_the_chunks_kept_at_every_instant(shown):
    (areas,) = artists(schedule(shown), "kept")
    highest = max(shown.peak_activations)
    polygons = [path.vertices for path in areas.get_paths()]
    for rank in range(shown.size):
        layers = [shown.kept(rank), shown.kept_bytes(rank, activation=1, pending=0)][-len(polygons) // shown.size :]
        for steps, polygon in zip(layers, polygons[rank * len(layers) :], strict=False):
            last = dict(steps)
            for (time, level), (after, _) in pairwise([*last.items(), (shown.makespan, 0)]):
                if after > time:
                    height = height_at(polygon, (time + after) / 2)
                    assert (rank + panels.FLOOR - height) / panels.HEIGHT * highest == pytest.approx(level, abs=1e-9)


def height_at(polygon, time):
    """The upper edge of a step-shaped area."""
    edges = [(one, other) for one, other in pairwise(polygon) if one[0] <= time <= other[0] and one[1] == other[1]]
    return min(one[1] for one, _ in edges)


@each_shown
def test_bars_and_memory_have_one_clock_that_ends_at_the_makespan(shown):
    bars, kept = schedule(shown).axes
    assert bars.get_xlim() == kept.get_xlim() == (0, shown.makespan)
    left, right = bars.get_position(), kept.get_position()
    assert (left.x0, left.x1) == (right.x0, right.x1)
    assert right.y1 < left.y0


def test_each_lane_of_memory_names_its_peak():
    said = written(views.schedule(one_f_one_b(4, 8)), [f"peak {number}" for number in range(9)], "words beside")
    assert [(lane, text) for _, lane, text in said] == [(0, "peak 4"), (1, "peak 3"), (2, "peak 2"), (3, "peak 1")]


def test_the_longest_peak_stays_inside_the_figure():
    figure = views.schedule(looped_bfs(16, 64, 4))
    (words,) = artists(figure, "words beside")
    widest = marks.text_width("peak 256", theme.SMALL) * theme.DPI / 72
    centers = words.get_offset_transform().transform(words.get_offsets())
    assert centers[:, 0].max() + widest / 2 <= figure.canvas.get_width_height()[0]


def test_without_memory_there_are_bars_only():
    figure = views.schedule(one_f_one_b(4, 8), memory=False)
    assert len(figure.axes) == 1
    assert not artists(figure, "kept")
    # nothing is written at their right, so they take the room
    assert figure.axes[0].get_position().x1 > views.schedule(one_f_one_b(4, 8)).axes[0].get_position().x1 + 0.05


def test_busy_and_idle_are_each_ranks_own_where_stages_differ():
    """Rank 1 starts at 1 and takes 2 · (4 + 2) without a pause; then rank 0 has a last backward of 2."""
    rows = [row.split() for row in repr(views.schedule(one_f_one_b(2, 2), Costs(forward=[1, 4]))).splitlines()]
    assert [row[:3] for row in rows[2:]] == [["0", "6", "9"], ["1", "12", "3"]]


def test_a_unit_of_the_costs_stands_at_the_clock_and_in_the_text_and_the_given_timeline_keeps_its_own():
    given = simulate(gpipe(2, 2))
    figure = views.schedule(given, unit="ms")
    assert "time (ms)" in [text for text, _ in texts(figure)]
    assert "makespan 9 ms" in repr(figure)
    assert given.unit == "units"


def test_of_many_ranks_the_text_lists_16():
    assert repr(views.schedule(one_f_one_b(20, 20))).endswith("... and 4 more ranks")


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", "FBIW")
def test_numbers_are_read_on_every_shade(kind, chunks):
    for white in panels.chunks_of(interleaved_one_f_one_b(1, 1, chunks)).values():
        color = panels.color_of(kind, white)
        assert theme.contrast(theme.text_color(color), color) >= 4.5


def test_shades_of_four_chunks_differ_and_the_first_is_the_kinds_own_colour():
    shades = panels.chunks_of(interleaved_one_f_one_b(2, 2, 4))
    colors = [panels.color_of("F", shades[1, stage]) for stage in (1, 3, 5, 7)]
    assert colors[0] == theme.KINDS["forward"].color
    assert len(set(colors)) == 4


# The critical path


@each_shown
def test_the_frames_of_the_critical_path_cover_its_actions_and_arrows_its_moves(shown):
    figure = schedule(shown, critical_path=True)
    path = shown.critical_path
    frames = lanes(figure, "critical path")
    assert sum(right - left for _, left, right in frames) == pytest.approx(sum(s.end - s.start for s in path))
    for step in path:
        assert any(rank == step.rank and left <= step.start and step.end <= right for rank, left, right in frames)
    moves = [(one.end, other.start) for one, other in pairwise(path) if one.rank != other.rank]
    drawn = [tuple(segment[:, 0]) for lines in artists(figure, "arrows") for segment in lines.get_segments()]
    assert drawn == moves


def test_the_critical_path_in_words_1f1b_p4_m8_22_actions_6_moves_and_52_without_slack():
    words = [
        "thick: a critical path: 22 actions take 33, 6 moves to another rank take 0",
        "thick or thin: no slack, 52 of 64 actions",
    ]
    figure = views.schedule(one_f_one_b(4, 8), critical_path=True)
    assert repr(figure).splitlines()[-2:] == words
    assert set(words) <= {text for text, _ in texts(figure)}


@each_shown
def test_black_frames_are_around_what_has_no_slack(shown):
    figure = schedule(shown, critical_path=True)
    tight = {action for action, slack in shown.slack.items() if slack <= 1e-9}
    assert lanes(figure, "no slack") == sorted(bar[:3] for bar in actions(shown) if bar[3:] in tight)


# Why a slot is idle


def test_a_chosen_slot_says_what_it_waits_for_and_frames_both_actions():
    shown = simulate(one_f_one_b(4, 8), Costs(transfer=0.25))
    figure = schedule(shown, why=(1, 6))
    said = "rank 1 is idle from 4.25 to 9.25: 1B0 needs 2B0, which rank 2 ends at 9, and travels for 0.25"
    assert repr(figure).endswith(said)
    assert said in [text for text, _ in texts(figure)]
    assert boxes(figure, "idle") == [(4.25, 9.25, pytest.approx(0.58), pytest.approx(1.42))]
    assert sorted(box[:2] for box in boxes(figure, "needed")) == [(7, 9), (9.25, 11.25)]
    (arrow,) = artists(figure, "arrows")
    assert arrow.get_segments()[0][:, 0].tolist() == [9, 9.25]


def test_without_a_time_the_longest_wait_is_explained():
    figure = views.schedule(one_f_one_b(4, 8), why=2)
    assert repr(figure).splitlines()[-1] == "rank 2 is idle from 0 to 2: 2F0 needs 1F0, which rank 1 ends at 2"


def test_a_rank_that_only_has_nothing_left_to_do_says_so():
    figure = views.schedule(zb_h2(2, 3), why=(0, 9))
    assert repr(figure).endswith("rank 0 is idle from 9 to 10: it has nothing left to do")
    assert not artists(figure, "arrows")


def test_nothing_that_takes_time_is_drawn_without_bars():
    figure = views.schedule(one_f_one_b(2, 2), Costs(0, 0, 0))
    assert not artists(figure, "actions")
    assert "makespan 0 units" in repr(figure)
