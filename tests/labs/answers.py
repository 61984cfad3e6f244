"""The solutions, the library's where it stands in for an answer; and what a checker says of an answer that is wrong."""

import json
from collections import defaultdict
from operator import ge
from pathlib import Path

import numpy as np

from parlab.experts import exchange_rows
from parlab.experts import mixed_rows as mixture
from parlab.labs import EXERCISES, balanced, block_step, borders, find_bug, gathered_ahead, mean_gradient
from parlab.labs import posted_ahead as overlap
from parlab.labs import posted_ring as ring
from parlab.labs import three_arguments as none_is_below
from parlab.labs import to_blame as blamed
from parlab.labs import zigzag_rule as zigzag_tile
from parlab.nn.attention import merge
from parlab.sequence import ring_attention
from parlab.zero import shard_range

SEED = 20260  # so that a test's drawn cases are the same each time


def by_exercise():
    """A table of answers by the name of their exercise, and a decorator `of(name)` that puts a function there."""
    table = defaultdict(list)

    def of(name):
        def keep(answer):
            table[name].append(answer)
            return answer

        return keep

    return table, of


def raises(*arguments):
    raise NotImplementedError


def nothing(comm, *arguments):
    """A stub without its raise."""


def reviewed(name, answer, seconds=30.0):
    return EXERCISES[name].review(answer, seconds=seconds, seed=SEED)


def refused(name, answer, said="", seconds=30.0):
    """The text of the refusal, which has each part of `said`: they stand between |."""
    review = reviewed(name, answer, seconds)
    assert review.status == "not yet", review.text
    assert [part for part in said.split("|") if part not in review.text] == [], review.text
    return review.text


def solved(lesson):
    """What the cells of a notebook of solutions define, by name."""
    (path,) = Path(__file__).parents[2].glob(f"notebooks/solutions/{lesson}_*.ipynb")
    space = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).partition("labs.check(")[0], space)
    return space


exchange = solved("00")["exchange"]
bring_home = solved("02")["bring_home"]
heads, hops = (solved("03")[name] for name in ("heads", "hops"))
my_1f1b, repaired = (solved("04")[name] for name in ("my_1f1b", "repaired"))
cut = solved("04b")["cut"]
sum_gradient = solved("07")["sum_gradient"]
fit = solved("09")["fit"]


# Solutions that tests change in one place


def reduce_scatter(comm, x, shift=0, add=np.add):
    blocks = np.split(x, comm.size)
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1 + shift) % comm.size
        incoming = (comm.rank - step - 2 + shift) % comm.size
        partial = comm.sendrecv(blocks[outgoing], comm.right, comm.left)
        blocks[incoming] = add(blocks[incoming], partial)
    return blocks[comm.rank]


