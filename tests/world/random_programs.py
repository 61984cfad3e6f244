"""Random programs that cannot deadlock: one global list of steps, of which each rank runs its own in that order.

What they carry is whatever may travel: nested values, arrays without axes or elements, views with any strides, every
kind of number.

Why none can deadlock: both ends of a message are posted in the same step, and nobody waits for anything that is posted
in a later step. So the earliest step that is not over can always go on.
"""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from parlab.world import values

WORLD, PARITY = "world", "parity"  # all ranks; the ranks of the same parity, in reverse order
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather", "barrier", "all_to_all")
BACKGROUND = ("iall_reduce", "iall_gather", "ireduce_scatter")
UNCUT = ("all_reduce", "broadcast", "iall_reduce")  # they take arrays of any shape

NUMBERS = "bBhHiIlLefdgFDG?"  # the dtypes, by NumPy's letters; no booleans where a sum is made
LAYOUTS = {
    "C": np.asarray,
    "Fortran": np.asfortranarray,
    "backwards": np.flip,
    "every other number": lambda x: np.stack([x, x], axis=-1)[..., 0],
}


@dataclass(frozen=True)
class Form:
    """What an array looks like."""

    dtype: str
    shape: tuple[int, ...]
    layout: str

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape))

    def filled(self, dice: np.random.Generator, xp: Any) -> Any:
        """An array of numbers whose sum depends on their order, where that changes it by less than 1e-12."""
        x = np.asarray(dice.normal(size=self.shape) if self.dtype in "dgDG" else dice.integers(5, size=self.shape))
        dtype = "d" if self.dtype in "egG" and xp is not np else self.dtype  # the standard knows no others
        return xp.asarray(LAYOUTS[self.layout](x.astype(dtype)))


def nested(random: Random, depth: int = 2) -> Any:
    """The form of a value that a message may carry."""
    kind = random.choice((list, tuple, dict, Form, Form, Form)) if depth else Form
    if kind is Form:
        return array(random, [random.choice((0, 1, 2, 3)) for _ in range(random.randrange(4))])
    items = [nested(random, depth - 1) for _ in range(random.randrange(3))]
    return dict(zip("ba", items, strict=False)) if kind is dict else kind(items)


def array(random: Random, shape: list[int], dtypes: str = NUMBERS) -> Form:
    return Form(random.choice(dtypes), tuple(shape), random.choice(list(LAYOUTS)))


def given(random: Random, name: str, size: int) -> Form:
    """The form of what each of `size` ranks gives to a collective."""
    rest = [random.randrange(3) for _ in range(random.randrange(3))]
    shape = rest if name in UNCUT else [size * random.randrange(3), *rest]
    return array(random, shape, NUMBERS[:-1] if "reduce" in name else NUMBERS)


@dataclass(frozen=True)
class Step:
    """One step of a program. `ranks` take part in it; the other fields are what its `kind` needs."""

    kind: str
    ranks: tuple[int, ...]
    number: int  # of the step: names its message, its compute, its print
    group: str = WORLD
    shift: int = 0  # of a ring: how far to the right each rank sends
    form: Any = ()  # of the value that each of them gives
    blocking: tuple[bool, bool] = (True, True)  # does the sender, does the receiver wait at once?
    ticks: int = 0  # picoseconds of a compute
    name: str = ""  # of a collective
    ends: str = ""  # of a wait: "send", "receive" or "both", of the step `number`

    @property
    def nbytes(self) -> int:
        return sum(leaf.nbytes for leaf in values.leaves(self.form))


def members(group: str, rank: int, size: int) -> list[int]:
    return list(range(size)) if group == WORLD else [r for r in reversed(range(size)) if r % 2 == rank % 2]


