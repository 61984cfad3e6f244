"""A stand-in for CuPy and its NCCL, in host memory, with their blocking rules, between threads or processes.

A communicator is there when both of its ends are, and connected when both have called its first message. What is put on
a stream runs later, on the stream's own thread, one after the other. A send is over when the receive at the other end
has run; until then both hold up their streams. Sizes that differ are an error, as is everything after an abort.
"""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np

from parlab.world.processes import machine, nccl

LENGTH = 128  # of a communicator's number
_streams: dict[int, Stream] = {}
_communicators: list[NcclCommunicator] = []
_doors: dict[int, socket.socket] = {}


class NcclError(RuntimeError):
    """As `cupy.cuda.nccl.NcclError`."""


class Event:
    """As `cupy.cuda.Event`."""

    def __init__(self, disable_timing: bool = False):
        self.passed = threading.Event()
        self.stream: Any = None

    @property
    def done(self) -> bool:
        if self.stream is not None and self.stream.error is not None:
            raise self.stream.error
        return self.passed.is_set()


class Stream:
    """As `cupy.cuda.Stream`, with `launch` for a kernel of any kind."""

    def __init__(self, non_blocking: bool = False):
        self.non_blocking = non_blocking
        self.error: Exception | None = None
        self._kernels: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.ptr = id(self)
        _streams[self.ptr] = self
        self.thread = threading.Thread(target=self._run, daemon=True, name="a stream")
        self.thread.start()

    def _run(self) -> None:
        while (kernel := self._kernels.get()) is not None:
            try:
                kernel()
            except (NcclError, OSError) as error:
                self.error = error

    def launch(self, kernel: Callable[[], None] | None) -> None:
        self._kernels.put(kernel)

    def wait_event(self, event: Event) -> None:
        self.launch(event.passed.wait)  # type: ignore[arg-type]

    def synchronize(self) -> None:
        self.record(event := Event())
        event.passed.wait()

    def record(self, event: Event) -> Event:
        event.stream = self
        self.launch(event.passed.set)
        return event


def stop() -> None:
    """End all streams and communicators of this process."""
    for communicator in _communicators:
        communicator.abort()
        communicator.close()
    for stream in _streams.values():
        stream.launch(None)
        stream.thread.join()
    _communicators.clear()
    _streams.clear()


class NcclCommunicator:
    """As `cupy.cuda.nccl.NcclCommunicator`, of two ranks."""

    def __init__(self, size: int, number: bytes, rank: int):
        assert size == 2
        assert type(number) is bytes  # since CuPy 14; before, a tuple of numbers
        assert len(number) == LENGTH
        port = int.from_bytes(number[:2], "big")
        if rank == 0:  # whoever sends has drawn the number
            with _doors.pop(port) as door:
                self._socket = door.accept()[0]
        else:
            self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.aborted = self.connected = False
        self.close = self._socket.close
        _communicators.append(self)

    def send(self, memory: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._check(kind)
        self._connect()

        def kernel() -> None:
            expected = int.from_bytes(self._exactly(8), "big")
            self._socket.sendall(count.to_bytes(8, "big"))
            if expected != count:
                raise NcclError(f"{count} bytes are sent, but {expected} are received")
            self._socket.sendall(ctypes.string_at(memory, count))

        _streams[stream].launch(kernel)

    def recv(self, memory: int, count: int, kind: int, peer: int, stream: int) -> None:
        self._check(kind)
        self._connect()

        def kernel() -> None:
            self._socket.sendall(count.to_bytes(8, "big"))
            sent = int.from_bytes(self._exactly(8), "big")
            if sent != count:
                raise NcclError(f"{sent} bytes are sent, but {count} are received")
            ctypes.memmove(memory, self._exactly(count), count)

        _streams[stream].launch(kernel)

    def abort(self) -> None:
        self.aborted = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _check(self, kind: int) -> None:
        assert kind == UINT8
        if self.aborted:
            raise NcclError("the communicator is aborted")

    def _connect(self) -> None:
        """The caller, not a stream, waits for the other end."""
        if not self.connected:
            self._socket.sendall(b"!")
            self._exactly(1)
            self.connected = True

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += (came := self._socket.recv(count - len(data)))
            if not came:
                raise NcclError("the communicator is aborted")
        return data


UINT8 = 1


def get_unique_id() -> bytes:
    door = socket.create_server(("127.0.0.1", 0))
    port = door.getsockname()[1]
    _doors[port] = door
    return port.to_bytes(2, "big") + bytes(LENGTH - 2)


def pointer(x: Any) -> int:
    """In the place of `nccl.pointer`."""
    return getattr(x, "_array", x).ctypes.data


class _Strict(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return "device1" in str(getattr(x, "device", ""))


class StrictArray(metaclass=_Strict):
    """What lies on array-api-strict's second device, which `tests.device` guards."""


def _strict(x: np.ndarray) -> Any:
    import array_api_strict  # not at the top: processes that need none start sooner

    return array_api_strict.asarray(x, device=array_api_strict.Device("device1"))


class FakeCuPy(SimpleNamespace):
    """As the module `cupy` of one rank. NumPy's arrays lie on its GPU, or those that `tests.device` guards."""

    def __init__(self, strict: bool = False):
        nccl = SimpleNamespace(
            NcclCommunicator=NcclCommunicator, get_unique_id=get_unique_id, NCCL_UINT8=UINT8, available=True
        )
        self.current = Stream()
        super().__init__(
            ndarray=StrictArray if strict else np.ndarray,
            empty=(lambda shape, dtype: _strict(np.empty(shape, dtype))) if strict else np.empty,
            asarray=(lambda x, order: _strict(np.asarray(x._array, order=order))) if strict else np.asarray,
            cuda=SimpleNamespace(
                nccl=nccl,
                Stream=Stream,
                Event=Event,
                get_current_stream=lambda: self.current,
                is_available=lambda: True,
                Device=lambda number: SimpleNamespace(use=lambda: setattr(self, "used", number)),
                runtime=SimpleNamespace(getDeviceCount=lambda: 4, getDevice=lambda: self.used),
            ),
        )


def install(strict: bool = False) -> None:
    """Let the stand-in be this process's CuPy."""
    fake = FakeCuPy(strict)
    machine._cupy = lambda: fake
    nccl.pointer = pointer
