"""Exact times, idle time, kept activations, critical paths."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.pipeline import (
    Action,
    Costs,
    Pair,
    Schedule,
    ScheduleTimeline,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
)
from parlab.pipeline.dependencies import action_table
from parlab.pipeline.simulate import durations
from parlab.pipeline.times import start_and_end
from tests.pipeline.models import DATA, INPUTS

UNIT_F_AND_B = Costs(forward=1, backward_input=1, backward_weight=0)


def test_1f1b_p4_m8_unit_times_makespan_22_bubble_3_of_11_peaks_4_3_2_1():
    timeline = simulate(one_f_one_b(4, 8), UNIT_F_AND_B)
    assert (timeline.makespan, timeline.bubble_fraction(), timeline.peak_activations) == (22, 3 / 11, [4, 3, 2, 1])


def test_costs_of_numpy_are_those_of_python_also_in_a_trace(tmp_path):
    costs = Costs(np.float32(1.5), np.arange(2), [np.int64(3), np.float32(0.5)])
    assert costs.backward_input == [0, 1]
    timeline = simulate(one_f_one_b(2, 3), costs)
    timeline.save_chrome_trace(tmp_path / "trace.json")
    assert timeline.makespan == simulate(one_f_one_b(2, 3), Costs(1.5, [0, 1], [3, 0.5])).makespan
    with pytest.raises(ValueError, match=r"forward=-1\.0: must be a number"):
        Costs(np.array([1.0, -1.0]))


# Zero Bubble (Qi et al., 2024): the bubbles of its Table 5, four digits

BUBBLES = {
    "1.5B p8 m24": {"1F1B": ".2431", "1F1B-I": ".1090", "ZB-H1": ".1585", "ZB-H2": ".1083"},
    "1.5B p8 m64": {"1F1B": ".1240", "1F1B-I": ".0461", "ZB-H1": ".0674", "ZB-H2": ".0444"},
    "6.2B p8 m32": {"1F1B": ".1898", "1F1B-I": ".0644", "ZB-H1": ".1045", "ZB-H2": ".0559"},
    "14.6B p16 m48": {"1F1B": ".2552", "1F1B-I": ".1136", "ZB-H1": ".1397", "ZB-H2": ".0672"},
}
CELLS = [(model, name, bubble) for model, row in BUBBLES.items() for name, bubble in row.items()]
IDS = [" ".join(cell) for cell in CELLS]


def digits(timeline: ScheduleTimeline) -> str:
    return f"{timeline.bubble_fraction('longest_stage'):.4f}".lstrip("0")


def zero_bubble_cell(model: str, name: str) -> tuple[Schedule, Costs]:
    p, m, v, f, i, w, c = INPUTS[model]
    if name == "1F1B-I":
        return interleaved_one_f_one_b(p, m, v), Costs(f / v, i / v, w / v, c)
    return {"1F1B": one_f_one_b, "ZB-H1": zb_h1, "ZB-H2": zb_h2}[name](p, m), Costs(f, i, w, c)


@pytest.mark.parametrize(("model", "name", "bubble"), CELLS, ids=IDS)
def test_zero_bubble_table_5_to_four_digits(model, name, bubble):
    assert digits(simulate(*zero_bubble_cell(model, name))) == bubble


PUBLISHED = {  # samples a second and GPU, 1F1B and ZB-1p (tables 3 and 4): sequences a microbatch, both rates
    "1.5B p8 m24": (6, 11.8, 12.9),
    "6.2B p8 m32": (3, 3.70, 4.00),
    "14.6B p16 m48": (1, 1.40, 1.61),
}


def test_published_gains_9_3_8_1_15_0_percent_are_a_little_below_the_computed_11_2_10_5_15_5():
    measured, computed, too_fast = [], [], []
    for model, (size, before, after) in PUBLISHED.items():
        p, m, _, *times = INPUTS[model]
        rates = [1000 * m * size / p / simulate(make(p, m), Costs(*times)).makespan for make in (one_f_one_b, zb_h1)]
        measured.append(round(100 * (after / before - 1), 1))
        computed.append(round(100 * (rates[1] / rates[0] - 1), 1))
        too_fast += [rates[0] / before, rates[1] / after]
    assert measured == [9.3, 8.1, 15.0]
    assert computed == [11.2, 10.5, 15.5]
    assert (round(min(too_fast), 2), round(max(too_fast), 2)) == (1.04, 1.09)


def test_at_published_times_1f1b_takes_1_0_to_1_7_percent_longer_than_gpipe():
    longer = []
    for p, m, _, *times in (INPUTS[model] for model in PUBLISHED):
        gpipes, ours = (simulate(make(p, m), Costs(*times)).makespan for make in (gpipe, one_f_one_b))
        longer.append(round(100 * (ours / gpipes - 1), 1))
    assert longer == [1.7, 1.0, 1.7]


def test_actions_that_take_no_time_leave_no_bubble():
    timeline = simulate(gpipe(2, 2), Costs(0, 0, 0))
    assert (timeline.makespan, timeline.bubble_fraction(), timeline.critical_path[0].start) == (0, 0, 0)


# PyTorch's files


@pytest.mark.parametrize(
    ("name", "costs", "makespan"),
    [("zb1p_2rank", Costs(), 49), ("dualpipev_4rank_10mb", Costs(), 63), ("dualpipev_4rank_10mb", Costs(pair=3), 66)],
)
def test_pytorchs_files_take_49_63_and_66_with_atomic_pairs_and_dualpipev_keeps_9(name, costs, makespan):
    timeline = simulate(Schedule.from_csv(DATA / f"pytorch_{name}.csv"), costs)
    assert timeline.makespan == makespan
    assert name == "zb1p_2rank" or timeline.peak_activations == [9, 9, 9, 9]


# What a time means


def test_whole_numbers_stay_whole_numbers():
    timeline = simulate(zb_h1(4, 8), Costs(3, 2, 1, transfer=1))
    assert type(timeline.makespan) is int
    assert all(type(time) is int for span in timeline.spans for time in span[1:3])


def test_each_action_starts_when_its_rank_is_free_and_its_input_is_there():
    timeline = simulate(one_f_one_b(2, 2), Costs(2, 1, 3, transfer=1))
    spans = {span.name: (span.rank, span.start, span.end) for span in timeline.computes}
    assert spans == {
        "0F0": (0, 0, 2),
        "0F1": (0, 2, 4),
        "1F0": (1, 3, 5),
        "1B0": (1, 5, 9),
        "1F1": (1, 9, 11),
        "0B0": (0, 10, 14),
        "1B1": (1, 11, 15),
        "0B1": (0, 16, 20),
    }
    assert [(t.src, t.dst, t.start, t.end, t.label) for t in timeline.transfers] == [
        (0, 1, 2, 3, "0F0"),
        (0, 1, 4, 5, "0F1"),
        (1, 0, 9, 10, "1B0"),
        (1, 0, 15, 16, "1B1"),
    ]


# What the timeline shows

ANY = st.sampled_from(
    [
        gpipe(4, 6),
        one_f_one_b(4, 7),
        looped_bfs(3, 4, 2),
        interleaved_one_f_one_b(3, 6, 2),
        zb_h1(4, 6),
        zb_h2(3, 6),
        Schedule.from_csv(DATA / "pytorch_zb1p_2rank.csv"),
        Schedule.from_csv(DATA / "pytorch_dualpipev_4rank_10mb.csv"),
    ]
)
ANY_COSTS = st.builds(
    Costs,
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(1, 20)),
)


@settings(max_examples=60)
@given(ANY, ANY_COSTS)
def test_work_and_idle_slots_fill_the_makespan_a_slot_ends_with_what_it_names_and_the_path_has_no_gap(schedule, costs):
    timeline = simulate(schedule, costs)
    ends = {name: (s.rank, s.end) for s in timeline.computes for name in re.findall(r"\d+[FBIW]\d+", s.name)}
    for rank in range(schedule.num_ranks):
        slots = timeline.idle(rank)
        assert timeline.busy(rank) + sum(slot.end - slot.start for slot in slots) == timeline.makespan
        last = max(span.end for span in timeline.computes if span.rank == rank)
        assert timeline.busy(rank) + timeline.waited(rank) == last
        for slot in slots:
            if slot.action is not None:
                assert ends[str(slot.needs)] == (slot.peer, slot.end - slot.travel)
                assert abs(slot.needs.stage - slot.action.stage) == 1
                assert slot.needs.microbatch == slot.action.microbatch
    for wait in timeline.waits:  # whom it waits for may have ended before
        assert wait.start <= wait.came <= wait.end
    path = timeline.critical_path
    assert (path[0].start, path[-1].end) == (0, timeline.makespan)
    for before, after in pairwise(path):
        assert after.start - before.end == (0 if before.rank == after.rank else costs.transfer)


def test_with_a_transfer_of_3_a_wait_whose_message_is_under_way_already_begins_when_the_rank_is_free():
    """1B1 ends at 10, and arrives at 13; rank 0 has done 0B0 by 12."""
    waits = simulate(one_f_one_b(2, 2), Costs(transfer=3)).waits
    assert [(wait.rank, wait.start, wait.came, wait.end) for wait in waits] == [
        (0, 2, 7, 10),
        (0, 12, 12, 13),
        (1, 0, 1, 4),
    ]


def test_an_idle_slot_says_why():
    timeline = simulate(one_f_one_b(2, 2), Costs(2, 1, 3, transfer=1))
    assert [str(slot) for slot in timeline.idle(0)] == [
        "rank 0 is idle from 4 to 10: 0B0 needs 1B0, which rank 1 ends at 9, and travels for 1",
        "rank 0 is idle from 14 to 16: 0B1 needs 1B1, which rank 1 ends at 15, and travels for 1",
    ]
    assert [str(slot) for slot in timeline.idle(1)] == [
        "rank 1 is idle from 0 to 3: 1F0 needs 0F0, which rank 0 ends at 2, and travels for 1",
        "rank 1 is idle from 15 to 20: it has nothing left to do",
    ]
    assert timeline.idle(1)[-1] == (1, 15, 20, None, None, None, 0)


def test_the_critical_path_of_gpipe_goes_down_the_ranks_along_the_last_back_and_along_the_first():
    names = [span.name for span in simulate(gpipe(3, 2)).critical_path]
    assert names == ["0F0", "1F0", "2F0", "2F1", "2B0", "1B0", "0B0", "0B1"]


@pytest.mark.parametrize(
    ("schedule", "costs"),
    [
        (one_f_one_b(3, 5), Costs(1, 2, 3, 1)),
        (zb_h2(3, 6), Costs(2, 1, 1, 1)),
        (interleaved_one_f_one_b(2, 4, 2), Costs(1, 0, 0, 2)),
        (zb_h1(2, 3), Costs(0, 0, 0)),
    ],
)
def test_slack_is_how_much_longer_each_action_may_take_and_no_unit_more(schedule, costs):
    table, timeline = action_table(schedule), simulate(schedule, costs)
    took = durations(table, costs)
    ranks = table.rank_of_line
    lag = [
        costs.transfer * (source >= 0 and ranks[source] != rank)
        for source, rank in zip(table.source, ranks, strict=True)
    ]
    for row, action in enumerate(table.actions):
        for more, later in ((timeline.slack[action], 0), (timeline.slack[action] + 1, 1)):
            longer = [*took[:row], took[row] + more, *took[row + 1 :]]
            assert max(start_and_end(table, longer, lag)[1]) == timeline.makespan + later, action


def test_what_is_on_the_critical_path_has_no_slack_and_a_pair_has_that_of_both():
    timeline = simulate(Schedule.from_csv(DATA / "pytorch_dualpipev_4rank_10mb.csv"), Costs(pair=3))
    slack = {str(action): slack for action, slack in timeline.slack.items()}
    on_path = [name for span in timeline.critical_path for name in re.findall(r"\d+[FBIW]\d+", span.name)]
    assert {slack[name] for name in on_path} == {0}
    pairs = [re.findall(r"\d+[FB]\d+", span.name) for span in timeline.computes if ";" in span.name]
    assert pairs
    assert all(slack[one] == slack[other] for one, other in pairs)


def test_kept_activations_rise_with_each_f_and_fall_with_each_b_or_w():
    assert simulate(one_f_one_b(2, 2), UNIT_F_AND_B).kept(0) == [(0, 1), (1, 2), (4, 1), (6, 0)]
    assert simulate(zb_h1(2, 2)).kept(1) == [(1, 1), (3, 2), (6, 1), (7, 0)]


def test_kept_bytes_shrink_from_m_b_to_m_w_after_i():
    timeline = simulate(zb_h1(2, 2))
    assert [span.name for span in timeline.computes if span.rank == 1] == ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"]
    steps = timeline.kept_bytes(1, activation=[7, 100], pending=[7, 30])
    assert steps == [(1, 100), (3, 30), (3, 130), (5, 60), (6, 30), (7, 0)]


def test_a_schedules_timeline_is_a_timeline():
    timeline = simulate(one_f_one_b(2, 3), Costs(transfer=1))
    assert [timeline.messages(rank) for rank in range(2)] == [3, 3]
    assert "makespan 16 units" in repr(timeline)


# Costs that differ from stage to stage


V_OF_TWO_RANKS = Schedule(
    [
        [Action("F", 0, 0), Action("F", 0, 1), *(Action(k, 3, 0) for k in "FB"), *(Action(k, 3, 1) for k in "FB"),
         Action("B", 0, 0), Action("B", 0, 1)],
        [Action("F", 1, 0), Action("F", 2, 0), Pair(Action("F", 1, 1), Action("B", 2, 0)), Action("F", 2, 1),
         Action("B", 1, 0), Action("B", 2, 1), Action("B", 1, 1)],
    ]
)  # fmt: skip


def test_an_atomic_pair_takes_what_the_stage_of_its_forward_says_and_waits_for_the_later_of_its_inputs():
    """0F1 ends at 2 and 3B0, on rank 0 as well, at 6: the pair starts then, and takes the 7 of stage 1."""
    timeline = simulate(V_OF_TWO_RANKS, Costs(pair=[5, 7, 9, 11]))
    (pair,) = [span for span in timeline.computes if "1F1" in span.name]
    assert (pair.start, pair.end) == (6, 13)
    waits = [str(slot) for slot in timeline.idle(1) if slot.end == 6]
    assert waits == ["rank 1 is idle from 3 to 6: 2B0 needs 3B0, which rank 0 ends at 6"]
