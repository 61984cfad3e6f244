"""Strands as greenlets: ranks take turns as in a browser, on a Python that has threads."""

from __future__ import annotations

import threading
from collections import deque

import greenlet

from parlab.world.engines import strands

_of_thread = threading.local()  # a greenlet stays on its thread


class Greenlet(strands.Cooperative):
    """A strand that hands over to the caller, who goes on with the strand that was woken first.

    The caller starts all of them, because a greenlet inherits its starter's depth of recursion.
    """

    def __init__(self, work=None, name=""):
        super().__init__(work, name)
        self._ready = _of_thread.__dict__.setdefault("ready", deque())
        current = greenlet.getcurrent()
        self._caller = current.parent or current
        self._greenlet = greenlet.greenlet(self.run, self._caller)

    def start(self):
        self.alive = True
        self.resume()

    def pause(self):
        if self.work is not None:
            self._caller.switch()
        else:
            while (first := self._ready.popleft()) is not self:
                first._greenlet.switch()

    def resume(self):
        self._ready.append(self)


def install():
    """From now on ranks are greenlets."""
    strands.kind_of_strand = lambda: Greenlet
