"""A layout: how many ranks each strategy gets, and how each is set; one, or a column of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from parlab.plan.models import Sizes

SCHEDULES = ("1f1b", "gpipe", "looped_bfs")
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """What a planner chooses. Each field is a value, or an array of values: a column of layouts.

    Args:
        dp, pp, cp, tp: ranks for data, pipeline, context and tensor parallelism; their product is the number of ranks.
        chunks: stages a rank of the pipeline, v.
        microbatch: sequences in one.
        zero: stage 0 to 3, over the ranks of dp × cp.
        schedule: 1f1b (interleaved, if there are several chunks), gpipe, looped_bfs.
        sequence_parallel: Megatron's, in the tensor-parallel group.
        recompute: none; selective: attention's S × S weights, where a model keeps them; full: all but a layer's input.
        offload: the optimizer's state is kept and updated in the host's memory.

    >>> Layout(dp=128, pp=16, cp=1, tp=8, chunks=8).ranks
    16384
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

    @property
    def ranks(self) -> Any:
        """How many there are."""
        return self.dp * self.pp * self.cp * self.tp

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Each field as an array; they broadcast together."""
        return {field.name: np.atleast_1d(np.asarray(getattr(self, field.name))) for field in fields(self)}

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Each field as a column; all have one length, 1 for a single layout."""
        arrays = self.arrays
        return dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))

    @property
    def is_one(self) -> bool:
        """Whether no field is a column."""
        return all(np.ndim(getattr(self, field.name)) == 0 for field in fields(self))

    @property
    def shape(self) -> tuple[int, ...]:
        """That all fields broadcast to."""
        return self.columns["dp"].shape

    def __len__(self) -> int:
        return len(self.columns["dp"])

    def __getitem__(self, chosen: Any) -> Layout:
        """One of a column, by its number; several, by arrays of numbers."""
        picked = {name: column[chosen] for name, column in self.columns.items()}
        return Layout(**{name: x.tolist() if np.ndim(x) == 0 else x for name, x in picked.items()})

    def but(self, **changes: Any) -> Layout:
        """The same, with some knobs turned."""
        return replace(self, **changes)

    def __str__(self) -> str:
        knobs = [f"{name} {value}" for name, value in (("d", self.dp), ("p", self.pp), ("c", self.cp), ("t", self.tp))]
        knobs += [f"v {self.chunks}", f"b {self.microbatch}", f"ZeRO-{self.zero}", f"{self.schedule}"]
        knobs += ["sequence parallel"] * bool(self.sequence_parallel)
        knobs += [f"recompute {self.recompute}"] * (self.recompute != "none") + ["offload"] * bool(self.offload)
        return ", ".join(knobs)


def problems(sizes: Sizes, layout: Layout, batch: int, sequence: int) -> Iterator[tuple[np.ndarray, str]]:
    """Each rule: where it is broken, as booleans, and what would be right, with the names of columns in braces."""
    of = layout.arrays
    d, p, c, t, v, b = (of[name] for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch"))
    L, H, G, M, V = sizes.L, sizes.H, sizes.G, sizes.M, sizes.V
    for name in ("dp", "pp", "cp", "tp", "chunks", "microbatch"):
        if of[name].dtype.kind not in "iu":
            yield np.array([True]), f"{name}={{{name}!r}}: whole numbers are needed"
            return
        if (of[name] < 1).any():
            yield of[name] < 1, f"{name}={{{name}}}: must be at least 1"
            return
    yield (of["zero"] < 0) | (of["zero"] > 3), "zero={zero}: use stage 0, 1, 2 or 3"
    yield ~np.isin(of["schedule"], SCHEDULES), f"schedule={{schedule!r}}: use one of {', '.join(SCHEDULES)}"
    yield ~np.isin(of["recompute"], RECOMPUTE), f"recompute={{recompute!r}}: use one of {', '.join(RECOMPUTE)}"
    for name, size in (("num_attention_heads", H), ("intermediate_size", M)):
        yield size % t != 0, f"tp={{tp}}: {name} {size} does not divide among so many: use a divisor of {size}"
    yield (G % t != 0) & (t % G != 0), f"tp={{tp}}: use a divisor or a multiple of num_key_value_heads {G}"
    yield t > V, f"tp={{tp}}: at most vocab_size {V}"
    zigzag = np.where(c > 1, 2 * c, 1)
    yield (
        sequence % zigzag != 0,
        f"cp={{cp}}: sequence {sequence} must be a multiple of 2·cp, two chunks a rank (zigzag)",
    )
    uneven = of["sequence_parallel"] & (sequence % (c * t) != 0)
    yield uneven, f"cp={{cp}}, tp={{tp}}: sequence parallelism cuts sequence {sequence} by cp·tp: use a divisor"
    yield (
        batch % (d * b) != 0,
        f"dp={{dp}}, microbatch={{microbatch}}: batch {batch} must be a multiple of their product",
    )
    m = batch // (d * b)
    yield (
        m < p,
        f"pp={{pp}}: batch {batch} has fewer microbatches a replica, batch / (dp {{dp}} · microbatch {{microbatch}})",
    )
    yield (v > 1) & (p == 1), "chunks={chunks}: one stage a rank where pp is 1"
    yield (v > 1) & (of["schedule"] == "gpipe"), "chunks={chunks}: gpipe has one stage a rank"
    groups = (v > 1) & (of["schedule"] == "1f1b") & (m % p != 0)
    yield (
        groups,
        f"pp={{pp}}, chunks={{chunks}}: interleaving needs a batch ({batch}) of whole groups of pp microbatches",
    )
    missing = -L % (p * v)
    yield (
        (missing > 2) | ((missing > 0) & (p == 1)) | (p * v > L + 2),
        (
            f"pp={{pp}}, chunks={{chunks}}: {L} layers do not divide into so many stages: pp·chunks must divide {L}, "
            f"{L + 1} or {L + 2} (the last stage, or the first too, has a layer less)"
        ),
    )


def possible(sizes: Sizes, layout: Layout, batch: int, sequence: int) -> np.ndarray:
    """Of each layout whether it breaks no rule."""
    broken = [of_rule for of_rule, _ in problems(sizes, layout, batch, sequence)]
    return ~np.logical_or.reduce(np.broadcast_arrays(*broken))


def check_possible(sizes: Sizes, layout: Layout, batch: int, sequence: int) -> None:
    """Refuse what cannot be.

    Raises:
        ValueError: a layout breaks a rule; the first that does, and what would be right.
    """
    for broken, rule in problems(sizes, layout, batch, sequence):
        if broken.any():
            first = layout[int(np.argmax(np.broadcast_to(broken, len(layout))))]
            raise ValueError(rule.format(**vars(first)))
