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

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from parlab import sequence
from parlab.arguments import checked
from parlab.arrays import Array, asarray, namespace, to_host
from parlab.nn.config import FINAL_NORM, HEAD
from parlab.nn.layers import CAUSAL_ATTENTION, Core
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.stage import Chain, Gradients, Stage, add_gradients
from parlab.pipeline import Schedule, one_f_one_b, partition, run_schedule
from parlab.tensor import ParallelLlama, Recompute, shard
from parlab.train.arguments import RULES, check_batch, check_model, check_options
from parlab.train.mesh import Mesh
from parlab.zero import LossScale, Offload, replica_of
from parlab.zero.part import Part
from parlab.zero.training import weights_of

METHODS: dict[str, tuple[Any, Any, Any]] = {  # forward, backward, what they send
    "ring": (sequence.ring_attention, sequence.ring_attention_backward, sequence.ring_cost),
    "ulysses": (sequence.ulysses_attention, sequence.ulysses_attention_backward, sequence.ulysses_cost),
    "allgather": (sequence.allgather_attention, sequence.allgather_attention_backward, sequence.allgather_cost),
}


class TrainResult(NamedTuple):
    """What a step found, the same on every rank."""

    loss: float  # the mean over all tokens of the batch, in nats
    norm: float  # of the gradient, all weights together, before clipping
    skipped: bool  # an overflow was found, and no weight changed