def random_steps(random: Random, size: int, length: int, *, timed: bool = False) -> list[Step]:
    """`length` steps and the waits that they leave open; `timed`: only what takes time on the slow clock."""
    kinds = ["message"] * 6 + ["ring"] * 2 + ["compute"] * 4 + ["meet"] + ["collective"]
    if not timed:
        kinds += ["collective", "beside"] + ["hold"] * 2 + ["drop"] * 2 + ["print"]
    steps: list[Step] = []
    open_: list[Step] = []  # the waits that are still to come
    for number in range(length):
        kind = random.choice(kinds)
        group = random.choice((WORLD, PARITY))
        form = Form("f", (random.randrange(4),), "C") if timed else nested(random)
        rank = random.randrange(size)
        if kind == "message":
            src, dst = rank, random.choice(members(group, rank, size))
            blocking = (False, False) if src == dst else (random.random() < 0.5, random.random() < 0.5)
            steps.append(Step(kind, (src, dst), number, group, form=form, blocking=blocking))
            open_ += [
                Step("wait", (r,), number, ends=e)
                for r, e, b in zip((src, dst), ("send", "receive"), blocking, strict=True)
                if not b
            ]
        elif kind == "ring":
            shift = random.randrange(size)
            steps.append(Step(kind, tuple(members(group, rank, size)), number, group, shift=shift, form=form))
        elif kind in ("meet", "collective", "beside"):
            names = {"meet": "split", "collective": random.choice(COLLECTIVES), "beside": random.choice(BACKGROUND)}
            name = names[kind]
            ranks = tuple(members(group, rank, size))
            form = Form("d", (2 * len(ranks),), "C") if timed else given(random, name, len(ranks))
            steps.append(Step(kind, ranks, number, group, form=form, name=name))
            if kind == "beside":
                open_ += [Step("wait", (r,), number, ends="both") for r in ranks]
        elif kind in ("hold", "drop"):
            steps.append(Step(kind, (rank,), number, form=form))
        else:
            steps.append(Step(kind, (rank,), number, ticks=random.randrange(5)))
        while open_ and random.random() < 0.3:
            steps.append(open_.pop(random.randrange(len(open_))))
    random.shuffle(open_)
    return steps + open_


def program(comm: Any, steps: list[Step], delays: int | None = None, xp: Any = np) -> list[Any]:
    """Run this rank's part; returns copies of what it received. `delays` seeds sleeps at random places."""
    dice = Random(f"{delays} {comm.rank}")
    parity = comm.split(comm.rank % 2, key=-comm.rank)
    groups = {WORLD: comm, PARITY: parity}
    requests: dict[tuple[int, str], Any] = {}
    kept: list[Any] = []
    received: list[Any] = []

    def keep(x: Any) -> None:
        received.append(deepcopy(x))
        kept.append(x)

    for step in steps:
        if comm.rank not in step.ranks:
            continue
        if delays is not None and dice.random() < 0.2:
            time.sleep(dice.random() * 4e-4)
        group = groups[step.group]
        order = members(step.group, comm.rank, comm.size)
        numbers = np.random.default_rng([step.number, comm.rank])
        x = values.mapped(lambda form, numbers=numbers: form.filled(numbers, xp), step.form)
        label = str(step.number) * (1000 if step.number % 8 == 0 else 1)  # which is more than a head of MPI's holds
        if step.kind == "message":
            src, dst = (order.index(rank) for rank in step.ranks)
            for end, rank, waits in zip(("send", "receive"), step.ranks, step.blocking, strict=True):
                if rank != comm.rank:
                    continue
                if waits and end == "send":
                    group.send(x, dst, label=label)
                elif waits:
                    keep(group.recv(src, x, label=label))
                elif end == "send":
                    requests[step.number, end] = group.isend(x, dst, label=label)
                else:
                    requests[step.number, end] = group.irecv(src, x, label=label)
        elif step.kind == "wait":
            result = requests.pop((step.number, step.ends)).wait()
            if result is not None:
                keep(result)
        elif step.kind == "ring":
            keep(group.sendrecv(x, (group.rank + step.shift) % group.size, (group.rank - step.shift) % group.size))
        elif step.kind == "compute":
            with comm.compute(f"compute {step.number}", seconds=step.ticks * 1e-12):
                pass
        elif step.kind == "meet":
            group.split(0)
        elif step.kind == "collective":
            result = collective(group, step.name, x)
            if result is not None:
                keep(result)
        elif step.kind == "beside":
            requests[step.number, "both"] = getattr(group, step.name)(x)
        elif step.kind == "hold":
            kept.append(x)
            comm.hold(f"hold {step.number}", x)
        elif step.kind == "drop" and kept:
            kept.pop(step.number % len(kept))
        elif step.kind == "print":
            comm.print("step", step.number)
    return received


