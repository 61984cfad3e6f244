"""The ways in which an answer is wrong, as exceptions whose arguments are lines of text for the learner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parlab.world import Run


class Wrong(Exception):  # noqa: N818 - the answer is wrong, the checker has no error
    """The answer is wrong; the arguments are the lines of text that say why.

    Attributes:
        run: the run up to an error between ranks, where there was one.
        stopped: the ranks that raised this error, or that can never go on.
    """

    run: Run | None = None
    stopped: tuple[int, ...] = ()


class NotWritten(Wrong):
    """The answer is still the stub: every rank raises `NotImplementedError` before it sends anything."""


class NoMessages(Wrong):
    """The results are right, but they did not come by messages."""

    def __init__(self, seen: str):
        super().__init__(
            f"the results are right, but {seen}: they did not come by messages",
            "likely cause: ranks share memory here (a global list, a default argument, a file), or the answer read the "
            "checker's; on a cluster each rank has its own memory, and what a rank needs must travel as a message",
        )


def need_messages(done: Run) -> None:
    """Raise `NoMessages` if several ranks have right results and sent nothing."""
    if len(done.results) > 1 and not done.timeline.transfers:
        raise NoMessages("no message was sent")


@contextmanager
def explains(said: str, cause: str) -> Iterator[None]:
    """Add the likely cause to a `Wrong` whose text has `said` in it."""
    try:
        yield
    except Wrong as wrong:
        if said in "\n".join(wrong.args):
            wrong.args = (*wrong.args, f"likely cause: {cause}")
        raise
