"""Every rank gives something to every rank.

Invariant of `swap_with_all`, when step s starts (from 0): rank r has the values from the ranks r, r − 1, ...,
r − s + 1.

Source: the pairwise all-to-all of `parlab.world.collectives.shifts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from parlab.world import Comm
from parlab.world.collectives.walks import partners


def swap_with_all(comm: Comm, gives: Sequence[Any], forms: Sequence[Any], label: str) -> Iterator[tuple[int, Any]]:
    """Every rank gives something to every rank: in step s, from 0, it sends `gives[rank + s]` and takes from rank − s
    a value of the form `forms[rank − s]`, which is yielded with its source. None: nothing is sent, or nothing comes.
    """
    if forms[comm.rank] is not None:
        yield comm.rank, gives[comm.rank]
    for dst, src in partners(comm):
        if forms[src] is None:
            swap(comm, gives[dst], dst, None, src, label)
        else:
            yield src, swap(comm, gives[dst], dst, forms[src], src, label)


def swap(comm: Comm, x: Any, dst: int, form: Any, src: int, label: str) -> Any:
    """Send x to `dst`, and at once take from `src` a value of this form. None: nothing is sent, or nothing comes."""
    if form is None:
        return None if x is None else comm.send(x, dst, label=label)
    if x is None:
        return comm.recv(src, form, label=label)
    return comm.sendrecv(x, dst, src, form, label=label)
