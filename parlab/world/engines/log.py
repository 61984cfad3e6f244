"""The log of a task: a flat list of code, operand, code, operand, ..., in the order of its program."""

from __future__ import annotations

from typing import Any

POST_SEND = 0  # operand: the Message; the rank holds its memory from here until the message has passed
POST_RECEIVE = 1  # the Message; the rank holds the memory of what arrives from here on
WAIT = 2  # the Message
COMPUTE = 3  # (name, flops, bytes, seconds or None)
ENTER = 4  # the CollectiveCall: left at once; a split, or one that some member never enters, when all have
HOLD = 5  # (name, bytes), negative when memory dies
PRINT = 6  # the text
SIGNAL = 7  # the Signal that is raised here
AWAIT = 8  # the Signal that the task waits for here


def actions(log: list[Any]) -> zip[tuple[int, Any]]:
    """The (code, operand) pairs of a log."""
    return zip(log[::2], log[1::2], strict=True)
