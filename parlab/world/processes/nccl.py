"""Messages by NCCL, with CuPy, from one GPU's memory to another's. All else travels by MPI: headers, arrays in host
memory, and notes.

When the header has come, the receiver, which has made room on its GPU, tells the sender "go" and launches its receive
kernel. On "go" the sender launches its send kernel. Every ordered pair of ranks has a communicator and a stream of its
own.

Invariant: the k-th kernels on the two streams of a pair are the two ends of one message. For both ends launch in the
order of "go", and MPI keeps notes in order. This holds for messages of all groups and channels, and for every order of
posts. Therefore:

- A kernel starts when both ends are posted. On the GPU it waits only for earlier messages of its pair and for work that
  its rank had already queued. So no message can block another.
- A send ends only when the receiver has asked for the message.

    sender                                                  receiver
    send: an event behind the data's work, and              expect: room on the GPU, and an event behind
          the header by MPI                         ────▶           the work that used this memory before
                                                            receive_header, into
    heard                                           ◀────   launch_receive: "go" by MPI
    the send kernel, behind its event               ════▶   the receive kernel, behind its event
    has_passed: the event behind the kernel                 has_passed: the event behind the kernel

A message has passed when the event behind its kernel is done; work that is launched afterwards finds the data. The
arrays are referenced until then.
"""

from __future__ import annotations

import atexit
import pickle
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from parlab import arrays
from parlab.world.processes.transport import ArraySpec, ReceiveWire, SendWire, Transport, spec_of

GO = b"go "  # begins a note to a sender: go, the receiver, the tag
ON_GPU, ON_HOST = "g", "h"  # where an array of a message lies: a letter for each stands before the header


def _at(letter: str, letters: str, items: Sequence[Any]) -> list[Any]:
    """Those of the items, one for each array, whose array lies there."""
    return [item for item, its_letter in zip(items, letters, strict=True) if its_letter == letter]


class _SendWire:
    """See `SendWire`."""

    kernel_event: Any = None  # behind the kernel, when it is launched

    def __init__(self, by_mpi: SendWire, gpu_leaves: list[Any], ready_event: Any):
        self._by_mpi, self.gpu_leaves, self.ready_event = by_mpi, gpu_leaves, ready_event

    def has_passed(self) -> bool:
        kernel_done = self.kernel_event is not None and self.kernel_event.done
        return self._by_mpi.has_passed() and (kernel_done or not self.gpu_leaves)


class _ReceiveWire:
    """See `ReceiveWire`. It makes room on the GPU at once, so that its kernel does not wait for later computations."""

    _kernel_event: Any = None  # behind the kernel, if an array comes from a GPU

    def __init__(self, transport: NCCLTransport, by_mpi: ReceiveWire, src: int, tag: int, gpu_specs: list[ArraySpec]):
        self._transport, self._by_mpi, self._src, self._tag = transport, by_mpi, src, tag
        self._make_room(gpu_specs)

    def _make_room(self, specs: list[ArraySpec]) -> None:
        self._room_specs = specs
        self._room, self._room_ready = self._transport.room(specs)

    def receive_header(self) -> bytes | None:
        framed = self._by_mpi.receive_header()
        if framed is None:
            return None
        letters, _, header = framed.partition(b"\n")
        self._letters = letters.decode()
        return header

    def into(self, specs: list[ArraySpec]) -> list[Any]:
        """See `ReceiveWire`: each array in the kind of memory, the host's or a GPU's, that it comes from."""
        host_leaves = iter(self._by_mpi.into(_at(ON_HOST, self._letters, specs)))
        gpu_leaves = iter(self._gpu_leaves(_at(ON_GPU, self._letters, specs)))
        return [next(gpu_leaves if letter == ON_GPU else host_leaves) for letter in self._letters]

    def _gpu_leaves(self, specs: list[ArraySpec]) -> list[Any]:
        """The arrays on the GPU. The kernel that fills them is launched."""
        if not specs:
            return []
        if self._src == self._transport.rank:
            self._room, self._kernel_event = self._transport.from_itself(self._tag)
            return self._room
        if self._room_specs != specs:  # the sender's arrays differ, or lie in the other kind of memory
            self._make_room(specs)
        self._kernel_event = self._transport.launch_receive(self._src, self._tag, self._room, self._room_ready)
        return self._room

    def has_passed(self) -> bool:
        return self._by_mpi.has_passed() and (self._kernel_event is None or self._kernel_event.done)


