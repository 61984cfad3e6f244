"""Messages by NCCL, with CuPy, from one GPU's memory to another's. Arrays in host memory travel on the side channel.

First the sender offers the message: its header goes over the side channel. When the receiver has asked for the message
and made room, it answers "go" and launches its receive kernel. On "go" the sender launches its send kernel. Every
ordered pair of ranks has a communicator and a stream of its own. Therefore:

- Both ends launch the messages of a pair in the same order: that of their "go", which the connection keeps. So the
  right kernels meet, for messages of all groups and channels, and for every order of posts.
- A kernel starts when both ends are posted. On the GPU it waits only for earlier messages of its pair and for work that
  its rank had already queued. So no message can block another.
- A send ends only when the receiver has asked for the message.

A message is done when the event behind its kernel is done; work that is launched afterwards finds the data. The arrays
are referenced until then.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import numpy as np

from parlab import arrays
from parlab.world.processes.engine import Pause
from parlab.world.processes.side_channel import DATA, GO, NOTE, NUMBER, OFFER, SAID, SideChannel
from parlab.world.processes.transport import Form, clock_ahead, fill, form_of, in_bytes, in_host_memory

Way = tuple[int, int]  # the other rank, tag


class _Pair:
    """One direction between two ranks. `end` is 0 at the sender and 1 at the receiver; both make it at the same time.

    NCCL connects the two at their first message, and blocks until both are there. That message is sent here, so that no
    rank blocks later.
    """

    def __init__(self, cupy: Any, number: bytes, end: int):
        self._cupy, self._peer = cupy, 1 - end
        communicator = cupy.cuda.nccl.NcclCommunicator(2, number, end)
        self._start = communicator.recv if end else communicator.send
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.abort = communicator.abort
        first = cupy.empty((1,), np.uint8)
        self._put(first)
        self._stream.synchronize()

    def launch(self, leaves: list[Any], posted: Any) -> Any:
        """Launch the send or receive of `leaves` after the event `posted`; returns the event behind it."""
        self._stream.wait_event(posted)
        for leaf in leaves:
            self._put(leaf)
        return self._stream.record(self._cupy.cuda.Event(disable_timing=True))

    def _put(self, x: Any) -> None:
        nccl = self._cupy.cuda.nccl
        self._start(pointer(x), arrays.nbytes(x), nccl.NCCL_UINT8, self._peer, self._stream.ptr)


def pointer(x: Any) -> int:
    """The address of an array on the GPU."""
    return int(x.data.ptr)


class _Offer(NamedTuple):
    """The offer of a message. `places` has a 1 for each array on the GPU, and a 0 for each in host memory."""

    header: bytes
    places: bytes


class _End:
    """One end of a message; see `Sent` and `Coming`."""

    event: Any = None  # behind its kernel

    def __init__(self, leaves: Sequence[Any], places: bytes, posted: Any, header: bytes = b""):
        self.leaves, self.posted, self.header = leaves, posted, header
        self.going = False  # whether both ends are posted
        travelling = [(leaf, place) for leaf, place in zip(leaves, places, strict=True) if leaf.size]
        self.on_gpu = [leaf for leaf, place in travelling if place]
        self.on_host = [leaf for leaf, place in travelling if not place]

    def done(self) -> bool:
        return self.going and not self.on_host and (self.event is None or self.event.done)


class _Coming:
    """See `Coming`. It makes room on the GPU at once, so that its kernel does not wait for later computations."""

    def __init__(self, transport: NCCLTransport, way: Way, like: list[Any]):
        self._transport, self._way = transport, way
        self._make_room([form_of(x) for x in like], bytes(map(transport.on_gpu, like)))
        self._offer: Any = None
        self._end: Any = None

    def _make_room(self, forms: list[Form], places: bytes) -> None:
        self._for = forms, places
        self._rooms = [self._transport.room(form, place) for form, place in zip(forms, places, strict=True)]
        self._posted = self._transport.posted(places)

    def header(self) -> bytes | None:
        offers = self._transport.offers[self._way]
        if not offers:
            return None
        self._offer = offers.popleft()
        return self._offer.header

    def into(self, forms: list[Form]) -> list[Any]:
        """See `Coming`: each array in the kind of memory, the host's or a GPU's, that it comes from."""
        if isinstance(self._offer, _End):  # from this rank itself: the copy that it sends
            self._end = self._offer
            self._end.going, self._end.on_host = True, []
            return self._end.leaves
        places = self._offer.places
        if self._for != (forms, places):  # another form, or the other kind of memory
            self._make_room(forms, places)
        self._end = _End(self._rooms, places, self._posted)
        self._transport.go(self._way, self._end)
        return self._rooms

    def done(self) -> bool:
        return self._end.done()


class NCCLTransport:
    """See `Transport`: processes with a GPU each, the current one, and a connection to each other process."""

    def __init__(self, rank: int, size: int, connections: dict[int, Connection], cupy: Any):
        self.rank, self.size = rank, size
        self._cupy = cupy
        self._side = SideChannel(connections)
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._forget()
        self.renew()
        atexit.register(self._part)  # aborting needs no common order of all ranks, as destroying communicators would
        self.ahead = clock_ahead(rank, size, lambda data, dst: self._side.put(dst, SAID, 0, data), self._answer)

    def renew(self) -> None:
        """See `Transport`. Makes new communicators; no rank sends before all ranks have their numbers."""
        others = [peer for peer in range(self.size) if peer != self.rank]
        numbers = {(self.rank, peer): self._cupy.cuda.nccl.get_unique_id() for peer in others}
        for (_, dst), number in numbers.items():
            self._side.put(dst, NUMBER, 0, number)
        self._until(lambda: len(self._numbers) == len(others), set(others))
        numbers |= {(src, self.rank): number for src, number in self._numbers.items()}
        self._part()
        self._forget()
        in_rounds = sorted(
            numbers, key=lambda pair: (pair[0] ^ pair[1], pair)
        )  # the same order on all ranks, so no rank is stuck
        self._pairs = {ends: _Pair(self._cupy, numbers[ends], int(ends[1] == self.rank)) for ends in in_rounds}

    def _part(self) -> None:
        for pair in self._pairs.values():
            pair.abort()
        self._pairs = {}

    def _forget(self) -> None:
        self.offers: dict[Way, deque[Any]] = defaultdict(deque)  # messages that peers offer
        self._offered: dict[Way, deque[_End]] = defaultdict(deque)  # messages that this rank offers
        self._arriving: dict[Way, deque[_End]] = defaultdict(
            deque
        )  # messages with arrays in host memory that are to come
        self._notes: deque[bytes] = deque()
        self._said: dict[int, deque[bytearray]] = defaultdict(deque)
        self._numbers: dict[int, bytes] = {}  # of communicators, by their sender

    # Messages

    def on_gpu(self, x: Any) -> bool:
        """Whether this array lies on a GPU."""
        return isinstance(x, self._cupy.ndarray)

    def room(self, form: Form, place: int) -> Any:
        """A new array, on the GPU or in host memory."""
        return (self._cupy if place else np).empty(*form)

    def posted(self, places: bytes) -> Any:
        """An event behind all work that this task has launched; None if no array lies on the GPU."""
        if any(places):
            return self._cupy.cuda.get_current_stream().record(self._cupy.cuda.Event(disable_timing=True))
        return None

    def ready(self, x: Any) -> Any:
        """See `Transport`."""
        return self._cupy.asarray(x, order="C") if self.on_gpu(x) else in_host_memory(x)

    def send(self, header: bytes, leaves: Sequence[Any], dst: int, tag: int) -> _End:
        """See `Transport`."""
        places = bytes(map(self.on_gpu, leaves))
        end = _End(leaves, places, self.posted(places), header)
        if dst == self.rank:
            self.offers[dst, tag].append(end)
        else:
            self._offered[dst, tag].append(end)
            self._side.put(dst, OFFER, tag, len(places).to_bytes(4, "big"), places, header)
        return end

    def expect(self, src: int, tag: int, like: list[Any]) -> _Coming:
        """See `Transport`."""
        return _Coming(self, (src, tag), [] if src == self.rank else like)

    def go(self, way: Way, end: _End) -> None:
        """Receive the next message of this way, and tell its sender."""
        if end.on_host:
            self._arriving[way].append(end)
        src, tag = way
        self._side.put(src, GO, tag)
        self._launch(end, (src, self.rank))

    def _gone(self, way: Way) -> None:
        """The receiver has answered "go" to the next message of this way."""
        end, (dst, tag) = self._offered[way].popleft(), way
        if end.on_host:
            self._side.put(dst, DATA, tag, *map(in_bytes, end.on_host))
            end.on_host = []
        self._launch(end, (self.rank, dst))

    def _launch(self, end: _End, ends: tuple[int, int]) -> None:
        end.going = True
        if end.on_gpu:
            end.event = self._pairs[ends].launch(end.on_gpu, end.posted)

    # The side channel

    def tell(self, dst: int, note: bytes) -> None:
        """See `Transport`."""
        self._side.put(dst, NOTE, 0, note)

    def heard(self) -> Iterator[bytes]:
        """See `Transport`."""
        self._listen()
        self._check(self._side.gone)
        while self._notes:
            yield self._notes.popleft()

    def gather(self, data: bytes) -> list[bytes]:
        """See `Transport`."""
        if self.rank == 0:
            return [data, *(bytes(self._answer(src)) for src in range(1, self.size))]
        self._say(data, [0])
        return []

    def share(self, data: bytes) -> bytes:
        """See `Transport`."""
        if self.rank:
            return bytes(self._answer(0))
        self._say(data, range(1, self.size))
        return data

    def connect(self, members: tuple[int, ...], tag: int) -> Any:
        """See `Transport`."""
        raise NotImplementedError("NCCL's own collectives")

    def abort(self) -> NoReturn:
        """See `Transport`: the other processes notice that this one is gone, at the latest when they wait."""
        os._exit(1)

    def _listen(self) -> None:
        for src, kind, tag, contents in self._side.frames():
            if kind == NOTE:
                self._notes.append(bytes(contents))
            elif kind == SAID:
                self._said[src].append(contents)
            elif kind == NUMBER:
                self._numbers[src] = bytes(contents)
            elif kind == GO:
                self._gone((src, tag))
            elif kind == DATA:
                end = self._arriving[src, tag].popleft()
                fill(end.on_host, contents)
                end.on_host = []
            else:
                start = 4 + int.from_bytes(contents[:4], "big")
                self.offers[src, tag].append(_Offer(bytes(contents[start:]), bytes(contents[4:start])))

    def _say(self, data: bytes, to: Iterable[int]) -> None:
        for dst in to:
            self._side.put(dst, SAID, 0, data)
        self._until(lambda: not self._side.busy, set())  # this process may end after this

    def _answer(self, src: int) -> bytearray:
        self._until(lambda: self._said[src], {src})
        return self._said[src].popleft()

    def _until(self, over: Callable[[], Any], needed: set[int]) -> None:
        """Listen until `over()`; the `needed` ranks must answer for that."""
        pause = Pause()
        while not over():
            self._check(self._side.gone & needed)  # frames that they sent before are read first
            self._listen()
            pause()

    def _check(self, gone: set[int]) -> None:
        """A process whose peer is gone ends too."""
        if gone:
            print(f"rank {self.rank} ends, because rank {min(gone)} has ended", file=sys.stderr, flush=True)
            self.abort()
