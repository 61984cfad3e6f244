"""The exercise 05.parallel_loss: the loss of logits that are cut by tokens of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.compared import all_reduce_bytes, check_form, compare, counted
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import need_messages
from parlab.nn.cross_entropy import cross_entropy, cross_entropy_backward
from parlab.tensor.slices import owned_tokens
from parlab.world import Comm, per_rank


@dataclass(frozen=True)
class LossCase:
    """t ranks, V tokens in the vocabulary, logits up to `largest`."""

    size: int
    V: int
    largest: float
    seed: int = 0

    def __str__(self) -> str:
        return f"t = {self.size}, V = {self.V}, logits up to {self.largest:g}"


def _try_loss(trial: Trial, case: LossCase) -> list[str]:
    draw = np.random.default_rng([case.seed, case.size, case.V])
    logits = draw.uniform(-case.largest, case.largest, size=(2, 3, case.V))
    targets = draw.integers(case.V, size=(2, 3))
    loss, cache = cross_entropy(logits, targets)
    dlogits = cross_entropy_backward(1.0, cache)
    parts = [owned_tokens(case.V, rank, case.size) for rank in range(case.size)]
    own = per_rank([logits[..., part] for part in parts])
    first = per_rank([part.start for part in parts])

    def program(comm: Comm, logits: Any, first: int) -> Any:
        return trial.answer(comm, logits, targets.copy(), first)

    done = trial.ran(program, case.size, own, first)
    for rank, result in enumerate(done.results):
        check_form(rank, result, 2, "(loss, dlogits)")
        found = np.float64(result[0]) if type(result[0]) is float else result[0]
        part = parts[rank]
        compare(rank, "the loss", found, np.asarray(loss), case.size, _wrong_losses(logits, targets, parts, rank))
        wrong = _wrong_dlogits(logits, targets, dlogits, part)
        compare(rank, "dlogits", result[1], dlogits[..., part], case.size, wrong)
    need_messages(done)
    numbers = targets.size * logits.itemsize
    allowed = [3 * sent for sent in all_reduce_bytes(targets.size, logits.itemsize, case.size)]
    return counted(done, allowed, f"3 all-reduces of B·S numbers ({numbers} bytes)")


@np.errstate(all="ignore")
def _wrong_losses(logits: Any, targets: Any, parts: list[slice], rank: int) -> dict[str, Any]:
    """The losses that well-known mistakes give, by cause."""
    starts = [part.start for part in parts]
    logits_of = [logits[..., part] for part in parts]
    lse, own_lse = _log_sum_exp(logits), _log_sum_exp(logits_of[rank])  # [B, S]
    chosen = [_at_targets(x, targets - first) for x, first in zip(logits_of, starts, strict=True)]
    without_first = [_at_targets(x, targets) for x in logits_of]
    largest = [x.max(axis=-1) for x in logits_of]
    sums = [np.exp(x - most[..., None]).sum(axis=-1) for x, most in zip(logits_of, largest, strict=True)]
    return {
        "the largest logit is this rank's alone: all ranks must subtract the same": np.mean(
            largest[rank] + np.log(sum(sums)) - sum(chosen)
        ),
        "the largest logit is subtracted, and not added again behind the log": np.mean(
            lse - logits.max(axis=-1) - sum(chosen)
        ),
        "`first` is not used: a target's place in this part is targets − first": np.mean(lse - sum(without_first)),
        "the target's logit is this rank's alone: sum it over the ranks": np.mean(lse - chosen[rank]),
        "the sum of exp is this rank's alone: sum it over the ranks": np.mean(own_lse - sum(chosen)),
        "the mean over the B·S targets is missing": np.sum(lse - sum(chosen)),
    }


@np.errstate(all="ignore")
def _wrong_dlogits(logits: Any, targets: Any, dlogits: Any, part: slice) -> dict[str, Any]:
    """The gradients of a rank's logits that well-known mistakes give, by cause."""
    own, right = logits[..., part], dlogits[..., part]
    tokens = np.arange(part.stop - part.start)
    one_hot, without_first = (targets[..., None] - first == tokens for first in (part.start, 0))
    softmax, own_softmax = (np.exp(own - _log_sum_exp(x)[..., None]) for x in (logits, own))
    return {
        "`first` is not used: the one-hot stands at targets − first": (softmax - without_first) / targets.size,
        "the softmax is over this rank's logits alone: divide by the sum over all ranks": (
            (own_softmax - one_hot) / targets.size
        ),
        "the one-hot is missing": softmax / targets.size,
        "it is not divided by B·S: the loss is a mean": right * targets.size,
    }


def _log_sum_exp(logits: Any) -> Any:
    largest = logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]


def _at_targets(logits: Any, place: Any) -> Any:
    """The logit at each place, 0 where this part has no such place."""
    here = (place >= 0) & (place < logits.shape[-1])
    found = np.take_along_axis(logits, np.where(here, place, 0)[..., None], axis=-1)[..., 0]
    return np.where(here, found, 0.0)


def _draw_loss(random: np.random.Generator, size: int) -> LossCase:
    largest = float(random.choice([3, 30, 2000]))
    return LossCase(size, size + int(random.integers(size, 3 * size)), largest)


LOSS = Exercise(
    "05.parallel_loss",
    "parallel_loss(comm, logits, targets, first)",
    [
        LossCase(*sizes)
        for sizes in ((2, 4, 3.0), (2, 7, 3.0), (2, 6, 2e3), (1, 5, 3.0), (3, 8, 30.0), (4, 9, 2e3), (8, 20, 2e3))
    ],
    _try_loss,
    _draw_loss,
    on_ranks=True,
    solved_by=("parlab.tensor.vocab_parallel_cross_entropy",),
)

EXERCISES = (LOSS,)
