"""Messages by NCCL, with CuPy, from the memory of one GPU to that of another; what lies in host memory travels beside.

The header of a message goes ahead on the side channel, as an offer. When the receiver has asked for the message and
made room, it answers "go" and launches its receive; the sender launches its send when it hears that. Every ordered pair
of ranks has a communicator and a stream of its own. Therefore:

- Both ends launch the messages of a pair in the same order, that of its go's, which a connection keeps. So the right
  kernels meet, whatever groups and channels the messages belong to, and in whatever order they were posted.
- A kernel is launched only when both ends are posted, and nothing but the end of earlier messages of its pair, and of
  what its own rank had computed when it was posted, comes before it on the GPU. So no message can block another, and a
  send is over only when the receiver has asked for it.

A message is done when the event behind its kernel is: what is launched from then on finds the data. Its arrays are
referenced until then.
"""

from __future__ import annotations

import atexit
import json
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
    """One direction between two ranks; `end` is 0 at the sender, 1 at the receiver, who both make it at once.

    NCCL connects them at the first message, and a rank that waited for that could not let others go: it passes here.
    """

    def __init__(self, cupy: Any, number: list[int], end: int):
        self._cupy, self._peer = cupy, 1 - end
        communicator = cupy.cuda.nccl.NcclCommunicator(2, tuple(number), end)
        self._start = communicator.recv if end else communicator.send
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.abort = communicator.abort
        first = cupy.empty((1,), np.uint8)
        self._put(first)
        self._stream.synchronize()

    def launch(self, leaves: list[Any], posted: Any) -> Any:
        """Send or receive the memory of `leaves`, after the event `posted`; returns the event behind it."""
        self._stream.wait_event(posted)
        for leaf in leaves:
            self._put(leaf)
        return self._stream.record(self._cupy.cuda.Event(disable_timing=True))

    def _put(self, x: Any) -> None:
        nccl = self._cupy.cuda.nccl
        self._start(pointer(x), arrays.nbytes(x), nccl.NCCL_UINT8, self._peer, self._stream.ptr)


def pointer(x: Any) -> int:
    """Where the memory of an array on the GPU begins."""
    return int(x.data.ptr)


class _Offer(NamedTuple):
    """What a sender says of a message; `places` has a 1 for each array that lies on the GPU, a 0 for each other."""

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
        self.beside = [leaf for leaf, place in travelling if not place]

    def done(self) -> bool:
        return self.going and not self.beside and (self.event is None or self.event.done)


class _Coming:
    """See `Coming`. Room on the GPU is made at once, so that its kernel waits for nothing that is computed later."""

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
        """See `Coming`: each in the memory, the host's or the GPU's, that it comes from."""
        if isinstance(self._offer, _End):  # from this rank itself: the copy that was sent
            self._end = self._offer
            self._end.going, self._end.beside = True, []
            return self._end.leaves
        places = self._offer.places
        if self._for != (forms, places):  # it does not fit, or comes from the other kind of memory
            self._make_room(forms, places)
        self._end = _End(self._rooms, places, self._posted)
        self._transport.go(self._way, self._end)
        return self._rooms

    def done(self) -> bool:
        return self._end.done()


