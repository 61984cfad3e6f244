"""The checks of this room: of arguments together, and of what the ranks bring."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parlab.arguments import whole
from parlab.arrays import Array, is_array, itemsize, namespace, to_numpy
from parlab.world import Comm, MismatchError


def check_stage(stage: Any, least: int) -> None:
    """Refuse what is no stage of ZeRO, `least` to 3."""
    if whole("stage", stage) not in range(least, 4):
        raise ValueError(f"stage={stage!r}: the stages are {', '.join(map(str, range(least, 3)))} and 3")


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


def check_block(block: Any, blocks: Sequence[Any]) -> None:
    """Refuse a name that no block has."""
    if block not in blocks:
        raise ValueError(f"block={block!r}: the blocks are {', '.join(map(str, blocks))}")


def check_gradients(
    block: Any, gradients: Any, shapes: Mapping[str, tuple[int, ...]], added: int, microbatches: int
) -> None:
    """Refuse gradients that do not fit the block's weights, or one microbatch too many."""
    if added == microbatches:
        raise ValueError(
            f"block={block!r}: gradients of all microbatches, {microbatches}, have come: call step() first"
        )
    if not isinstance(gradients, Mapping) or gradients.keys() != shapes.keys():
        found = sorted(gradients) if isinstance(gradients, Mapping) else gradients
        raise ValueError(f"gradients={found!r:.60}: block {block} needs one for each of {', '.join(shapes)}")
    for name, shape in shapes.items():
        gradient = gradients[name]
        if not _is_real_floating(gradient) or tuple(gradient.shape) != shape:
            raise ValueError(f"gradients[{name!r}] is {kind_of(gradient)}: a floating array {shape} is needed")


def check_step(in_use: Sequence[Any], added: Mapping[Any, int], expected: Mapping[Any, int]) -> None:
    """Refuse a step that would change weights in use, or before all gradients have come."""
    if in_use:
        raise ValueError(f"step() inside `with weights({in_use[-1]!r})`: leave it first, since its weights change")
    for block, number in added.items():
        if number != expected[block]:
            raise ValueError(
                f"block {block}: gradients of {number} microbatches have come, and a step needs {expected[block]}"
            )


def _is_real_floating(x: Any) -> bool:
    return is_array(x) and namespace(x).isdtype(x.dtype, "real floating")


def kind_of(x: Any) -> str:
    """The dtype and shape of an array, or the type of what is none, for an error."""
    return f"{x.dtype} of shape {tuple(x.shape)}" if is_array(x) else f"a {type(x).__name__}"
