"""A layout: the ranks and the options of each strategy, one or columns of many.

Invariant: a layout is what somebody chooses; all else, such as the microbatches of a replica, follows in a `Case`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parlab.arguments import instance
from parlab.world.units import several


@dataclass(frozen=True)
class Layout:
    """The fields that a planner chooses. Each is a value, or a column of values, of which `layout[number]` takes one.

    Args:
        dp, pp, cp, tp: ranks for data, pipeline, context and tensor parallelism; their product is the number of ranks.
        chunks: v, the pipeline stages of a rank.
        microbatch: sequences in a microbatch.
        zero: the ZeRO stage, 0 to 3, over the ranks of dp × cp.
        schedule: 1f1b (interleaved, if there are several chunks), gpipe, looped_bfs.
        sequence_parallel: Megatron's sequence parallelism in the tensor-parallel group.
        recompute: none; selective: attention's S × S weights, where a model keeps them; mlp.hidden: the product of
            SwiGLU's gate and up; full: all but a layer's input.
        offload: the optimizer's state is held and updated in the host's memory.
        recompute_layers: layers of each rank that keep their input alone, whatever the others keep.
        ep: ranks of dp × cp that deal out the experts of a mixture; it divides dp · cp.
    """

    dp: Any = 1
    pp: Any = 1
    cp: Any = 1
    tp: Any = 1
    chunks: Any = 1
    microbatch: Any = 1
    zero: Any = 1
    schedule: Any = "1f1b"
    sequence_parallel: Any = False
    recompute: Any = "none"
    offload: Any = False
    ep: Any = 1
    recompute_layers: Any = 0

    @property
    def ranks(self) -> Any:
        """The number of ranks."""
        return self.dp * self.pp * self.cp * self.tp

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of the fields: () for a single layout."""
        return np.broadcast(*vars(self).values()).shape

    def __len__(self) -> int:
        return int(np.prod(self.shape))

    def __getitem__(self, chosen: Any) -> Layout:
        return Layout(**self.taken(vars(self), chosen))

    def taken(self, columns: dict[str, Any], chosen: Any) -> dict[str, Any]:
        """Entries of columns of these layouts: one, by its number, as plain values; several, by an array of numbers."""
        rows = {name: np.broadcast_to(x, self.shape).ravel()[chosen] for name, x in columns.items()}
        return {name: np.asarray(x).tolist() if np.ndim(x) == 0 else x for name, x in rows.items()}

    def columns(self, number: type) -> Layout:
        """The same layouts, each field an array, and whole numbers of this type."""
        of = {name: np.asarray(value) for name, value in vars(self).items()}
        return Layout(**{name: x.astype(number) if x.dtype.kind in "iu" else x for name, x in of.items()})

    def but(self, **changes: Any) -> Layout:
        """The same layout with other values of some fields."""
        return replace(self, **changes)

    def __str__(self) -> str:
        if self.shape:
            return f"columns of {len(self)} layouts"
        fields = vars(self)
        parts = [f"{name} {fields[name]}" for name in ("dp", "pp", "cp", "tp")]
        parts += [f"{name} {fields[name]}" for name in ("chunks", "microbatch", "ep") if fields[name] > 1]
        parts += [f"ZeRO-{self.zero}", self.schedule]
        if self.sequence_parallel:
            parts.append("sequence parallel")
        if self.recompute != "none":
            parts.append(f"recompute {self.recompute}")
        if self.recompute_layers:
            parts.append(f"recompute {several(self.recompute_layers, 'layer')} a rank")
        if self.offload:
            parts.append("offload")
        return ", ".join(parts)


def check_layouts(layout: Any) -> None:
    """Refuse what is no layout, columns of different lengths, and columns of none."""
    instance("layout", layout, Layout)
    columns = {field: np.shape(column) for field, column in vars(layout).items() if np.ndim(column)}
    try:
        shape = np.broadcast_shapes(*columns.values())
    except ValueError:
        said = ", ".join(f"{field} {list(size)}" for field, size in columns.items())
        raise ValueError(f"layout: columns of the shapes {said}: make them as long as each other") from None
    if 0 in shape:
        raise ValueError(f"layout={layout}: at least one layout is needed")
