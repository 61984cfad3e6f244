"""What every list of chunks must be, whoever cut it."""

from __future__ import annotations

from collections.abc import Sequence

from parlab.sequence import Chunk


def flaws(chunks: Sequence[Chunk], length: int, ranks: int, limit: float = float("inf"), overlap: int = 0) -> list[str]:
    """What is wrong with them: a gap, a token lost or doubled beyond the overlap, an empty chunk, one that is too long,
    an overlap that the neighbours do not agree on, a rank that is not there.
    """
    found = []
    end = 0
    for index, chunk in enumerate(chunks):
        own = chunk.start + chunk.overlap_before
        after = chunks[index + 1].overlap_before if index + 1 < len(chunks) else 0
        checks = {
            "number": chunk.index == index,
            "owner": 0 <= chunk.rank < ranks,
            "starts where the last one ended": own == end,
            "has a token of its own": chunk.effective_length >= 1 and chunk.stop - own == chunk.effective_length,
            "within the limit": chunk.length == chunk.stop - chunk.start <= limit,
            "overlap": chunk.start >= 0 and chunk.overlap_before == min(overlap, own),
            "overlap after": chunk.overlap_after == after,
            "needs communication": chunk.needs_communication == (chunk.overlap_before + after > 0),
        }
        found += [f"chunk {index}: {name}" for name, holds in checks.items() if not holds]
        end = chunk.stop
    return found + ([] if end == length else [f"ends at {end}, not at {length}"])
