"""The trainer of one rank, with all strategies on one mesh.

The packages of the strategies do not import each other; here they meet:

- tensor: a `ParallelLlama` over `mesh.tp`; a rank has the weights of its pipeline stages alone;
- sequence: its attention runs over `mesh.cp`, at the positions of this rank's tokens;
- pipeline: a schedule runs its stages over `mesh.pp`;
- zero: weights, gradients and optimizer state are sharded over `mesh.data` (dp × cp), block by block;
- experts: the mixtures of a `Mixtral` run over `mesh.ep`, and ZeRO shards their experts over `mesh.edp`.

`make_parts` puts all of it together, from the serial model to the stages that this rank runs; `step.py` has the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.arguments import amount, instance
from parlab.arrays import Array
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.pipeline import Schedule, one_f_one_b, partition
from parlab.train.arguments import (
    check_batch,
    check_each_setting,
    check_model,
    check_schedule,
    check_settings_together,
)
from parlab.train.balance import first_forwards
from parlab.train.job import TrainJob, TrainSettings
from parlab.train.mesh import Mesh
from parlab.train.parts import TrainParts
from parlab.train.pieces import CheckpointPiece, pieces_of
from parlab.train.rank_model import rank_model, whole_model
from parlab.train.sharding import zero_replica
from parlab.train.stages import expected_calls, opening_order, pipeline_stages, shared_blocks, uses_of_blocks
from parlab.train.step import TrainResult, train_step
from parlab.zero import LossScale
from parlab.zero.pieces import full_gradients, restore


class Trainer:
    """One rank of a model in training.

    Args:
        mesh: of all ranks; each makes the trainer, with the same arguments, and calls its methods.
        model: the serial Llama or Mixtral, the same on every rank; a rank keeps copies of its slices.
        optimizer: the hyperparameters.
        schedule: of the `mesh.pp` ranks of the pipeline; it also has the number of microbatches. None: 1F1B, with one
            microbatch a rank.
        zero: 0: every rank has the whole state; 1, 2, 3: the stages of `Zero`, over dp × cp.
        attention: over `mesh.cp`: ring, ulysses or allgather.
        layout: of the tokens: contiguous, zigzag or striped; None: zigzag, or contiguous for Ulysses.
        sequence_parallel: outside attention and MLP each rank of tp has S/tp of the tokens.
        max_norm: the gradient, all weights together, is clipped to this norm.
        dtype, loss_scale: mixed precision; see `Zero`.
        recompute: full: a block keeps its input alone, and the backward runs its forward again.
        reduce: at zero 2 and 3. each: every microbatch's gradients are reduced at once, mΨ elements sent and Ψ/N held.
            accumulate: their sum is reduced once, Ψ sent and Ψ held. None: each.
        auxiliary: α of the auxiliary loss of a Mixtral's routers; the loss that is returned does not hold it. Its loads
            are those of the whole batch, on every mesh: with several microbatches a step first runs all of them forward
            to count.
        bias_rate: γ of the bias that balances a Mixtral's experts without a loss.

    Attributes:
        parts: all that this rank trains with.
        samples: rows of all batches so far: the number of the next sample.

    Raises:
        ValueError: an argument that is not as said, or does not fit the mesh; before any message.
        MismatchError: a model or an optimizer that is not the same on every rank.

    >>> from parlab import arrays, run
    >>> from parlab.nn import LlamaConfig
    >>> config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
    ...                      num_attention_heads=4)
    >>> serial = Llama.random(config, dtype="float64")
    >>> tokens, targets = arrays.generator(1).integers(11, size=(2, 4, 8))  # [B, S] each
    >>> def program(comm):
    ...     return Trainer(Mesh(comm, dp=2, pp=2, tp=2), serial, AdamW()).step(tokens, targets).loss
    >>> abs(run(program, 8).results[5] - serial.loss_and_gradients(tokens, targets)[0]) < 1e-12
    True
    """

    def __init__(
        self,
        mesh: Mesh,
        model: Llama,
        optimizer: AdamW,
        *,
        schedule: Schedule | None = None,
        zero: int = 1,
        attention: str = "ring",
        layout: str | None = None,
        sequence_parallel: bool = False,
        max_norm: float | None = None,
        dtype: str | None = None,
        loss_scale: LossScale | None = None,
        recompute: str = "none",
        reduce: str | None = None,
        auxiliary: float = 0.0,
        bias_rate: float = 0.0,
    ) -> None:
        instance("mesh", mesh, Mesh)
        instance("model", model, Llama)
        if schedule is None:
            schedule = one_f_one_b(mesh.pp.size, mesh.pp.size)
        instance("schedule", schedule, Schedule)
        if layout is None:
            layout = "contiguous" if attention == "ulysses" else "zigzag"
        settings = TrainSettings(
            zero=zero,
            attention=attention,
            layout=layout,
            sequence_parallel=sequence_parallel,
            recompute=recompute,
            reduce=reduce,
            auxiliary=auxiliary,
            bias_rate=bias_rate,
        )
        check_each_setting(settings)
        check_model(mesh, model, optimizer)
        check_schedule(mesh, model.config, schedule)
        check_settings_together(mesh, model.config, settings)
        layers = partition(model.config.num_hidden_layers, schedule.num_stages)
        job = TrainJob.of(mesh, model, schedule, layers, settings)
        precision = {"dtype": dtype, "loss_scale": loss_scale, "max_norm": max_norm}
        self.parts = make_parts(job, model, optimizer, precision)
        self.samples = 0

    def step(self, tokens: Array, targets: Array, lr: float | None = None) -> TrainResult:
        """Train on a batch. Every rank is given the whole batch, and takes its rows and columns of it.

        Args:
            tokens, targets: `[B, S]`; `targets[:, i]` is the token after `tokens[:, i]`, or `IGNORED` (−100, in
                `parlab.nn`) where it has no target. Every target token weighs the same, whichever rank has it.
            lr: instead of the optimizer's.

        Raises:
            ValueError: a batch that the mesh cannot cut, that holds a number outside the vocabulary, or no target at
                all; before any message.
            MismatchError: the first batch is not the same on every rank.
        """
        if lr is not None:
            amount("lr", lr)
        check_batch(tokens, targets, self.parts.job, first=not self.samples)
        result = train_step(self.parts, tokens, targets, lr)
        self.samples += tokens.shape[0]
        return result

    # The weights and gradients, whole

    def full_weights(self) -> dict[str, Array]:
        """All weights by name, whole, on every rank."""
        return whole_model(self.parts.job, self.parts.model, self.parts.replica.full_weights())

    def full_gradients(self) -> dict[str, Array]:
        """The mean gradients of the last step by name, before clipping, whole, on every rank.

        Raises:
            ValueError: no step has been made.
        """
        return whole_model(self.parts.job, self.parts.model, full_gradients(self.parts.replica))

    # The state that a checkpoint keeps

    def pieces(self) -> list[CheckpointPiece]:
        """The elements of weights and of optimizer state that this rank keeps."""
        return pieces_of(self.parts)

    @property
    def progress(self) -> dict[str, Any]:
        """The numbers that a run needs beside its pieces to go on: samples, steps, skipped steps, the loss scale's, and
        the biases of each layer's experts.
        """
        biases = {"biases": self.biases} if self.parts.job.settings.bias_rate else {}
        return {"samples": self.samples, **self.parts.replica.guard.progress, **biases}

    @property
    def biases(self) -> list[list[float]]:
        """`[L][N]`: of each layer's experts, on every rank."""
        routers = self.parts.model.routers
        return [routers[layer].bias for layer in sorted(routers)]

    def restore(self, progress: Mapping[str, Any]) -> None:
        """Go on from `progress`, with the state that was written into `pieces()`."""
        self.samples = int(progress["samples"])
        restore(self.parts.replica, progress)
        for layer, bias in enumerate(progress.get("biases", [])):
            self.parts.model.routers[layer].bias = bias


def make_parts(job: TrainJob, serial: Llama, optimizer: AdamW, precision: Mapping[str, Any]) -> TrainParts:
    """All that this rank trains with; each line needs those above it alone.

    Args:
        serial: the whole model.
        precision: `dtype`, `loss_scale` and `max_norm`, as for `Trainer`.
    """
    pp = job.mesh.pp
    model = rank_model(job, serial)
    stages = pipeline_stages(job, model)
    uses = uses_of_blocks(model, stages, [*first_forwards(job), *job.schedule.actions[pp.rank]])
    shared = shared_blocks(pp, model)
    replica = zero_replica(job, model, expected_calls(uses, model.blocks, shared), optimizer, precision)
    return TrainParts(job, model, stages, opening_order(uses), shared=shared, waiting={}, replica=replica)
