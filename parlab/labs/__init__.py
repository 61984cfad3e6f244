"""Exercises: `check` runs a learner's function on many cases and explains the smallest case that fails.

An answer goes through `exercise` (the cases in turn), `trial` (the answer runs, within limits), `difference` and
`wrong` (the words). `session` keeps the outcome for `summary`, `save` and `yours`. The exercises stand in the files of
`EXERCISE_FILES`, in the lessons' order; most other files help the cells of a lesson. To mark a class, `marking` and
`submission` run each notebook, where `recording` writes down what its checks found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

from parlab.arguments import Rule, amount, checked, optional, positive, whole
from parlab.labs import (
    balance,
    block,
    both_ways,
    bring_home,
    collectives,
    diagnosis,
    expert_gradient,
    heads,
    hops,
    loss,
    lower_bound,
    merge,
    mesh,
    mixture,
    pipeline,
    place_weights,
    planning,
    processes,
    ranks,
    recording,
    ring_hops,
    session,
    tensor_mlp,
    uneven,
    zero,
    zero_prefetch,
    zigzag_tile,
)
from parlab.labs.asleep import stage_costs, step_on_processes, watched
from parlab.labs.balance import balance_by, balanced
from parlab.labs.bare import block_step, mlp_step
from parlab.labs.blame import to_blame
from parlab.labs.both_ways import GROUP_GUESSES
from parlab.labs.checked_models import (
    MESH_GUESSES,
    ends_lower,
    many_models,
    right_number,
    seven_losses,
    seven_trainers,
)
from parlab.labs.difference import wrong_arrays
from parlab.labs.exercise import PASSED, Exercise, Review
from parlab.labs.expert_gradient import ep_times_too_large, mean_gradient, thirty_steps
from parlab.labs.frontier import FRONTIER_GUESSES, by_a_pattern, closer, units_kept
from parlab.labs.job import (
    SUM_GUESSES,
    busiest_port,
    collective_table,
    gigabytes,
    gradient_job,
    naive_all_reduce,
    ring_orders,
    ring_table,
    rings_at_once,
)
from parlab.labs.kv_gradient import copies_alike, forget_kv_sum, forgotten_place
from parlab.labs.lower_bound import on_rank_0, three_arguments
from parlab.labs.mesh import added_for_a_norm
from parlab.labs.mixture import EXPERT_GUESSES
from parlab.labs.one_slot import forty_losses, four_layers, token_before
from parlab.labs.patient import RANK_GUESSES, patient, posted_ahead, wait_log
from parlab.labs.pipeline import LLAMA_TFLOPS, PIPELINE_GUESSES, cut_in_two, kept_of_405b, sixteen_stages
from parlab.labs.plain_mpi import PROCESS_GUESSES, posted_by_mpi
from parlab.labs.planners import PLANNER_GUESSES, choice_without, error_without, ways_to_send, wrong_column
from parlab.labs.processes import borders
from parlab.labs.recall import recall_losses
from parlab.labs.ring_clock import (
    RING_GUESSES,
    dealt,
    h100s,
    ring_of,
    same_as_one,
    tokens_on,
    tokens_that_hide,
)
from parlab.labs.ring_hops import posted_ring
from parlab.labs.rows import answered, expert_of_each, summed
from parlab.labs.session import Summary, load, save
from parlab.labs.sharded import TENSOR_GUESSES, fastest_t, first_stage, six_arrays, small_llama
from parlab.labs.silent_bugs import BUGS, PRICES, Suspect, compete, find_bug, suspect
from parlab.labs.tensor_mlp import mlp_run
from parlab.labs.zero_prefetch import gathered_ahead
from parlab.labs.zero_step import ZERO_GUESSES, one_update, passes, three_blocks, zero_step
from parlab.labs.zigzag_tile import zigzag_rule

EXERCISE_FILES = (  # behind each its lesson, and its exercises: 06.zero_1 is `zero_1` of lesson 06
    ranks,  # 00: exchange, overlap, to_blame
    collectives,  # 01: reduce_scatter, circulant
    zigzag_tile,  # 02: zigzag_tile
    merge,  # 02: merge
    bring_home,  # 02: bring_home
    ring_hops,  # 02: ring
    both_ways,  # 03: usp
    heads,  # 03: heads
    hops,  # 03: hops
    pipeline,  # 04: one_f_one_b, listing
    lower_bound,  # 04b: lower_bound
    place_weights,  # 04b: place_weights
    uneven,  # 04b: uneven
    tensor_mlp,  # 05: mlp_step
    block,  # 05: block_step
    loss,  # 05: parallel_loss
    zero,  # 06: zero_1
    zero_prefetch,  # 06: prefetch
    diagnosis,  # 07: find_bug
    mesh,  # 07: who_sums
    planning,  # 08: memory, step_time
    processes,  # 09: fit, buffering
    mixture,  # 10: mixture
    expert_gradient,  # 10: mean_gradient
    balance,  # 10: balanced
)
EXERCISES = {exercise.name: exercise for file in EXERCISE_FILES for exercise in file.EXERCISES}


def _exercise(name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in EXERCISES:
        raise ValueError(f"{name}={value!r:.60}: the exercises are {', '.join(EXERCISES)}")


def _step(name: str, value: Any) -> None:
    if value not in (1, 2, 3) or isinstance(value, bool):
        raise ValueError(f"{name}={value!r:.60}: 1 is a question, 2 the idea, 3 the skeleton")


def _function(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name}={value!r:.60}: must be the function that stands in")


RULES: dict[str, Rule] = {
    "name": _exercise,
    "step": _step,
    "points": partial(amount, least=0),
    "seconds": partial(positive, finite=True),
    "otherwise": _function,
    "seed": optional(partial(whole, least=0)),
}


@checked(RULES)
def check(name: str, answer: Callable[..., Any], seconds: float = 10, seed: int | None = None) -> None:
    """Run `answer` on many cases, compare its results and its messages, and print the outcome.

    Args:
        name: the exercise, such as "01.reduce_scatter".
        answer: the function that you wrote.
        seconds: the time that it may take on a case.
        seed: the drawn cases are drawn from it; a failure says which seed repeats it.

    Raises:
        ValueError: an unknown exercise, no time at all, or a seed that is no whole number from 0 on.

    >>> def reduce_scatter(comm, x):
    ...     raise NotImplementedError
    >>> check("01.reduce_scatter", reduce_scatter)
    01.reduce_scatter: not written yet
    """
    print(_reviewed(name, answer, seconds, seed).text)


@checked(RULES)
def require(name: str, answer: Callable[..., Any], seconds: float = 10, seed: int | None = None) -> None:
    """Do as `check` does, and fail where the answer fails: for a cell that must fail then.

    Raises:
        AssertionError: the answer is not right; the text is the one that `check` prints.
        ValueError: see `check`.
    """
    review = _reviewed(name, answer, seconds, seed)
    if review.status != PASSED:
        raise AssertionError(review.text)
    print(review.text)


@checked(RULES)
def score(
    name: str, answer: Callable[..., Any], points: float = 1, seconds: float = 10, seed: int | None = None
) -> float:
    """Do as `check` does, and return the points: in proportion to the cases that passed before the first that failed.

    Raises:
        ValueError: `points` is no number from 0 on; else see `check`.
    """
    review = _reviewed(name, answer, seconds, seed)
    print(review.text)
    return points * review.passed / review.total


@checked(RULES)
def yours(
    name: str, answer: Callable[..., Any], otherwise: Callable[..., Any], seconds: float = 10
) -> Callable[..., Any]:
    """Go on with your function if it is right, with the library's if not, and print which of them it is.

    An answer that was checked with the same text is not checked again.

    Args:
        name: the exercise, such as "02.merge".
        answer: the function that you wrote.
        otherwise: the library's function, which stands in.
        seconds: the time that the answer may take on a case.

    Returns:
        `answer` or `otherwise`.

    Raises:
        ValueError: an unknown exercise, no time at all, or no function that could stand in.

    >>> def exchange(comm, x):
    ...     raise NotImplementedError
    >>> exchange = yours("00.exchange", exchange, otherwise=lambda comm, x: (x, x))
    00.exchange: not written yet. From here on the library's runs.
    """
    status = ""
    if answer is not otherwise:  # as in a cell that ran before
        review = session.last_review(name, answer) or _reviewed(name, answer, seconds, None)
        status = f"{review.status}. "
        if review.status == PASSED:
            print(f"{name}: {status}From here on yours runs.")
            return answer
    print(f"{name}: {status}From here on the library's runs.")
    return otherwise


@checked(RULES)
def hint(name: str, step: int = 1) -> None:
    """Print a hint: 1 a question, 2 the idea, 3 the skeleton of an answer. `hints.md` beside this module has them.

    Raises:
        ValueError: an unknown exercise, or another step.

    >>> hint("00.exchange", 1)
    What does the rank on your right get, and when may it take it? Who receives, if all send first?
    """
    text = (files("parlab.labs") / "hints.md").read_text(encoding="utf-8")
    of_exercise = text.partition(f"\n## {name}\n\n")[2].partition("\n\n## ")[0]
    question, idea, skeleton = of_exercise.strip().split("\n\n", 2)
    print((question, idea, skeleton.removeprefix("```\n").removesuffix("\n```"))[step - 1])


def summary() -> Summary:
    """A table of the exercises that were checked here; a notebook draws it as the last line of a cell."""
    return session.summary(EXERCISES)


def _reviewed(name: str, answer: Callable[..., Any], seconds: float, seed: int | None) -> Review:
    """The review of an answer, which the session remembers."""
    review = recording.reviewed(EXERCISES[name], answer, seconds, seed)
    session.remember(review, answer)
    return review


__all__ = [
    "EXERCISES",
    "EXPERT_GUESSES",
    "FRONTIER_GUESSES",
    "GROUP_GUESSES",
    "LLAMA_TFLOPS",
    "MESH_GUESSES",
    "PIPELINE_GUESSES",
    "PLANNER_GUESSES",
    "PROCESS_GUESSES",
    "RANK_GUESSES",
    "RING_GUESSES",
    "SUM_GUESSES",
    "TENSOR_GUESSES",
    "ZERO_GUESSES",
    "Exercise",
    "Review",
    "added_for_a_norm",
    "answered",
    "balance_by",
    "balanced",
    "block_step",
    "busiest_port",
    "by_a_pattern",
    "check",
    "choice_without",
    "closer",
    "collective_table",
    "copies_alike",
    "cut_in_two",
    "dealt",
    "ends_lower",
    "error_without",
    "expert_of_each",
    "fastest_t",
    "first_stage",
    "forget_kv_sum",
    "forgotten_place",
    "forty_losses",
    "four_layers",
    "gathered_ahead",
    "gigabytes",
    "gradient_job",
    "h100s",
    "hint",
    "kept_of_405b",
    "load",
    "many_models",
    "mean_gradient",
    "mlp_run",
    "mlp_step",
    "naive_all_reduce",
    "on_rank_0",
    "one_update",
    "passes",
    "patient",
    "posted_ahead",
    "posted_by_mpi",
    "posted_ring",
    "recall_losses",
    "require",
    "right_number",
    "ring_of",
    "ring_orders",
    "ring_table",
    "rings_at_once",
    "same_as_one",
    "save",
    "score",
    "seven_losses",
    "seven_trainers",
    "six_arrays",
    "sixteen_stages",
    "small_llama",
    "summary",
    "summed",
    "thirty_steps",
    "three_arguments",
    "three_blocks",
    "to_blame",
    "token_before",
    "tokens_on",
    "tokens_that_hide",
    "units_kept",
    "wait_log",
    "ways_to_send",
    "wrong_arrays",
    "wrong_column",
    "yours",
    "zero_step",
    "zigzag_rule",
]
