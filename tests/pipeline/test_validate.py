"""Which schedules are refused, and for which reason."""

import re
from collections import Counter
from pathlib import Path

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
from tests.pipeline.models import spoil

DATA = Path(__file__).parent.parent / "data"


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
        (["0F0 0I0"], "0I0 has no 0W0: the gradient of the weights would miss microbatch 0"),
        (["0F0 0B0 0F1"], "0F1 has no backward: 0B1, or 0I1 and 0W1, is missing"),
        (["0F0 0B0 0F2 0B2"], "0F1 is missing: every stage does each microbatch once"),
        (["0F0 0W0"], "0W0 (rank 0, action 1) needs 0I0, which no rank does"),
        (["0B0 0F0"], "0B0 (rank 0, action 0) needs 0F0, which the same rank does only later (rank 0, action 1)"),
        (["0F0 0W0 0I0"], "0W0 (rank 0, action 1) needs 0I0, which the same rank does only later (rank 0, action 2)"),
        (["0B0 0F1 0B1 0W1"], "0B0 (rank 0, action 0) needs 0F0, which no rank does"),  # as many actions as needed
        (["0F0", "0B0"], "0B0 (rank 1, action 0) needs what 0F0 kept, but that is on rank 0"),
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


# Corruptions, against a slow check written another way


def facts(found: Schedule) -> dict[str, set[str]]:
    """What is wrong with a schedule, by sets and repeated passes."""
    count = Counter(str(a) for row in found.actions for a in row)
    stages, microbatches = found.num_stages, found.num_microbatches
    cells = [(s, i) for s in range(stages) for i in range(microbatches)]
    missing = {f"{s}F{i}" for s, i in cells if not count[f"{s}F{i}"]}
    missing |= {f"{s}{k}{i}" for s, i in cells for k in "IW" if not count[f"{s}{k}{i}"] and not count[f"{s}B{i}"]}
    missing |= {f"{s}B{i}" for s, i in cells if not count[f"{s}B{i}"] and not count[f"{s}I{i}"]}
    twice = {name for name, times in count.items() if times > 1}
    twice |= {f"{s}I{i}" for s, i in cells if count[f"{s}B{i}"] and count[f"{s}I{i}"]}
    twice |= {f"{s}W{i}" for s, i in cells if count[f"{s}B{i}"] and count[f"{s}W{i}"]}
    return {"missing": missing, "twice": twice, "stuck": stuck(found)}


def stuck(found: Schedule) -> set[str]:
    """The actions that no order of running the ranks ever reaches."""
    last = found.num_stages - 1
    done: set[tuple[int, str]] = set()
    rows = [list(row) for row in found.actions]
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while row and runs(row[0], rank, done, last):
                done.add((rank, str(row.pop(0))))
                moved = True
    return {str(a) for row in rows for a in row}


def runs(a: Action, rank: int, done: set[tuple[int, str]], last: int) -> bool:
    everywhere = {name for _, name in done}
    kind, s, i = a
    if kind == "F":
        return s == 0 or f"{s - 1}F{i}" in everywhere
    if kind == "W":
        return (rank, f"{s}I{i}") in done
    return (rank, f"{s}F{i}") in done and (s == last or bool(everywhere & {f"{s + 1}I{i}", f"{s + 1}B{i}"}))


ACTION = r"(\d+[FBIW]\d+)"
REASONS = {  # the action that an error names, by what it says is wrong with it
    "twice": (f"^{ACTION} is done twice", f"^{ACTION} .* a full backward contains both halves"),
    "missing": (
        f"needs {ACTION}(?: or .*)?, which no rank does",
        f"^{ACTION} is missing",
        f"has no backward: {ACTION}",
        f"has no {ACTION}: the gradient of the weights",
    ),
    "stuck": (
        f"^{ACTION} .*, which the same rank does only later",
        f"^{ACTION} .*, but that is on rank",
        f"stands at {ACTION}",
    ),
}


def reasons(error: str) -> list[tuple[str, str]]:
    """(kind, action) of every reason that an error gives."""
    return [(kind, m[1]) for kind, texts in REASONS.items() for text in texts if (m := re.search(text, error))]


@pytest.mark.parametrize("seed", range(30))
def test_30_corruptions_each_run_or_are_refused_for_a_reason_that_is_true(seed):
    found = spoil(seed)
    wrong = facts(found)
    if not any(wrong.values()):
        validate(found)
        return
    with pytest.raises(ValueError, match=r"\d+[FBIW]\d+") as caught:
        validate(found)
    (kind, name), *others = reasons(str(caught.value))
    assert not others
    assert name in wrong[kind]
