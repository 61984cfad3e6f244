"""Which schedules are refused, and for which reason."""

import re

import pytest

from parlab.pipeline import (
    Action,
    Costs,
    Pair,
    Schedule,
    gpipe,
    one_f_one_b,
    simulate,
    validate,
    zb_h1,
)


def action(text: str) -> Action:
    stage, kind, microbatch = re.fullmatch(r"(\d+)([FBIW])(\d+)", text).groups()
    return Action(kind, int(stage), int(microbatch))


def schedule(*rows: str) -> Schedule:
    return Schedule([[action(text) for text in row.split()] for row in rows])


def test_the_listing_that_pytorch_prints_is_refused_for_that_reason(tmp_path):
    visualizer = pytest.importorskip(
        "torch.distributed.pipelining._schedule_visualizer", reason="needs the extra peers: torch"
    )
    rows = visualizer.get_schedule_ops("1F1B", 4, 8)
    path = tmp_path / "listing.csv"
    path.write_text("\n".join(",".join("" if a is None else str(a) for a in row) for row in rows))
    with pytest.raises(ValueError, match=r"^3B0 \(rank 3, action 1\) needs 3F0, which no rank does$"):
        validate(Schedule.from_csv(path))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (["0F0 0B0 0B0"], "0B0 is done twice: rank 0, action 1 and rank 0, action 2"),
        (
            ["0F0 0I0 0W0 0B0"],
            "0I0 (rank 0, action 1) and 0B0 (rank 0, action 3): a full backward contains both halves",
        ),
        (["0F0 0B0 0W0"], "0W0 (rank 0, action 2) and 0B0 (rank 0, action 1): a full backward contains both halves"),
        (["0F0 0B0", "1W0"], "1W0 (rank 1, action 0) needs 1I0, which no rank does"),  # before what rank 0 lacks later
        (["0F0 0I0"], "0I0 has no 0W0: the gradient of the weights would miss microbatch 0"),
        (["0F0 0B0 0F1", "1F0 1B0 1F1 1B1"], "0F1 has no backward: 0B1, or 0I1 and 0W1, is missing"),
        (["0F0 0B0 0F2 0B2"], "0F1 is missing: every stage does each microbatch once"),
        (["0F0 0W0"], "0W0 (rank 0, action 1) needs 0I0, which no rank does"),
        (["0B0 0F0"], "0B0 (rank 0, action 0) needs 0F0, which the same rank does only later (rank 0, action 1)"),
        (["0F0 0W0 0I0"], "0W0 (rank 0, action 1) needs 0I0, which the same rank does only later (rank 0, action 2)"),
        (["0B0 0F1 0I1 0W1"], "0B0 (rank 0, action 0) needs 0F0, which no rank does"),  # as many actions as needed
        (["0F0", "0B0"], "0B0 (rank 1, action 0) needs what 0F0 kept, but that is on rank 0"),
        (["0F0 0I0", "0W0"], "0W0 (rank 1, action 0) needs what 0I0 kept, but that is on rank 0"),
        (["1F0 1B0"], "1F0 (rank 0, action 0) needs 0F0, which no rank does"),
        (["0F0 0B0", "1F0"], "0B0 (rank 0, action 1) needs 1I0 or 1B0, which no rank does"),
        (
            ["999999999F999999999"],
            "999999999F999999999 (rank 0, action 0) needs 999999998F999999999, which no rank does",
        ),
    ],
)
def test_the_first_unmet_dependency_is_named(rows, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        validate(schedule(*rows))


def test_a_cycle_leaves_out_the_ranks_that_only_wait_for_it():
    stuck = schedule("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F1 2F0 2B1 2B0")
    with pytest.raises(ValueError, match="deadlock") as caught:
        validate(stuck)
    assert str(caught.value).splitlines() == [
        "deadlock: 2 ranks wait for each other in a cycle",
        "  rank 1 stands at 1B0, which needs 2B0; rank 2 does that only after 2F1",
        "  rank 2 stands at 2F1, which needs 1F1; rank 1 does that only after 1B0",
    ]


def test_a_rank_can_wait_for_itself():
    with pytest.raises(
        ValueError, match="deadlock: 1 rank waits for itself in a cycle\n  rank 0 stands at 1F0, which needs 0F0"
    ):
        validate(schedule("1F0 0F0 1B0 0B0"))


def test_atomic_pairs_can_deadlock_where_two_actions_would_not():
    first = [Action("F", 0, 0), Pair(Action("F", 0, 1), Action("B", 0, 0)), Action("B", 0, 1)]
    second = [Action("F", 1, 0), Action("F", 1, 1), Action("B", 1, 0), Action("B", 1, 1)]
    validate(Schedule([first, second]))
    with pytest.raises(ValueError, match="rank 1 stands at 1F1, which needs 0F1; rank 0 does that only after 0B0"):
        simulate(Schedule([first, second]), Costs(pair=2))


# Memory


def test_1f1b_p4_runs_within_4_3_2_1_activations_and_gpipe_does_not():
    validate(one_f_one_b(4, 8), memory_limit=4)
    validate(one_f_one_b(4, 8), memory_limit=[4, 3, 2, 1])
    with pytest.raises(ValueError, match=r"rank 0 keeps 5 activations at 0F4 \(action 4\), but its limit is 4"):
        validate(gpipe(4, 8), memory_limit=4)
    with pytest.raises(ValueError, match=r"rank 2 keeps 2 activations at 2F1 \(action 1\), but its limit is 1"):
        validate(one_f_one_b(4, 8), memory_limit=[4, 3, 1, 1])


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1])
def test_the_least_limit_is_the_simulated_peak(make):
    peak = simulate(make(5, 9)).peak_activations
    validate(make(5, 9), memory_limit=peak)
    for rank in range(5):
        with pytest.raises(ValueError, match=f"rank {rank} keeps {peak[rank]} activations"):
            validate(make(5, 9), memory_limit=[limit - (r == rank) for r, limit in enumerate(peak)])
