"""Which ranks do the same, in words: for the stories of films."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def the_ranks(ranks: Collection[int], listed: str) -> str:
    """The ranks with their noun; `listed` is how the sentence lists them.

    >>> the_ranks([3], "3"), the_ranks([0, 1, 2], spans([0, 1, 2]))
    ('rank 3', 'ranks 0 to 2')
    """
    return f"rank{'s' * (len(ranks) > 1)} {listed}"


def do(count: int, verb: str) -> str:
    """The verb, as so many of them do it.

    >>> do(1, "wait"), do(2, "wait")
    ('waits', 'wait')
    """
    return verb + "s" * (count == 1)


def spans(ranks: Iterable[int]) -> str:
    """Ranks in their order; three or more that follow each other by the first and the last.

    >>> spans([5, 0, 1, 2, 6])
    '0 to 2, 5, 6'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
