"""What `mpiexec -n P python -m tests.world.processes.process_job SEEDS` runs: many programs in one started job, each
on the processes and, on rank 0, on threads. It prints one line of JSON for each: its name, and what differs.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import sys
import types
from dataclasses import fields
from random import Random
from typing import NamedTuple

import array_api_strict
import numpy as np

from parlab import per_rank, run
from parlab.arrays import is_array, to_numpy
from parlab.pipeline import run_schedule, zb_h1
from parlab.sequence import shard
from parlab.tensor import ParallelLlama
from tests.pipeline.models import tanh_model
from tests.sequence.rings import both, draw_inputs
from tests.tensor.models import model, text
from tests.world import test_errors
from tests.world.engines import test_deadlock
from tests.world.random_programs import program, random_steps
from tests.zero.models import batches, train
from tests.zero.models import model as small_model

PARITY = 1e-12


def ring(size, xp=np):
    inputs = [[xp.asarray(piece) for piece in shard(x, size, "zigzag")] for x in draw_inputs(1, 4, 2, 8 * size, 3)]
    return both, [per_rank(pieces) for pieces in inputs], {"causal": True, "layout": "zigzag"}


def tensor(comm, serial, tokens, targets):
    return ParallelLlama.from_full(comm, serial, sequence_parallel=True).loss_and_gradients(tokens, targets)


def zero(comm, start, rows):
    return train(comm, start, rows, 3).full_weights()


def groups(comm):
    """Groups of groups, in the reverse order, and work beside two of them in an order that is each rank's own."""
    half = comm.split(comm.rank % 2, key=-comm.rank)
    inner = half.split(0 if half.rank < 2 else None)
    one = np.arange(5.0) + comm.rank
    calls = [half.iall_reduce, comm.iall_reduce]
    requests = {call: call(one) for call in (calls if comm.rank % 2 else calls[::-1])}
    alone = comm.split(comm.rank).all_gather(one)
    return [requests[call].wait() for call in calls], alone, None if inner is None else inner.all_reduce(one, "max")


