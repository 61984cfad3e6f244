"""Which rank owns which tokens: three ways to deal a sequence out.

With causal attention a late token has more keys to look at than an early one, so equal shares of tokens need not be
equal shares of work. `contiguous` hands out neighbours; `zigzag` gives rank r the chunks r and 2P − 1 − r of 2P, one
early and one late; `striped` deals tokens like cards.

Source: Brandon et al. 2023, "Striped Attention", section 3; zigzag: Llama 3 (2024), section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from parlab.arrays import Array, namespace

LAYOUTS = ("contiguous", "zigzag", "striped")


def positions(S: int, size: int, layout: str = "contiguous") -> list[list[int]]:
    """The token positions of each rank's shard, in the order in which the shard holds them: S/P for each of P ranks.

    Rotary embeddings and masks need them: under zigzag and striped a rank's positions are no range.

    Raises:
        ValueError: S does not divide, or there is no such layout.

    >>> positions(8, 2, "contiguous")
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    >>> positions(8, 2, "zigzag")
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    >>> positions(8, 2, "striped")
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    check_layout(S, size, layout)
    if layout == "striped":
        return [list(range(rank, S, size)) for rank in range(size)]
    if layout == "contiguous":
        return [list(range(rank * S // size, (rank + 1) * S // size)) for rank in range(size)]
    chunk = S // (2 * size)
    early = [list(range(rank * chunk, (rank + 1) * chunk)) for rank in range(size)]
    late = [list(range(S - (rank + 1) * chunk, S - rank * chunk)) for rank in range(size)]
    return [first + second for first, second in zip(early, late, strict=True)]


def shard(x: Array, size: int, layout: str = "contiguous", axis: int = -2) -> list[Array]:
    """The shards of `x` along its sequence axis, one a rank, each a copy: `[..., S, D]` -> P times `[..., S/P, D]`.

    Raises:
        ValueError: the axis does not divide, or there is no such layout.

    >>> import numpy as np
    >>> [piece.tolist() for piece in shard(np.arange(8), 2, "zigzag", axis=0)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    xp = namespace(x)
    owned = positions(_length(x, "x", axis), size, layout)
    return [xp.take(x, xp.asarray(indices, device=x.device), axis=axis) for indices in owned]


def unshard(shards: Sequence[Array], layout: str = "contiguous", axis: int = -2) -> Array:
    """The whole array again, its tokens in their order: the inverse of `shard`.

    Raises:
        ValueError: shards of different shapes, or shapes that the layout cannot have.
    """
    shapes = {tuple(piece.shape) for piece in shards}
    if len(shapes) != 1:
        raise ValueError(f"shards have the shapes {sorted(shapes)}: all must have the same, and there must be one")
    xp = namespace(*shards)
    size = len(shards)
    owned = positions(size * _length(shards[0], "shards[0]", axis), size, layout)
    order = xp.asarray([position for indices in owned for position in indices], device=shards[0].device)  # [S]
    return xp.take(xp.concat(list(shards), axis=axis), xp.argsort(order), axis=axis)


def check_layout(S: int, size: int, layout: str) -> None:
    """Refuse a layout that does not exist, and a length that it cannot deal out evenly.

    Raises:
        ValueError: so it is.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: use one of {', '.join(LAYOUTS)}")
    if size < 1:
        raise ValueError(f"size={size}: there must be at least 1 rank")
    if S < 1:
        raise ValueError(f"sequence length {S}: there must be at least 1 token")
    if S % size:
        raise ValueError(
            f"sequence length {S} does not divide into {size} shards: "
            f"use a multiple of {size} (zigzag needs {2 * size})"
        )
    if layout == "zigzag" and S % (2 * size):
        raise ValueError(
            f"sequence length {S} does not divide into {2 * size} chunks, two for each of {size} ranks: "
            f"use a multiple of {2 * size} with zigzag"
        )


def _length(x: Array, name: str, axis: int) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis={axis}: {name} has {x.ndim} axes")
    return int(x.shape[axis])
