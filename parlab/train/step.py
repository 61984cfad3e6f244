"""One training step of the mesh, equal to the serial model's step.

    microbatches             a rank's rows and columns of the batch
    mixtures                 count their loads (`balance.py`); a dense model has none
    forward and backward     by the pipeline's schedule; attention runs over cp, layers over tp, and ZeRO gathers a
                             block's weights before each action that reads them (`GatheredStage`)
    shared gradients         summed over pp
    ZeRO's step              the mean over dp × cp, by target tokens; one norm, clipping, AdamW
    biases                   the bias of each expert moves (`balance.py`)
    loss                     the mean over the target tokens of the whole batch

Invariant, before and after each step: all copies of a weight are equal to the bit. For the gradient of a replicated
weight is summed exactly once over each axis:

- over tp: every rank has the same norm gradient. Under sequence parallelism, the norm's `backward_weight` (action W)
  all-reduces it. For key/value heads that ranks share, `backward_weight` all-reduces too;
- over pp: the ranks that hold a tied table, or a stage of DualPipe, sum theirs when all microbatches are done;
- over dp × cp: ZeRO takes the mean, last;
- over ep: nothing is summed. An expert's gradient holds the tokens of all ranks of ep, and ZeRO sums it over edp alone.

Source: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2 (four axes in one step); Shoeybi et al. 2019 and
Rajbhandari et al. 2020 for tp and ZeRO, in `parlab.tensor` and `parlab.zero`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parlab.arrays import Array, namespace, to_host
from parlab.pipeline import run_schedule
from parlab.train.balance import begin_mixtures, move_biases
from parlab.train.parts import Parts


class TrainResult(NamedTuple):
    """The result of a step, the same on every rank."""

    loss: float  # the mean over all target tokens of the batch, in nats
    norm: float  # of the gradient of all weights together, before clipping
    skipped: bool  # a gradient overflowed, and no weight changed


def train_step(parts: Parts, tokens: Array, targets: Array, lr: float | None) -> TrainResult:
    """Train on a batch `[B, S]`."""
    replica = parts.replica
    replica.begin(parts.opening_order)  # ZeRO's stage 3 gathers each block ahead of its action
    with replica.overflow_expected():
        own_tokens, own_targets = microbatches(parts, tokens), microbatches(parts, targets)
        begin_mixtures(parts, own_tokens, own_targets)
        loss = forward_backward(parts, own_tokens, own_targets, parts.target_tokens_a_rank(targets))
        sum_shared_gradients(parts)
    result = replica.step(lr)
    assert result.norm is not None  # a replica that is cut always computes it
    move_biases(parts, result.skipped)
    parts.samples += tokens.shape[0]
    return TrainResult(mean_loss(parts, loss), result.norm, result.skipped)


def microbatches(parts: Parts, x: Array) -> list[Array]:
    """This rank's rows and columns of tokens or targets: `[B, S]` -> m times `[B/(dp·m), S/cp]`."""
    dp, cp, m = parts.mesh.dp, parts.mesh.cp, parts.schedule.num_microbatches
    rows = x.shape[0] // (dp.size * m)
    if cp.size > 1:
        x = namespace(x).take(x, parts.positions(x.shape[1] // cp.size), axis=1)  # [B, S/cp]
    starts = range(dp.rank * m * rows, (dp.rank + 1) * m * rows, rows)
    return [x[start : start + rows, :] for start in starts]


def forward_backward(
    parts: Parts, inputs: Sequence[Array], targets: Sequence[Array], target_tokens: float
) -> float | None:
    """Run the schedule; returns the loss, or this rank's part of it, over `target_tokens`.

    The gradients do not come back here: `GatheredStage` (`stages.py`) gives them to `parts.take_gradients` after each B
    or W.
    """
    loss, _ = run_schedule(
        parts.mesh.pp,
        parts.schedule,
        parts.stages,
        inputs,
        targets,
        like=parts.activation(inputs[0]),
        loss_scale=parts.replica.loss_scale,
        target_tokens=target_tokens,
    )
    return loss


def sum_shared_gradients(parts: Parts) -> None:
    """Sum the gradients of each shared block over the ranks of pp that hold it, and give them to ZeRO."""
    for block, group in parts.shared.items():
        own = parts.waiting.pop(block)
        parts.replica.add_gradients(block, {name: group.all_reduce(x) for name, x in own.items()})


def mean_loss(parts: Parts, loss: float | None) -> float:
    """The mean over the whole batch, on every rank, from the loss on the last stage's ranks."""
    of_rank = parts.xp.asarray(loss or 0.0, dtype=parts.xp.float64, device=parts.device)
    of_replica = parts.mesh.pp.all_reduce(of_rank)
    return to_host(parts.mesh.data.all_reduce(of_replica)) / parts.mesh.data.size
