"""The side channel of processes without MPI: frames between any two of them, in order, by their sockets."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

HEAD = struct.Struct("!BQQ")  # kind, tag, length
SAID, NOTE, NUMBER, OFFER, GO, DATA = range(6)  # of gather and share, notes, communicators, and three of messages

Frame = tuple[int, int, int, bytearray]  # from whom, kind, tag, contents


class SideChannel:
    """Frames to and from the other ranks, by a connection to each. No method waits."""

    def __init__(self, connections: dict[int, Connection]):
        self._connections = connections
        for connection in connections.values():
            os.set_blocking(connection.fileno(), False)
        self._out: dict[int, deque[memoryview]] = {peer: deque() for peer in connections}
        self._in = {peer: self._read(peer) for peer in connections}
        self.gone: set[int] = set()  # ranks that have closed their end

    def put(self, dst: int, kind: int, tag: int = 0, *contents: Any) -> None:
        """Send the bytes of `contents` as one frame, as fast as `dst` reads. They must not change until then."""
        parts = [memoryview(part).cast("B") for part in contents if len(part)]
        head = HEAD.pack(kind, tag, sum(map(len, parts)))
        self._out[dst] += [memoryview(head), *parts]
        self._write(dst)

    def frames(self) -> Iterator[Frame]:
        """The frames that have arrived; frames on their way out are moved on too."""
        for peer, incoming in self._in.items():
            self._write(peer)
            while (frame := next(incoming)) is not None:
                yield frame

    @property
    def busy(self) -> bool:
        """Whether a frame is still on its way out."""
        return any(self._out.values())

    def close(self) -> None:
        """Close this end."""
        for connection in self._connections.values():
            connection.close()

    def _write(self, dst: int) -> None:
        out = self._out[dst]
        try:
            while out:
                written = os.write(self._connections[dst].fileno(), out[0])
                out[0] = out[0][written:]
                if not out[0]:
                    out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            out.clear()  # nobody reads them; reading from this peer will find that it is gone

    def _read(self, src: int) -> Iterator[Frame | None]:
        """The frames from `src`; None when no further one has arrived."""
        while True:
            head = yield from self._exactly(src, HEAD.size)
            kind, tag, length = HEAD.unpack(head)
            contents = yield from self._exactly(src, length)
            yield src, kind, tag, contents

    def _exactly(self, src: int, length: int) -> Any:
        data, have = bytearray(length), 0
        while have < length:
            try:
                came = os.readv(self._connections[src].fileno(), [memoryview(data)[have:]])
            except BlockingIOError:
                yield None
                continue
            except OSError:
                came = 0
            while not came:
                self.gone.add(src)
                yield None
            have += came
        return data