class Piece(NamedTuple):
    """Consecutive elements of a weight that this rank keeps, with the optimizer's state of them.

    The weight is cut along `axis` at `start` and `stop`; this slice, flattened, from `flat_start` on.
    """

    name: str  # Hugging Face's
    shape: tuple[int, ...]  # of the whole weight
    axis: int | None  # that tensor parallelism cuts; None: it is whole
    start: int
    stop: int
    flat_start: int
    master: Array  # [n], as mean and square: views, which may be written before `Trainer.restore`
    mean: Array
    square: Array
    first: bool  # no rank before this one, in any replica, keeps the same elements


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
        offload: Offload | None = None,
        prefetch: int = 1,
    ) -> None:
        check_model(mesh, model, optimizer)
        pp, config, norm = mesh.pp, model.config, model.weights[FINAL_NORM]
        if schedule is None:
            schedule = one_f_one_b(pp.size, pp.size)
        if layout is None:
            layout = "contiguous" if attention == "ulysses" else "zigzag"
        self.mesh, self.config, self.schedule, self.zero, self.layout = mesh, config, schedule, zero, layout
        self.attention, self.sequence_parallel, self.recompute = attention, sequence_parallel, recompute
        self.reduce, self.offload, self.xp, self.device = reduce, offload, namespace(norm), norm.device
        check_options(self)

        layers = partition(config.num_hidden_layers, schedule.num_stages)
        ranks: dict[str, set[int]] = {name: set() for name in model.weights}
        for number, stage in enumerate(model.stages(layers)):
            for name in stage.weight_names:
                ranks[name].update(schedule.holders(number))
        self.holders = {name: tuple(sorted(of_weight)) for name, of_weight in ranks.items()}  # tied: both ends
        own = {name: model.weights[name] for name, holders in self.holders.items() if pp.rank in holders}
        slices = shard(config, own, mesh.tp.rank, mesh.tp.size)
        here: dict[str, Any] = {"sequence_parallel": sequence_parallel, "positions": self._positions}
        self.model = ParallelLlama(mesh.tp, config, slices, names=own, core=self._core(), **here)
        if recompute == "full":
            self.model.blocks = [Recompute(block) for block in self.model.blocks]

        # A weight that is whole on all of tp stands beside none whose sizes differ there, so that it is cut alike
        blocks = {block: names for block, names in self.model.weight_blocks.items() if block != "head"}
        blocks |= {"norm": (FINAL_NORM,)} | ({} if config.tie_word_embeddings else {"head": (HEAD,)})
        self.blocks = {block: names for block, names in blocks.items() if names[0] in own}
        several = sorted({holders for holders in self.holders.values() if len(holders) > 1})
        groups = {holders: pp.split(0 if pp.rank in holders else None) for holders in several}
        of_blocks = {block: self.holders[names[0]] for block, names in self.blocks.items()}
        self.shared: dict[str, Any] = {block: groups[ranks] for block, ranks in of_blocks.items() if ranks in groups}

        self.stages: dict[int, Any] = {
            number: Chain([_Opened(self, piece) for piece in chain.stages])
            for number, chain in enumerate(self.model.stages(layers))
            if pp.rank in schedule.holders(number)
        }
        self.order: list[str] = []  # of blocks, each time that a step opens one
        made: Counter[str] = Counter()  # how often a step makes gradients of each
        for kind, number, _ in schedule.actions[pp.rank]:
            pieces = self.stages[number].stages[:: 1 if kind == "F" else -1]
            blocks_of = [block for piece in pieces for block in piece.blocks]
            self.order += blocks_of if kind != "W" else []
            made.update(blocks_of if kind in "BW" else [])
        part = Part(
            comm=mesh.model if zero == 0 else mesh.comm,
            shares={name: 1 / (self.model.pieces[name].owners * len(self.holders[name])) for name in own},
            parts={block: 1 if block in self.shared else made[block] for block in self.blocks},
        )
        options: dict[str, Any] = {"dtype": dtype, "loss_scale": loss_scale, "max_norm": max_norm}
        if zero == 0:  # a bucket for each block: also there, copies are summed in the same order
            options |= {"bucket_bytes": 1}
        else:
            options |= {"accumulate": reduce == "accumulate", "offload": offload, "prefetch": prefetch}
        self.replica = replica_of(mesh.data, self.model, zero, optimizer, blocks=self.blocks, part=part, **options)
        self.samples = 0  # rows of the batches so far: where in the data the next one begins
        self._waiting: dict[str, Gradients] = {}  # of shared blocks, until all microbatches are done

    # A step

    @checked(RULES)
    def step(self, tokens: Array, targets: Array, lr: float | None = None) -> TrainResult:
        """Train on a batch, whole and the same on every rank, which takes its rows and columns of it.

        Args:
            tokens, targets: `[B, S]`, shifted before: `targets[:, i]` comes after `tokens[:, i]`.
            lr: instead of the optimizer's.

        Raises:
            ValueError: a batch that the mesh cannot cut, or that holds what is no token; before any message.
            MismatchError: the first batch is not the same on every rank.
        """
        check_batch(self, tokens, targets)
        mesh, xp, replica = self.mesh, self.xp, self.replica
        inputs, answers = self._microbatches(tokens), self._microbatches(targets)
        b, s = inputs[0].shape
        passed = (b, s // mesh.tp.size if self.sequence_parallel else s, self.config.hidden_size)
        like, scale = xp.empty(passed, dtype=replica.dtype, device=self.device), replica.loss_scale
        how: dict[str, Any] = {"on_gradients": lambda *taken: None}  # they have been taken, piece by piece
        replica.begin(self.order)
        with replica.overflow_expected():
            of_rank, _ = run_schedule(
                mesh.pp, self.schedule, self.stages, inputs, answers, like=like, loss_scale=scale, **how
            )
            for block, group in self.shared.items():  # the sum over its holders is the gradient, once, on each
                own = self._waiting.pop(block)
                replica.add_gradients(block, {name: group.all_reduce(x) for name, x in own.items()})
        result = replica.step(lr)
        self.samples += tokens.shape[0]
        loss = mesh.pp.all_reduce(xp.asarray(of_rank or 0.0, dtype=xp.float64, device=self.device))
        loss = to_host(mesh.data.all_reduce(loss)) / mesh.data.size
        assert result.norm is not None  # a part always has one
        return TrainResult(loss, result.norm, result.skipped)

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
        own = sequence.positions(length * cp.size, cp.size, self.layout)[cp.rank] if cp.size > 1 else range(length)
        return asarray(own, self.xp, device=self.device)

    def _core(self) -> Core:
        """How queries meet keys on the ranks of cp: serial attention where there is one."""
        if self.mesh.cp.size == 1:
            return CAUSAL_ATTENTION
        forward, backward, _ = METHODS[self.attention]
        how = {"causal": True} | ({} if self.attention == "ulysses" else {"layout": self.layout})
        return Core(partial(forward, self.mesh.cp, **how), partial(backward, self.mesh.cp, **how))

    def take(self, gradients: Gradients) -> None:
        """What a B or W made of one piece of the model: to ZeRO, or kept until others of the pipeline have theirs."""
        self.mesh.comm.hold("new gradients", gradients)
        for block, names in self.blocks.items():
            found = {name: gradients[name] for name in names if name in gradients}
            if found and block in self.shared:
                self._waiting[block] = add_gradients(self._waiting.get(block, {}), found)
                self.mesh.comm.hold("gradients", self._waiting[block])
            elif found:
                self.replica.add_gradients(block, found)

    # What there is, whole

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
        own, dtype, pp = self.model.whole(own), next(iter(own.values())).dtype, self.mesh.pp  # from all of tp
        whole = {}
        for name, shape in self.config.weight_shapes.items():
            x = own[name] if name in own else self.xp.empty(shape, dtype=dtype, device=self.device)
            whole[name] = pp.broadcast(x, self.holders[name][0])
        return whole

    # What this rank keeps

    def pieces(self) -> list[Piece]:
        """What this rank keeps of the weights and the optimizer's state."""
        found = []
        for name, flat_start, master, mean, square in self.replica.state():
            axis, start, stop, owners = self.model.pieces[name]
            first = self.mesh.pp.rank == self.holders[name][0] and self.mesh.tp.rank % owners == 0
            first = first and (self.zero > 0 or self.mesh.data.rank == 0)
            place = name, self.config.weight_shapes[name], axis, start, stop, flat_start
            found.append(Piece(*place, master, mean, square, first))
        return found

    @property
    def progress(self) -> dict[str, float]:
        """What a run that goes on needs besides its pieces: steps, skipped, samples, where the loss scale stands."""
        return {"samples": self.samples, **self.replica.progress}

    def restore(self, progress: Mapping[str, float]) -> None:
        """Go on from `progress`, with what was written into `pieces()`."""
        self.samples = int(progress["samples"])
        self.replica.restore(progress)


class _Opened(Stage):
    """A piece of a stage whose weights ZeRO opens for each action that reads them; a W reads none.

    Its gradients are handed on as soon as they are made: those of a whole stage are never there at once.
    """

    def __init__(self, trainer: Trainer, stage: Stage) -> None:
        self.trainer, self.stage, self.weights, self.weight_names = trainer, stage, stage.weights, stage.weight_names
        block_of = {name: block for block, names in trainer.blocks.items() for name in names}
        self.blocks = list(dict.fromkeys(block_of[name] for name in stage.weight_names))

    def forward(self, x: Array, **targets: Array) -> tuple[Array, Any]:
        with weights_of(self.trainer.replica, self.blocks):
            return self.stage.forward(x, **targets)

    def backward_input(self, dy: Array, cache: Any) -> tuple[Array, Any]:
        with weights_of(self.trainer.replica, self.blocks):
            return self.stage.backward_input(dy, cache)

    def backward_weight(self, pending: Any) -> Gradients:
        self.trainer.take(self.stage.backward_weight(pending))
        return {}

    def backward(self, dy: Array, cache: Any) -> tuple[Array, Gradients]:
        with weights_of(self.trainer.replica, self.blocks):
            dx, gradients = self.stage.backward(dy, cache)
        self.trainer.take(gradients)
        return dx, {}
