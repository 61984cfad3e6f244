"""A search by hand: from one layout to the next, one field at a time."""

from __future__ import annotations

from typing import Any

from parlab.arguments import instance
from parlab.plan.estimate import Estimate, estimate
from parlab.plan.layout import Layout, check_layouts
from parlab.plan.plans import Plans
from parlab.plan.software import MESH
from parlab.world.units import format_bytes, several


class Walk(list[Estimate]):
    """Layouts, each one field from the one before. It prints as a table of the moves.

    Args:
        plans: what `search` returned: its model, cluster, batch, sequence and memory.
        layout: the first one.

    Raises:
        ValueError: no plans, or a layout that is not possible.

    >>> from parlab.plan import LLAMA_8B, search
    >>> from parlab.world import DGX_H100
    >>> walk = Walk(search(LLAMA_8B, DGX_H100, 64, batch=128, sequence=8192), Layout(dp=8, pp=8))
    >>> print(walk.turn(pp=2))
    start           3.25 s  51.3 GiB  dp 8, pp 8, cp 1, tp 1, ZeRO-1, 1f1b
    dp 32, pp 2     2.47 s  53.9 GiB  dp 32, pp 2, cp 1, tp 1, ZeRO-1, 1f1b
    """

    def __init__(self, plans: Plans, layout: Layout) -> None:
        instance("plans", plans, Plans)
        check_layouts(layout)
        super().__init__([estimate(layout=layout, **plans.asked)])
        self.plans = plans
        self.moves = ["start"]

    def turn(self, **changes: Any) -> Walk:
        """Go on to a layout with another value of one field. The number of ranks stays: dp takes or gives the rest.

        Raises:
            ValueError: no such field, several fields, sizes that do not make this number of ranks, or a layout that is
                not possible.
        """
        before = self[-1].layout
        if unknown := [name for name in changes if name not in vars(before)]:
            raise ValueError(f"{unknown[0]}={changes[unknown[0]]!r}: the fields are {', '.join(vars(before))}")
        if len(fields := [name for name in changes if name != "dp"]) > 1:
            each = "".join(f".turn({name}={changes[name]!r})" for name in fields)
            raise ValueError(f"{', '.join(fields)}: a move changes one field, and dp takes or gives the rest: {each}")
        after = before.but(**changes)
        if set(changes) & set(MESH) and "dp" not in changes:
            after = after.but(dp=before.ranks // max(after.but(dp=1).ranks, 1))
        if after.ranks != before.ranks:
            raise ValueError(f"{after}: {several(after.ranks, 'rank')}, and there are {before.ranks}")
        self.append(estimate(layout=after, **self.plans.asked))
        now, past = vars(after), vars(before)
        self.moves.append(", ".join(f"{name} {x}" for name, x in now.items() if x != past[name]) or "nothing")
        return self

    def fits(self, found: Estimate) -> bool:
        """Whether a layout fits in the memory of the search."""
        return bool(found.total_bytes <= self.plans.memory)

    def __str__(self) -> str:
        wide = max(map(len, self.moves))
        return "\n".join(
            f"{move:{wide}} {e.total_seconds:8.2f} s {format_bytes(e.total_bytes):>9}  "
            + (str(e.layout) if self.fits(e) else f"does not fit: {e.layout}")
            for move, e in zip(self.moves, self, strict=True)
        )
