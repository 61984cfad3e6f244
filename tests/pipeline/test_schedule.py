"""Schedules as data: actions, rows, and PyTorch's files."""

from pathlib import Path

import pytest

from parlab.pipeline import Action, Pair, Schedule, gpipe, interleaved_one_f_one_b, naive, one_f_one_b, zb_h2
from tests.pipeline.models import DATA

ZB1P = DATA / "pytorch_zb1p_2rank.csv"
DUALPIPEV = DATA / "pytorch_dualpipev_4rank_10mb.csv"


def write(folder: Path, text: str) -> Path:
    path = folder / "schedule.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_stage_2_forward_of_microbatch_0_is_written_2f0():
    assert str(Action("F", 2, 0)) == "2F0"
    assert str(Pair(Action("F", 0, 7), Action("B", 7, 3))) == "(0F7;7B3)OVERLAP_F_B"


def test_a_schedule_is_frozen_and_equal_by_its_rows():
    assert gpipe(2, 3) == Schedule(gpipe(2, 3).ranks, name="another name")
    assert gpipe(2, 3) != one_f_one_b(2, 3)
    with pytest.raises(AttributeError):
        gpipe(2, 3).ranks = ()


def test_a_stage_of_dualpipe_lives_on_two_ranks_and_each_microbatch_on_one_of_them():
    def rank(first, second, microbatch, other):
        return [Action(k, s, i) for i, s in ((microbatch, first), (other, second)) for k in "FB"]

    schedule = Schedule([rank(0, 1, 0, 1), rank(1, 0, 0, 1)])
    assert schedule.holders(0) == schedule.holders(1) == (0, 1)
    assert [schedule.rank_of(0, microbatch) for microbatch in (0, 1)] == [0, 1]
    assert [schedule.rank_of(1, microbatch) for microbatch in (0, 1)] == [1, 0]


def test_interleaved_stages_go_round_the_ranks():
    schedule = interleaved_one_f_one_b(4, 8, 3)
    assert (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches) == (4, 12, 8)
    assert [schedule.rank_of(stage, 5) for stage in range(12)] == [0, 1, 2, 3] * 3
    assert schedule.holders(9) == (1,)
    with pytest.raises(ValueError, match="no rank of this schedule runs 12F0"):
        schedule.rank_of(12, 0)


@pytest.mark.parametrize(
    "slot",
    [
        Action("X", 0, 0),
        Action("F", -1, 0),
        Action("F", 0, -1),
        "0F0",
        ("F", 0, 0),
        Pair(Action("B", 0, 0), Action("F", 0, 1)),
        Pair(Action("F", -1, 0), Action("B", 0, 1)),
        Pair(Action("F", 0, 0), Action("B", 0, -1)),
        Pair(Action("F", 0, 0), Action("B", 0, 0)),
    ],
    ids=str,
)
def test_what_is_no_action_is_refused_with_its_place(slot):
    with pytest.raises(ValueError, match=r"ranks\[1\]\[2\]=.*F, B, I, W"):
        Schedule([[Action("F", 0, 0)], [None, Action("F", 1, 0), slot]])


def test_a_schedule_without_actions_is_refused():
    with pytest.raises(ValueError, match="at least one action"):
        Schedule([[None], []])


@pytest.mark.parametrize("schedule", [naive(2, 3), gpipe(3, 4), interleaved_one_f_one_b(2, 4, 3), zb_h2(4, 8)], ids=str)
def test_a_written_schedule_is_read_back(schedule, tmp_path):
    schedule.to_csv(tmp_path / "schedule.csv")
    assert Schedule.from_csv(tmp_path / "schedule.csv") == schedule
    assert [file.name for file in tmp_path.iterdir()] == ["schedule.csv"]


@pytest.mark.parametrize("path", [ZB1P, DUALPIPEV], ids=lambda path: path.stem)
def test_pytorchs_files_are_written_back_byte_for_byte_idle_slots_and_pairs_included(path, tmp_path):
    Schedule.from_csv(path).to_csv(tmp_path / "copy.csv")
    assert (tmp_path / "copy.csv").read_bytes() == path.read_bytes()


def test_a_pair_counts_as_its_forward_and_then_its_backward():
    schedule = Schedule.from_csv(DUALPIPEV)
    assert isinstance(schedule.ranks[0][17], Pair)
    assert schedule.actions[0][17:19] == (Action("F", 0, 7), Action("B", 7, 3))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0F0,0B0\n1F0,1Q0\n", r"row 2 \(rank 1\), column 2: '1Q0' is not an action"),
        ("0F0,F0\n", r"row 1 \(rank 0\), column 2: 'F0'"),
        ("0F0 0B0\n", r"row 1 \(rank 0\), column 1: '0F0 0B0'"),
        ("-1F0\n", r"column 1: '-1F0'"),
        ("٣F0\n", r"column 1: '٣F0'"),
        ("0F99999999999999999999\n", r"column 1: '0F9+'"),
        ("0F0,(0F1;0I0)OVERLAP_F_B\n", r"column 2: .*overlaps 0F1 and 0I0; a pair is a forward, then a full backward"),
        ("0F0,(0F1;0B0\n", r"column 2: '\(0F1;0B0'"),
        (
            "0F0,0B0,0W0,0F1,0BW1\n",
            r"row 1 \(rank 0\), column 5: '0BW1' is not an action; write \[stage\]",
        ),  # until 2.5
        ("0SEND_F\n", r"column 1: '0SEND_F'"),
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
    ],
)
def test_a_bad_cell_is_refused_with_row_and_column(text, place, tmp_path):
    with pytest.raises(ValueError, match=place):
        Schedule.from_csv(write(tmp_path, text))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a CSV file"):
        Schedule.from_csv(path)


def test_a_byte_order_mark_and_windows_line_ends_are_no_error(tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_bytes("\ufeff0F0, 0B0\r\n".encode())
    assert str(Schedule.from_csv(path)) == "rank 0: 0F0 0B0"


WITH_MESSAGES = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD
"""


@pytest.mark.parametrize("last", ["0RESHARD", "0WAIT_REDUCE_GRAD", "0RESHARD,0WAIT_REDUCE_GRAD", "0UNSHARD1"])
def test_sends_receives_and_sharding_are_passed_over_and_written_again_where_they_were(last, tmp_path):
    text = WITH_MESSAGES.replace("0RESHARD", last)
    schedule = Schedule.from_csv(write(tmp_path, text))
    assert schedule == one_f_one_b(2, 2)
    schedule.to_csv(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == text
