"""`Comm`: the messages and collectives of a rank program, and its notes of computations and held memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from parlab.arguments import amount, checked_axis, checked_rank, text, whole
from parlab.arrays import Array, namespace
from parlab.world import values
from parlab.world.cluster import MOST_SECONDS
from parlab.world.collectives import algorithms
from parlab.world.collectives.algorithms import Collective
from parlab.world.collectives.common import combiner, cut, equal_lengths
from parlab.world.collectives.rooted import binomial_broadcast, binomial_reduce, linear_gather, linear_scatter
from parlab.world.collectives.shifts import dissemination_barrier
from parlab.world.engines.base import Engine
from parlab.world.engines.log import COMPUTE, PRINT
from parlab.world.engines.tasks import Arrival, Group, Mailbox, Message, Signal, Task
from parlab.world.requests import CollectiveRequest, Request, SendRequest
from parlab.world.send_buffer import SendBuffer
from parlab.world.values import Value, one_array


class Comm:
    """A rank's place in a group of ranks.

    Messages from one rank to another match in the order in which they are posted. A blocking `send` returns when the
    receiver takes the message. A value is an array, or a nested tuple, list or dict of arrays. One value is one
    message. It is copied, and it arrives in C order.

    Attributes:
        rank: this rank's number in the group, from 0.
        size: ranks in the group.
        left, right: the previous and the next rank on the ring.
    """

    def __init__(self, engine: Engine, task: Task, group: Group, channel: str = "messages", prefix: str | None = None):
        self.rank = group.members.index(task.rank)
        self.size = len(group.members)
        self.left, self.right = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        self._engine = engine
        self._task = task
        self._group = group
        self._channel = channel
        self._prefix = prefix  # of the names of its messages: the name that `split` was given
        self._name = self._named("message")  # timelines show its messages under this name
        self._outboxes: dict[int, Mailbox] = {}  # to each rank, when it was first needed
        self._inboxes: dict[int, Mailbox] = {}
        self._splits = 0
        self._inner: Comm | None = None
        self._last_in_background: Signal | None = None

    def __repr__(self) -> str:
        return f"Comm(rank {self.rank} of {self.size}, group {self._group.name})"

    # Messages

    def send(self, x: Value, dst: int, *, label: Any = None) -> None:
        """Send `x` to rank `dst`, and return when `dst` takes it. Until then this rank holds `x`.

        Args:
            x: an array, or nested tuples, lists and dicts of arrays.
            dst: a rank of this group.
            label: a name for the message. It is compared with the receiver's label. It does not decide which receive
                gets the message.

        Raises:
            ValueError: `dst` is not a rank of the group, or `x` holds other things than arrays.
            DeadlockError: no rank can continue. `run` raises it.
        """
        self._post_send(self._outbox(dst), values.checked(x, "x"), label, call="send")

    def recv(self, src: int, like: Value, *, label: Any = None) -> Value:
        """Receive the next value from rank `src`.

        Args:
            src: a rank of this group.
            like: a value with the nesting, shapes and dtypes of the message; its contents do not matter.
            label: see `send`.

        Raises:
            ValueError: `src` is not a rank of the group.
            MismatchError: the message has another form than `like`, or another label.
        """
        message = self._post_receive(self._inbox(src), values.checked(like, "like"), label, call="recv")
        return self._engine.take(self._task, message)

    def sendrecv(
        self, x: Value, dst: int, src: int, like: Value = None, *, label: Any = None, expected: Any = None
    ) -> Value:
        """Send `x` to `dst` and receive from `src` at the same time.

        `like` has the form of the received value; None: the form of `x`. `expected` is the label of the received value;
        None: the same as `label`.

        Raises: as `send` and `recv`.
        """
        outbox, inbox, x = self._outbox(dst), self._inbox(src), values.checked(x, "x")
        like = x if like is None else values.checked(like, "like")
        out = self._post_send(outbox, x, label)
        back = self._post_receive(inbox, like, label if expected is None else expected)
        self._engine.wait(self._task, (out, back), "sendrecv")
        return self._engine.take(self._task, back)

    def isend(self, x: Value, dst: int, *, label: Any = None) -> Request:
        """Start to send `x`, and return at once. Do not change `x` before `wait()` has returned. See `send`.

        This rank holds `x` until the message has passed. Wait for every request.

        Raises: as `send`. If `x` has changed, `wait()` raises a RequestError.
        """
        outbox, x = self._outbox(dst), values.checked(x, "x")
        message = self._post_send(outbox, x, label)
        return SendRequest(self._engine, self._task, "isend", message, SendBuffer(self._task, x, message.dst))

    def irecv(self, src: int, like: Value, *, label: Any = None) -> Request:
        """Start to receive, and return at once; `wait()` returns the value. This rank holds its memory from now on.

        See `recv`.
        """
        message = self._post_receive(self._inbox(src), values.checked(like, "like"), label)
        return Request(self._engine, self._task, "irecv", message)

    def _outbox(self, dst: int) -> Mailbox:
        """The mailbox to `dst`. A ValueError, if that is no rank of the group."""
        if type(dst) is not int or dst not in self._outboxes:  # the first message there, or no rank at all
            dst = checked_rank(dst, "dst", self.size)
            self._outboxes[dst] = self._group.mailbox(self._channel, self.rank, dst)
        return self._outboxes[dst]

    def _inbox(self, src: int) -> Mailbox:
        """See `_outbox`."""
        if type(src) is not int or src not in self._inboxes:
            src = checked_rank(src, "src", self.size)
            self._inboxes[src] = self._group.mailbox(self._channel, src, self.rank)
        return self._inboxes[src]

    def _post_send(self, box: Mailbox, x: Value, label: Any, call: str = "") -> Message:
        holds = self._task.memory.held_by_message(x)
        return self._engine.post_send(self._task, box, values.copied(x), holds, self._name, label, call=call)

    def _post_receive(self, box: Mailbox, like: Value, label: Any, call: str = "") -> Message:
        return self._engine.post_receive(self._task, box, like, self._name, label, call=call)

    # Collectives. Every rank of the group calls the same collectives in the same order; the calls are compared. On the
    # simulated clock, a rank in a collective waits only for the messages that it needs. Only `barrier` waits for all.
    # `_enter` compares the calls and returns a `Comm` for the collective's messages; `_run` runs an algorithm on it.
    # Where there are several algorithms, `algorithms` has a table of them. It checks the arguments, and returns a
    # function of a `Comm` that runs the chosen one: here at once, below in the background.

    def all_reduce(
        self, x: Array, op: str = "sum", algorithm: str | None = None, *, ranks_per_node: int | None = None
    ) -> Array:
        """Combine the ranks' arrays element by element; every rank gets the same result, to the bit.

        Args:
            x: an array of the same shape and dtype on every rank; any length will do.
            op: sum, prod, max or min.
            algorithm: ring (the default), recursive_doubling, rabenseifner, circulant, hierarchical or rings.
            ranks_per_node: for hierarchical and rings: how many consecutive ranks share a node. It divides the group's
                size.

        Raises:
            ValueError: an unknown `op` or `algorithm`, or `ranks_per_node` missing or not a divisor.
            MismatchError: another rank entered another collective, or this one with other arguments.
        """
        x = one_array(x)
        collective = algorithms.all_reduce(self.size, x, op, algorithm, ranks_per_node)
        return collective(self)

    def reduce(self, x: Array, root: int = 0, op: str = "sum") -> Array | None:
        """Combine the ranks' arrays on rank `root`, by a binomial tree; the others get None. See `all_reduce`."""
        x = one_array(x)
        root = checked_rank(root, "root", self.size)
        combine = combiner(op, x)
        return self._enter("reduce", x, op=op, root=root)._run(binomial_reduce, x, root, combine)

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """Every rank gets the array of rank `root`, by a binomial tree. The others pass one of its shape and dtype.

        Raises: as `all_reduce`.
        """
        x = one_array(x)
        root = checked_rank(root, "root", self.size)
        return self._enter("broadcast", x, root=root)._run(binomial_broadcast, x, root)

    def all_gather(
        self,
        x: Array,
        axis: int = 0,
        algorithm: str | None = None,
        *,
        counts: list[int] | None = None,
        out: Array | None = None,
        ranks_per_node: int | None = None,
    ) -> Array:
        """Join the ranks' arrays along `axis`, in the order of the ranks. Every rank gets the whole.

        Args:
            x: an array of the same dtype on every rank; without `counts`, of the same shape too.
            axis: where to join.
            algorithm: ring (the default), bruck, circulant, recursive_doubling (a power of two of ranks), or
                hierarchical.
            counts: the length of each rank's array along `axis`, where they differ (ring and hierarchical only).
            out: for arrays of one axis: the result is written into this array, which is then returned. `x` may be this
                rank's part of it.
            ranks_per_node: for hierarchical, as in `all_reduce`.

        Raises: as `all_reduce`, and ValueError where `out` does not fit.
        """
        x = one_array(x)
        collective = algorithms.all_gather(self.rank, self.size, x, axis, algorithm, counts, out, ranks_per_node)
        return collective(self)

    def reduce_scatter(
        self,
        x: Array,
        axis: int = 0,
        op: str = "sum",
        algorithm: str | None = None,
        *,
        counts: list[int] | None = None,
        ranks_per_node: int | None = None,
    ) -> Array:
        """Combine the ranks' arrays; rank r gets the r-th piece along `axis`.

        Args:
            x, op: as in `all_reduce`.
            axis: where to cut. The group's size divides its length, unless `counts` gives the length of each piece.
            algorithm: ring (the default), circulant, recursive_halving (a power of two of ranks), or hierarchical.
            counts: the length of each rank's piece (ring and hierarchical only). Their sum is the length of the axis.
            ranks_per_node: for hierarchical, as in `all_reduce`.

        Raises: as `all_reduce`, and ValueError where the axis does not divide.
        """
        x = one_array(x)
        collective = algorithms.reduce_scatter(self.size, x, axis, op, algorithm, counts, ranks_per_node)
        return collective(self)

    def all_to_all(
        self,
        x: Array,
        split_axis: int,
        concat_axis: int,
        algorithm: str | None = None,
        *,
        ranks_per_node: int | None = None,
    ) -> Array:
        """Cut `x` along `split_axis`, send piece i to rank i, and join the received pieces along `concat_axis`.

        Args:
            x: an array of the same shape and dtype on every rank.
            split_axis: where to cut. The group's size divides its length.
            concat_axis: where to join.
            algorithm: pairwise (the default), bruck, grid or hierarchical.
            ranks_per_node: for grid and hierarchical, as in `all_reduce`.

        Raises: as `all_reduce`, and ValueError where the axis does not divide.
        """
        x = one_array(x)
        collective = algorithms.all_to_all(self.size, x, split_axis, concat_axis, algorithm, ranks_per_node)
        return collective(self)

    def scatter(self, x: Array, root: int = 0, axis: int = 0) -> Array:
        """Rank r gets the r-th piece of the array of rank `root`. The others pass an array of its shape and dtype.

        Raises: as `all_reduce`, and ValueError where the axis does not divide.
        """
        x = one_array(x)
        root = checked_rank(root, "root", self.size)
        axis = checked_axis(axis, "axis", x)
        pieces = cut(x, axis, equal_lengths(x, axis, self.size, "axis"))
        return self._enter("scatter", x, root=root, axis=axis)._run(linear_scatter, pieces, root)

    def gather(self, x: Array, root: int = 0, axis: int = 0) -> Array | None:
        """Join the ranks' arrays along `axis` on rank `root`; the others get None. Raises: as `all_reduce`."""
        x = one_array(x)
        root = checked_rank(root, "root", self.size)
        axis = checked_axis(axis, "axis", x)
        pieces = self._enter("gather", x, root=root, axis=axis)._run(linear_gather, x, root)
        return None if pieces is None else namespace(x).concat(pieces, axis=axis)

    def barrier(self) -> None:
        """Wait until every rank of the group has called this (dissemination: ⌈log₂P⌉ empty messages a rank)."""
        self._enter("barrier")._run(dissemination_barrier)

    # Collectives in the background, each by its default algorithm. They run in the order of their calls, on their own
    # channel, while the rank computes. They copy `x`, so the program may change it at once. They sum.

    def iall_reduce(self, x: Array) -> Request:
        """Start an `all_reduce` and go on; `wait()` returns its result."""
        x = values.copied(one_array(x))
        return self._in_background("iall_reduce", x, algorithms.all_reduce(self.size, x))

    def iall_gather(
        self, x: Array, axis: int = 0, *, counts: list[int] | None = None, out: Array | None = None
    ) -> Request:
        """Start an `all_gather` and go on; `wait()` returns its result. Do not touch `out` before that."""
        x = values.copied(one_array(x))
        gather = algorithms.all_gather(self.rank, self.size, x, axis, counts=counts, out=out)
        return self._in_background("iall_gather", x, gather)

    def ireduce_scatter(self, x: Array, axis: int = 0, *, counts: list[int] | None = None) -> Request:
        """Start a `reduce_scatter` and go on; `wait()` returns its result."""
        x = values.copied(one_array(x))
        return self._in_background("ireduce_scatter", x, algorithms.reduce_scatter(self.size, x, axis, counts=counts))

    def _in_background(self, call: str, x: Array, collective: Collective) -> Request:
        """Run `collective`, whose array is `x`, in a task that begins when the one before it is over."""
        group = self._engine.background_of(self._group)
        self._last_in_background = self._engine.spawn(
            self._task,
            lambda task: collective(Comm(self._engine, task, group, prefix=self._prefix)),
            self._last_in_background,
        )
        return CollectiveRequest(self._engine, self._task, call, self._last_in_background, x)

    def split(self, color: int | None, key: int | None = None, *, name: str | None = None) -> Comm | None:
        """New groups: the ranks with the same `color` form a group, ordered by `key`, then by rank.

        Every rank of this group calls it. It takes no simulated time. But a rank needs the colors of all ranks to know
        its group, so no rank returns before the last rank has called.

        Args:
            color: a whole number; None to join no group (the call then returns None).
            key: a whole number; None: this rank.
            name: the groups' name in errors. In timelines it stands before the name of each message ("tp: message").
                None: the name of this group.

        Raises:
            ValueError: `color` or `key` is not a whole number, or `name` no string.
        """
        color = color if color is None else whole("color", int(color) if isinstance(color, bool) else color)
        key = self.rank if key is None else whole("key", key)
        if name is not None:
            text("name", name)
        split = self._engine.enter(self._task, self._group, Arrival("split", "split", (color, key)))
        self._splits += 1
        if color is None:
            return None
        wishes = [split.arrivals[member].wish for member in self._group.members]  # by rank in this group
        chosen = sorted((key, rank) for rank, (wanted, key) in enumerate(wishes) if wanted == color)
        members = tuple(self._group.members[rank] for _, rank in chosen)
        place = f"{self._group.name}/{self._splits}"
        group = f"{place}:{color}" if name is None else f"{name} {color} ({place})"
        prefix = self._prefix if name is None else name
        return Comm(self._engine, self._task, self._engine.subgroup(group, members, split), prefix=prefix)

    def _named(self, name: str) -> str:
        return name if self._prefix is None else f"{self._prefix}: {name}"

    def _enter(
        self, name: str, x: Array | None = None, *, shape: tuple[Any, ...] | None = None, **arguments: Any
    ) -> Comm:
        """Enter a collective with the group; returns this rank's `Comm` on the channel of collectives."""
        described = [values.form(x, shape)] if x is not None else []
        described += [f"{key}={value}" for key, value in arguments.items() if value is not None]
        self._engine.enter(self._task, self._group, Arrival(name, f"{name}({', '.join(described)})"))
        if self._inner is None:
            self._inner = Comm(self._engine, self._task, self._group, "collectives")
        self._inner._name = self._named(name)
        return self._inner

    def _run(self, algorithm: Callable[..., Any], *arguments: Any) -> Any:
        """Run our algorithm of a collective; or in its place the library's own, if the engine has one for the call."""
        return self._engine.run_algorithm(self, self._group, algorithm, arguments)

    # Notes

    def compute(
        self, name: str, flops: float = 0, bytes: float = 0, seconds: float | None = None
    ) -> AbstractContextManager[None]:
        """Note that this rank computes: `with comm.compute("matmul", flops=2 * m * n * k): ...`.

        On the simulated clock, the whole time passes when the block is entered.

        Args:
            name: timelines show it.
            flops: floating-point operations.
            bytes: bytes moved between the device and its memory.
            seconds: how long it lasts. None: the roofline of `flops` and `bytes` on the rank's device.

        Raises:
            ValueError: a name that is no string, or an amount that is negative, infinite, or 1e18 seconds or more.
        """
        text("name", name)
        amount("flops", flops)
        amount("bytes", bytes)
        amount("seconds", 0 if seconds is None else seconds, below=MOST_SECONDS)
        self._engine.check(self._task)
        self._task.log += (COMPUTE, (name, flops, bytes, seconds))
        return self._engine.timed(self._task, name)

    def hold(self, name: str, *arrays: Value) -> None:
        """Count the memory of these arrays as held by this rank, under `name`, until it is freed.

        Received arrays count without this call. So do sent arrays, until their message has passed. Memory that counts
        already is not counted again.

        Raises:
            ValueError: a name that is no string, or other things than arrays.
        """
        text("name", name)
        self._engine.check(self._task)
        for number, value in enumerate(arrays):
            for array in values.leaves(values.checked(value, f"arrays[{number}]")):
                self._task.memory.hold(array, name)

    def print(self, *objects: Any) -> None:
        """Show `objects` after the run. The lines of all ranks are sorted by simulated time, then by rank."""
        self._engine.check(self._task)
        self._task.log += (PRINT, " ".join(map(str, objects)))
        self._task.printed = True
