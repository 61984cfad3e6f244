"""One training step of the mesh, equal to the serial model's step.

    microbatches             a rank's rows and columns of the batch
    auxiliary losses         of experts, if there are any: their loads are counted first (`balance.py`)
    forward and backward     by the pipeline's schedule; attention runs over cp, layers over tp; ZeRO gathers a block's
                             weights before each action that reads them, and takes its gradients after each that makes
                             them (`stages.py`)
    shared gradients         summed over pp
    ZeRO's step              the mean over dp × cp, by target tokens; one norm, clipping, AdamW
    biases                   of experts, if there are any: each moves by its load
    loss                     the mean over the target tokens of the whole batch

Invariant, before and after each step: all copies of a weight are equal to the bit. For all copies get the same
gradient, and each token counts in it exactly once:

- over tp: every rank has all tokens of a norm, and makes the same gradient: nothing is summed. Under sequence
  parallelism each has its own tokens, and the norm's `backward_weight` (action W) all-reduces its gradient. So does
  attention's for key/value heads that ranks share, because each has other query heads;
- over pp: the ranks that hold a tied table, or a stage of DualPipe, sum theirs when all microbatches are done;
- over dp × cp: ZeRO takes the mean, last;
- over ep: nothing is summed. An expert's gradient holds the tokens of all ranks of ep, and ZeRO sums it over edp alone.

Source: Llama 3 (2024), "The Llama 3 Herd of Models", section 3.3.2 (four axes in one step); Shoeybi et al. 2019 and
Rajbhandari et al. 2020 for tp and ZeRO, in `parlab.tensor` and `parlab.zero`.
"""

from __future__ import annotations

from typing import NamedTuple

from parlab.arrays import Array, namespace, to_host
from parlab.pipeline import run_schedule
from parlab.train.balance import move_biases, prepare_auxiliary_losses
from parlab.train.job import TrainJob
from parlab.train.parts import TrainParts
from parlab.train.stages import stages_with_zero


class TrainResult(NamedTuple):
    """The result of a step, the same on every rank."""

    loss: float  # the mean over all target tokens of the batch, in nats
    norm: float  # of the gradient of all weights together, before clipping
    skipped: bool  # a gradient overflowed, and no weight changed


def train_step(parts: TrainParts, tokens: Array, targets: Array, lr: float | None) -> TrainResult:
    """Train on a batch `[B, S]`."""
    job, replica = parts.job, parts.replica
    target_tokens = job.target_tokens_a_rank(targets)
    rank_tokens, rank_targets = microbatches(job, tokens), microbatches(job, targets)  # m times [B/(dp·m), S/cp]
    like = job.activation(rank_tokens[0], replica.dtype)  # of the messages between pipeline stages
    stages = stages_with_zero(parts)  # ZeRO gathers their weights, and takes their gradients
    replica.begin(parts.opening_order)  # at ZeRO's stage 3 a block is gathered ahead of its action
    with replica.guard.overflow_expected():
        if job.settings.auxiliary:
            prepare_auxiliary_losses(parts, stages, rank_tokens, rank_targets, like)
        loss, _ = run_schedule(
            job.mesh.pp,
            job.schedule,
            stages,
            rank_tokens,
            rank_targets,
            like=like,
            loss_scale=replica.loss_scale,
            target_tokens=target_tokens,
        )
        sum_shared_gradients(parts)
    result = replica.step(lr)
    if job.settings.bias_rate:
        move_biases(parts, result.skipped)
    assert result.norm is not None  # with a `ModelParallel` ZeRO always computes it
    return TrainResult(mean_loss(job, loss), result.norm, result.skipped)


def microbatches(job: TrainJob, x: Array) -> list[Array]:
    """This rank's rows and columns of tokens or targets: `[B, S]` -> m times `[B/(dp·m), S/cp]`."""
    dp, cp, m = job.mesh.dp, job.mesh.cp, job.schedule.num_microbatches
    rows = x.shape[0] // (dp.size * m)
    if cp.size > 1:
        x = namespace(x).take(x, job.positions(x.shape[1] // cp.size), axis=1)  # [B, S/cp]
    starts = range(dp.rank * m * rows, (dp.rank + 1) * m * rows, rows)
    return [x[start : start + rows, :] for start in starts]


def sum_shared_gradients(parts: TrainParts) -> None:
    """Of each block that several ranks of pp hold: sum the gradients over these ranks, and give them to ZeRO."""
    for block, group in parts.shared.items():
        gradients = parts.waiting.pop(block)
        parts.replica.add_gradients(block, {name: group.all_reduce(x) for name, x in gradients.items()})


def mean_loss(job: TrainJob, loss: float | None) -> float:
    """The mean over all T target tokens of the batch, on every rank, from the loss on the last stage's ranks.

    A rank's loss is a sum over its own target tokens, divided by T/N (`target_tokens_a_rank`): the mean over the N
    ranks is the sum over all tokens / T.
    """
    of_rank = job.xp.asarray(loss or 0.0, dtype=job.xp.float64, device=job.device)
    of_pipeline = job.mesh.pp.all_reduce(of_rank)  # the other stages' ranks add 0
    return to_host(job.mesh.data.all_reduce(of_pipeline)) / job.mesh.data.size
