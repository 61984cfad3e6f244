"""The one place that runs an answer: under a time limit, with what it prints caught, and whatever it raises explained.

An answer runs in threads of `parlab.world`, a plain function too: so an endless loop ends as a run ends at Ctrl-C, and
a `KeyboardInterrupt` that comes out of a run is the user's own.
"""

from __future__ import annotations

import copy
import dis
import inspect
import io
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from parlab.world import CLASSROOM, Cluster, Comm, Run, WorldError, run, values
from parlab.world.clock.log import PRINT
from parlab.world.errors import DeadlockError, Unwind
from parlab.world.threads.base import Engine, inside_a_rank

SHOWN_MESSAGE, SHOWN_PRINTED = 400, 1500  # characters
GRACE = 3  # seconds until an answer that was told to end is left behind


class Wrong(Exception):  # noqa: N818 - an answer is wrong, the checker is not in error
    """An answer is wrong; the arguments are the lines of text that say why.

    Attributes:
        run: the run up to an error between ranks, where there was one.
        stopped: the ranks that raised this error, or that can never go on.
    """

    run: Run | None = None
    stopped: tuple[int, ...] = ()


class NotWritten(Wrong):
    """The answer is still the stub, if this happens at its very beginning."""


class NoMessages(Wrong):
    """The results are right, and not by messages."""

    def __init__(self, seen: str):
        super().__init__(
            f"the results are right, but {seen}: they did not come by messages",
            "likely cause: ranks share memory here (a global list, a default argument, a file), or the answer read the "
            "checker's; on a cluster each rank has its own: what a rank needs must travel as a message",
        )


def need_messages(done: Run) -> None:
    """Raise `NoMessages` if several ranks have sent nothing; for results that are right."""
    if len(done.results) > 1 and not done.timeline.transfers:
        raise NoMessages("no message was sent")


class Raised(Exception):  # noqa: N818
    """An answer raised an error; the argument is the sentence about it."""


@contextmanager
def explains(said: str, cause: str) -> Iterator[None]:
    """Add the likely cause to a `Wrong` whose text has `said` in it."""
    try:
        yield
    except Wrong as wrong:
        if said in "\n".join(wrong.args):
            wrong.args = (*wrong.args, f"likely cause: {cause}")
        raise


class Foreign:
    """In place of an object that no exercise expects: comparing that could run code of the answer's."""

    def __init__(self, kind: str, text: str):
        self.kind, self.text = kind, text

    def __repr__(self) -> str:
        return self.text


class Printed(io.TextIOBase):
    """Keeps the beginning of what is printed, and counts the lines of the rest."""

    def __init__(self) -> None:
        self.text, self.more = "", 0

    def write(self, text: str) -> int:
        """As a file's."""
        kept = text[: SHOWN_PRINTED - len(self.text)]
        self.text += kept
        self.more += text.count("\n", len(kept))
        return len(text)

    def quoted(self) -> list[str]:
        """As lines of a message."""
        more = [f"... and {self.more} more lines"] if self.more else []
        return ["what it printed:", self.text.rstrip(), *more] if self.text.strip() else []


class Trial:
    """An answer, tried on one case.

    Args:
        answer: what the learner wrote.
        call: how it is called, as it is shown.
        seconds: how long it may run, all calls and runs together.
        falsify: change every number that travels between ranks: results that stay right did not come by messages.
    """

    def __init__(self, answer: Callable[..., Any], call: str, seconds: float, falsify: bool = False):
        self.answer = answer
        self.call = call
        self.seconds = seconds
        self.falsify = falsify
        self.printed = Printed()
        self._ends = time.monotonic() + seconds
        self._asked = ""  # the call that is tried, if it is one, and not ranks that run
        self._returned = False

    def ran(self, program: Callable[..., Any], size: int, *args: Any, cluster: Cluster = CLASSROOM) -> Run:
        """`run(program, size, *args)`, where the program calls the answer.

        Raises:
            NotWritten: every rank raised `NotImplementedError`, and nothing was sent.
            Wrong: it raised an error, the ranks cannot end, or it ran for too long.
        """

        def guarded(comm: Comm, *own: Any) -> Any:
            watch.engine = comm._engine
            if self.falsify:
                _falsify(comm._engine)
            try:
                return plain(program(comm, *own))
            except Unwind:
                raise
            except BaseException as error:
                if isinstance(error, WorldError) and not self._asked:
                    raise  # it explains itself
                stubs.append(type(error) is NotImplementedError)
                who = self._asked or f"rank {comm.rank}"
                raise Raised(f"{who} {explained(error, self.call)}") from None

        stubs: list[bool] = []
        watch = _Watch(self.seconds, self._ends, f" with {size} ranks" if size > 1 else "")
        try:
            # an overflow is explained by the result that it gives
            with np.errstate(all="ignore"), redirect_stdout(self.printed), redirect_stderr(self.printed), watch:
                done = run(guarded, size, *args, cluster=cluster)
        except KeyboardInterrupt:
            if not watch.said or watch.engine is None:
                raise  # the user's own
            for task in watch.engine.tasks:
                of_rank = [text for code, text in zip(task.log[::2], task.log[1::2], strict=False) if code == PRINT]
                self.printed.write("".join(f"rank {task.rank}: {text}\n" for text in of_rank))
            raise Wrong(*watch.said) from None
        except Raised as error:
            untouched = len(stubs) == size and all(stubs) and not self._returned
            if untouched and not error.run.timeline.transfers:  # type: ignore[attr-defined]
                raise NotWritten(str(error)) from None
            raise _wrong(error, (error.rank,)) from None  # type: ignore[attr-defined]
        except WorldError as error:
            raise _wrong(error, tuple(error.waiting) if isinstance(error, DeadlockError) else ()) from None
        self._returned = True
        return done

    def called(self, *arguments: Any) -> Any:
        """What `answer(*arguments)` returns. Raises: as `ran`."""
        return self.called_each([arguments])[0]

    def called_each(self, arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        """What the answer returns for each of these, in turn; it gets copies of them. Raises: as `ran`."""
        results = []

        def alone(comm: Comm) -> None:
            inside_a_rank.set(None)  # the answer may start ranks of its own
            for given in arguments:
                numbers = all(type(x) is int for x in given)
                self._asked = f"{self.call.partition('(')[0]}{given}" if numbers else "it"
                results.append(plain(self.answer(*copy.deepcopy(given))))
                self._returned = True

        self.ran(alone, 1)
        return results


def _wrong(error: Any, stopped: tuple[int, ...]) -> Wrong:
    """The `Wrong` for an error with which a run ended."""
    wrong = Wrong(str(error))
    wrong.run, wrong.stopped = error.run, stopped
    return wrong


class _Watch:
    """Ends a run that takes too long; `said` then tells where it was."""

    def __init__(self, seconds: float, ends: float, ranks: str):
        self.seconds, self.ends, self.ranks = seconds, ends, ranks
        self.engine: Engine | None = None
        self.said: list[str] = []
        self._done = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *exception: object) -> None:
        self._done.set()

    def _watch(self) -> None:
        left = max(0, self.ends - time.monotonic())
        late = self._done.wait(min(left, threading.TIMEOUT_MAX))
        while not late and self.engine is None:
            late = self._done.wait(0.01)
        if late or self.engine is None:
            return
        where = _whereabouts(self.engine, bool(self.ranks))
        self.said = [f"still running after {self.seconds:g} s{self.ranks}; {where}"]
        self.engine.interrupt()
        if not self._done.wait(GRACE):
            self.said.append("and it cannot be ended: restart the kernel")
            self.engine.interrupt()


