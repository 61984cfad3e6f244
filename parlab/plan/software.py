"""The habits of training software: what it sends, in which order it places its ranks, and what it hides behind work.

Invariant: a habit changes when something is sent, kept or waited for, never what a step computes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from typing import Any

from parlab.arguments import flag, instance, text, whole
from parlab.plan.arguments import float_itemsize
from parlab.world import Cluster

MESH = ("tp", "cp", "pp", "dp")  # our `Mesh`, Llama 3 and torchtitan: ranks that follow each other share a replica


@dataclass(frozen=True)
class Software:
    """The habits of software with a layout. `software.toml` holds the public ones, each habit with its source.

    Two are of all traffic; then come those of tensor parallelism and the loss, of pipelines, and of ZeRO.

    Args:
        hides: the traffic that it sends while it computes: some of tp, cp, pp, dp.
        order: the axes of the mesh, the innermost one first.
        joins_products: gate and up are one product, so that their gradients of x are summed together.
        gathers_x_again: with sequence parallelism the backward gathers x again; else it is kept gathered.
        cuts_logits: the loss runs over a rank's part of the vocabulary; else the logits are gathered.
        logit: bytes a logit that its loss holds besides the logit and one copy in float32.
        scatters_messages: t ranks send a t-th each of a message to the next stage, where it is gathered.
        one_stream: it computes and sends in one stream, and so waits for each message between stages.
        gradient: bytes of a gradient that travels. None: as many as one that is held.
        scatters_gradients: ZeRO-1 reduce-scatters gradients; else it all-reduces them.
        sends_by_group: by 1F1B, ZeRO-2 sums the gradients of microbatches that pass a chunk in a row, and sends them
            once for the group; else for each microbatch.
        gathers_weights_once: where all microbatches go through a chunk one after the other, ZeRO-3 gathers its weights
            once for them, and sends their gradients once; else for each microbatch.
        source: where the habits can be read.

    Raises:
        ValueError: a kind of traffic or an order of axes that does not exist, or no number where one is needed.
    """

    hides: Collection[str] = frozenset({"pp"})
    order: tuple[str, ...] = MESH
    # Tensor parallelism (`tensor`), and the loss
    joins_products: bool = True
    gathers_x_again: bool = True
    cuts_logits: bool = True
    logit: int = 0
    # Pipelines (`pipeline`)
    scatters_messages: bool = False
    one_stream: bool = False
    # ZeRO (`zero`)
    gradient: int | None = None
    scatters_gradients: bool = True
    sends_by_group: bool = False
    gathers_weights_once: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        hides, order, axes = self.hides, self.order, ", ".join(MESH)
        if isinstance(hides, str) or not isinstance(hides, Collection) or not all(kind in MESH for kind in hides):
            raise ValueError(f"hides={hides!r:.60}: a set of some of {axes} is needed")
        if not isinstance(order, tuple) or len(order) != len(MESH) or set(order) != set(MESH):
            raise ValueError(f"order={order!r:.60}: a tuple of {axes}, the innermost first, is needed")
        if self.gradient is not None:
            float_itemsize("gradient", self.gradient)
        for habit in fields(self):
            if isinstance(habit.default, bool):
                flag(habit.name, getattr(self, habit.name))
        whole("logit", self.logit, 0)
        text("source", self.source)

    def but(self, **changes: Any) -> Software:
        """The same software with other habits: `MEGATRON.but(hides=())`."""
        return replace(self, **changes)


def _read(habits: dict[str, Any]) -> Software:
    return Software(**habits | {"hides": frozenset(habits["hides"]), "order": tuple(habits["order"])})


_public = tomllib.loads((files("parlab.plan") / "software.toml").read_text(encoding="utf-8"))
PROGRAMS = {name: _read(habits) for name, habits in _public.items()}
MEGATRON, PLAIN, LLAMA_3, TORCHTITAN = (PROGRAMS[name] for name in ("megatron", "plain", "llama_3", "torchtitan"))
OURS = Software(source="the programs of `parlab.train` on the simulated clock: nothing is hidden but between stages")


def software_of(cluster: Cluster) -> Software:
    """The software of the published runs on a cluster's device: `PLAIN` on A100s, `LLAMA_3` on H100s, else `OURS`."""
    instance("cluster", cluster, Cluster)
    name = cluster.device.name
    return PLAIN if "A100" in name else LLAMA_3 if "H100" in name else OURS
