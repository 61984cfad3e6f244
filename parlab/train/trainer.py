"""All strategies on one mesh: the trainer of a rank.

The packages of the strategies do not import each other; here they meet:

- tensor: a `ParallelLlama` over `mesh.tp`; a rank has the weights of its pipeline stages alone;
- sequence: its attention runs over `mesh.cp`, at the positions of this rank's tokens;
- pipeline: a schedule runs its stages over `mesh.pp`;
- zero: weights, gradients and optimizer state are sharded over `mesh.data` (dp × cp), block by block;
- experts: the mixtures of a `Mixtral` run over `mesh.ep`, and ZeRO shards their experts over `mesh.edp`.

`step.py` has the training step. `Trainer` puts together all that it works with, from the serial model to the stages
that this rank runs.
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
from parlab.train.gradients import GradientsToZero, expected_calls, groups_of_shared_blocks
from parlab.train.job import TrainJob, TrainSettings
from parlab.train.mesh import Mesh
from parlab.train.mixture import Mixtures, is_expert, owner_in_ep, rows_to_experts
from parlab.train.own_model import own_model
from parlab.train.pieces import CheckpointPiece
from parlab.train.sharding import zero_replica
from parlab.train.stages import gathered_stages, own_stages
from parlab.train.step import StepParts, TrainResult, train_step
from parlab.zero import LossScale
from parlab.zero.pieces import full_gradients, restore, state_pieces


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
        job: the arguments, checked.
        own: this rank's model and its blocks of weights.
        mixtures: of experts, and their loads.
        replica: ZeRO's, which has taken over the weights of `own`.
        gradients: on their way to `replica`.
        parts: all that a step works with.
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
        # From the serial model to the stages that this rank runs; each line needs those above it alone
        self.job = TrainJob.of(mesh, model, schedule, layers, settings)
        self.own = own_model(self.job, model)
        self.mixtures = Mixtures(self.job, self.own.routers)
        plain = own_stages(self.job, self.own)
        shared = groups_of_shared_blocks(mesh.pp, self.own)
        precision = {"dtype": dtype, "loss_scale": loss_scale, "max_norm": max_norm}
        self.replica = zero_replica(self.job, self.own, expected_calls(plain.uses, shared), optimizer, precision)
        self.gradients = GradientsToZero(mesh.comm, self.own, shared, self.replica)
        stages = gathered_stages(plain, self.own.blocks, self.replica, self.gradients.take)
        self.parts = StepParts(self.job, stages, self.mixtures, self.gradients, self.replica)
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
        check_batch(tokens, targets, self.job, first=not self.samples)
        result = train_step(self.parts, tokens, targets, lr)
        self.samples += tokens.shape[0]
        return result

    def rows_to_experts(self, tokens: Array) -> list[list[list[int]]]:
        """The rows that each rank of ep sends to each expert for a batch, `[P][N]` of each layer. No weight changes.

        Every rank calls it. A bias does not count these rows.

        Args:
            tokens: `[B, S]`, the whole batch.

        Raises:
            ValueError: no Mixtral, or a mesh with pp, cp or tp, or stage 3 of ZeRO; rows that do not divide among dp.
        """
        return rows_to_experts(self.job, self.own.model, tokens)

    # The weights and gradients, whole

    def full_weights(self) -> dict[str, Array]:
        """All weights by name, whole, on every rank."""
        return self._whole(self.replica.full_weights())

    def full_gradients(self) -> dict[str, Array]:
        """The mean gradients of the last step by name, before clipping, whole, on every rank.

        Raises:
            ValueError: no step has been made.
        """
        return self._whole(full_gradients(self.replica))

    def _whole(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """All of the model by name, from this rank's slices of its stages' weights.

        Slices are gathered over tp. An expert's weights are broadcast over ep from the rank that owns it. Then the
        first rank of pp that has a weight broadcasts it over pp.
        """
        job, mesh = self.job, self.job.mesh
        dtype = next(iter(own.values())).dtype
        gathered = self.own.model.whole(own)
        whole = {}
        for name, shape in job.config.weight_shapes.items():
            x = gathered[name] if name in gathered else job.xp.empty(shape, dtype=dtype, device=job.device)
            owner, first = owner_in_ep(mesh, job.config, name), self.own.pp_ranks[name][0]
            if owner is not None and mesh.pp.rank == first:
                x = mesh.ep.broadcast(x, owner)
            whole[name] = mesh.pp.broadcast(x, first)
        return whole

    # The state that a checkpoint keeps

    def pieces(self) -> list[CheckpointPiece]:
        """The elements of weights and of optimizer state that this rank keeps."""
        job, mesh, found = self.job, self.job.mesh, []
        for name, flat_start, master, mean, square in state_pieces(self.replica):
            axis, start, stop, shared_by = self.own.model.slices[name]
            first_copy = mesh.pp.rank == self.own.pp_ranks[name][0] and mesh.tp.rank % shared_by == 0
            if job.settings.zero == 0:  # every rank of dp × cp keeps them, or of edp an expert's
                alike = mesh.edp if is_expert(name) else mesh.data
                first_copy = first_copy and alike.rank == 0
            found.append(
                CheckpointPiece(
                    name=name,
                    shape=job.config.weight_shapes[name],
                    axis=axis,
                    start=start,
                    stop=stop,
                    flat_start=flat_start,
                    master=master,
                    mean=mean,
                    square=square,
                    first_copy=first_copy,
                )
            )
        return found

    @property
    def progress(self) -> dict[str, Any]:
        """The numbers that a run needs beside its pieces to go on: samples, steps, skipped steps, the loss scale's, and
        the biases of each layer's experts.
        """
        biases = {"biases": self.biases} if self.job.settings.bias_rate else {}
        return {"samples": self.samples, **self.replica.guard.progress, **biases}

    @property
    def biases(self) -> list[list[float]]:
        """`[L][N]`: of each layer's experts, on every rank."""
        return [self.mixtures.of_layer[layer].bias for layer in sorted(self.mixtures.of_layer)]

    def restore(self, progress: Mapping[str, Any]) -> None:
        """Go on from `progress`, with the state that was written into `pieces()`."""
        self.samples = int(progress["samples"])
        restore(self.replica, progress)
        for layer, bias in enumerate(progress.get("biases", [])):
            self.mixtures.of_layer[layer].bias = bias
