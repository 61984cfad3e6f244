"""Numbers as people read them: `1.50 µs`, `2.00 MiB`."""

from __future__ import annotations


def format_time(picoseconds: float) -> str:
    """Three significant digits in the largest unit that fits.

    >>> format_time(1_500_000)
    '1.50 µs'
    >>> format_time(0)
    '0 s'
    """
    for unit, size in (("s", 10**12), ("ms", 10**9), ("µs", 10**6), ("ns", 10**3)):
        if _rounded(picoseconds / size) >= 1:
            return f"{_three_digits(picoseconds / size)} {unit}"
    return f"{picoseconds:g} ps" if picoseconds else "0 s"


def format_bytes(nbytes: float) -> str:
    """Three significant digits in powers of 1024; whole bytes below 1 KiB.

    >>> format_bytes(2 * 1024**2)
    '2.00 MiB'
    >>> format_bytes(800)
    '800 B'
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if _rounded(nbytes / size) >= 1:
            return f"{_three_digits(nbytes / size)} {unit}"
    return f"{nbytes:g} B"


def _three_digits(value: float) -> str:
    digits = len(str(int(_rounded(value))))
    return f"{value:.{max(0, 3 - digits)}f}"


def _rounded(value: float) -> float:
    """To three significant digits, so that 999.9 ns are shown as 1.00 µs."""
    return float(f"{value:.3g}")
