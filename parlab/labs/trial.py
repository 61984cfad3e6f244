"""Runs answers: under a time limit, with everything that they print caught, and every error explained.

An answer runs in threads of `parlab.world`, a plain function too: so an endless loop ends as a run ends at Ctrl-C, and
a `KeyboardInterrupt` that comes out of a run is the user's own.
"""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import numpy as np

from parlab.labs.explained import explained
from parlab.labs.line_limit import LineLimit
from parlab.labs.results import plain
from parlab.labs.time_limit import TimeLimit
from parlab.labs.wrong import NotWritten, Wrong
from parlab.world import CLASSROOM, Cluster, Comm, Run, WorldError, run, values
from parlab.world.engines.base import Engine
from parlab.world.engines.crew import current_engine
from parlab.world.engines.log import PRINT
from parlab.world.engines.strands import IN_BROWSER
from parlab.world.errors import DeadlockError, Unwind

SHOWN = 1500  # characters of what an answer prints


class Raised(Exception):  # noqa: N818
    """An answer raised an error; the argument is the sentence about it."""


class Printed(io.TextIOBase):
    """Keeps the beginning of what is printed, and counts the lines of the rest."""

    def __init__(self) -> None:
        self.text, self.more = "", 0

    def write(self, text: str) -> int:
        """Keep `text`, as far as there is room; its length, as a file returns it."""
        kept = text[: SHOWN - len(self.text)]
        self.text += kept
        self.more += text.count("\n", len(kept))
        return len(text)

    def quoted(self) -> list[str]:
        """The lines of a message that show it; none if nothing was printed."""
        more = [f"... and {self.more} more lines"] if self.more else []
        return ["what it printed:", self.text.rstrip(), *more] if self.text.strip() else []


class Trial:
    """An answer, tried on one case.

    Args:
        answer: the learner's function.
        call: the way in which it is called, as it is shown.
        seconds: the time that it may take, all calls and runs together.
        falsify: change every number that travels between ranks: results that stay right did not come by messages.
    """

    def __init__(self, answer: Callable[..., Any], call: str, seconds: float, falsify: bool = False):
        self.answer = answer
        self.call = call
        self.seconds = seconds
        self.falsify = falsify
        self.printed = Printed()
        self.left: tuple[Any, ...] = ()  # the arguments of the last call, as the answer left them
        self._ends = time.monotonic() + seconds
        self._function_call = ""  # the call that is under way; "": ranks run
        self._returned = False

    def ran(self, program: Callable[..., Any], size: int, *args: Any, cluster: Cluster = CLASSROOM) -> Run:
        """`run(program, size, *args)`, where the program calls the answer.

        Raises:
            NotWritten: every rank raised `NotImplementedError`, and nothing was sent.
            Wrong: the answer raised an error, the ranks cannot end, or they ran for too long.
        """
        ranks = f" with {size} ranks" if size > 1 else ""
        limit = LineLimit(ranks) if IN_BROWSER else TimeLimit(self.seconds, self._ends, ranks)
        stubs: list[bool] = []  # of each rank that raised an error: whether it was `NotImplementedError`

        def guarded(comm: Comm, *own: Any) -> Any:
            limit.engine = comm._engine
            if self.falsify:
                _falsify(comm._engine)
            try:
                return plain(program(comm, *own))
            except Unwind:
                raise
            except BaseException as error:
                if isinstance(error, WorldError) and not self._function_call:
                    raise  # its text is complete
                stubs.append(type(error) is NotImplementedError)
                who = self._function_call or f"rank {comm.rank}"
                raise Raised(f"{who} {explained(error, self.call)}") from None

        try:
            # NumPy stays silent about an overflow: the checker explains the result
            with np.errstate(all="ignore"), redirect_stdout(self.printed), redirect_stderr(self.printed), limit:
                done = run(guarded, size, *args, cluster=cluster)
        except KeyboardInterrupt:
            if not limit.said or limit.engine is None:
                raise  # the user pressed Ctrl-C
            self._keep_prints_of_ranks(limit.engine)
            raise Wrong(*limit.said) from None
        except Raised as error:
            untouched = len(stubs) == size and all(stubs) and not self._returned
            if untouched and not error.run.timeline.transfers:  # type: ignore[attr-defined]
                raise NotWritten(str(error)) from None
            raise _wrong(error, (error.rank,)) from None  # type: ignore[attr-defined]
        except WorldError as error:
            raise _wrong(error, tuple(error.waiting) if isinstance(error, DeadlockError) else ()) from None
        self._returned = True
        return done

    def _keep_prints_of_ranks(self, engine: Engine) -> None:
        """Keep the lines of `comm.print`, which a run shows only when it ends."""
        for task in engine.tasks:
            lines = [text for code, text in zip(task.log[::2], task.log[1::2], strict=False) if code == PRINT]
            self.printed.write("".join(f"rank {task.rank}: {text}\n" for text in lines))

    def called(self, *arguments: Any) -> Any:
        """The result of `answer(*arguments)`. Raises: as `ran`."""
        return self.called_each([arguments])[0]

    def called_each(self, arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        """The result of the answer for each of these, in turn; each call gets its own copies. Raises: as `ran`."""
        results = []

        def alone(comm: Comm) -> None:
            current_engine.set(None)  # the answer may start ranks of its own
            for given in arguments:
                only_numbers = all(type(x) is int for x in given)
                self._function_call = f"{self.call.partition('(')[0]}{given}" if only_numbers else "it"
                self.left = copy.deepcopy(given)
                results.append(plain(self.answer(*self.left)))
                self._returned = True

        self.ran(alone, 1)
        return results


def _wrong(error: Any, stopped: tuple[int, ...]) -> Wrong:
    """A `Wrong` with the text and the run of `error`, which ended a run."""
    wrong = Wrong(str(error))
    wrong.run, wrong.stopped = error.run, stopped
    return wrong


def _falsify(engine: Engine) -> None:
    """Change every number that is sent on `engine`."""
    honest = partial(type(engine).post_send, engine)

    def post_send(task: Any, box: Any, value: Any, *rest: Any, **options: Any) -> Any:
        for array in values.leaves(value):  # copies already
            if array.dtype == bool:
                np.logical_not(array, out=array)
            else:
                array *= 2
                array += 1
        return honest(task, box, value, *rest, **options)

    engine.post_send = post_send  # type: ignore[method-assign]