def collectives(comm, xp):
    x = xp.asarray(np.random.default_rng(comm.rank).normal(size=(4 * comm.size, 3)))
    small = xp.reshape(x, (-1,))[: comm.rank + 1]
    out = np.zeros(2 * 6 * comm.size * comm.size * 2)[::2]  # not contiguous
    results = [getattr(comm, name)(x) for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")]
    results += [comm.reduce(x, comm.size - 1, "max"), comm.scatter(x), comm.gather(x), comm.all_to_all(x, 0, 1)]
    results += [comm.all_gather(small, counts=list(range(1, comm.size + 1))), comm.barrier(), comm.reduce(x[0, 0, ...])]
    across = xp.permute_dims(x, (1, 0))  # not in C order
    results += [comm.all_to_all(across, 1, 0), comm.scatter(across, axis=1), comm.gather(across, axis=1)]
    results += [comm.all_reduce(x[::2, ...]), comm.iall_reduce(x).wait(), comm.ireduce_scatter(x).wait()]
    if xp is np:
        results.append(comm.all_gather(x.reshape(-1), out=out[: 12 * comm.size * comm.size]))
        results.append(comm.all_reduce(x.astype(np.float16)))
    return results


class Point(NamedTuple):
    x: object


def named_tuple(comm):
    """A tuple of another type than expected, whose form shows the same."""
    return comm.sendrecv(Point(np.ones(2)), comm.right, comm.left, like=(np.ones(2),))


def late_error(comm):
    """Rank 0 raises first, and rank 1, which is asked about, only when rank 0 has let it."""
    if comm.rank == 0:
        comm.isend(np.ones(1), 1 % comm.size).wait() if comm.size > 1 else None
    if comm.rank == 1:
        comm.recv(0, np.ones(1))
    raise KeyError(comm.rank)


def prints_and_computes(comm):
    with comm.compute("work", flops=1e6 * (comm.rank + 1)):
        comm.print("rank", comm.rank)
    comm.hold("twice", np.ones(3), np.ones(4))


def programs(size, other=array_api_strict):
    """Name: (program, arguments, keywords); some also on the array library `other`."""
    steps = [random_steps(Random(seed), size, 30) for seed in range(int(sys.argv[1]))]
    made, _, _, inputs, targets = tanh_model(size, 2 * size)
    chosen = {
        **{f"random {seed}": (program, [those], {}) for seed, those in enumerate(steps)},
        **{f"other {seed}": (program, [those], {"xp": other}) for seed, those in enumerate(steps[:2])},
        "ring": ring(size),
        "ring other": ring(size, other),
        "zb_h1": (run_schedule, [zb_h1(size, 2 * size), made, inputs, targets], {}),
        "zero 3": (zero, [small_model(), batches(size, 2)], {}),
        "groups": (groups, [], {}),
        "collectives": (collectives, [np], {}),
        "collectives other": (collectives, [other], {}),
        "named tuple": (named_tuple, [], {}),
        "late error": (late_error, [], {}),
        "prints": (prints_and_computes, [], {}),
    }
    if size != 3:  # does not divide the heads
        chosen["tensor"] = (tensor, [model(), *text()], {})
    for where in (test_deadlock, test_errors):
        for name, function in vars(where).items():
            if isinstance(function, types.FunctionType) and list(inspect.signature(function).parameters) == ["comm"]:
                chosen[f"{where.__name__} {name}"] = (function, [], {})
    return chosen


def outcome(engine, size, chosen, **how):
    function, args, kwargs = chosen
    try:
        done = run(function, size, *args, engine=engine, **kwargs, **how)
    except Exception as error:
        return {"error": (type(error).__name__, str(error), error.rank), "run": error.run}
    return {"results": done.results, "bits": bits(done.results), "run": done}


def in_memory(x):
    """A number, or an array of any library, as NumPy's array."""
    return to_numpy(x) if is_array(x) else np.asarray(x)


def bits(value):
    """Nested types, and for each array its bytes, or, where some are padding, its numbers: equal only if all are."""
    if isinstance(value, dict):
        return [type(value).__name__, [(key, bits(item)) for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [bits(item) for item in value]]
    x = in_memory(value)
    return type(value).__name__, x.dtype.str, x.shape, x.tobytes() if x.dtype.char not in "gGO" else repr(x.tolist())


def differences(ours, threads):
    found = [name for name in {*ours, *threads} - {"run", "results"} if ours.get(name) != threads.get(name)]
    one, other = ours["run"], threads["run"]
    found += [f.name for f in fields(one._trace) if getattr(one._trace, f.name) != getattr(other._trace, f.name)]
    if one.timeline.makespan != other.timeline.makespan:
        found.append("makespan")
    return found


def leaves(value):
    if isinstance(value, list | tuple | dict):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in leaves(item)]
    return [] if value is None or isinstance(value, str) else [in_memory(value)]


def worst(ours, threads):
    """The largest relative error of any array."""
    pairs = zip(leaves(ours), leaves(threads), strict=True)
    pairs = [(a * 1.0, b * 1.0) for a, b in pairs if b.size]
    errors = [float(np.max(abs(a - b))) / max(float(np.max(abs(b))), 1e-300) for a, b in pairs]
    return float(np.max(errors, initial=0.0))  # NaN, if there is one


def main(engine="mpi", other=array_api_strict, some=""):
    """`some`: a pattern of names, of which alone the programs run."""
    size, rank = int(os.environ["PMI_SIZE"]), int(os.environ["PMI_RANK"])
    output = sys.stdout
    sys.stdout = io.StringIO()  # for what programs print
    for name, chosen in programs(size, other).items():
        if not re.search(some, name):
            continue
        ours = outcome(engine, size, chosen)
        if rank == 0:
            found = differences(ours, threads := outcome("threads", size, chosen))
        line = [name, found] if rank == 0 else None
        if engine == "mpi" and "results" in ours:
            native = outcome("mpi", size, chosen, collectives="native")
            if rank == 0:
                error = worst(native["results"], threads["results"]) if "results" in native else native["error"]
                line += [error if error != 0 else 0]
        if rank == 0:
            print(json.dumps(line), file=output, flush=True)


if __name__ == "__main__":
    main()
