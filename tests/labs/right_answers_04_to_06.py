"""Right answers to the exercises of notebooks 04 to 06, in several styles each."""

from collections import deque

import numpy as np

from parlab.pipeline import Action, Schedule, one_f_one_b
from parlab.zero import shard_range
from tests.labs import answers
from tests.labs.right_answers_03 import RIGHT, of


@of("04.listing")
def made_anew(listing):
    return one_f_one_b(listing.num_ranks, listing.num_microbatches - 1)


@of("04.listing")
def as_text(listing):
    rows = [[str(action) for action in row] for row in answers.repaired(listing).ranks]
    return "\n".join(",".join(row) for row in rows)


@of("04.listing")
def with_idle_slots(listing):
    return Schedule([[None, *row, None] for row in answers.repaired(listing).ranks], name="mine")


@of("04.one_f_one_b")
def with_idle_slots_in_it(p, m):
    return Schedule([[*[None] * rank, *row, None] for rank, row in enumerate(one_f_one_b(p, m).ranks)])


@of("04.one_f_one_b")
def from_words(p, m):
    def row(rank):
        kinds = "F" * (p - rank - 1) + "FB" * (m - p + rank + 1) + "B" * (p - rank - 1)
        for place, kind in enumerate(kinds):
            yield Action(kind, rank, kinds[:place].count(kind))

    return Schedule(row(rank) for rank in range(p))


def _block_by(comm, block, x, dy, summed):
    a, norm_1 = block.attention_norm.forward(x)
    a, attention = block.attention.forward(a)
    h = x + summed(a)
    m, norm_2 = block.mlp_norm.forward(h)
    m, mlp = block.mlp.forward(m)
    y = h + summed(m)
    dm, gradients = block.mlp.backward(dy, mlp)
    dm, of_norm_2 = block.mlp_norm.backward(summed(dm), norm_2)
    dh = dy + dm
    da, of_attention = block.attention.backward(dh, attention)
    da, of_norm_1 = block.attention_norm.backward(summed(da), norm_1)
    return y, dh + da, {**gradients, **of_norm_1, **of_norm_2, **of_attention}


def _by_halves(comm, x):
    """The sum of ranks, as a reduce-scatter and an all-gather of rows that are padded to the ranks' number."""
    flat = np.pad(x.ravel(), (0, -x.size % comm.size))
    return comm.all_gather(comm.reduce_scatter(flat))[: x.size].reshape(x.shape)


@of("05.mlp_step")
def with_the_gradients_of_weights_while_dx_travels(comm, x, A, C, dy):
    z = np.where(x @ A > 0, x @ A, 0)
    y = comm.all_reduce(np.matmul(z, C), op="sum")
    dz = np.where(z > 0, np.dot(dy, C.T), 0)
    travelling = comm.iall_reduce(dz @ A.T)
    dA, dC = x.T @ dz, z.T @ dy
    return y, travelling.wait(), dA, dC


@of("05.mlp_step")
def by_two_halves(comm, x, A, C, dy):
    z = np.maximum(x @ A, 0)
    dz = (z > 0) * (dy @ C.T)
    return _by_halves(comm, z @ C), _by_halves(comm, dz @ A.T), x.T @ dz, z.T @ dy


@of("05.mlp_step")
def in_one_message(comm, x, A, C, dy):
    z = np.maximum(x @ A, 0)
    dz = (z > 0) * (dy @ C.T)
    y, dx = comm.all_reduce(np.stack([z @ C, dz @ A.T]))
    return y, dx, x.T @ dz, z.T @ dy


RIGHT["05.block_step"] += [
    lambda comm, *rest: _block_by(comm, *rest, lambda x: comm.all_reduce(x.ravel()).reshape(x.shape)),
    lambda comm, *rest: _block_by(comm, *rest, lambda x: comm.iall_reduce(x).wait()),
    lambda comm, *rest: _block_by(comm, *rest, lambda x: _by_halves(comm, x)),
]


def _loss_by(comm, logits, targets, first, most, sums):
    own = targets - first
    hit = np.arange(logits.shape[-1]) == own[..., None]
    shifted = logits - most(logits.max(-1))[..., None]
    total, chosen = sums(np.exp(shifted).sum(-1), (shifted * hit).sum(-1))
    return (np.log(total) - chosen).mean(), (np.exp(shifted) / total[..., None] - hit) / targets.size


def _greatest(comm):
    return lambda x: comm.all_reduce(x, op="max")


RIGHT["05.parallel_loss"] += [
    lambda comm, *rest: _loss_by(comm, *rest, _greatest(comm), lambda *s: comm.all_reduce(np.stack(s))),
    lambda comm, *rest: list(answers.parallel_loss(comm, *rest)),
    lambda comm, *rest: (
        (float(answers.parallel_loss(comm, *rest)[0]), answers.parallel_loss(comm, *rest)[1])
        if comm.size == 1
        else answers.parallel_loss(comm, *rest)
    ),
]


def _step_by(comm, weights, gradient, state, update, reduce, gather):
    own = shard_range(weights.size, comm.rank, comm.size)
    mean = reduce(gradient, answers.counts_of(weights.size, comm.size))
    moments = state.setdefault("moments", [np.zeros(len(own)), np.zeros(len(own))])
    shard = weights[own.start : own.stop].copy()
    update(shard, mean, *moments)
    return gather(shard, answers.counts_of(weights.size, comm.size))


RIGHT["06.zero_1"].append(
    lambda comm, *rest: _step_by(
        comm,
        *rest,
        lambda g, counts: comm.ireduce_scatter(g / comm.size, counts=counts).wait(),
        lambda w, counts: comm.iall_gather(w, counts=counts).wait().copy(),
    )
)


@of("06.zero_1")
def in_place_on_the_weights(comm, weights, gradient, state, update):
    cuts = np.array_split(np.arange(weights.size), comm.size)
    counts, own = [len(cut) for cut in cuts], cuts[comm.rank]
    if "square" not in state:
        state.update(mean=np.zeros(own.size), square=np.zeros(own.size))
    shard = weights[own[0] : own[-1] + 1] if own.size else weights[:0]
    update(shard, comm.reduce_scatter(gradient, counts=counts) / comm.size, state["mean"], state["square"])
    weights[:] = comm.all_gather(shard, counts=counts)
    return weights


@of("06.zero_1")
def with_moments_in_one_array_and_counts_in_state(comm, weights, gradient, state, update):
    if not state:
        state.update(step=0, counts=np.array(answers.counts_of(weights.size, comm.size)))
        state["moments"] = np.zeros((2, state["counts"][comm.rank]))
    state["step"] += 1
    counts, own = state["counts"].tolist(), shard_range(weights.size, comm.rank, comm.size)
    mean = comm.reduce_scatter(gradient, counts=counts) / comm.size
    shard = weights[own.start : own.stop]
    update(shard, mean, *state["moments"])
    return comm.all_gather(shard, counts=counts)


@of("06.prefetch")
def from_a_queue(comm, uses, gather, work, x):
    waiting = deque([gather(uses[0])])
    for i, block in enumerate(uses):
        weights = waiting.popleft().wait()
        waiting.extend(gather(following) for following in uses[i + 1 : i + 2])
        x = work(block, weights, x)
        del weights
    return x


@of("06.prefetch")
def with_a_loop_that_looks_back(comm, uses, gather, work, x):
    pending, before = None, None
    for block in [*uses, None]:
        weights = None if pending is None else pending.wait()
        pending = None if block is None else gather(block)
        if before is not None:
            x = work(before, weights, x)
        before = block
    return x