class NCCLTransport:
    """See `Transport`: processes with a GPU each, the current one, that have met by MPI."""

    def __init__(self, by_mpi: Transport, cupy: Any):
        self.rank, self.size, self.ahead = by_mpi.rank, by_mpi.size, by_mpi.ahead
        self.tell, self.gather, self.share, self.abort = by_mpi.tell, by_mpi.gather, by_mpi.share, by_mpi.abort
        self._by_mpi, self._cupy = by_mpi, cupy
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._make_pairs()
        atexit.register(self._abort_pairs)  # which needs no common order of all ranks, as destroying them would

    def renew(self) -> None:
        """See `Transport`. Makes new communicators."""
        self._abort_pairs()
        self._by_mpi.renew()
        self._make_pairs()

    def _make_pairs(self) -> None:
        """Make a communicator with each other rank and for each direction. The sender draws its unique id.

        To make one, a rank waits for the other. All make theirs in one order, so no rank is stuck: in rounds, in which
        a rank meets one other rank, so all pairs of a round are made at the same time.
        """
        self._before_go: dict[tuple[int, int], deque[_SendWire]] = defaultdict(deque)  # by receiver and tag
        others = [peer for peer in range(self.size) if peer != self.rank]
        drawn = {(self.rank, peer): self._cupy.cuda.nccl.get_unique_id() for peer in others}
        of_all = self.share(pickle.dumps(self.gather(pickle.dumps(drawn))))
        ids = {ends: unique_id for of_one in pickle.loads(of_all) for ends, unique_id in pickle.loads(of_one).items()}
        own = [ends for ends in ids if self.rank in ends]
        for src, dst in sorted(own, key=_round):
            self._pairs[src, dst] = _Pair(self._cupy, ids[src, dst], int(dst == self.rank))

    def _abort_pairs(self) -> None:
        for pair in self._pairs.values():
            pair.abort()
        self._pairs = {}

    def prepared(self, x: Any) -> Any:
        """See `Transport`."""
        return self._cupy.asarray(x, order="C") if self._lies_on_gpu(x) else self._by_mpi.prepared(x)

    def send(self, header: bytes, leaves: Sequence[Any], dst: int, tag: int) -> _SendWire:
        """See `Transport`."""
        letters = "".join(ON_GPU if self._lies_on_gpu(x) else ON_HOST for x in leaves)
        gpu_leaves = _at(ON_GPU, letters, leaves)
        by_mpi = self._by_mpi.send(f"{letters}\n".encode() + header, _at(ON_HOST, letters, leaves), dst, tag)
        wire = _SendWire(by_mpi, gpu_leaves, self._ready_event(gpu_leaves))
        if gpu_leaves:
            self._before_go[dst, tag].append(wire)
        return wire

    def expect(self, src: int, tag: int, like: list[Any]) -> _ReceiveWire:
        """See `Transport`."""
        gpu_specs = [spec_of(x) for x in like if self._lies_on_gpu(x) and src != self.rank]
        return _ReceiveWire(self, self._by_mpi.expect(src, tag, like), src, tag, gpu_specs)

    def heard(self) -> Iterator[bytes]:
        """See `Transport`. On "go" the next message to that receiver is launched."""
        for note in self._by_mpi.heard():
            if note.startswith(GO):
                self._launch_send(*map(int, note.removeprefix(GO).split()))
            else:
                yield note

    def _launch_send(self, dst: int, tag: int) -> None:
        wire = self._before_go[dst, tag].popleft()
        wire.kernel_event = self._pairs[self.rank, dst].launch(wire.gpu_leaves, wire.ready_event)

    def launch_receive(self, src: int, tag: int, room: list[Any], room_ready: Any) -> Any:
        """Tell `src` to launch its next message with this tag, and receive it. Returns the event behind the kernel."""
        self.tell(src, GO + b"%d %d" % (self.rank, tag))
        return self._pairs[src, self.rank].launch(room, room_ready)

    def from_itself(self, tag: int) -> tuple[list[Any], Any]:
        """The arrays that this rank sends to itself, copies already, and the event behind the work on them."""
        wire = self._before_go[self.rank, tag].popleft()
        wire.kernel_event = wire.ready_event
        return wire.gpu_leaves, wire.ready_event

    def room(self, specs: list[ArraySpec]) -> tuple[list[Any], Any]:
        """New arrays on the GPU, and the event behind all earlier work, which may use their memory still."""
        room = [self._cupy.empty(*spec) for spec in specs]
        return room, self._ready_event(room)

    def _lies_on_gpu(self, x: Any) -> bool:
        return isinstance(x, self._cupy.ndarray)

    def _ready_event(self, gpu_leaves: list[Any]) -> Any:
        """An event behind all work that this task has launched; None if there is no array that needs it."""
        if not gpu_leaves:
            return None
        return self._cupy.cuda.get_current_stream().record(self._cupy.cuda.Event(disable_timing=True))


def _round(ends: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """The place of a pair in the order of all pairs: in round x, rank r meets rank r ^ x."""
    src, dst = ends
    return src ^ dst, ends


class _Pair:
    """One direction between two ranks. `end` is 0 at the sender and 1 at the receiver; both make it at the same time.

    NCCL connects the two at their first message, and blocks until both are there. That message is sent here, so that no
    rank blocks later.
    """

    def __init__(self, cupy: Any, unique_id: bytes, end: int):
        self._cupy, self._peer = cupy, 1 - end
        communicator = cupy.cuda.nccl.NcclCommunicator(2, unique_id, end)
        self._start = communicator.recv if end else communicator.send
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.abort = communicator.abort
        first = cupy.empty((1,), np.uint8)  # its memory must live until the message has passed
        self._put(first)
        self._stream.synchronize()

    def launch(self, leaves: list[Any], ready_event: Any) -> Any:
        """Launch the send or receive of `leaves` after the event `ready_event`; returns the event behind it."""
        self._stream.wait_event(ready_event)
        for leaf in leaves:
            if leaf.size:
                self._put(leaf)
        return self._stream.record(self._cupy.cuda.Event(disable_timing=True))

    def _put(self, x: Any) -> None:
        nccl = self._cupy.cuda.nccl
        self._start(pointer(x), arrays.nbytes(x), nccl.NCCL_UINT8, self._peer, self._stream.ptr)


def pointer(x: Any) -> int:
    """The address of an array on the GPU."""
    return int(x.data.ptr)
