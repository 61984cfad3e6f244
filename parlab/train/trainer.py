"""All strategies in one training step, which equals the serial model's.

The rooms do not know of each other; here they meet:

- tensor: a `ParallelLlama` over `mesh.tp`, of which this rank has the weights of its stages;
- sequence: its core attends over `mesh.cp`, and its rotary positions are those of this rank's tokens;
- pipeline: its stages run under the schedule over `mesh.pp`;
- zero: its weights, gradients and optimizer state are shared over `mesh.data`, block by block, opened for each action.

Who sums what: each replicated weight's gradient is summed once. Norms are the same on all tensor-parallel ranks, or
summed inside W under sequence parallelism; key/value heads by their sharers; what several ranks of the pipeline hold (a
tied table, DualPipe's stages) by these, before the reduce-scatter; and all by ZeRO's mean over dp × cp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arrays import Array, asarray, namespace, to_host
from parlab.nn.config import FINAL_NORM, HEAD
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.stage import Chain, Gradients, add_gradients
from parlab.pipeline import Schedule, gpipe, one_f_one_b, partition, run_schedule
from parlab.sequence import positions
from parlab.tensor import ParallelLlama, Recompute, shard
from parlab.train.checks import check_batch, check_model, check_options, check_schedule
from parlab.train.mesh import Mesh
from parlab.train.parts import Opened, attention_core, holders_of
from parlab.world import Comm
from parlab.zero import DataParallel, LossScale, Offload, Replica, Zero
from parlab.zero.part import Part


class TrainResult(NamedTuple):
    """What a step found, the same on every rank.

    Attributes:
        loss: the mean over all tokens of the batch, in nats.
        norm: of the gradient, all weights together, before clipping.
        skipped: an overflow was found, and no weight changed.
    """

    loss: float
    norm: float
    skipped: bool


class Piece(NamedTuple):
    """Consecutive elements of a weight that this rank keeps, with the optimizer's state of them.

    The weight, of `shape`, is cut along `axis` at `start` and `stop`; this slice, flattened, from `flat_start` on.

    Attributes:
        name: Hugging Face's.
        shape: of the whole weight.
        axis: that tensor parallelism cuts; None: it is whole.
        start, stop: along that axis.
        flat_start: the first element in the flattened slice.
        master, mean, square: `[n]` each: views, which may be written before `Trainer.restore`.
        first: whether no rank before this one, in any replica, keeps the same elements.
    """

    name: str
    shape: tuple[int, ...]
    axis: int | None
    start: int
    stop: int
    flat_start: int
    master: Array
    mean: Array
    square: Array
    first: bool


class Trainer:
    """One rank's part of a model in training.

    Args:
        mesh: of all ranks; each makes the trainer, with the same arguments, and calls its methods.
        model: the serial one, the same on every rank, of which copies of this rank's part are kept.
        optimizer: the hyperparameters.
        schedule: of the pipeline's `mesh.pp` ranks, which also says how many microbatches there are; None: 1F1B with as
            many as ranks.
        zero: 0: whole state on every rank; 1, 2, 3: see `Zero`, among dp × cp.
        attention: over `mesh.cp`: ring, ulysses or allgather.
        layout: of the tokens: contiguous, zigzag or striped; None: zigzag, or contiguous for Ulysses.
        sequence_parallel: between the regions that tensor parallelism divides, each rank has some of the tokens.
        max_norm: to which the gradient, all weights together, is clipped.
        dtype, loss_scale: mixed precision; see `Zero`.
        recompute: full: blocks keep their input alone, and run their forward again.
        reduce: of the gradients at zero 2 and 3: each microbatch's at once, mΨ elements sent and Ψ/N held; or when they
            are accumulated, Ψ sent and Ψ held. None: each.
        offload: where the optimizer's state lives; None: on the device.
        prefetch: how many blocks zero 3 gathers ahead.

    Raises:
        ValueError: an argument that is not as said, or does not fit the mesh; before any message.

    >>> from parlab import arrays, run
    >>> from parlab.nn import LlamaConfig
    >>> config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
    ...                      num_attention_heads=4)
    >>> serial = Llama.random(config, dtype="float64")
    >>> tokens = arrays.generator(1).integers(11, size=(4, 9))  # [B, S + 1]
    >>> def program(comm):
    ...     trainer = Trainer(Mesh(comm, dp=2, pp=2, tp=2), serial, AdamW())
    ...     return trainer.step(tokens[:, :-1], tokens[:, 1:]).loss
    >>> losses = run(program, 8).results
    >>> abs(losses[5] - serial.loss_and_gradients(tokens[:, :-1], tokens[:, 1:])[0]) < 1e-12
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
        offload: Offload | None = None,
        prefetch: int = 1,
    ) -> None:
        check_model(mesh, model)
        pp, config = mesh.pp, model.config
        if schedule is None:
            schedule = one_f_one_b(pp.size, pp.size) if pp.size > 1 else gpipe(1, 1)
        check_schedule(schedule, pp.size, config)
        if layout is None:
            layout = "contiguous" if attention == "ulysses" else "zigzag"
        check_options(mesh, config, zero, attention, layout, sequence_parallel, recompute, reduce, offload)
        self.mesh, self.config, self.schedule, self.zero, self.layout = mesh, config, schedule, zero, layout
        self.attention, self.sequence_parallel, self.recompute = attention, sequence_parallel, recompute
        self.accumulate, self.device = reduce == "accumulate", model.weights[FINAL_NORM].device

        layers = partition(config.num_hidden_layers, schedule.num_stages)
        stages = model.stages(layers)
        of_stage = [stage.weight_names for stage in stages]
        self.holders = holders_of(schedule, of_stage, list(model.weights))
        own = {name: model.weights[name] for name, ranks in self.holders.items() if pp.rank in ranks}
        self.model = ParallelLlama(
            mesh.tp,
            config,
            shard(config, own, mesh.tp.rank, mesh.tp.size),
            names=own,
            sequence_parallel=sequence_parallel,
            positions=self._positions,
            core=attention_core(mesh.cp, attention, layout),
        )
        if recompute == "full":
            self.model.blocks = [Recompute(block) for block in self.model.blocks]

        # A weight that is whole on all of tp stands beside none whose sizes differ there, so that it is cut alike
        blocks = {block: names for block, names in model.weight_blocks.items() if block != "head"}
        blocks |= {"norm": (FINAL_NORM,)} | ({} if config.tie_word_embeddings else {"head": (HEAD,)})
        self.blocks = {block: names for block, names in blocks.items() if names[0] in own}
        self.shared = self._groups_of_shared_blocks()
        actions = schedule.actions[pp.rank]
        make = [part.weight_names for action in actions if action.kind in "BW" for part in stages[action.stage].stages]
        part = Part(
            comm=mesh.model if zero == 0 else mesh.comm,
            shares={name: 1 / (self.model.pieces[name].owners * len(self.holders[name])) for name in own},
            parts={
                block: 1 if block in self.shared else sum(names[0] in made for made in make)
                for block, names in self.blocks.items()
            },
        )
        options: dict[str, Any] = {"dtype": dtype, "loss_scale": loss_scale, "max_norm": max_norm}
        options |= {"blocks": self.blocks, "part": part}
        self.replica: Replica
        if zero == 0:  # a bucket for each block: also there, copies are summed in the same order
            self.replica = DataParallel(mesh.data, self.model.weights, optimizer, bucket_bytes=1, **options)
        else:
            options |= {"accumulate": self.accumulate, "offload": offload, "prefetch": prefetch}
            self.replica = Zero(mesh.data, self.model.weights, zero, optimizer, **options)

        block_of = {name: block for block, names in self.blocks.items() for name in names}
        self.stages: dict[int, Chain] = {}
        for number, chain in enumerate(self.model.stages(layers)):
            if pp.rank in schedule.holders(number):
                uses = [tuple(dict.fromkeys(block_of[name] for name in stage.weight_names)) for stage in chain.stages]
                opened = zip(chain.stages, uses, strict=True)
                self.stages[number] = Chain([Opened(stage, self.replica, of, self._take) for stage, of in opened])
        self.order = [block for action in actions for block in self._opened(action.kind, action.stage)]
        self.samples = 0  # rows of the batches so far: where in the data the next one begins
        self._waiting: dict[str, Gradients] = {}  # of shared blocks, until all microbatches are done

    # A step

    def step(self, tokens: Array, targets: Array, lr: float | None = None) -> TrainResult:
        """Train on a batch.

        Args:
            tokens, targets: `[B, S]`, whole and the same on every rank, which takes its rows and columns of them.
                Targets are shifted before: `targets[:, i]` comes after `tokens[:, i]`.
            lr: instead of the optimizer's.

        Raises:
            ValueError: a batch that the mesh cannot cut, or that holds what is no token; before any message.
        """
        m = self.schedule.num_microbatches
        check_batch(self.mesh, self.config.vocab_size, tokens, targets, lr, m, self.layout, self.sequence_parallel)
        inputs, answers = self._microbatches(tokens), self._microbatches(targets)
        self.replica.begin(self.order)
        with self.replica.overflow_expected():
            loss, _ = run_schedule(
                self.mesh.pp,
                self.schedule,
                self.stages,
                inputs,
                answers,
                like=self._passed(inputs[0]),
                on_gradients=_nothing_left,
                loss_scale=self.replica.loss_scale,
            )
            self._sum_shared()
        result = self.replica.step(lr)
        self.samples += tokens.shape[0]
        assert result.norm is not None  # a part always has one
        return TrainResult(self._mean(loss), result.norm, result.skipped)

    def _microbatches(self, x: Array) -> list[Array]:
        """This rank's tokens: `[B, S]` -> m times `[B/(dp·m), S/cp]`."""
        dp, cp, m = self.mesh.dp, self.mesh.cp, self.schedule.num_microbatches
        rows = x.shape[0] // (dp.size * m)
        if cp.size > 1:
            x = namespace(x).take(x, self._positions(x.shape[1] // cp.size), axis=1)
        starts = range(dp.rank * m * rows, (dp.rank + 1) * m * rows, rows)
        return [x[start : start + rows, :] for start in starts]

    def _positions(self, length: int) -> Array:
        """Which tokens of the whole sequence are this rank's: `[S/cp]`."""
        cp = self.mesh.cp
        own = positions(length * cp.size, cp.size, self.layout)[cp.rank] if cp.size > 1 else range(length)
        return asarray(own, self.xp, device=self.device)

    def _passed(self, inputs: Array) -> Array:
        """What passes from stage to stage, by its shape and dtype."""
        B, S = inputs.shape
        length = S // self.mesh.tp.size if self.sequence_parallel else S
        return self.xp.empty((B, length, self.config.hidden_size), dtype=self.replica.dtype, device=self.device)

    def _take(self, gradients: Gradients) -> None:
        """What a B or W made of one piece of the model: to ZeRO, or kept until others of the pipeline have theirs."""
        self.mesh.comm.hold("new gradients", gradients)
        for block, names in self.blocks.items():
            found = {name: gradients[name] for name in names if name in gradients}
            if found and block in self.shared:
                self._waiting[block] = add_gradients(self._waiting.get(block, {}), found)
                self.mesh.comm.hold("gradients", self._waiting[block])
            elif found:
                self.replica.add_gradients(block, found)

    def _sum_shared(self) -> None:
        """What several ranks of the pipeline hold: their sum is the gradient, once, on each."""
        for block, group in self.shared.items():
            own = self._waiting.pop(block)
            self.replica.add_gradients(block, {name: group.all_reduce(x) for name, x in own.items()})

    def _mean(self, loss: float | None) -> float:
        """Over all replicas and tokens, on every rank, from those that have the last stage."""
        mesh, xp = self.mesh, self.xp
        of_pipeline = mesh.pp.all_reduce(xp.asarray(loss or 0.0, dtype=xp.float64, device=self.device))
        return to_host(mesh.data.all_reduce(of_pipeline)) / mesh.data.size

    # What there is, whole

    def full_weights(self) -> dict[str, Array]:
        """All weights by name, whole, on every rank."""
        return self._whole(self.replica.full_weights(), self.replica.dtype)

    def full_gradients(self) -> dict[str, Array]:
        """The mean gradients of the last step by name, before clipping, whole, on every rank.

        Each rank keeps its part of them until the next step, as PyTorch does.

        Raises:
            ValueError: no step has been made.
        """
        own = self.replica.full_gradients()
        if not own:
            raise ValueError("full_gradients(): there is no last step; call step() first")
        return self._whole(own, self.replica.wide)

    def _whole(self, own: Mapping[str, Array], dtype: Any) -> dict[str, Array]:
        own = self.model.whole(own)  # from all of tp
        return {
            name: self.mesh.pp.broadcast(
                own[name] if name in own else self.xp.empty(shape, dtype=dtype, device=self.device),
                self.holders[name][0],
            )
            for name, shape in self.config.weight_shapes.items()
        }

    # What this rank keeps

    def pieces(self) -> list[Piece]:
        """What this rank keeps of the weights and the optimizer's state."""
        found = []
        for name, flat_start, *arrays in self.replica.state():
            axis, start, stop, owners = self.model.pieces[name]
            first = self.mesh.pp.rank == self.holders[name][0] and self.mesh.tp.rank % owners == 0
            first = first and (self.zero > 0 or self.mesh.data.rank == 0)
            shape = self.config.weight_shapes[name]
            found.append(Piece(name, shape, axis, start, stop, flat_start, arrays[0], arrays[1], arrays[2], first))
        return found

    @property
    def progress(self) -> dict[str, float]:
        """What a run that goes on needs besides its pieces: steps, skipped, samples, where the loss scale stands."""
        return {"samples": self.samples, **self.replica.progress}

    def restore(self, progress: Mapping[str, float]) -> None:
        """Go on from `progress`, with what was written into `pieces()`."""
        self.samples = int(progress["samples"])
        self.replica.restore(progress)

    @property
    def xp(self) -> Any:
        """The array library of the weights."""
        return self.replica._xp

    def _opened(self, kind: str, stage: int) -> list[str]:
        """The blocks that an action opens, in order."""
        if kind == "W":
            return []
        parts: list[Any] = self.stages[stage].stages
        return [block for part in (parts if kind == "F" else reversed(parts)) for block in part.blocks]

    def _groups_of_shared_blocks(self) -> dict[str, Comm]:
        """The ranks of the pipeline that hold the same block, where there are several. All of its ranks call this."""
        pp = self.mesh.pp
        several = sorted({ranks for ranks in self.holders.values() if len(ranks) > 1})
        groups = {ranks: pp.split(0 if pp.rank in ranks else None) for ranks in several}
        found = {block: groups.get(self.holders[names[0]]) for block, names in self.blocks.items()}
        return {block: group for block, group in found.items() if group is not None}


def _nothing_left(stage: int, microbatch: int, gradients: Gradients) -> None:
    """The gradients of this stage have been taken, piece by piece."""
