"""One training step on a mesh: all strategies at once, equal to the serial model's step.

The rooms do not know of each other; here they meet:

- tensor: a `ParallelLlama` over `mesh.tp`; a rank has the weights of its pipeline stages alone;
- sequence: its attention runs over `mesh.cp`, at the positions of this rank's tokens;
- pipeline: a schedule runs its stages over `mesh.pp`;
- zero: weights, gradients and optimizer state are sharded over `mesh.data` (dp × cp), block by block.

The gradient of a replicated weight is summed exactly once over each axis:

- over tp: a norm's is the same on every rank; sequence parallelism, and key/value heads that ranks share, sum in W;
- over pp: the ranks that hold a tied table, or a stage of DualPipe, sum theirs when all microbatches are done;
- over dp × cp: ZeRO takes the mean, last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from parlab.arguments import checked
from parlab.arrays import Array, asarray, namespace, to_host
from parlab.nn.config import FINAL_NORM, HEAD
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.stage import Chain, Gradients, Stage, add_gradients
from parlab.pipeline import Schedule, one_f_one_b, partition, run_schedule
from parlab.tensor import ParallelLlama, Recompute, shard_weights
from parlab.train.arguments import RULES, check_batch, check_model, check_options
from parlab.train.attention import attention_core, own_positions
from parlab.train.mesh import Mesh
from parlab.train.pieces import CheckpointPiece
from parlab.train.stages import GatheredStage
from parlab.zero import LossScale, Replica, replica_of
from parlab.zero.part import Part
from parlab.zero.training import weights_of


class TrainResult(NamedTuple):
    """The result of a step, the same on every rank."""

    loss: float  # the mean over all tokens of the batch, in nats
    norm: float  # of the gradient of all weights together, before clipping
    skipped: bool  # a gradient overflowed, and no weight changed


class Trainer:
    """One rank's part of a model in training.

    Args:
        mesh: of all ranks; each makes the trainer, with the same arguments, and calls its methods.
        model: the serial model, the same on every rank; a rank keeps copies of its part.
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

    @checked(RULES)
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
    ) -> None:
        check_model(mesh, model, optimizer)
        if schedule is None:
            schedule = one_f_one_b(mesh.pp.size, mesh.pp.size)
        if layout is None:
            layout = "contiguous" if attention == "ulysses" else "zigzag"
        self.mesh, self.config, self.schedule, self.zero = mesh, model.config, schedule, zero
        self.attention, self.layout, self.sequence_parallel = attention, layout, sequence_parallel
        self.recompute, self.reduce = recompute, reduce
        self.xp, self.device = namespace(model.weights[FINAL_NORM]), model.weights[FINAL_NORM].device
        check_options(self)

        layers = partition(self.config.num_hidden_layers, schedule.num_stages)
        self.holders = _holders(model, layers, schedule)  # the ranks of pp that have a weight
        self.model = self._own_part(model)
        self.blocks = self._zero_blocks()
        self.shared = self._shared_blocks()
        own_stages = {
            number: chain.stages
            for number, chain in enumerate(self.model.stages(layers))
            if mesh.pp.rank in schedule.holders(number)
        }
        self.opened, made = self._uses(own_stages)
        precision = {"dtype": dtype, "loss_scale": loss_scale, "max_norm": max_norm}
        self.replica = self._zero_replica(optimizer, made, precision)
        self.stages: dict[int, Any] = {
            number: Chain([GatheredStage(stage, self._blocks_of(stage), self._gathered, self.take) for stage in stages])
            for number, stages in own_stages.items()
        }
        self.samples = 0  # rows of all batches so far: the number of the next sample
        self._waiting: dict[str, Gradients] = {}  # of shared blocks, until all microbatches are done

    # A step

    @checked(RULES)
    def step(self, tokens: Array, targets: Array, lr: float | None = None) -> TrainResult:
        """Train on a batch. Every rank is given the whole batch, and takes its rows and columns of it.

        Args:
            tokens, targets: `[B, S]`; `targets[:, i]` is the token after `tokens[:, i]`.
            lr: instead of the optimizer's.

        Raises:
            ValueError: a batch that the mesh cannot cut, or that holds a number outside the vocabulary; before any
                message.
            MismatchError: the first batch is not the same on every rank.
        """
        check_batch(self, tokens, targets)
        self.replica.begin(self.opened)  # ZeRO's stage 3 gathers each block ahead of its action
        with self.replica.overflow_expected():
            loss = self._forward_backward(self._microbatches(tokens), self._microbatches(targets))
            self._sum_shared_gradients()
        result = self.replica.step(lr)  # one norm of all gradients, clipping, AdamW
        assert result.norm is not None  # a replica that is a part always has one
        self.samples += tokens.shape[0]
        return TrainResult(self._mean_loss(loss), result.norm, result.skipped)

    def _microbatches(self, x: Array) -> list[Array]:
        """This rank's tokens: `[B, S]` -> m times `[B/(dp·m), S/cp]`."""
        dp, cp, m = self.mesh.dp, self.mesh.cp, self.schedule.num_microbatches
        rows = x.shape[0] // (dp.size * m)
        if cp.size > 1:
            x = namespace(x).take(x, self._positions(x.shape[1] // cp.size), axis=1)  # [B, S/cp]
        starts = range(dp.rank * m * rows, (dp.rank + 1) * m * rows, rows)
        return [x[start : start + rows, :] for start in starts]

    def _forward_backward(self, inputs: Sequence[Array], targets: Sequence[Array]) -> float | None:
        """Run the schedule; returns the loss, or this rank's part of it. Each stage gives its gradients to `take`."""
        b, s = inputs[0].shape
        if self.sequence_parallel:
            s //= self.mesh.tp.size
        passed = self.xp.empty((b, s, self.config.hidden_size), dtype=self.replica.dtype, device=self.device)
        loss, _ = run_schedule(
            self.mesh.pp,
            self.schedule,
            self.stages,
            inputs,
            targets,
            like=passed,
            loss_scale=self.replica.loss_scale,
            on_gradients=lambda *taken: None,  # `take` has them already
        )
        return loss

    def take(self, gradients: Gradients) -> None:
        """Give new gradients to ZeRO; those of shared blocks wait until all microbatches are done."""
        self.mesh.comm.hold("new gradients", gradients)
        for block, names in self.blocks.items():
            found = {name: gradients[name] for name in names if name in gradients}
            if found and block in self.shared:
                self._waiting[block] = add_gradients(self._waiting.get(block, {}), found)
                self.mesh.comm.hold("gradients", self._waiting[block])
            elif found:
                self.replica.add_gradients(block, found)

    def _sum_shared_gradients(self) -> None:
        """Sum the gradients of each shared block over the ranks of pp that hold it, and give them to ZeRO."""
        for block, group in self.shared.items():
            own = self._waiting.pop(block)
            self.replica.add_gradients(block, {name: group.all_reduce(x) for name, x in own.items()})

    def _mean_loss(self, loss: float | None) -> float:
        """The mean over the whole batch, on every rank, from the loss on the last stage's ranks."""
        of_rank = self.xp.asarray(loss or 0.0, dtype=self.xp.float64, device=self.device)
        of_row = self.mesh.pp.all_reduce(of_rank)
        return to_host(self.mesh.data.all_reduce(of_row)) / self.mesh.data.size

    # The weights and gradients, whole

    def full_weights(self) -> dict[str, Array]:
        """All weights by name, whole, on every rank."""
        return self._whole(self.replica.full_weights())

    def full_gradients(self) -> dict[str, Array]:
        """The mean gradients of the last step by name, before clipping, whole, on every rank.

        Raises:
            ValueError: no step has been made.
        """
        if own := self.replica.full_gradients():
            return self._whole(own)
        raise ValueError("full_gradients(): there is no last step; call step() first")

    def _whole(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """All of the model by name, from this rank's slices of its stages' weights."""
        own, dtype = self.model.whole(own), next(iter(own.values())).dtype  # gathered over tp
        whole = {}
        for name, shape in self.config.weight_shapes.items():
            x = own[name] if name in own else self.xp.empty(shape, dtype=dtype, device=self.device)
            whole[name] = self.mesh.pp.broadcast(x, self.holders[name][0])
        return whole

    # The state that a checkpoint keeps

    def pieces(self) -> list[CheckpointPiece]:
        """The elements of weights and of optimizer state that this rank keeps."""
        found = []
        for name, flat_start, master, mean, square in self.replica.state():
            axis, start, stop, owners = self.model.slices[name]
            first = self.mesh.pp.rank == self.holders[name][0] and self.mesh.tp.rank % owners == 0
            if self.zero == 0:  # every rank of dp × cp keeps them
                first = first and self.mesh.data.rank == 0
            place = name, self.config.weight_shapes[name], axis, start, stop, flat_start
            found.append(CheckpointPiece(*place, master, mean, square, first))
        return found

    @property
    def progress(self) -> dict[str, float]:
        """The numbers that a run needs beside its pieces to go on: samples, steps, skipped steps, the loss scale's."""
        return {"samples": self.samples, **self.replica.progress}

    def restore(self, progress: Mapping[str, float]) -> None:
        """Go on from `progress`, with the state that was written into `pieces()`."""
        self.samples = int(progress["samples"])
        self.replica.restore(progress)

    # The parts of which the trainer is made

    def _own_part(self, model: Llama) -> ParallelLlama:
        """The tensor-parallel model with copies of this rank's slices of its stages' weights."""
        mesh = self.mesh
        own = {name: model.weights[name] for name, ranks in self.holders.items() if mesh.pp.rank in ranks}
        part = ParallelLlama(
            mesh.tp,
            self.config,
            shard_weights(self.config, own, mesh.tp.rank, mesh.tp.size),
            names=own,
            core=attention_core(mesh.cp, self.attention, self.layout),
            sequence_parallel=self.sequence_parallel,
            positions=self._positions,
        )
        if self.recompute == "full":
            part.blocks = [Recompute(block) for block in part.blocks]
        return part

    def _positions(self, length: int) -> Array:
        """The positions of this rank's tokens in the whole sequence: `[S/cp]`."""
        return asarray(own_positions(self.mesh.cp, length, self.layout), self.xp, device=self.device)

    def _zero_blocks(self) -> dict[str, tuple[str, ...]]:
        """The names of this rank's weights by ZeRO's block.

        The last norm is replicated over tp, and the head is cut there. In a block of its own, ZeRO cuts the norm at
        the same places on each rank of tp, so its copies stay equal to the bit.
        """
        blocks = dict(self.model.weight_blocks)
        blocks.pop("head")
        blocks["norm"] = (FINAL_NORM,)
        if not self.config.tie_word_embeddings:
            blocks["head"] = (HEAD,)
        return {block: names for block, names in blocks.items() if self.mesh.pp.rank in self.holders[names[0]]}

    def _shared_blocks(self) -> dict[str, Any]:
        """Of each block that several ranks of pp hold: the group of these ranks."""
        pp = self.mesh.pp
        several = sorted({ranks for ranks in self.holders.values() if len(ranks) > 1})
        groups = {ranks: pp.split(0 if pp.rank in ranks else None) for ranks in several}
        holders = {block: self.holders[names[0]] for block, names in self.blocks.items()}
        return {block: groups[ranks] for block, ranks in holders.items() if ranks in groups}

    def _blocks_of(self, stage: Stage) -> list[str]:
        """The blocks whose weights a stage of the model reads."""
        block_of = {name: block for block, names in self.blocks.items() for name in names}
        return list(dict.fromkeys(block_of[name] for name in stage.weight_names))

    def _uses(self, own_stages: Mapping[int, Sequence[Stage]]) -> tuple[list[str], Counter[str]]:
        """The blocks in the order in which a step opens them; and how often it makes gradients of each."""
        opened: list[str] = []
        made: Counter[str] = Counter()
        for kind, number, _ in self.schedule.actions[self.mesh.pp.rank]:
            stages = own_stages[number] if kind == "F" else own_stages[number][::-1]
            blocks = [block for stage in stages for block in self._blocks_of(stage)]
            if kind != "W":
                opened += blocks
            if kind in ("B", "W"):
                made.update(blocks)
        return opened, made

    def _zero_replica(self, optimizer: AdamW, made: Mapping[str, int], options: dict[str, Any]) -> Replica:
        """ZeRO over dp × cp; it takes over the weights of `self.model`."""
        mesh = self.mesh
        owners = {name: self.model.slices[name].owners for name in self.model.weights}
        part = Part(
            comm=mesh.model if self.zero == 0 else mesh.comm,
            shares={name: 1 / (owners[name] * len(self.holders[name])) for name in owners},
            parts={block: 1 if block in self.shared else made[block] for block in self.blocks},
        )
        if self.zero == 0:
            options["bucket_bytes"] = 1  # a bucket a block: every copy of a weight is summed in the same order
        else:
            options["accumulate"] = self.reduce == "accumulate"
        return replica_of(mesh.data, self.model, self.zero, optimizer, blocks=self.blocks, part=part, **options)

    def _gathered(self, blocks: Sequence[str]) -> ExitStack:
        """`with` this, the weights of the blocks are there."""
        return weights_of(self.replica, blocks)


def _holders(model: Llama, layers: Sequence[range], schedule: Schedule) -> dict[str, tuple[int, ...]]:
    """The ranks of the pipeline that hold each weight: several, if stages share it, or if ranks share a stage."""
    ranks: dict[str, set[int]] = {name: set() for name in model.weights}
    for number, stage in enumerate(model.stages(layers)):
        for name in stage.weight_names:
            ranks[name].update(schedule.holders(number))
    return {name: tuple(sorted(of_weight)) for name, of_weight in ranks.items()}