def _whereabouts(engine: Engine, ranks: bool) -> str:
    """Where each rank is, first those that do not wait."""
    frames = sys._current_frames()
    said = []
    for task in sorted(engine.tasks, key=lambda task: bool(task.missing)):
        frame = frames.get(task.thread.ident or 0)
        lines = learners(traceback.extract_stack(frame)) if isinstance(frame, FrameType) else []
        waits = f" waits in {task.call}" if task.missing else ""
        if lines:
            line = f"at line {lines[-1].lineno} of {lines[-1].name}: `{lines[-1].line}`"
            said.append(f"rank {task.rank}{waits} {line}" if ranks else line)
    return ", ".join(said[:3]) or "it could not be seen where"


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


SIMPLE = (bool, int, float, complex, str, bytes, type(None), slice, range)


def plain(result: Any, depth: int = 5) -> Any:
    """`result`, rebuilt from types whose comparison and `repr` are not the answer's own code; arrays copied."""
    kind = type(result)
    if kind in SIMPLE or isinstance(result, np.generic) or kind.__module__.startswith("parlab."):
        return result
    if isinstance(result, np.ndarray):
        return np.array(result)
    if depth and isinstance(result, tuple | list):
        return (tuple if isinstance(result, tuple) else list)(plain(item, depth - 1) for item in result)
    if depth and isinstance(result, set | frozenset):
        return {plain(item, 0) for item in result}
    if depth and isinstance(result, dict):
        return {plain(key, 0): plain(value, depth - 1) for key, value in result.items()}
    return Foreign(kind.__name__, f"{result!r:.60}")


def explained(error: BaseException, call: str) -> str:
    """`raised ValueError: ..., at line 3 of f: ...`; of an error in the very call, how the answer is called."""
    try:
        text = f": {error!s:.{SHOWN_MESSAGE}}" if str(error) else ""
    except Exception:
        text = ""
    lines = learners(traceback.extract_tb(error.__traceback__))
    last = lines[-1] if lines else None
    where = f", at line {last.lineno} of {last.name}: {last.line}" if last else f"; it is called as {call}"
    return f"raised {type(error).__name__}{text}{where}"


LIBRARIES = (str(Path(__file__).parents[1]), *{sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")})


def learners(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames that are the learner's own code: neither ours nor a library's."""
    return [
        frame
        for frame in frames
        if not frame.filename.startswith((*LIBRARIES, "<frozen", "<__array"))
        and not {"site-packages", "dist-packages"} & set(Path(frame.filename).parts)
    ]


EMPTY = ("RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS")  # of `def f(): pass`


def unfit(answer: Any) -> Wrong | None:
    """Why `answer` need not be tried at all."""
    if not callable(answer):
        return Wrong(f"answer={answer!r:.60}: must be the function that you wrote")
    if inspect.isgeneratorfunction(answer) or inspect.isasyncgenfunction(answer):
        return Wrong("it holds a `yield`, so a call runs nothing of it: use `return`")
    if inspect.iscoroutinefunction(answer):
        return Wrong("it is an `async def`, so a call runs nothing of it: use `def`")
    steps = dis.get_instructions(answer.__code__) if inspect.isfunction(answer) else ()
    nothing = [step.opname in EMPTY and ("CONST" not in step.opname or step.argval is None) for step in steps]
    return NotWritten() if nothing and all(nothing) else None
