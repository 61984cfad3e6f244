"""The exercises of notebook 04, pipeline schedules. An accepted answer was also executed on arrays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from parlab.labs.counts import microbatches_in_words
from parlab.labs.difference import brief
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong
from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_kept_bytes, block_waiting_bytes
from parlab.nn.llama import Llama
from parlab.nn.published import LLAMA_405B
from parlab.pipeline import (
    Action,
    Costs,
    Schedule,
    ScheduleTimeline,
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
    run_schedule,
    simulate,
    validate,
    zb_h1,
)
from parlab.world import run
from parlab.world.units import several

PIPELINE_GUESSES = {  # the usual wrong guesses of lesson 04, and the reasoning that leads there
    "eight": (42.0, "twice the microbatches, twice the time"),
    "arrays": (39.0, "all, if one is"),
    "TFLOP/s": (326.0, "as much less as with 1F1B"),
}
# TFLOP/s of each GPU, by the number of GPUs, with 32 and 16 microbatches a pipeline: arXiv 2407.21783, table 4
LLAMA_TFLOPS = {8192: 430, 16384: 400}


@dataclass(frozen=True)
class Case:
    """`size` ranks and `microbatches`; if `executed`, the schedule runs on arrays, too."""

    size: int
    microbatches: int
    executed: bool = True

    def __str__(self) -> str:
        return f"{self.size} ranks, {microbatches_in_words(self.microbatches)}"


GROWING = [Case(p, m, executed=p < 4 or (p, m) == (7, 15)) for p in range(2, 8) for m in (p, 2 * p + 1)]


def listing(p: int, m: int) -> Schedule:
    """PyTorch's list of 1F1B (tested: 2.13.0), from its `pipelining._schedule_visualizer`; it cannot run."""
    *others, last = one_f_one_b(p, m).actions
    renumbered = [action._replace(microbatch=action.microbatch + (action.kind == "F")) for action in last]
    return Schedule([*others, renumbered], name=f"listed 1F1B, {p} ranks, {m} microbatches")


def cut_in_two(schedule: Schedule) -> Schedule:
    """The schedule with each B as an I, and its W directly behind.

    >>> print(cut_in_two(one_f_one_b(2, 2)))
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1W0 1F1 1I1 1W1
    >>> simulate(one_f_one_b(3, 3)).makespan, simulate(cut_in_two(one_f_one_b(3, 3))).makespan
    (15, 13)
    """
    halves = {"F": "F", "B": "IW"}
    rows = [[action._replace(kind=half) for action in row for half in halves[action.kind]] for row in schedule.actions]
    return Schedule(rows, name="yours")


def sixteen_stages(schedule: Callable[[int, int], Schedule], costs: Costs, m: int) -> dict[str, ScheduleTimeline]:
    """A pipeline of 16 stages with m microbatches in five ways, of which 1F1B is `schedule(p, m)`.

    Args:
        costs: of a stage; with 8 chunks each takes an eighth, and its message as long as a stage's.

    >>> ran = sixteen_stages(one_f_one_b, Costs(1, 0.99, 0.72, transfer=0.006), m=32)
    >>> {name: round(16 * (1 - one.bubble_fraction()), 1) for name, one in ran.items()}
    {'one at a time': 1.0, 'GPipe': 10.9, '1F1B': 10.8, 'ZB-H1': 13.1, '8 chunks': 14.9}
    """
    ways = {"one at a time": naive, "GPipe": gpipe, "1F1B": schedule, "ZB-H1": zb_h1}
    ran = {name: simulate(make(16, m), costs) for name, make in ways.items()}
    times: list[Any] = [costs.forward, costs.backward_input, costs.backward_weight]
    f, i, w = (time / 8 for time in times)
    of_chunk = Costs(f, i, w, costs.transfer)
    return ran | {"8 chunks": simulate(interleaved_one_f_one_b(16, m, chunks=8), of_chunk)}


