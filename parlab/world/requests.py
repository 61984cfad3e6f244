"""Requests: the handles that `isend`, `irecv` and background collectives return."""

from __future__ import annotations

from typing import Any

from parlab.world.engines.base import Engine
from parlab.world.engines.tasks import Signal, Task
from parlab.world.errors import RequestError
from parlab.world.send_buffer import SendBuffer
from parlab.world.values import Value


class Request:
    """A send, a receive or a collective that has started. Wait for it exactly once."""

    def __init__(self, engine: Engine, task: Task, call: str, awaited: Any):
        self._engine, self._task, self._call = engine, task, call
        self.awaited: Any = awaited  # a Message; for a collective, the Signal that is raised at its end
        task.open.add(self)

    def __repr__(self) -> str:
        return f"{self._call}({f'to {self.awaited.dst}' if self._call == 'isend' else f'from {self.awaited.src}'})"

    def wait(self) -> Value:
        """Wait until it is done. Returns the value of an `irecv` or of a collective, and None for an `isend`.

        Raises:
            RequestError: a second wait for this request; or an `isend` whose array has changed.
            MismatchError: see `Comm.recv`.
        """
        if self not in self._task.open:
            raise RequestError(f"rank {self._task.rank} waits for {self} a second time: a request is waited for once")
        self._task.open.remove(self)
        return self._finish()

    @property
    def met(self) -> bool:
        """Whether the message has passed, so that a deadlock need not name this request."""
        return self.awaited.passed

    def _finish(self) -> Value:
        self._engine.wait(self._task, (self.awaited,), self._call)
        return self._engine.take(self._task, self.awaited) if self._call == "irecv" else None


class SendRequest(Request):
    """An `isend`, and the memory that belongs to it until it is waited for."""

    def __init__(self, engine: Engine, task: Task, call: str, awaited: Any, sent: SendBuffer):
        super().__init__(engine, task, call, awaited)
        self._sent = sent

    def _finish(self) -> None:
        super()._finish()
        self._task.flags += self._sent.compare()


class CollectiveRequest(Request):
    """A collective in the background. It keeps the call's array until `wait`, so the program's task always frees it."""

    def __init__(self, engine: Engine, task: Task, call: str, done: Signal, array: Any):
        super().__init__(engine, task, call, done)
        self._array = array

    def __repr__(self) -> str:
        return self._call

    @property
    def met(self) -> bool:
        """Whether the collective is over."""
        return self.awaited.raised

    def _finish(self) -> Value:
        self._engine.await_signal(self._task, self.awaited, f"{self._call}().wait()")
        self._array = None
        result, self.awaited.task.result = self.awaited.task.result, None
        return result
