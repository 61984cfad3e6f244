"""Right answers to the exercises of notebook 10, in several styles each."""

import numpy as np

from parlab.experts import mixed_rows
from tests.labs.right_answers import of
from tests.labs.right_answers_09 import RIGHT

__all__ = ["RIGHT"]


@of("10.mixture")
def the_librarys(comm, *given):
    return mixed_rows(comm, *given)


@of("10.mixture")
def with_lists_and_loops(comm, x, chosen, gates, num_experts, expert):
    """Every pair in a list of its expert's rank; a message to each other rank."""
    own, E = num_experts // comm.size, x.shape[1]
    pairs = sorted(((e, t, s) for t, row in enumerate(chosen) for s, e in enumerate(row)), key=lambda pair: pair[0])
    counts = np.zeros(num_experts, dtype=int)
    for e, _, _ in pairs:
        counts[e] += 1
    table = comm.all_gather(counts[None])
    mine = slice(comm.rank * own, (comm.rank + 1) * own)
    y, arrived = np.zeros_like(x), {}
    to = {r: [pair for pair in pairs if pair[0] // own == r] for r in range(comm.size)}
    for d in range(comm.size):
        r, source = (comm.rank + d) % comm.size, (comm.rank - d) % comm.size
        rows = np.array([x[t] for _, t, _ in to[r]]).reshape(-1, E)
        if d:
            rows = comm.sendrecv(rows, r, source, like=np.empty((table[source, mine].sum(), E)))
        parts = np.split(rows, np.cumsum(table[source, mine])[:-1])
        arrived[source] = np.concatenate([expert(mine.start + e, part) for e, part in enumerate(parts)])
    for d in range(comm.size):
        source, r = (comm.rank - d) % comm.size, (comm.rank + d) % comm.size
        answers = arrived[source]
        if d:
            answers = comm.sendrecv(answers, source, r, like=np.empty((len(to[r]), E)))
        for (_, t, s), answer in zip(to[r], answers, strict=True):
            y[t] += gates[t, s] * answer
    return y


@of("10.mean_gradient")
def edp_then_ep(mesh, of_expert, gradient):
    total = mesh.edp.all_reduce(gradient)
    if not of_expert:
        total = mesh.ep.all_reduce(total)
    return total / (mesh.edp.size * mesh.ep.size)


@of("10.mean_gradient")
def reduced_and_told(mesh, of_expert, gradient):
    group = mesh.edp if of_expert else mesh.data
    total = group.reduce(gradient, root=0)
    return group.broadcast(gradient if total is None else total, 0) / mesh.data.size


@of("10.balanced")
def the_best_last(scores, bias, k, gamma):
    """Ascending, the last k: a token's experts and gates lie from the worst to the best."""
    chosen = (scores + bias).argsort(axis=1)[:, -k:]
    gates = np.exp(np.take_along_axis(scores, chosen, axis=1))
    gates /= gates.sum(axis=1)[:, None]
    load = np.eye(len(bias))[chosen].sum(axis=(0, 1))
    return chosen, gates, bias + gamma * np.sign(load.mean() - load)


@of("10.balanced")
def partitioned_with_the_largest_taken_off(scores, bias, k, gamma):
    chosen = np.argpartition(-(scores + bias), k - 1, axis=1)[:, :k]
    own = scores[np.arange(len(scores))[:, None], chosen]
    gates = np.exp(own - own.max(axis=1, keepdims=True))
    _, load = np.unique(np.concatenate([chosen.ravel(), np.arange(len(bias))]), return_counts=True)
    return [chosen, gates / gates.sum(axis=1, keepdims=True), bias - gamma * np.sign(load - load.mean())]
