"""The search: all possible layouts of a number of ranks, estimated in columns.

Invariant: of the values that each field may take, every possible layout is estimated. A layout is dropped as soon as
one rule cannot be kept, in three steps: meshes, ways to run each mesh, and the fields that change no layer's work. So
columns stay short, because a step multiplies only what the step before has left.

Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", section 3, weighs the
same choices one by one; here all are tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from parlab.arguments import flag, positive
from parlab.nn.config import Config
from parlab.plan.arguments import MOST_RANKS, count
from parlab.plan.case import Case
from parlab.plan.estimate import check_job, evaluate
from parlab.plan.layout import Layout
from parlab.plan.machine import Machine
from parlab.plan.plans import Plans
from parlab.plan.rules import check_rules, own_rules, possible
from parlab.plan.sizes import Sizes
from parlab.plan.software import MESH, software_of
from parlab.world import Cluster


def search(
    config: Config,
    cluster: Cluster,
    ranks: int,
    *,
    batch: int,
    sequence: int,
    memory: float | None = None,
    offload: bool = False,
    **fixed: Any,
) -> Plans:
    """Estimate every possible layout of `ranks` ranks.

    Args:
        config, cluster, batch, sequence: as for `estimate`; the software is `software_of` the cluster.
        ranks: their number; all of them are used.
        memory: bytes of a device. None: those of the cluster's device.
        offload: try layouts with the optimizer on the host, too.
        fixed: fields of a layout with one value, `cp=1`, or a list of values. `recompute_layers` is 0
            unless values are given: they multiply the layouts.

    Raises:
        ValueError: a bad number, an unknown field, or no possible layout.

    >>> from parlab.plan import LLAMA_405B
    >>> from parlab.world import DGX_H100
    >>> print(search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1).best.layout)
    dp 256, pp 8, cp 1, tp 8, chunks 16, ZeRO-2, 1f1b, sequence parallel, recompute mlp.hidden
    """
    check_job(config, cluster, batch, sequence)
    count("ranks", ranks, MOST_RANKS)
    if memory is not None:
        positive("memory", memory)
    flag("offload", offload)
    machine, sizes = Machine(cluster), Sizes(config)
    tried = _values_of_fields(sizes, ranks, batch, offload, fixed)
    grid, chosen = _grid(sizes, ranks, batch, sequence, tried, fixed)
    if not len(chosen):
        given = {"ranks": ranks, "batch": batch, "sequence": sequence, **fixed}
        said = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ValueError(f"{said}: no layout is possible for these")
    case = Case(config, grid, batch, sequence, software=software_of(cluster))
    asked: dict[str, Any] = {"config": config, "cluster": cluster, "batch": batch, "sequence": sequence}
    memory = machine.device.memory if memory is None else memory
    return Plans(memory, asked, evaluate(case, machine)[chosen])


def _values_of_fields(sizes: Sizes, ranks: int, batch: int, offload: bool, fixed: dict[str, Any]) -> dict[str, list]:
    """The values that each field of a layout may take: those of `fixed`, else those that could be the best."""
    divisors = _divisors(ranks)
    tried: dict[str, list] = {
        **dict.fromkeys(MESH, divisors),
        "chunks": sorted({v for layers in range(sizes.num_layers, sizes.num_layers + 3) for v in _divisors(layers)}),
        "microbatch": [b for b in range(1, 17) if batch % b == 0],  # as in papers: a pipeline needs many
        "sequence_parallel": [False, True],
        "recompute": _ways_to_recompute(sizes),
        "zero": [1, 2, 3],  # 0 is never faster nor smaller
        "schedule": ["1f1b", "looped_bfs"],
        "offload": [False, True] if offload else [False],
        "ep": _divisors(sizes.num_experts) if sizes.num_experts else [1],
        "recompute_layers": [0],
    }
    if unknown := set(fixed) - set(tried):
        raise ValueError(f"{min(unknown)}={fixed[min(unknown)]!r}: the knobs are {', '.join(tried)}")
    for name, value in fixed.items():  # one value or several
        values = value.tolist() if hasattr(value, "tolist") else value
        tried[name] = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
        for one in tried[name]:  # each alone: in one column 1 and "1" would be the same
            layout = Layout(**{name: one})
            check_rules(layout, own_rules(layout))
    return tried | {name: [n for n in divisors if n in tried[name]] for name in MESH}


def _grid(
    sizes: Sizes, ranks: int, batch: int, sequence: int, tried: dict[str, list], fixed: dict[str, Any]
) -> tuple[Layout, np.ndarray]:
    """Layouts in columns, and the numbers of those that are possible and no other one's double."""
    # First the meshes
    mesh = Layout(**_axes(tried, "tp", "cp", "pp"))
    mesh = mesh.but(dp=ranks // mesh.ranks)
    mesh = mesh[np.flatnonzero((mesh.ranks == ranks) & np.isin(mesh.dp, tried["dp"]))]
    mesh = mesh[np.flatnonzero(possible(sizes, mesh, batch, sequence))]
    # Then, with each mesh, the fields on which a layer's work depends, under the schedule with the fewest rules
    work = ("chunks", "microbatch", "sequence_parallel", "recompute", "recompute_layers", "ep")
    ways = mesh.but(schedule="looped_bfs", **_axes(tried, *work))
    ways = ways[np.flatnonzero(possible(sizes, ways, batch, sequence))]
    # Last, with each of these, all other fields
    grid = ways.but(**_axes(tried, "offload", "schedule", "zero"))
    # ZeRO or sequence parallelism among one rank is the same as none: one layout of these is enough
    same = (grid.dp * grid.cp == 1) & (grid.zero > 1) & ("zero" not in fixed)
    same = same | ((grid.tp == 1) & grid.sequence_parallel & ("sequence_parallel" not in fixed))
    return grid, np.flatnonzero(possible(sizes, grid, batch, sequence) & ~same)


def _ways_to_recompute(sizes: Sizes) -> list[str]:
    """Those that make a difference to the model's layers."""
    if not sizes.fused_attention:
        return ["none", "selective", "full"]
    return ["none", "full"] if sizes.num_experts else ["none", "mlp.hidden", "full"]


def _divisors(number: int) -> list[int]:
    return sorted({d for n in range(1, int(number**0.5) + 1) if number % n == 0 for d in (n, number // n)})


def _axes(tried: dict[str, list], *names: str) -> dict[str, np.ndarray]:
    """The values of each field, along an axis of its own: broadcast, they are all combinations.

    The last axis is left free, for the columns of a layout that these are combined with.
    """
    *axes, _ = np.meshgrid(*(tried[name] for name in names), 0, indexing="ij", sparse=True)  # 0: the free axis
    return dict(zip(names, axes, strict=True))
