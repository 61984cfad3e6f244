"""What can go wrong between ranks. Every error says who, where, what was expected and what came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parlab.world.run import Run


class WorldError(RuntimeError):
    """The base of the errors that ranks make together; `run` holds the run up to the failure, so it can be drawn."""

    run: Run | None = None


class MismatchError(WorldError, ValueError):
    """Two ranks disagree: on a collective call, or on a message's shape, dtype or label."""


class RequestError(WorldError):
    """A request was never waited for, or waited for twice."""


@dataclass(frozen=True)
class WaitsFor:
    """A rank that cannot move: `rank` stands in `call` (at `where` in its program) until every one of `peers` acts."""

    rank: int
    call: str
    peers: tuple[int, ...]
    where: str


class DeadlockError(WorldError):
    """No rank can move.

    Attributes:
        waiting: one `WaitsFor` a blocked rank, by rank.
        path: the ranks found by following the waits from the lowest blocked rank; the last one closes a cycle with
            an earlier one, or has left the program.
        run: the run up to the deadlock.
    """

    def __init__(self, waiting: dict[int, WaitsFor], left: frozenset[int]):
        self.waiting = waiting
        self.left = left
        self.path = _follow(waiting)
        super().__init__(_explain(waiting, self.path, left))

    @property
    def cycle(self) -> list[int]:
        """The ranks that wait for each other in a circle; empty if the waits end at a rank that left."""
        last = self.path[-1]
        return self.path[self.path.index(last) : -1] if last in self.path[:-1] else []


def _follow(waiting: dict[int, WaitsFor]) -> list[int]:
    """From the lowest blocked rank to whom it waits for, and on, until a rank repeats or has left."""
    path = [min(waiting)]
    while path[-1] in waiting and path[-1] not in path[:-1]:
        path.append(waiting[path[-1]].peers[0])
    return path


SHOWN = 8  # steps of a long chain of waits that are printed


def _explain(waiting: dict[int, WaitsFor], path: list[int], left: frozenset[int]) -> str:
    blocked = [waiting[rank] for rank in path if rank in waiting]
    if path[-1] in path[:-1]:
        blocked.pop()  # the rank that closes the cycle is already on the path
    lines = [f"no rank can move: {len(waiting)} blocked, {len(left)} finished"]
    for step in blocked[:SHOWN]:
        lines.append(f"  rank {step.rank} waits in {step.call} for {_ranks(step.peers)}{step.where}")
    if len(blocked) > SHOWN:
        lines.append(f"  ... and {len(blocked) - SHOWN} more in the same chain")
    if path[-1] in left:
        lines.append(f"  rank {path[-1]} has already returned from the program")
    lines.append(f"likely cause: {_cause(blocked, path, left)}")
    return "\n".join(lines)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:SHOWN])
    return f"ranks {shown}" + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")


def _cause(blocked: list[WaitsFor], path: list[int], left: frozenset[int]) -> str:
    calls = [step.call.partition("(")[0] for step in blocked]
    if path[-1] in left:
        return f"rank {path[-1]} takes part in fewer calls than its peers expect"
    start = path.index(path[-1])
    cycle = calls[start:]
    if len(cycle) == 1:
        return "a rank's blocking call to itself; post isend or irecv first, then wait"
    if all(call == "send" for call in cycle):
        return "every rank sends first, and a send returns when it is received; let one receive first, or use sendrecv"
    if all(call in ("recv", "wait for irecv") for call in cycle):
        return "every rank receives first, and nobody has sent; check the direction of the ring"
    if any(call in ("send", "recv", "sendrecv") or call.startswith("wait for") for call in cycle):
        return "the ranks' calls do not pair up; compare their order on both sides"
    return "the ranks enter their groups' collectives in different orders, or one skips a collective"


class Unwind(SystemExit):
    """Ends a rank whose run is over. A `BaseException`, so that `except Exception` in a program does not catch it; a
    `SystemExit`, because a thread that ends with one stays silent."""
