"""The arguments of `Zero`: its options and their records, the checks of what it is given, and of the order of calls."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from parlab.arguments import flag, instance, positive, whole
from parlab.arrays import Array, is_array, itemsize, namespace, to_numpy
from parlab.world import Comm, MismatchError
from parlab.zero.precision import LossScale
from parlab.zero.shards import FlatLayout
from parlab.zero.state import Offload


class ModelParallel(NamedTuple):
    """How a replica is cut among ranks by tensor, pipeline and expert parallelism, as ZeRO on one of them has to know.

    Several ranks of a replica may have a copy of one weight. Every block is cut at the same places on each of them, so
    that copies are summed in the same order, and stay equal to the bit.

    Attributes:
        holders: the ranks that hold all shards of a replica's weights, over which the squares of the gradients are
            summed.
        in_norm: how much this rank's copy of each weight counts in the norm, by name: 1 / copies.
        expected: how many calls of `add_gradients` bring gradients of each block before a step. The sum over these
            calls is this rank's mean gradient.
        groups: the blocks that another group of ranks shares than `Zero`'s `comm` (experts), each with that group.
            Their summed gradients are divided by the size of `Zero`'s `comm` too, not by that of the group.
    """

    holders: Comm
    in_norm: Mapping[str, float]
    expected: Mapping[Any, int]
    groups: Mapping[Any, Comm] = MappingProxyType({})


@dataclass(frozen=True)
class Options:
    """The options of `Zero`, beside the paper's four arguments.

    Args:
        blocks: the names of the weights that are gathered and reduced together, by block, in the order of the forward
            pass (`Llama.weight_blocks`). `params` is then taken over: its entries become views of this replica's
            memory, and in stage 3 are there inside `weights` only; the model need not know. None: every weight is a
            block, and `params` is copied.
        microbatches: how often gradients of each block are added before a step.
        dtype: of the weights and gradients that the model computes with, such as "float16"; None: that of `params`.
            Masters and moments have the dtype of `params`, float32 at least.
        loss_scale: where it starts and how it moves; None: `LossScale()` for float16, else none.
        max_norm: to which the mean gradient is clipped.
        bucket_bytes: stage 0 sends a bucket when its gradients are at least so many bytes.
        overlap_gather: stages 1 and 2 gather new weights beside the next forward pass: `step()` starts the all-gathers,
            and `weights(block)` waits for this block's (Megatron-LM's `--overlap-param-gather`). A program that ends
            after a step calls `finish()`.
        accumulate: stages 2 and 3 keep whole gradients, and reduce them once, with the last microbatch: each rank
            holds n gradients of a block, and they are sent once. Reducing after each of k microbatches holds n_r, and
            sends them k times.
        keep_after_forward: stage 3 keeps a block gathered until its gradients have come.
        keep_last_block: stage 3 keeps the last block so, the first one that the backward pass needs (FSDP's
            `reshard_after_forward=False` on the last layer). At the turn, the block before is still waited for,
            unless the last block's backward lasts as long as that gather.
        offload: where the optimizer's state lives; None: on the device.
        ranks_per_node: so many consecutive ranks share a node: the state is sharded among them, and repeated on each
            node (hybrid sharding, HSDP). None: it is sharded among all ranks.
        model_parallel: how a replica is itself cut among ranks (`parlab.train`); None: it is whole.

    Raises:
        ValueError: an option that cannot be used.
    """

    blocks: Mapping[str, Sequence[str]] | None = None
    microbatches: int = 1
    dtype: str | None = None
    loss_scale: LossScale | None = None
    max_norm: float | None = None
    bucket_bytes: int = 25 * 2**20
    overlap_gather: bool = False
    accumulate: bool = False
    keep_after_forward: bool = False
    keep_last_block: bool = False
    offload: Offload | None = None
    ranks_per_node: int | None = None
    model_parallel: ModelParallel | None = None

    def __post_init__(self) -> None:
        for name in ("overlap_gather", "accumulate", "keep_after_forward", "keep_last_block"):
            flag(name, getattr(self, name))
        for name, kind in (("offload", Offload), ("loss_scale", LossScale), ("model_parallel", ModelParallel)):
            if getattr(self, name) is not None:
                instance(name, getattr(self, name), kind)
        if self.max_norm is not None:
            positive("max_norm", self.max_norm)
        whole("bucket_bytes", self.bucket_bytes, least=1)
        whole("microbatches", self.microbatches, least=1)


def check_stage(stage: Any) -> None:
    """Refuse what is no stage of ZeRO."""
    if whole("stage", stage) not in range(4):
        raise ValueError(f"stage={stage!r}: the stages are 0, 1, 2 and 3")


def checked_blocks(params: Any, blocks: Any) -> dict[str, tuple[str, ...]]:
    """The names of each block's weights, by block: as `blocks` says; else each weight is a block.

    Raises:
        ValueError: `params` is no dictionary of floating arrays of one dtype, or `blocks` does not name each once.
    """
    if not isinstance(params, dict) or not params:
        raise ValueError(f"params={params!r:.60}: arrays by name are needed, at least one")
    first = next(iter(params.values()))
    for name, x in params.items():
        if not _is_real_floating(x) or x.dtype != first.dtype:
            raise ValueError(f"params[{name!r}] is {kind_of(x)}: arrays of one floating dtype are needed")
    if blocks is None:
        return {name: (name,) for name in params}
    if not isinstance(blocks, Mapping) or not all(isinstance(names, tuple | list) for names in blocks.values()):
        raise ValueError(f"blocks={blocks!r:.60}: the names of each block's weights are needed, by block")
    named = [name for names in blocks.values() for name in names]
    odd = [name for name in dict.fromkeys([*params, *named]) if named.count(name) != 1 or name not in params]
    odd += [block for block, names in blocks.items() if not names]
    if odd:
        raise ValueError(f"blocks: each weight must be in one block, and no block empty; look at {odd[:3]}")
    return {block: tuple(names) for block, names in blocks.items()}


def check_alike(comm: Comm, told: Any, otherwise: str) -> None:
    """Refuse a value that is not the same on every rank, compared by its `repr`. All ranks call this.

    Each rank splits off with the ranks that have the same value: no message is needed.

    Raises:
        MismatchError: with the words `otherwise`.
    """
    alike: Any = comm.split(zlib.crc32(repr(told).encode()))
    if alike.size < comm.size:
        raise MismatchError(otherwise)


def check_same_model(comm: Comm, params: Mapping[str, Array], optimizer: Any) -> None:
    """Refuse weights or an optimizer that are not the same on every rank."""
    told = optimizer, sums_of(params.values())
    check_alike(comm, told, "weights or optimizer differ from rank to rank: give every rank the same")


def sums_of(weights: Iterable[Array]) -> list[str]:
    """The sum of each array, to 9 digits, by which models are told apart: one number of each leaves the device."""
    weights = list(weights)
    xp = namespace(*weights)
    return [f"{x:.9g}" for x in to_numpy(xp.stack([xp.sum(x, dtype=xp.float64) for x in weights]))]


def checked_dtypes(params: Mapping[str, Array], dtype: str | None) -> tuple[Any, Any]:
    """`(dtype of the weights that the model computes with, dtype of their masters)`.

    Raises:
        ValueError: a dtype that no weights can have, or that is wider than that of `params`.
    """
    first = next(iter(params.values()))
    xp = namespace(first)
    if dtype not in (None, "float16", "float32", "float64") or (dtype and not hasattr(xp, dtype)):
        raise ValueError(f"dtype={dtype!r}: float64, float32 or, where {xp.__name__} has it, float16 is needed")
    work = first.dtype if dtype is None else getattr(xp, dtype)
    if itemsize(work) > itemsize(first.dtype):
        raise ValueError(f"dtype={dtype!r}: params are {first.dtype}, which is narrower")
    return work, xp.result_type(first.dtype, xp.float32)


class Calls:
    """The calls of a program before a step, counted, and refused where they do not fit.

    Args:
        layouts: of the blocks.
        microbatches: how many of them bring gradients of each block.

    Attributes:
        in_use: the blocks inside `weights`.
    """

    def __init__(self, layouts: Mapping[str, FlatLayout], microbatches: Mapping[str, int]) -> None:
        self.layouts, self.microbatches = layouts, microbatches
        self.in_use: list[str] = []
        self.begin()

    def begin(self) -> None:
        """No gradients have come."""
        self.added = dict.fromkeys(self.layouts, 0)  # how many microbatches' have

    def check_block(self, block: Any) -> None:
        """Refuse a name that no block has."""
        if block not in self.layouts:
            raise ValueError(f"block={block!r}: the blocks are {', '.join(map(str, self.layouts))}")

    def add(self, block: Any, gradients: Any) -> bool:
        """Count gradients of one microbatch; return whether the block has all now.

        Raises:
            ValueError: they do not fit the block's weights, or are those of one microbatch too many.
        """
        self.check_block(block)
        expected, shapes = self.microbatches[block], self.layouts[block].shapes
        if self.added[block] == expected:
            raise ValueError(
                f"block={block!r}: gradients of all microbatches, {expected}, have come: call step() first"
            )
        if not isinstance(gradients, Mapping) or gradients.keys() != shapes.keys():
            found = sorted(gradients) if isinstance(gradients, Mapping) else gradients
            raise ValueError(f"gradients={found!r:.60}: block {block} needs one for each of {', '.join(shapes)}")
        for name, shape in shapes.items():
            gradient = gradients[name]
            if not _is_real_floating(gradient) or tuple(gradient.shape) != shape:
                raise ValueError(f"gradients[{name!r}] is {kind_of(gradient)}: a floating array {shape} is needed")
        self.added[block] += 1
        return self.added[block] == expected

    def check_step(self) -> None:
        """Refuse a step that would change weights in use, or before all gradients have come."""
        if self.in_use:
            raise ValueError(
                f"step() inside `with weights({self.in_use[-1]!r})`: leave it first, since its weights change"
            )
        for block, number in self.added.items():
            if number != self.microbatches[block]:
                raise ValueError(
                    f"block {block}: gradients of {number} microbatches have come, and a step needs "
                    f"{self.microbatches[block]}"
                )


def _is_real_floating(x: Any) -> bool:
    return is_array(x) and namespace(x).isdtype(x.dtype, "real floating")


def kind_of(x: Any) -> str:
    """The dtype and shape of an array, or the type of what is none, for an error."""
    return f"{x.dtype} of shape {tuple(x.shape)}" if is_array(x) else f"a {type(x).__name__}"
