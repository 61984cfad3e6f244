"""Numbers as people read them: `1.50 µs`, `2.00 MiB`, `1 rank`."""

from __future__ import annotations

import math

TIMES = {"s": 10**12, "ms": 10**9, "µs": 10**6, "ns": 10**3}
SIZES = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}


def format_time(picoseconds: float) -> str:
    """Three significant digits in the largest unit that fits.

    >>> format_time(1_500_000)
    '1.50 µs'
    >>> format_time(0)
    '0 s'
    """
    return _in_a_unit(picoseconds, TIMES) or (f"{picoseconds:g} ps" if picoseconds else "0 s")


def format_bytes(nbytes: float) -> str:
    """Three significant digits in powers of 1024; whole bytes below 1 KiB.

    >>> format_bytes(2 * 1024**2)
    '2.00 MiB'
    >>> format_bytes(800)
    '800 B'
    """
    return _in_a_unit(nbytes, SIZES) or f"{nbytes:g} B"


def several(number: int, one: str) -> str:
    """A number of things, by the word for one of them.

    >>> several(1, "rank")
    '1 rank'
    >>> several(4, "rank")
    '4 ranks'
    """
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def _in_a_unit(value: float, units: dict[str, int]) -> str | None:
    """In the largest unit that fits; None if all are too large, or the value has no end."""
    for unit, size in units.items():
        rounded = float(f"{value / size:.3g}")  # first, so that 999.9 ns are shown as 1.00 µs
        if 1 <= rounded < math.inf:
            return f"{value / size:.{max(0, 3 - len(str(int(rounded))))}f} {unit}"
    return None
