"""One training step of the mesh, equal to the serial model's step.

    microbatches             a rank's rows and columns of the batch
    first pass               all forwards once, to count the loads of experts, where an auxiliary loss asks for those
                             of several microbatches (`first_pass.py`, `mixture.py`)
    forward and backward     by the pipeline's schedule; attention runs over cp, layers over tp; ZeRO gathers a block's
                             weights before each action that reads them (`stages.py`), and takes its gradients after
                             each that makes them (`gradients.py`)
    shared gradients         summed over pp
    ZeRO's step              the mean over dp × cp, by target tokens; one norm, clipping, AdamW
    biases                   the bias of each expert moves (`mixture.py`)
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

from collections.abc import Sequence
from typing import NamedTuple

from parlab.arrays import Array, namespace, to_host
from parlab.pipeline import run_schedule
from parlab.train.first_pass import run_first_pass
from parlab.train.gradients import GradientsToZero
from parlab.train.job import TrainJob
from parlab.train.mixture import Mixtures
from parlab.train.stages import OwnStages
from parlab.zero import Zero


class TrainResult(NamedTuple):
    """The result of a step, the same on every rank."""

    loss: float  # the mean over all target tokens of the batch, in nats
    norm: float  # of the gradient of all weights together, before clipping
    skipped: bool  # a gradient overflowed, and no weight changed


class StepParts(NamedTuple):
    """The parts of one rank with which a training step works."""

    job: TrainJob
    stages: OwnStages  # as `gathered_stages` makes them: ZeRO gathers their weights
    mixtures: Mixtures
    gradients: GradientsToZero
    replica: Zero


def train_step(parts: StepParts, tokens: Array, targets: Array, lr: float | None) -> TrainResult:
    """Train on a batch `[B, S]`."""
    job, mixtures, replica = parts.job, parts.mixtures, parts.replica
    replica.begin(parts.stages.opening_order)  # ZeRO's stage 3 gathers each block ahead of its action
    with replica.guard.overflow_expected():
        own_tokens, own_targets = microbatches(job, tokens), microbatches(job, targets)
        mixtures.weigh_losses(replica.loss_scale)
        loss = run_microbatches(parts, own_tokens, own_targets, job.target_tokens_a_rank(targets))
        parts.gradients.sum_shared()
    result = replica.step(lr)
    assert result.norm is not None  # with a `ModelParallel` ZeRO always computes it
    mixtures.move_biases(result.skipped)
    return TrainResult(mean_loss(job, loss), result.norm, result.skipped)


def microbatches(job: TrainJob, x: Array) -> list[Array]:
    """This rank's rows and columns of tokens or targets: `[B, S]` -> m times `[B/(dp·m), S/cp]`."""
    dp, cp, m = job.mesh.dp, job.mesh.cp, job.schedule.num_microbatches
    rows = x.shape[0] // (dp.size * m)
    if cp.size > 1:
        x = namespace(x).take(x, job.positions(x.shape[1] // cp.size), axis=1)  # [B, S/cp]
    starts = range(dp.rank * m * rows, (dp.rank + 1) * m * rows, rows)
    return [x[start : start + rows, :] for start in starts]


def run_microbatches(
    parts: StepParts, inputs: Sequence[Array], targets: Sequence[Array], target_tokens: float
) -> float | None:
    """Run the schedule; on the last stage's ranks: the losses of this rank's target tokens, summed, / `target_tokens`.

    The gradients do not come back here: `GatheredStage` gives them to `parts.gradients` after each B or W.
    """
    job, stages, replica = parts.job, parts.stages, parts.replica
    like = job.activation(inputs[0], replica.dtype)
    if stages.first_forwards:
        parts.mixtures.begin_first_pass()
        run_first_pass(job.mesh.pp, job.schedule, stages.first_forwards, stages.chains, inputs, targets, like)
        parts.mixtures.end_first_pass()
    loss, _ = run_schedule(
        job.mesh.pp,
        job.schedule,
        stages.chains,
        inputs,
        targets,
        like=like,
        loss_scale=replica.loss_scale,
        target_tokens=target_tokens,
    )
    return loss


def mean_loss(job: TrainJob, loss: float | None) -> float:
    """The mean over the whole batch, on every rank, from the loss on the last stage's ranks."""
    of_rank = job.xp.asarray(loss or 0.0, dtype=job.xp.float64, device=job.device)
    of_pipeline = job.mesh.pp.all_reduce(of_rank)  # the other stages' ranks add 0
    return to_host(job.mesh.data.all_reduce(of_pipeline)) / job.mesh.data.size