def kept_of_405b() -> tuple[float, float]:
    """Bytes that a GPU keeps of a text of 8192 tokens in 8 layers of Llama 3 405B, which eight GPUs share: until I, and
    from I to W.

    Until I the outputs of both norms and the product in the MLP are not kept, for they are cheap to make anew. A W
    needs them as inputs.

    >>> [round(nbytes / 1e9, 2) for nbytes in kept_of_405b()]
    [2.86, 4.26]
    """
    kept = block_kept_bytes(LLAMA_405B, B=1, S=8192, itemsize=2)
    anew = sum(kept[place] for place in ("attention.x", "mlp.x", "mlp.hidden"))
    return sum(kept.values()) - anew, sum(block_waiting_bytes(LLAMA_405B, B=1, S=8192, itemsize=2).values())


def _draw(random: np.random.Generator, size: int) -> Case:
    return Case(size, int(random.integers(size, 3 * size)), executed=False)


def _try_listing(trial: Trial, case: Case) -> list[str]:
    faulty = listing(case.size, case.microbatches)
    schedule = _schedule(trial.called(listing(case.size, case.microbatches)))
    if schedule == faulty:
        raise Wrong("it is still the listing that you were given")
    _validated(schedule, case)
    expected = one_f_one_b(case.size, case.microbatches)
    for rank, (mine, wanted) in enumerate(zip(schedule.actions, expected.actions, strict=True)):
        for position, (one, other) in enumerate(zip(mine, wanted, strict=False)):
            if one != other:
                raise Wrong(
                    f"it runs, but is no longer 1F1B: rank {rank} does {one} as action {position}, should be {other}",
                    "change only the cells that are wrong",
                )
    changed = sum(
        one != other
        for mine, was in zip(schedule.actions, faulty.actions, strict=True)
        for one, other in zip(mine, was, strict=True)
    )
    return [f"cells changed: {changed}", *_executed(schedule, case)]


LISTING = Exercise(
    "04.listing", "repaired(listing)", GROWING, _try_listing, _draw, solved_by=("parlab.pipeline.one_f_one_b",)
)


def _try_one_f_one_b(trial: Trial, case: Case) -> list[str]:
    p, m = case.size, case.microbatches
    schedule = trial.called(p, m)
    if not isinstance(schedule, Schedule):  # the lesson goes on with it
        raise Wrong(
            f"returned {brief(schedule)}, expected a Schedule", "Schedule(rows) makes one of a list for each rank"
        )
    for rank, row in enumerate(schedule.actions):
        for action in row:
            if action.stage != rank:
                raise Wrong(
                    f"rank {rank} has {action}, an action of stage {action.stage}",
                    "Action(kind, stage, microbatch): on each rank the stage is the rank",
                )
    _validated(schedule, case)
    if any(action.kind in "IW" for row in schedule.actions for action in row):
        raise Wrong("it runs, but cuts backwards in two, should have F and B alone", 'Action("B", stage, microbatch)')
    timeline = simulate(schedule)
    most = list(timeline.peak_activations)
    for rank, peak in enumerate(most):
        if peak > p - rank:
            raise Wrong(
                f"it runs, but rank {rank} keeps {microbatches_in_words(peak)}, should be p − {rank} = {p - rank}",
                f"likely cause: {_first_late_backward(timeline, rank)}",
            )
    return [
        f"activations kept on ranks 0 to {p - 1}: {', '.join(map(str, most))}; closed form: p − r",
        _at_most(
            "makespan",
            timeline.makespan,
            3 * (m + p - 1),
            "(m + p − 1)(F + B)",
            _newest_first(schedule) or "a rank waits for its first backward, and could do one more forward meanwhile",
            timeline,
        ),
        *_executed(schedule, case),
    ]


