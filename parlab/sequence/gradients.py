"""The mean of the gradients of weights over the ranks of a sequence."""

from __future__ import annotations

from parlab.arrays import namespace
from parlab.world import Comm, values
from parlab.world.values import Value, leaves, mapped


def synchronise_gradients(comm: Comm, gradients: Value) -> Value:
    """The mean of the ranks' gradients, nested as they are, the same on all ranks to the bit. One all-reduce a dtype.

    This is the gradient of the mean loss where each rank's loss is the mean over its own tokens, and all ranks have
    equally many.

    Raises:
        ValueError: `gradients` are not nested dicts, lists and tuples of floating arrays.
        MismatchError: another rank has other names, shapes or dtypes.

    >>> import numpy as np
    >>> from parlab import per_rank, run
    >>> gradients = per_rank([{"w": np.ones(2)}, {"w": np.zeros(2)}])
    >>> run(synchronise_gradients, 2, gradients).results
    [{'w': array([0.5, 0.5])}, {'w': array([0.5, 0.5])}]
    """
    gradients = values.checked(gradients, "gradients")
    arrays = list(leaves(gradients))
    for x in arrays:
        if not namespace(x).isdtype(x.dtype, "real floating"):
            raise ValueError(f"gradients has an array of {x.dtype}: a mean needs floating numbers")
    means = {}
    for dtype in dict.fromkeys(str(x.dtype) for x in arrays):
        alike = [x for x in arrays if str(x.dtype) == dtype]
        xp = namespace(*alike)
        mean = comm.all_reduce(xp.concat([xp.reshape(x, (-1,)) for x in alike])) / comm.size
        for x in alike:
            means[id(x)], mean = xp.reshape(mean[: x.size], x.shape), mean[x.size :]
    return mapped(lambda x: means[id(x)], gradients)