class NCCLTransport:
    """See `Transport`: among processes with a GPU each, which is the current one, and a connection to each other."""

    def __init__(self, rank: int, size: int, connections: dict[int, Connection], cupy: Any):
        self.rank, self.size = rank, size
        self._cupy = cupy
        self._side = SideChannel(connections)
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._forget()
        self.renew()
        atexit.register(self._part)  # to destroy communicators in place of that, all must do so in one order
        self.ahead = clock_ahead(rank, size, lambda data, dst: self._side.put(dst, SAID, 0, data), self._answer)

    def renew(self) -> None:
        """See `Transport`: with new communicators. Nobody sends anything new before all have their numbers."""
        others = [peer for peer in range(self.size) if peer != self.rank]
        numbers = {(self.rank, peer): self._cupy.cuda.nccl.get_unique_id() for peer in others}
        for (_, dst), number in numbers.items():
            self._side.put(dst, NUMBER, 0, json.dumps(number).encode())
        self._until(lambda: len(self._numbers) == len(others), set(others))
        numbers |= {(src, self.rank): number for src, number in self._numbers.items()}
        self._part()
        self._forget()
        in_rounds = sorted(numbers, key=lambda pair: (pair[0] ^ pair[1], pair))  # one order for all, so nobody is stuck
        self._pairs = {ends: _Pair(self._cupy, numbers[ends], int(ends[1] == self.rank)) for ends in in_rounds}

    def _part(self) -> None:
        for pair in self._pairs.values():
            pair.abort()
        self._pairs = {}

    def _forget(self) -> None:
        self.offers: dict[Way, deque[Any]] = defaultdict(deque)  # what peers want to send
        self._offered: dict[Way, deque[_End]] = defaultdict(deque)  # what this rank wants to send
        self._arriving: dict[Way, deque[_End]] = defaultdict(deque)  # what is to come beside
        self._notes: deque[bytes] = deque()
        self._said: dict[int, deque[bytearray]] = defaultdict(deque)
        self._numbers: dict[int, list[int]] = {}  # of communicators, from those who send by them

    # Messages

    def on_gpu(self, x: Any) -> bool:
        """Whether this array lies on a GPU."""
        return isinstance(x, self._cupy.ndarray)

    def room(self, form: Form, place: int) -> Any:
        """A new array, on the GPU or in host memory."""
        return (self._cupy if place else np).empty(*form)

    def posted(self, places: bytes) -> Any:
        """An event behind all that this line of work has launched, if anything lies on the GPU."""
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
        """Receive the next message of this way, and let its sender know."""
        if end.beside:
            self._arriving[way].append(end)
        src, tag = way
        self._side.put(src, GO, tag)
        self._launch(end, (src, self.rank))

    def _gone(self, way: Way) -> None:
        """The receiver of the next message of this way has let it go."""
        end, (dst, tag) = self._offered[way].popleft(), way
        if end.beside:
            self._side.put(dst, DATA, tag, *map(in_bytes, end.beside))
            end.beside = []
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
        """See `Transport`: the others see that this one is gone, at the latest when they wait."""
        os._exit(1)

    def _listen(self) -> None:
        for src, kind, tag, contents in self._side.frames():
            if kind == NOTE:
                self._notes.append(bytes(contents))
            elif kind == SAID:
                self._said[src].append(contents)
            elif kind == NUMBER:
                self._numbers[src] = json.loads(contents)
            elif kind == GO:
                self._gone((src, tag))
            elif kind == DATA:
                end = self._arriving[src, tag].popleft()
                fill(end.beside, contents)
                end.beside = []
            else:
                start = 4 + int.from_bytes(contents[:4], "big")
                self.offers[src, tag].append(_Offer(bytes(contents[start:]), bytes(contents[4:start])))

    def _say(self, data: bytes, to: Iterable[int]) -> None:
        for dst in to:
            self._side.put(dst, SAID, 0, data)
        self._until(lambda: not self._side.busy, set())  # this process may end next

    def _answer(self, src: int) -> bytearray:
        self._until(lambda: self._said[src], {src})
        return self._said[src].popleft()

    def _until(self, over: Callable[[], Any], needed: set[int]) -> None:
        """Listen until it is `over`, to which the `needed` ranks must say something."""
        pause = Pause()
        while not over():
            self._check(self._side.gone & needed)  # what they have said before is read before
            self._listen()
            pause()

    def _check(self, gone: set[int]) -> None:
        """Without its peers a process ends too."""
        if gone:
            print(f"rank {self.rank} ends, because rank {min(gone)} has ended", file=sys.stderr, flush=True)
            self.abort()