def collective(group: Any, name: str, x: Any) -> Any:
    if name == "barrier":
        return group.barrier()
    if name == "all_to_all":
        return group.all_to_all(x, 0, 0)
    return getattr(group, name)(x)


def exchange(out: int, back: int) -> list[tuple[str, Any]]:
    """A sendrecv: it needs what comes first."""
    return [("post send", out), ("post receive", back), ("wait receive", back), ("wait send", out)]


def of_collective(name: str, order: list[int], lists: list[list[tuple[str, Any]]], flow: Any) -> None:
    """The messages of a collective of 2 float64 a rank, as the textbooks have them, at the end of `lists`."""
    count = len(order)
    piece = 16  # bytes that each rank has for each other
    if name == "gather":
        root, *others = order
        sent = [flow(rank, root, count * piece) for rank in others]
        for rank, message in zip(others, sent, strict=True):
            lists[rank] += [("post send", message), ("wait send", message)]
        lists[root] += [("post receive", message) for message in sent]
        lists[root] += [("wait receive", message) for message in sent]
        return
    if name == "broadcast":
        distance = 1 << (count - 1).bit_length() >> 1
        while distance:  # a binomial tree: whoever has it passes it on, the farthest first
            for place in range(0, count - distance, 2 * distance):
                src, dst = order[place], order[place + distance]
                message = flow(src, dst, count * piece)
                lists[src] += [("post send", message), ("wait send", message)]
                lists[dst] += [("post receive", message), ("wait receive", message)]
            distance //= 2
        return
    rounds = {  # (to how far a rank sends, how much)
        "all_reduce": [(1, piece)] * (2 * (count - 1)),
        "reduce_scatter": [(1, piece)] * (count - 1),
        "all_gather": [(1, count * piece)] * (count - 1),
        "all_to_all": [(distance, piece) for distance in range(1, count)],
        "barrier": [(1 << step, 0) for step in range((count - 1).bit_length())],
    }
    for distance, nbytes in rounds[name]:
        sent = [flow(src, order[(place + distance) % count], nbytes) for place, src in enumerate(order)]
        for place, rank in enumerate(order):
            lists[rank] += exchange(sent[place], sent[place - distance])


@dataclass
class Flow:
    """A message, for the simulator: which ranks, how many bytes."""

    src: int
    dst: int
    nbytes: int


def operations(steps: list[Step], size: int) -> tuple[list[list[tuple[str, Any]]], list[Flow], list[int]]:
    """The same program as lists of posts, waits, computes and collectives, with the messages and the sizes of the
    collectives that they name by number.
    """
    lists: list[list[tuple[str, Any]]] = [[("meet", 0)] for _ in range(size)]
    flows: list[Flow] = []
    collectives = [size]  # the split that makes the groups
    waits: dict[tuple[int, str], tuple[str, int]] = {}

    def flow(src: int, dst: int, nbytes: int) -> int:
        flows.append(Flow(src, dst, nbytes))
        return len(flows) - 1

    for step in steps:
        if step.kind == "message":
            message = flow(*step.ranks, step.nbytes)
            for end, rank, blocks in zip(("send", "receive"), step.ranks, step.blocking, strict=True):
                lists[rank].append((f"post {end}", message))
                if blocks:
                    lists[rank].append((f"wait {end}", message))
                waits[step.number, end] = (f"wait {end}", message)
        elif step.kind == "wait":
            lists[step.ranks[0]].append(waits[step.number, step.ends])
        elif step.kind == "ring":
            count = len(step.ranks)
            order = members(step.group, step.ranks[0], size)
            sent = {src: flow(src, order[(i + step.shift) % count], step.nbytes) for i, src in enumerate(order)}
            for i, rank in enumerate(order):
                out, back = sent[rank], sent[order[(i - step.shift) % count]]
                lists[rank] += exchange(out, back)
        elif step.kind == "compute":
            lists[step.ranks[0]].append(("compute", (step.ticks, f"compute {step.number}")))
        elif step.kind == "meet":
            collectives.append(len(step.ranks))
            for rank in step.ranks:
                lists[rank].append(("meet", len(collectives) - 1))
        elif step.kind == "collective":
            collectives.append(len(step.ranks))
            for rank in step.ranks:
                lists[rank].append(("enter", len(collectives) - 1))
            of_collective(step.name, members(step.group, step.ranks[0], size), lists, flow)
    return lists, flows, collectives