def _newest_first(schedule: Schedule) -> str:
    """Where a rank does the backward of a later microbatch before that of an earlier one."""
    for row in schedule.actions:
        backwards = [action for action in row if action.kind == "B"]
        for one, other in pairwise(backwards):
            if one.microbatch > other.microbatch:
                return f"{one} stands before {other}: the microbatch that went down first should come back first"
    return ""


def _first_late_backward(timeline: ScheduleTimeline, rank: int) -> str:
    """The first forward of a rank that starts although a backward could start by then."""
    p = timeline.schedule.num_ranks
    ends = {step.actions[0]: step.end for each in range(p) for step in timeline.steps(each)}
    done: set[Action] = set()
    for step in timeline.steps(rank):
        action = step.actions[0]
        backwards = (Action("B", rank, one.microbatch) for one in sorted(done) if one.kind == "F")
        ready = [
            b for b in backwards if b not in done and (rank == p - 1 or ends[b._replace(stage=rank + 1)] <= step.start)
        ]
        if action.kind == "F" and ready:
            return f"it does {action} at {step.start:g}, when {ready[0]} could be done"
        done.add(action)
    return "it has more forwards before its first backward than it needs"


ONE_F_ONE_B = Exercise(
    "04.one_f_one_b",
    "my_1f1b(p, m)",
    GROWING,
    _try_one_f_one_b,
    _draw,
    solved_by=("parlab.pipeline.one_f_one_b",),
)


def check_row(row: Any, given: Sequence[Action], where: str = "") -> None:
    """Raise `Wrong` unless `row` is `given` with W's between its actions."""
    if not isinstance(row, list | tuple) or not all(isinstance(action, Action) for action in row):
        raise Wrong(f"{where}returned {brief(row)}, expected a list of actions")
    if [action for action in row if action.kind != "W"] != list(given):
        raise Wrong(f"{where}the F's and I's are not those that were given, in their order; only add W's")


def _longest_idle(timeline: ScheduleTimeline) -> Any:
    """The longest idle slot of the rank that idles most."""
    of_ranks = [timeline.idle(rank) for rank in range(timeline.schedule.num_ranks)]
    worst = max(of_ranks, key=lambda slots: sum(slot.end - slot.start for slot in slots))
    return max(worst, key=lambda slot: slot.end - slot.start)


def _schedule(result: Any) -> Schedule:
    """The schedule in `result`, which may be the text of a CSV, or the rows of a schedule."""
    if isinstance(result, list | tuple):
        try:
            return Schedule(result)
        except ValueError as error:
            raise Wrong(f"returned {brief(result)}, expected a Schedule: {error}") from None
    if isinstance(result, str):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "yours.csv"
            lines = [line.strip() for line in result.splitlines() if line.strip()]
            path.write_bytes("\n".join(lines).encode())
            try:
                return Schedule.from_csv(path)
            except ValueError as error:
                raise Wrong(str(error).removeprefix(f"{path}: ")) from None
    if not isinstance(result, Schedule):
        raise Wrong(f"returned {brief(result)}, expected a Schedule, or the text of its CSV")
    return result


def _validated(schedule: Schedule, case: Case) -> None:
    if schedule.num_ranks != case.size or schedule.num_stages != case.size:
        found = f"{several(schedule.num_ranks, 'rank')} and {several(schedule.num_stages, 'stage')}"
        raise Wrong(f"it has {found}, should have {case.size} of each")
    try:
        validate(schedule)
    except ValueError as error:
        raise Wrong(f"it cannot run: {error}", *_miscounted(schedule, case.microbatches, str(error))) from None
    if schedule.num_microbatches != case.microbatches:
        raise Wrong(f"it has {microbatches_in_words(schedule.num_microbatches)}, should have {case.microbatches}")


