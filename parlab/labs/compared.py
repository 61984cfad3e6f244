"""How the results of lesson 05's exercises are compared, and their bytes counted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from parlab.labs.counts import Count, bytes_sent
from parlab.labs.difference import apart, kind
from parlab.labs.wrong import Wrong
from parlab.tensor import Collective, traffic
from parlab.world import Run

TOLERANCE = 1e-10  # of the largest entry
SMALL = 1e-6  # the least value of a largest entry: far from the largest logit a rank's softmax may be 0
SUMMED = "it is summed over the ranks: a rank has all of the gradient of its own slices, and sends nothing"


def all_reduce_bytes(elements: int, itemsize: int, size: int) -> list[int]:
    """The bytes that each rank sends in a ring's all-reduce."""
    return traffic([Collective("all_reduce", "", elements, itemsize, size)], size).nbytes


def check_form(rank: int, result: Any, length: int, form: str) -> None:
    """Raise `Wrong` if `result` is no tuple of this length."""
    if not isinstance(result, tuple | list) or len(result) != length:
        raise Wrong(f"rank {rank} returned {kind(result)}, expected {form}")


def compare(
    rank: int, what: str, found: Any, expected: Any, size: int, mistakes: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Raise `Wrong` if `found` is not `expected`; the cause is the one of `mistakes` that gives `found`."""
    if not isinstance(found, np.ndarray | np.generic):
        raise Wrong(f"rank {rank}: {what} is a {kind(found)}, expected an array of float64")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        form = f"{found.dtype} and shape {found.shape}"
        raise Wrong(f"rank {rank}: {what} has dtype {form}, expected {expected.dtype} and {expected.shape}")
    if not np.isfinite(found).all():
        cause = "exp overflows: subtract the largest logit of all ranks first" if "lo" in what else "a division by 0"
        raise Wrong(f"rank {rank}: {what} is not finite", f"likely cause: {cause}")
    error = _error(found, expected)
    if error <= TOLERANCE:
        return
    off = f"{error:.0%}" if error >= 0.01 else f"{error:.1e}"
    place = np.unravel_index(np.argmax(np.abs(found - expected)), expected.shape)
    at = f" at [{', '.join(map(str, place))}]" if expected.ndim else ""
    one, other = apart(np.asarray(found)[place], expected[place])
    known = next((cause for cause, array in mistakes.items() if _error(found, array) <= TOLERANCE), "")
    raise Wrong(
        f"rank {rank}: {what} is wrong: {off} of its largest entry off: returned {one}{at}, expected {other}",
        f"likely cause: {known or _cause(what, found, expected, size)}",
    )


def alike(found: Any, expected: Any) -> bool:
    """Whether `found` is an array of this shape with these numbers."""
    same = isinstance(found, np.ndarray) and found.shape == expected.shape
    return same and _error(found, expected) <= TOLERANCE


@np.errstate(all="ignore")
def _error(found: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest entry."""
    return float(np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), SMALL))


def _cause(what: str, found: Any, expected: Any, size: int) -> str:
    if np.max(np.abs(found - expected)) <= 1e-6 * np.max(np.abs(expected)):
        return "it is nearly right: a constant that is too coarse, or float32 on the way"
    if np.max(np.abs(found - size * expected)) <= TOLERANCE * size * np.max(np.abs(expected)):
        return f"{size} times too much: ranks summed something that was the sum already"
    if what == "the loss":
        return "the largest logit, the target's logit (0 where it is elsewhere) and the sum of exp each need all ranks"
    if what == "dlogits":
        return "it is (softmax − one-hot) / (B·S): softmax over all ranks' logits, one-hot where targets − first hits"
    if what == "y":
        return "behind the rows each rank has a partial sum of every entry: sum over the ranks"
    return "what comes back through the columns is a partial sum: sum over the ranks before a norm reads it"


def counted(done: Run, allowed: list[int], formula: str, or_else: str = "") -> list[str]:
    """The line with the bytes of all ranks together: the padding of a ring, which differs by rank, does not matter."""
    sent = Count("bytes that all ranks send", [sum(bytes_sent(done).numbers)])
    return [sent.check(formula, sum(allowed), f"ranks send something that every rank has, or can compute{or_else}")]
