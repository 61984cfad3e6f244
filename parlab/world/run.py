"""Run a program on ranks, and keep what happened."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

from parlab.arguments import instance, whole
from parlab.world.clock.replay import replay
from parlab.world.clock.trace import Trace, traced
from parlab.world.cluster import CLASSROOM, Cluster
from parlab.world.engines.crew import current_engine
from parlab.world.engines.tasks import Task
from parlab.world.engines.threads import ThreadsEngine
from parlab.world.errors import WorldError
from parlab.world.program import Outcome, carry_out, each_part, per_rank
from parlab.world.timeline import Timeline

ENGINES = ("threads", "mpi", "nccl")
COLLECTIVES = ("ours", "native")


class Run:
    """The results of a program on each rank, and the timeline of the run.

    Attributes:
        results: what the program returned, a list, one a rank.
        cluster: the hardware that `timeline` is computed for.
        wallclock: the measured timeline, if ranks are processes: computations, messages and waits. The clocks of the
            processes are aligned. None on threads.
    """

    def __init__(self, tasks: list[Task], cluster: Cluster, wallclock: Timeline | None = None):
        self.wallclock = wallclock
        self.results = [task.result for task in tasks]
        self.cluster = cluster
        self._tasks = tasks

    @cached_property
    def _trace(self) -> Trace:
        trace = traced(self._tasks)
        del self._tasks
        return trace

    @cached_property
    def _replayed(self) -> tuple[Timeline, list[tuple[int, int, str]]]:
        return replay(self._trace, self.cluster)

    @property
    def timeline(self) -> Timeline:
        """The simulated timeline of the run, on its cluster."""
        return self._replayed[0]

    def on(self, cluster: Cluster) -> Timeline:
        """The timeline of this run on other hardware. The clock is computed again; no rank runs again.

        Raises:
            ValueError: not a `Cluster`.
        """
        instance("cluster", cluster, Cluster)
        return replay(self._trace, cluster)[0]

    def __repr__(self) -> str:
        return repr(self.timeline).replace("Timeline:", "Run:", 1)


def run(
    program: Callable[..., Any],
    size: int,
    *args: Any,
    engine: str = "threads",
    cluster: Cluster | None = None,
    collectives: str = "ours",
    **kwargs: Any,
) -> Run:
    """Run `program(comm, *args, **kwargs)` on `size` ranks.

    All ranks share the arrays among the arguments, which arrive read-only. (CuPy has no read-only arrays, so each rank
    gets a copy.) Another object, such as a model, is copied for each rank. An argument wrapped in `per_rank` gives each
    rank its own item. Ranks share only messages. On threads they also share the
    program's globals and closures; a change there is seen by all.

    Args:
        program: a function whose first parameter is the rank's `Comm`.
        size: how many ranks.
        engine: "threads": one thread a rank, in this process. "mpi": one process a rank, which `run` starts; or, in a
            script that mpiexec or Slurm has started, the processes that it started (each returns the same). "nccl": the
            same with a GPU for each process.
        cluster: the hardware that times are computed for; None: `CLASSROOM`.
        collectives: "ours": their messages are counted. "native", with MPI: MPI's own collectives, for calls with the
            default algorithm.

    Returns:
        The `Run`. Before it returns, the lines of `comm.print` are printed.

    Raises:
        ValueError: a bad argument.
        DeadlockError: no rank could continue.
        Exception: the program's own exception, from the lowest rank that raised one (with attributes `rank` and `run`).

    >>> import numpy as np
    >>> def shout(comm, x):
    ...     return comm.all_reduce(x)
    >>> run(shout, 3, np.ones(2)).results[0]
    array([3., 3.])
    """
    cluster = CLASSROOM if cluster is None else cluster
    _check_arguments(program, size, engine, cluster, collectives, [*args, *kwargs.values()])
    if current_engine.get():
        raise WorldError("run() inside a rank: a rank program cannot start ranks; use comm.split() for groups")
    if engine == "threads":
        threads = ThreadsEngine(size)
        carry_out(threads, program, args, kwargs)
        ended = Outcome(threads.tasks, threads.deadlock)
    else:
        from parlab.world.processes.job import Job  # not at the top: threads need no processes
        from parlab.world.processes.launch import run_on_processes

        ended = run_on_processes(Job(program, args, kwargs, native=collectives == "native"), size, engine)
    done = Run(ended.tasks, cluster, ended.wallclock)
    if ended.shown and any(task.printed for task in ended.tasks):
        for _, rank, text in done._replayed[1]:
            print(f"rank {rank}: {text}")
    for task in ended.tasks:
        for each in (task, *task.background):
            if each.error is not None:
                raise _with_origin(each.error, each.rank, done)
    if ended.deadlock is not None:
        raise _with_origin(ended.deadlock, min(ended.deadlock.waiting), done)
    return done


def _check_arguments(
    program: Any, size: Any, engine: Any, cluster: Any, collectives: Any, arguments: list[Any]
) -> None:
    if not callable(program):
        raise ValueError(f"program={program!r}: must be a function whose first parameter is the rank's comm")
    for function in (program, getattr(program, "__call__", None)):  # noqa: B004 - an object may be called too
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ValueError(f"program={program!r:.60}: it yields, so a call would run nothing of it; return instead")
        if inspect.iscoroutinefunction(function):
            raise ValueError(f"program={program!r:.60}: it is async, so a call would run nothing of it; use plain def")
    if whole("size", size) < 1:
        raise ValueError(f"size={size!r}: needs at least 1 rank")
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r}: the engines are {', '.join(ENGINES)}")
    if collectives not in COLLECTIVES or (engine != "mpi" and collectives == "native"):
        raise ValueError(f"collectives={collectives!r}: on {engine} they are ours" + ", or native" * (engine == "mpi"))
    instance("cluster", cluster, Cluster)
    for argument in arguments:
        if not isinstance(argument, per_rank):
            each_part(argument, lambda x: x, lambda x: x)  # which refuses a `per_rank` inside a list or dict
        elif len(argument.items) != size:
            raise ValueError(f"items: per_rank has {len(argument.items)}, but size={size}: give one a rank")


def _with_origin(error: BaseException, rank: int, done: Run) -> BaseException:
    error.run = done  # type: ignore[attr-defined]
    error.rank = rank  # type: ignore[attr-defined]
    if not isinstance(error, WorldError):
        error.add_note(f"raised on rank {rank} of {len(done.results)}")
    return error