def _miscounted(schedule: Schedule, m: int, refused: str) -> list[str]:
    """Why an action stands twice in its row, or has no backward, or ranks wait: from what else the rows do."""
    if refused.startswith("deadlock"):
        return _upside_down(schedule)
    name = refused.split(" ", 1)[0]
    rows = ([one for one in row if str(one) == name] for row in schedule.actions)
    rank, (action, *others) = next(((rank, found) for rank, found in enumerate(rows) if found), (0, [None]))
    if action is None:
        return []
    row, every = schedule.actions[rank], set(range(m))
    if others:
        if missing := sorted(every - {one.microbatch for one in row if one.kind == action.kind}):
            never = action._replace(microbatch=missing[0])
            return [f"likely cause: {action} stands again where {never} should, which the row never does"]
        return [f"likely cause: a part of the row begins with {action}, and a part before it has done that"]
    if action.microbatch >= m:
        return [f"likely cause: there are {microbatches_in_words(m)}, 0 to {m - 1}"]
    if "has no backward" in refused and all(one.kind in "FB" for one in row):
        done = {one.microbatch for one in row if one.kind == "B"}
        if action.microbatch < max(done, default=-1):
            return [f"likely cause: the backwards pass over microbatch {action.microbatch}"]
        left = several(len(every) - len(done), "backward")
        return [f"likely cause: rank {rank} ends with {left} still to do, which its warm-up put off"]
    return []


def _upside_down(schedule: Schedule) -> list[str]:
    """Where a rank does more forwards before its first backward than the rank before it does: it waits for more."""
    before = [sum(1 for _ in takewhile(lambda one: one.kind == "F", row)) for row in schedule.actions]
    for rank, (of_one, of_next) in enumerate(pairwise(before)):
        if of_one < of_next and all(one.kind in "FB" for one in schedule.actions[rank]):
            forwards = several(of_next, "forward")
            return [
                f"likely cause: rank {rank + 1} does {forwards} before its first backward, and rank {rank} only "
                f"{of_one}: the first rank needs the most forwards, not the last"
            ]
    return []


def _at_most(what: str, measured: Any, allowed: Any, formula: str, likely: str, slow: Any = None) -> str:
    """The line that shows both numbers; a refusal shows the longest wait in the timeline `slow`."""
    if measured > allowed:
        shown = f"it runs, but {what}: {measured:g}, should be {formula} = {allowed:g}"
        more = [] if slow is None else [f"where time goes: {_longest_idle(slow)}"]
        raise Wrong(shown, f"likely cause: {likely}", *more)
    return f"{what}: {measured:g}; closed form: {formula} = {allowed:g}"


def _executed(schedule: Schedule, case: Case) -> list[str]:
    """Execute the schedule on a small Llama, and return the line that says so."""
    if not case.executed:
        return []
    stages, inputs, targets, loss, gradients = _model(schedule.num_stages, schedule.num_microbatches)
    results = run(run_schedule, schedule.num_ranks, schedule, stages, inputs, targets).results
    own = {name: gradient for _, of_rank in results for name, gradient in of_rank.items()}
    losses = [of_rank for of_rank, _ in results if of_rank is not None]
    errors = {"the loss": abs(losses[0] - loss) / loss}
    errors |= {name: np.max(np.abs(own[name] - right)) / np.max(np.abs(right)) for name, right in gradients.items()}
    for name, error in errors.items():
        if not error <= 1e-12:
            raise Wrong(f"it runs, but executed on arrays it gets {name} wrong")
    return [f"executed on arrays: loss and {len(gradients)} gradients equal the serial ones to 1e-12: True"]


@lru_cache(maxsize=64)
def _model(stages: int, microbatches: int) -> Any:
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=stages,
        num_attention_heads=2,
    )
    model = Llama.random(config, seed=1, xp=np, dtype="float64")
    tokens = np.random.default_rng(2).integers(config.vocab_size, size=(microbatches, 5))  # [m·B, S + 1]
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    loss, gradients = model.loss_and_gradients(inputs, targets)
    cut = model.stages([range(s, s + 1) for s in range(stages)])
    return cut, np.split(inputs, microbatches), np.split(targets, microbatches), loss, gradients


EXERCISES = (ONE_F_ONE_B, LISTING)
