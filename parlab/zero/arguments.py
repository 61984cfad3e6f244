"""What this room asks of its arguments."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.arguments import amount, positive, whole
from parlab.arrays import Array, is_array, itemsize, namespace, to_numpy
from parlab.nn.optimizer import AdamW
from parlab.world import Comm, MismatchError

Params = dict[str, Array] | dict[Any, dict[str, Array]] | Sequence[dict[str, Array]]


class Members(NamedTuple):
    """The weights of a block: their names, and the dictionary in which they are kept up to date."""

    names: tuple[str, ...]
    home: dict[str, Array]

    @property
    def arrays(self) -> dict[str, Array]:
        """By name."""
        return {name: self.home[name] for name in self.names}


def check_sequence(name: str, value: Any) -> None:
    """Refuse what is no list of numbers.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(value, Sequence):
        raise ValueError(f"{name}={value!r:.60}: a list of whole numbers is needed")


def check_stage(stage: Any, least: int) -> None:
    """Refuse what is no stage of ZeRO.

    Raises:
        ValueError: so it is.
    """
    if whole("stage", stage) not in range(least, 4):
        raise ValueError(f"stage={stage!r}: the stages are {', '.join(map(str, range(least, 3)))} and 3")


def checked_blocks(params: Any, blocks: Mapping[str, Sequence[str]] | None) -> dict[Any, Members]:
    """The blocks: those that `params` is sorted into, or those that `blocks` names; else each weight is one.

    Named blocks are those of a model, and stay in its dictionary; the others are put into dictionaries of their own, so
    that what is given can be given to all ranks.

    Raises:
        ValueError: `params` is none of these, or has other things than floating arrays of one dtype in it, or `blocks`
            does not name each weight once.
    """
    nested = dict(enumerate(params)) if isinstance(params, list | tuple) else params  # by block, or by name
    if not isinstance(nested, dict) or not nested:
        raise ValueError(f"params={params!r:.60}: arrays by name are needed, or by block and name, at least one")
    if all(isinstance(of_block, dict) and of_block for of_block in nested.values()):
        if blocks is not None:
            raise ValueError(f"blocks={blocks!r:.60}: params are in blocks already, leave it out")
        members = {block: Members(tuple(of_block), dict(of_block)) for block, of_block in nested.items()}
    elif nested is params:
        home = dict(params) if blocks is None else params
        members = {block: Members(names, home) for block, names in _checked_names(params, blocks).items()}
    else:
        raise ValueError(f"params={params!r:.60}: each item of a list is a block, a dictionary of arrays by name")
    first = next(x for of_block in members.values() for x in of_block.arrays.values())
    for of_block in members.values():
        for name, x in of_block.arrays.items():
            if not _is_real_floating(x) or x.dtype != first.dtype:
                raise ValueError(f"params[{name!r}] is {_kind(x)}: arrays of one floating dtype are needed")
    return members


def _checked_names(params: dict[str, Array], blocks: Any) -> dict[Any, tuple[str, ...]]:
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
    """Refuse what is not the same on every rank, in its `repr`: each splits off with those that were told the same, for
    which no message is needed. All ranks call this.

    Raises:
        MismatchError: with the words `otherwise`.
    """
    alike: Any = comm.split(zlib.crc32(repr(told).encode()))
    if alike.size < comm.size:
        raise MismatchError(otherwise)


def sums_of(weights: Iterable[Array]) -> list[str]:
    """Of each array, to 9 digits: by these models are told apart, and one number of each leaves the device."""
    weights = list(weights)
    xp = namespace(*weights)
    return [f"{x:.9g}" for x in to_numpy(xp.stack([xp.sum(x, dtype=xp.float64) for x in weights]))]


def check_numbers(optimizer: Any, max_norm: Any, microbatches: Any) -> None:
    """Refuse what no training step can use.

    Raises:
        ValueError: no `AdamW`, a norm that is not positive, or no microbatches.
    """
    if not isinstance(optimizer, AdamW):
        raise ValueError(f"optimizer={optimizer!r:.60}: an AdamW is needed")
    if max_norm is not None:
        positive("max_norm", max_norm)
    whole("microbatches", microbatches, 1)


def dtypes(members: Mapping[Any, Members], dtype: str | None) -> tuple[Any, Any]:
    """`(of the weights that the model computes with, of their masters)`.

    Raises:
        ValueError: a dtype that no weights can have, or that is wider than that of `params`.
    """
    first = next(x for of_block in members.values() for x in of_block.arrays.values())
    xp = namespace(first)
    if dtype not in (None, "float16", "float32", "float64") or (dtype and not hasattr(xp, dtype)):
        raise ValueError(f"dtype={dtype!r}: float64, float32 or, where {xp.__name__} has it, float16 is needed")
    work = first.dtype if dtype is None else getattr(xp, dtype)
    if itemsize(work) > itemsize(first.dtype):
        raise ValueError(f"dtype={dtype!r}: params are {first.dtype}, which is narrower")
    return work, xp.result_type(first.dtype, xp.float32)


def check_block(block: Any, blocks: Sequence[Any]) -> None:
    """Refuse a name that is no block's.

    Raises:
        ValueError: so it is.
    """
    if block not in blocks:
        raise ValueError(f"block={block!r}: the blocks are {', '.join(map(str, blocks))}")


def check_gradients(
    block: Any, gradients: Any, shapes: Mapping[str, tuple[int, ...]], added: int, microbatches: int
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
        if not _is_real_floating(gradient) or tuple(gradient.shape) != shape:
            raise ValueError(f"gradients[{name!r}] is {_kind(gradient)}: a floating array {shape} is needed")


def check_step(lr: Any, in_use: Sequence[Any], added: Mapping[Any, int], parts: Mapping[Any, int]) -> None:
    """Refuse a step that would change weights in use, or before all gradients have come.

    Raises:
        ValueError: so it is, or `lr` is no learning rate.
    """
    if lr is not None:
        amount("lr", lr)
    if in_use:
        raise ValueError(f"step() inside `with weights({in_use[-1]!r})`: leave it first, since its weights change")
    for block, number in added.items():
        if number != parts[block]:
            raise ValueError(
                f"block {block}: gradients of {number} microbatches have come, and a step needs {parts[block]}"
            )


def check_batch(tokens: Any, targets: Any) -> None:
    """Refuse what is no batch of tokens, or one without a row.

    Raises:
        ValueError: so it is.
    """
    for name, x in (("tokens", tokens), ("targets", targets)):
        if not is_array(x) or x.ndim != 2 or x.size == 0 or not namespace(x).isdtype(x.dtype, "integral"):
            raise ValueError(f"{name} is {_kind(x)}: whole numbers [batch, sequence] are needed, on every rank")


def _is_real_floating(x: Any) -> bool:
    return is_array(x) and namespace(x).isdtype(x.dtype, "real floating")


def _kind(x: Any) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if is_array(x) else f"a {type(x).__name__}"
