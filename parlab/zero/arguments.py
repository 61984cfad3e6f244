"""What `Zero` and `DataParallel` ask of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.arrays import Array, is_array, itemsize, namespace
from parlab.nn.optimizer import AdamW
from parlab.world.arguments import whole


def checked_blocks(
    params: Mapping[str, Array], blocks: Mapping[str, Sequence[str]] | None
) -> dict[str, tuple[str, ...]]:
    """The names of the weights in each block.

    Raises:
        ValueError: `params` is no dictionary of floating arrays of one dtype, or `blocks` does not name each once.
    """
    if not isinstance(params, dict) or not params:
        raise ValueError(f"params={params!r:.60}: a dictionary of arrays by name is needed, with at least one")
    first = next(iter(params.values()))
    for name, x in params.items():
        if not is_array(x) or not namespace(x).isdtype(x.dtype, "real floating") or x.dtype != first.dtype:
            kind = x.dtype if is_array(x) else type(x).__name__
            raise ValueError(f"params[{name!r}] is {kind}: arrays of one floating dtype are needed")
    if blocks is None:
        return {name: (name,) for name in params}
    if not isinstance(blocks, Mapping):
        raise ValueError(f"blocks={blocks!r:.60}: names of weights by name of block are needed")
    named = [name for names in blocks.values() for name in names]
    odd = sorted({name for name in named if named.count(name) > 1} | (params.keys() ^ set(named)))
    if odd or not all(blocks.values()):
        raise ValueError(f"blocks: each weight must be in one block, and no block empty; look at {odd[:3]}")
    return {block: tuple(names) for block, names in blocks.items()}


def check_numbers(optimizer: Any, max_norm: Any, microbatches: Any) -> None:
    """Refuse what no training step can use.

    Raises:
        ValueError: no `AdamW`, a norm that is not positive, or no microbatches.
    """
    if not isinstance(optimizer, AdamW):
        raise ValueError(f"optimizer={optimizer!r:.60}: an AdamW is needed")
    if max_norm is not None and not max_norm > 0:
        raise ValueError(f"max_norm={max_norm!r}: a positive number is needed")
    at_least("microbatches", microbatches, 1)


def dtypes(params: Mapping[str, Array], dtype: str | None) -> tuple[Any, Any]:
    """`(of the weights that the model computes with, of their masters)`.

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


def check_block(block: Any, blocks: Mapping[str, Any]) -> None:
    """Refuse a name that is no block's.

    Raises:
        ValueError: so it is.
    """
    if block not in blocks:
        raise ValueError(f"block={block!r}: the blocks are {', '.join(blocks)}")


def check_gradients(
    block: str, gradients: Any, shapes: Mapping[str, tuple[int, ...]], added: int, microbatches: int
) -> None:
    """Refuse gradients that are not those of the block's weights, or one microbatch too many.

    Raises:
        ValueError: so it is.
    """
    if added == microbatches:
        raise ValueError(
            f"block={block!r}: gradients of all microbatches, {microbatches}, have come: call step() first"
        )
    if not isinstance(gradients, Mapping) or gradients.keys() != shapes.keys():
        found = sorted(gradients) if isinstance(gradients, Mapping) else gradients
        raise ValueError(f"gradients={found!r:.60}: block {block} needs one for each of {', '.join(shapes)}")
    for name, shape in shapes.items():
        gradient = gradients[name]
        if not is_array(gradient) or tuple(gradient.shape) != shape:
            kind = f"has shape {tuple(gradient.shape)}" if is_array(gradient) else f"is a {type(gradient).__name__}"
            raise ValueError(f"gradients[{name!r}] {kind}: its weight has shape {shape}")


def check_complete(added: Mapping[str, int], microbatches: int) -> None:
    """Refuse a step before all gradients have come.

    Raises:
        ValueError: a block lacks some.
    """
    for block, number in added.items():
        if number != microbatches:
            raise ValueError(
                f"block {block}: gradients of {number} microbatches have come, and a step needs {microbatches}"
            )


def at_least(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number, at least `least`.

    Raises:
        ValueError: so it is.
    """
    if whole(name, value) < least:
        raise ValueError(f"{name}={value!r}: a whole number, at least {least}, is needed")
