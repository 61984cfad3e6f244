"""What keeps ranks from moving on: who waits for whom, in which call and at which line, and how two calls differ."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from parlab.world import values
from parlab.world.errors import DeadlockError, WaitsFor
from parlab.world.seats import Group, Meeting, Message, Seat, Signal
from parlab.world.values import Value


def deadlock_of(seats: list[Seat]) -> DeadlockError:
    """The error that names every parked rank and what it waits for, and where. No rank may run meanwhile."""
    places = places_of(seats)
    waiting = {
        seat.rank: WaitsFor(
            seat.rank,
            _call(seat),
            _peers(seat),
            places[seat.rank],
            tuple(sorted(str(request) for request in seat.open if not request.met)),
        )
        for seat in seats
        if seat.missing
    }
    return DeadlockError(waiting, frozenset(seat.rank for seat in seats) - waiting.keys())


def places_of(seats: list[Seat]) -> dict[int, str]:
    """For each parked rank of this process, the line of its program, as text."""
    frames = sys._current_frames()
    places = {seat.rank: _where(frames.get(seat.thread.ident or 0)) for seat in seats if seat.missing}
    frames.clear()  # our own frame is among them: a circle, which would keep the arrays of a program alive
    return places


def _peers(seat: Seat) -> tuple[int, ...]:
    """The ranks without which `seat` cannot move on."""
    if isinstance(seat.waits_for, Signal):
        return _peers(seat.waits_for.seat)
    if isinstance(seat.waits_for, Meeting):
        entered = seat.waits_for.calls
        return tuple(member for rank, member in enumerate(seat.waits_for.members) if rank not in entered)
    unmatched = [message for message in seat.waits_for if not message.matched]
    return tuple(sorted({message.dst if message.src == seat.rank else message.src for message in unmatched}))


def _call(seat: Seat) -> str:
    """The call in which a rank is parked, with the ranks it names."""
    if not isinstance(seat.waits_for, tuple):
        return seat.call
    # A sendrecv waits for its send first; a message to oneself has the same rank at both ends.
    sends = [seat.call in ("send", "isend"), False] if seat.call != "sendrecv" else [True, False]
    return call_of(seat.call, [(m.dst if out else m.src, out) for m, out in zip(seat.waits_for, sends, strict=False)])


def call_of(name: str, ends: Iterable[tuple[int, bool]]) -> str:
    """A call as text; `ends` are its messages: the other rank, and whether it sends there."""
    said = ", ".join(f"to {peer}" if out else f"from {peer}" for peer, out in ends)
    return f"{name}({said})" + ".wait()" * (name in ("isend", "irecv"))


WORLD = str(Path(__file__).parent)
Line = tuple[str, int, str]  # file, number, function

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")  # frames of their own before Python 3.12


def _where(frame: FrameType | None) -> str:
    """The line of the program in which a rank stands, as text."""
    line = _line_of(frame)
    if line is None:
        return ""
    file, number, function = line
    text = linecache.getline(file, number).strip()
    return f", at line {number} of {function}" + (f": {text}" if text else "")


def program_line() -> Line:
    """The line of the program from which this package was called."""
    return _line_of(sys._getframe(1)) or ("", 0, "")


def _line_of(frame: FrameType | None) -> Line | None:
    """The innermost line outside this package."""
    while frame is not None and frame.f_code.co_filename.startswith(WORLD):
        frame = frame.f_back
    if frame is None:
        return None
    file, number = frame.f_code.co_filename, frame.f_lineno
    while frame.f_code.co_name in COMPREHENSIONS and frame.f_back is not None:
        frame = frame.f_back
    return file, number, frame.f_code.co_name


def misfit(message: Message, like: Value) -> str | None:
    """How what was sent contradicts what is expected, which has the form of `like`, as text."""
    if not values.same_form(message.value, like):
        return other_form(message, values.form(message.value), values.form(like))
    return other_label(message)


def other_form(message: Message, sent: str, expected: str) -> str:
    """That a message has the form `sent`, not `expected`, as text."""
    label = "" if message.label is None else f" ({message.label})"
    return (
        f"a message from rank {message.src} to rank {message.dst}{label} holds {sent}, but "
        f"rank {message.dst} expects {expected}; messages between two ranks match in the order in which "
        "they are posted"
    )


def other_label(message: Message) -> str | None:
    """How the labels of both ends contradict each other, as text."""
    label, expected = message.label, message.expected
    if label is not expected and label is not None and expected is not None and str(label) != str(expected):
        return (
            f"rank {message.dst} expected {message.expected} from rank {message.src}, got {message.label}; messages "
            "between two ranks match in the order in which they are posted"
        )
    return None


def difference(meeting: Meeting, group: Group) -> str | None:
    """How the members' calls contradict each other, as text."""
    first = meeting.calls[0]
    for rank, member in enumerate(group.members):
        if (call := meeting.calls[rank]) != first:
            return (
                f"the ranks of group {group.name} entered different collectives: "
                f"rank {group.members[0]} calls {first}, rank {member} calls {call}"
            )
    return None
