"""What `Zero` and `DataParallel` ask of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.arrays import Array, is_array, itemsize, namespace
from parlab.nn.optimizer import AdamW
from parlab.world.arguments import whole

Params = dict[str, Array] | dict[Any, dict[str, Array]] | Sequence[dict[str, Array]]


class Members(NamedTuple):
    """The weights of a block: their names, and the dictionary in which the model finds them."""

    names: tuple[str, ...]
    home: dict[str, Array]

    @property
    def arrays(self) -> dict[str, Array]:
        """By name."""
        return {name: self.home[name] for name in self.names}


def checked_blocks(params: Any, blocks: Mapping[str, Sequence[str]] | None) -> dict[Any, Members]:
    """The blocks: those that `params` is sorted into, or those that `blocks` names; else each weight is one.

    Raises:
        ValueError: `params` is none of these, or has other things than floating arrays of one dtype in it, or `blocks`
            does not name each weight once.
    """
    nested = dict(enumerate(params)) if isinstance(params, list | tuple) else params
    if not isinstance(nested, dict) or not nested:
        raise ValueError(f"params={params!r:.60}: arrays by name are needed, or by block and name, at least one")
    if not all(isinstance(of_block, dict) and of_block for of_block in nested.values()):
        named = _checked_names(nested, blocks)
        members = {block: Members(names, nested) for block, names in named.items()}
    elif blocks is None:
        members = {block: Members(tuple(of_block), of_block) for block, of_block in nested.items()}
    else:
        raise ValueError(f"blocks={blocks!r:.60}: params are in blocks already, leave it out")
    _check_arrays(members)
    return members


def _checked_names(
    params: dict[str, Array], blocks: Mapping[str, Sequence[str]] | None
) -> Mapping[str, tuple[str, ...]]:
    if blocks is None:
        return {name: (name,) for name in params}
    if not isinstance(blocks, Mapping):
        raise ValueError(f"blocks={blocks!r:.60}: the names of each block's weights are needed, by block")
    named = [name for names in blocks.values() for name in names]
    odd = {name for name in named if named.count(name) > 1} | (params.keys() ^ set(named))
    if odd or not all(blocks.values()):
        raise ValueError(f"blocks: each weight must be in one block, and no block empty; look at {sorted(odd)[:3]}")
    return {block: tuple(names) for block, names in blocks.items()}


def _check_arrays(members: Mapping[Any, Members]) -> None:
    dtype = None
    for of_block in members.values():
        for name, x in of_block.arrays.items():
            dtype = dtype or getattr(x, "dtype", None)
            if not is_array(x) or not namespace(x).isdtype(x.dtype, "real floating") or x.dtype != dtype:
                kind = x.dtype if is_array(x) else type(x).__name__
                raise ValueError(f"params[{name!r}] is {kind}: arrays of one floating dtype are needed")


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


def dtypes(members: Mapping[Any, Members], dtype: str | None) -> tuple[Any, Any]:
    """`(of the weights that the model computes with, of their masters)`.

    Raises:
        ValueError: a dtype that no weights can have, or that is wider than that of `params`.
    """
    first = next(iter(next(iter(members.values())).arrays.values()))
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