def circulant(comm, x, ahead=1, roll=1, half_of=lambda width: -(-width // 2), add=np.add):
    window = np.roll(np.stack(np.split(x, comm.size)), -roll * comm.rank, axis=0)
    while len(window) > 1:
        half = half_of(len(window))
        to, source = (comm.rank + ahead * half) % comm.size, (comm.rank - ahead * half) % comm.size
        came = comm.sendrecv(window[half:], to, source)
        window = window[:half].copy()
        window[: len(came)] = add(window[: len(came)], came)
    return window[0]


def mlp_step(comm, x, A, C, dy, without="", twice=""):
    def summed(partial, name):
        total = partial if name == without else comm.all_reduce(partial)
        return comm.all_reduce(total) if name == twice else total

    z = np.maximum(x @ A, 0)
    y = summed(z @ C, "y")
    dz = dy @ C.T * (z > 0)
    dx = summed(dz @ A.T, "dx")
    return y, dx, x.T @ dz, z.T @ dy


def parallel_loss(comm, logits, targets, first, forget=()):
    largest = logits.max(axis=-1)
    if "max" not in forget:
        largest = comm.all_reduce(largest, op="max")
    here = (targets >= first) & (targets < first + logits.shape[-1])
    place = np.where(here, targets - first, 0)
    chosen = np.where(here, np.take_along_axis(logits, place[..., None], axis=-1)[..., 0], 0.0)
    if "target" not in forget:
        chosen = comm.all_reduce(chosen)
    weights = np.exp(logits - largest[..., None])
    total = weights.sum(axis=-1)
    if "sum" not in forget:
        total = comm.all_reduce(total)
    dlogits = weights / total[..., None]
    dlogits -= here[..., None] * (np.arange(logits.shape[-1]) == place[..., None])
    return np.mean(largest + np.log(total) - chosen), dlogits / targets.size


def counts_of(n, size):
    return [len(shard_range(n, rank, size)) for rank in range(size)]


def zero_1(comm, weights, gradient, state, update, parts=None, forget=False, keep=True, gather=True, summed=None):
    counts, own = counts_of(weights.size, comm.size), shard_range(weights.size, comm.rank, comm.size)
    if summed is None:
        gradient = comm.reduce_scatter(gradient, counts=counts) / (comm.size if parts is None else parts)
    else:
        gradient = summed(comm, gradient)[own.start : own.stop]
    shard = weights[own.start : own.stop]
    if not state or not keep:
        state["mean"], state["square"] = np.zeros(len(own)), np.zeros(len(own))
    last = len(own) - forget
    update(shard[:last], gradient[:last], state["mean"][:last], state["square"][:last])
    return comm.all_gather(shard, counts=counts) if gather else weights


def node(rank, U, R):
    return rank // U


def place(rank, U, R):
    return rank % U


def usp(comm, q, k, v, ulysses, group=node, ring=place, causal=True, cut=1, back=True):
    """By two splits of rank, U and P/U, or with one thing otherwise."""
    how = comm.rank, ulysses, comm.size // ulysses
    groups, rings = comm.split(group(*how)), comm.split(ring(*how))
    q, k, v = (groups.all_to_all(x, cut, 3 - cut) for x in (q, k, v))
    out, _ = ring_attention(rings, q, k, v, causal=causal)
    return groups.all_to_all(out, 3 - cut, cut) if back else out


def place_weights_in_time(row, arrivals, limit, *, memory=True, spare=0):
    placed, put_off, time, kept = [], [], 0, 0
    for action, arrival in zip(row, arrivals, strict=True):
        full = memory and action.kind == "F" and kept >= limit
        while put_off and (time + spare < arrival or full):
            placed.append(put_off.pop(0))
            time, kept, full = time + 1, kept - 1, False
        placed.append(action)
        time = max(time, arrival) + 1
        kept += action.kind == "F"
        put_off += [action._replace(kind="W")] * (action.kind == "I")
    return placed + put_off


def memory(params, kept, d, p, t, m, zero, state, flight=min, optimizer=None, cuts=ge, among=None, cut=None, acts=None):
    """Or with one thing otherwise."""
    weight, gradient, moments = state
    among, whole = (among or (lambda d, p, t: d))(d, p, t), p * t
    divide = [among if cuts(zero, stage) else 1 for stage in (1, 2, 3)]
    state = (optimizer or moments) / divide[0] + gradient / divide[1] + weight / divide[2]
    of_params, of_activations = (f(p, t) if f else whole for f in (cut, acts))
    return params * state / of_params + flight(p, m) * kept / of_activations


def step_time(
    work, nbytes, speed, d, p, t, v, batch, ends=None, m=None, hop=None, share=None, stages=None, join=None, late=None
):
    """Or with one thing otherwise."""
    traffic = (hop or (lambda t: (t - 1) / t))(t) * nbytes / speed * (late(p) if late else 1)
    stage = (join or (lambda a, b: a + b))(work / (share(t) if share else t), traffic) / (stages(p) if stages else p)
    return stage * ((m(batch, d) if m else batch / d) + (ends(p, v) if ends else (p - 1) / v))


def ring_with(
    way=lambda comm: (comm.right, comm.left),
    source=lambda comm, hop: comm.rank - hop,
    sent=lambda first, kv: kv,
    before=False,
    rounds=0,
    start=0,
    wait=(0, 1),
    take=True,
):
    """A ring with one thing otherwise: its way, what it says and sends, the place of its hops, how many, what it waits
    for, what it attends."""

    def answer(comm, kv, attend_to, merge):
        first, found = kv, None
        for hop in range(comm.size):
            more = comm.size > 1 and hop < comm.size - 1 + rounds
            to, back = way(comm)
            if more and before:
                kv = comm.sendrecv(kv, to, back)
            requests = [comm.isend(sent(first, kv), to), comm.irecv(back, kv)] if more and not before else []
            if hop >= start or comm.size == 1:
                part = attend_to(source(comm, hop) % comm.size, kv)
                found = part if found is None else merge(*found, *part)
            came = [requests[i].wait() if i in wait else requests[i] for i in range(len(requests))]
            kv = came[1] if came and take else kv
        return found

    return answer


THERE, HOME = (0, 1), (1, 0)  # of (sent, received)


def layer(
    sort_by=lambda flat, own: flat,
    tokens=lambda order, k: order // k,
    there=THERE,
    home=HOME,
    axis=1,
    minlength=True,
    experts_of=lambda came, mine: came,
    put_back=None,
    gate=lambda gates: gates,
):
    """A mixture of experts, with one thing otherwise."""

    def mixture(comm, x, chosen, gates, num_experts, expert):
        T, k = chosen.shape
        order = np.argsort(sort_by(chosen.ravel(), num_experts // comm.size), kind="stable")
        counts = np.bincount(chosen.ravel(), minlength=num_experts if minlength else 0)
        table = comm.all_gather(counts).reshape(comm.size, comm.size, -1)
        both = table[comm.rank].sum(axis=axis), table[:, comm.rank].sum(axis=axis)
        sent, received = (both[i] for i in there)
        rows = exchange_rows(comm, x[tokens(order, k)], sent, received)
        own = comm.rank * table.shape[2] + np.arange(table.shape[2])
        came = np.concatenate([np.repeat(own, of_source) for of_source in table[:, comm.rank]])
        numbers = experts_of(came, chosen.ravel()[order])
        answers = np.empty_like(rows)
        for e in np.unique(numbers):
            answers[numbers == e] = expert(e, rows[numbers == e])
        sent, received = (both[i] for i in home)
        back = exchange_rows(comm, answers, sent, received)
        slots = np.empty((T * k, x.shape[1]))
        slots[order] = back
        if put_back is not None:
            slots = put_back(back, order)
        return (slots.reshape(T, k, -1) * gate(gates)[..., None]).sum(axis=1)

    return mixture


SOLUTIONS = {
    "00.exchange": exchange,
    "00.overlap": overlap,
    "00.to_blame": blamed,
    "01.reduce_scatter": reduce_scatter,
    "01.circulant": circulant,
    "02.zigzag_tile": zigzag_tile,
    "02.merge": merge,
    "02.ring": ring,
    "02.bring_home": bring_home,
    "03.usp": usp,
    "03.heads": heads,
    "03.hops": hops,
    "04.one_f_one_b": my_1f1b,
    "04.listing": repaired,
    "04b.lower_bound": none_is_below,
    "04b.place_weights": place_weights_in_time,
    "04b.uneven": cut,
    "05.mlp_step": mlp_step,
    "05.block_step": block_step,
    "05.parallel_loss": parallel_loss,
    "06.zero_1": zero_1,
    "06.prefetch": gathered_ahead,
    "07.find_bug": find_bug,
    "07.who_sums": sum_gradient,
    "08.memory": memory,
    "08.step_time": step_time,
    "09.fit": fit,
    "09.buffering": borders,
    "10.mixture": mixture,
    "10.mean_gradient": mean_gradient,
    "10.balanced": balanced,
}
