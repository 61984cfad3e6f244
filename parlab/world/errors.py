"""Errors between ranks. Each names the rank and the place, what was expected and what came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class WorldError(RuntimeError):
    """The base of all errors between ranks. `run` is the `Run` up to the failure, so it can be drawn."""

    run: Any = None


class MismatchError(WorldError, ValueError):
    """Two ranks disagree: on a collective call, or on a message's shape, dtype or label."""


class RequestError(WorldError):
    """A request was never waited for, or twice; or the array of an `isend` changed before its `wait()`."""


class RemoteError(WorldError):
    """An error of another process, as text."""


@dataclass(frozen=True)
class WaitsFor:
    """A rank that cannot move: it waits in `call`, at `where` in its program, until all `peers` act.

    `unmet` are its other requests, which no peer has matched.
    """

    rank: int
    call: str
    peers: tuple[int, ...]
    where: str
    unmet: tuple[str, ...] = ()


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
    """From the lowest blocked rank to its first peer, and on, until a rank repeats or has left."""
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
    lines.append(f"likely cause: {_cause(blocked, path, waiting, left)}")
    return "\n".join(lines)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:SHOWN])
    return f"ranks {shown}" + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")


POINT_TO_POINT = ("send", "recv", "sendrecv", "isend", "irecv")


def _cause(blocked: list[WaitsFor], path: list[int], waiting: dict[int, WaitsFor], left: frozenset[int]) -> str:
    """The likely cause. Its statements about these ranks are true; its advice is a guess."""
    if path[-1] in left:
        return (
            f"rank {path[-1]} takes part in fewer calls than its peers expect: nothing in it meets {blocked[-1].call}"
        )
    cycle = blocked[path.index(path[-1]) :]
    if len(cycle) == 1:
        return f"rank {cycle[0].rank} waits for itself; post both isend and irecv first, then wait"
    calls = [step.call.partition("(")[0] for step in cycle]
    if not any(call in POINT_TO_POINT for call in calls):
        return "the ranks enter their groups' collectives in different orders, or one skips a collective"
    for number, peer in enumerate(cycle):
        step = cycle[number - 1]  # waits for peer
        if calls[number - 1] in POINT_TO_POINT and calls[number] not in POINT_TO_POINT:
            return (
                f"rank {step.rank} needs rank {peer.rank}, which has gone on to {peer.call}; their calls come in "
                "different orders, or one is missing"
            )
        if peer.unmet:
            return (
                f"rank {peer.rank} has posted {peer.unmet[0]}, which does not meet {step.call} of rank {step.rank}; "
                "check who sends to whom: in a ring, receive from the side opposite to where you send"
            )
    everyone = len(cycle) == len(waiting) + len(left)
    ranks = ", ".join(str(step.rank) for step in cycle[:SHOWN]) + ", ..." * (len(cycle) > SHOWN)
    if all(call in ("send", "isend") for call in calls):
        who = "every rank sends" if everyone else f"ranks {ranks} send"
        return f"{who} first, and a send returns when it is received; let one receive first, or use sendrecv"
    if all(call in ("recv", "irecv") for call in calls):
        who = "every rank receives" if everyone else f"ranks {ranks} receive"
        return f"{who} first, so nobody sends; let one send first, or use sendrecv"
    return "the ranks' calls do not pair up; compare their order and direction on both sides"


class Unwind(SystemExit):
    """Ends a rank whose run is over. A `BaseException`, so that `except Exception` in a program does not catch it; a
    `SystemExit`, because a thread that ends with one stays silent."""
