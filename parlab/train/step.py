"""One training step of the mesh, equal to the serial model's step.

    microbatches             a rank's rows and columns of the batch
    forward and backward     by the pipeline's schedule; attention runs over cp, layers over tp
    shared gradients         summed over pp
    ZeRO's step              the mean over dp × cp, by target tokens; one norm, clipping, AdamW
    loss                     the mean over the target tokens of the whole batch

The gradient of a replicated weight is summed exactly once over each axis:

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
from typing import TYPE_CHECKING, NamedTuple

from parlab.arrays import Array, namespace, to_host
from parlab.nn.stage import Gradients, add_gradients
from parlab.pipeline import run_schedule
from parlab.train.mixture import rebalance, set_loss_weight

if TYPE_CHECKING:
    from parlab.train.trainer import Trainer


class TrainResult(NamedTuple):
    """The result of a step, the same on every rank."""

    loss: float  # the mean over all target tokens of the batch, in nats
    norm: float  # of the gradient of all weights together, before clipping
    skipped: bool  # a gradient overflowed, and no weight changed


def train_step(trainer: Trainer, tokens: Array, targets: Array, lr: float | None) -> TrainResult:
    """Train on a batch `[B, S]`."""
    replica = trainer.replica
    set_loss_weight(trainer)
    replica.begin(trainer.opened)  # ZeRO's stage 3 gathers each block ahead of its action
    with replica.overflow_expected():
        own = microbatches(trainer, tokens), microbatches(trainer, targets)
        loss = forward_backward(trainer, *own, trainer.target_tokens(targets))
        sum_shared_gradients(trainer)
    result = replica.step(lr)
    assert result.norm is not None  # a replica that is a part always has one
    rebalance(trainer, result.skipped)
    trainer.samples += tokens.shape[0]
    return TrainResult(mean_loss(trainer, loss), result.norm, result.skipped)


def microbatches(trainer: Trainer, x: Array) -> list[Array]:
    """This rank's tokens: `[B, S]` -> m times `[B/(dp·m), S/cp]`."""
    dp, cp, m = trainer.mesh.dp, trainer.mesh.cp, trainer.schedule.num_microbatches
    rows = x.shape[0] // (dp.size * m)
    if cp.size > 1:
        x = namespace(x).take(x, trainer.positions(x.shape[1] // cp.size), axis=1)  # [B, S/cp]
    starts = range(dp.rank * m * rows, (dp.rank + 1) * m * rows, rows)
    return [x[start : start + rows, :] for start in starts]


def forward_backward(
    trainer: Trainer, inputs: Sequence[Array], targets: Sequence[Array], target_tokens: float
) -> float | None:
    """Run the schedule; returns the loss, or this rank's part of it, over `target_tokens`.

    `GatheredStage` (`stages.py`) calls `take` after each B or W.
    """
    b, s = inputs[0].shape
    if trainer.sequence_parallel:
        s //= trainer.mesh.tp.size
    shape = b, s, trainer.config.hidden_size  # of what one stage passes to the next
    loss, _ = run_schedule(
        trainer.mesh.pp,
        trainer.schedule,
        trainer.stages,
        inputs,
        targets,
        like=trainer.xp.empty(shape, dtype=trainer.replica.dtype, device=trainer.device),
        loss_scale=trainer.replica.loss_scale,
        on_gradients=lambda *taken: None,  # `take` has them already
        target_tokens=target_tokens,
    )
    return loss


def take(trainer: Trainer, gradients: Gradients) -> None:
    """Give new gradients to ZeRO; those of shared blocks wait until all microbatches are done."""
    comm, waiting = trainer.mesh.comm, trainer.waiting
    comm.hold("new gradients", gradients)
    for block, names in trainer.blocks.items():
        found = {name: gradients[name] for name in names if name in gradients}
        if found and block in trainer.shared:
            waiting[block] = add_gradients(waiting.get(block, {}), found)
            comm.hold("gradients", waiting[block])
        elif found:
            trainer.replica.add_gradients(block, found)


def sum_shared_gradients(trainer: Trainer) -> None:
    """Sum the gradients of each shared block over the ranks of pp that hold it, and give them to ZeRO."""
    for block, group in trainer.shared.items():
        own = trainer.waiting.pop(block)
        trainer.replica.add_gradients(block, {name: group.all_reduce(x) for name, x in own.items()})


def mean_loss(trainer: Trainer, loss: float | None) -> float:
    """The mean over the whole batch, on every rank, from the loss on the last stage's ranks."""
    of_rank = trainer.xp.asarray(loss or 0.0, dtype=trainer.xp.float64, device=trainer.device)
    of_replica = trainer.mesh.pp.all_reduce(of_rank)
    return to_host(trainer.mesh.data.all_reduce(of_replica)) / trainer.mesh.data.size
