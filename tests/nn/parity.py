"""How far one result is from another: the measure of every parity test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parlab.arrays import to_numpy


def relative_error(found: Any, expected: Any, floor: float = 0.0) -> float:
    """max |a − b| / max(max |b|, floor) over the finite entries of b; infinity where another entry is not the same.

    `floor` is for results that are zero but for rounding: noise has no relative error.
    """
    found, expected = to_numpy(found), to_numpy(expected)
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite]):
        return np.inf
    difference = np.max(np.abs(found[finite] - expected[finite]), initial=0)
    scale = max(np.max(np.abs(expected[finite]), initial=0), floor)
    return difference / scale if difference else 0.0


def worst_error(found: Sequence[Any], expected: Sequence[Any], floor: float = 0.0) -> float:
    """The largest `relative_error` of the pairs; NaN counts as infinity."""
    errors = [relative_error(a, b, floor) for a, b in zip(found, expected, strict=True)]
    return max(np.inf if np.isnan(error) else error for error in errors)


def assert_parity(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-12, floor: float = 0.0) -> None:
    """Each array of `found` is the one of `expected`, up to `tolerance`."""
    error = worst_error(found, expected, floor)
    assert error <= tolerance, f"relative error {error:.1e}"
