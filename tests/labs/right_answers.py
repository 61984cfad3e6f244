"""Right answers to the exercises, in several styles each."""

import math
from collections import deque
from types import SimpleNamespace

import numpy as np

from parlab import labs
from parlab.nn.dense_attention import dense_attention
from parlab.pipeline import Action, Costs, Schedule, balance, lower_bound, one_f_one_b
from parlab.sequence import ring_attention
from parlab.zero import shard_range
from tests.labs import answers

RIGHT, of = answers.by_exercise()


for _name, _solution in answers.SOLUTIONS.items():
    RIGHT[_name].append(_solution)


def returned_as(kind, name):
    def solution(*given):
        return kind(answers.SOLUTIONS[name](*given))

    return solution


for _name, _kind in {
    "02.ring": list,
    "02.zigzag_tile": list,
    "03.heads": lambda found: tuple(map(set, found)),
    "03.hops": np.int64,
    "04b.lower_bound": np.float64,
    "04b.uneven": np.array,
    "05.parallel_loss": list,
    "08.step_time": np.float64,
    "09.fit": np.array,
}.items():
    RIGHT[_name].append(returned_as(_kind, _name))


LOG = []


@of("00.exchange")
def that_keeps_a_log(comm, x):
    """What ranks write into a common list to find an error is no business of the checker's."""
    LOG.append((comm.rank, x.sum()))
    return answers.exchange(comm, x)


@of("00.exchange")
def as_a_list_of_copies(comm, x):
    return [comm.sendrecv(x, there, back).copy() for there, back in ((comm.right, comm.left), (comm.left, comm.right))]


@of("00.exchange")
def one_message_for_two(comm, x):
    if comm.size == 2:
        other = comm.sendrecv(x, 1 - comm.rank, 1 - comm.rank)
        return other, other
    return answers.exchange(comm, x)


@of("00.overlap")
def with_sends_awaited_last(comm, x, work):
    total, block, sent = 0, x, []
    for _ in range(comm.size - 1):
        sent.append(comm.isend(block, (comm.rank + 1) % comm.size))
        arriving = comm.irecv((comm.rank - 1) % comm.size, like=block)
        total = total + work(comm, block)
        block = arriving.wait()
    total = total + work(comm, block)
    for request in sent:
        request.wait()
    return total


@of("00.overlap")
def that_notes_its_additions(comm, x, work):
    total, block = 0, x
    for step in range(comm.size):
        last = step == comm.size - 1
        requests = () if last else (comm.isend(block, comm.right), comm.irecv(comm.left, like=block))
        piece = work(comm, block)
        with comm.compute("add", seconds=0):
            total = total + piece
        for request in requests:
            block = request.wait()
    return total


@of("00.to_blame")
def blamed_in_one_pass_from_the_end(waits, rank):
    before = math.inf
    for who, peer, _, came in sorted(waits, key=lambda wait: -wait[3]):
        if who == rank and came < before:
            rank, before = peer, came
    return rank


@of("00.to_blame")
def blamed_in_an_array(waits, rank):
    log, before = np.array(waits).reshape(-1, 4), np.inf
    while len(own := log[(log[:, 0] == rank) & (log[:, 3] < before)]):
        rank, before = own[own[:, 3].argmax()][[1, 3]]
    return rank


def straight_to_the_owners(comm, x):
    """Reduces and scatters, but not around a ring."""
    blocks = np.split(x, comm.size)
    total = blocks[comm.rank]
    for k in range(1, comm.size):
        to, source = (comm.rank + k) % comm.size, (comm.rank - k) % comm.size
        total = total + comm.sendrecv(blocks[to], to, source)
    return total


def halved_if_a_power_of_two(comm, x):
    """Reduces and scatters, but around a ring only if the number of ranks is no power of two."""
    if comm.size & (comm.size - 1):
        return answers.reduce_scatter(comm, x)
    half = comm.size // 2
    while half:
        upper = bool(comm.rank & half)
        low, high = np.split(x, 2)
        mine, theirs = (high, low) if upper else (low, high)
        x = mine + comm.sendrecv(theirs, comm.rank ^ half, comm.rank ^ half)
        half //= 2
    return x


@of("01.reduce_scatter")
def leftwards(comm, x):
    blocks = np.split(x, comm.size)
    for step in range(1, comm.size):
        incoming = (comm.rank + step + 1) % comm.size
        blocks[incoming] = blocks[incoming] + comm.sendrecv(blocks[incoming - 1], comm.left, comm.right)
    return blocks[comm.rank]


@of("01.reduce_scatter")
def in_place_by_slices(comm, x):
    x, n = x.copy(), len(x) // comm.size
    for step in range(comm.size - 1):
        out, back = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        x[back * n : (back + 1) * n] += comm.sendrecv(x[out * n : (out + 1) * n], comm.right, comm.left)
    return x[comm.rank * n :][:n]


@of("01.circulant")
def that_counts_the_pieces_backwards(comm, x):
    """The own piece, then those of the ranks behind: all goes the other way round."""
    P, pieces = comm.size, np.split(x, comm.size)
    window = np.stack([pieces[(comm.rank - i) % P] for i in range(P)])
    while (width := len(window)) > 1:
        half = (width + 1) // 2
        came = comm.sendrecv(window[half:], (comm.rank - half) % P, (comm.rank + half) % P)
        window = window[:half] + np.pad(came, [(0, half - len(came))] + [(0, 0)] * x.ndim)
    return window[0]


@of("01.circulant")
def halved_by_partners_if_a_power_of_two(comm, x):
    return halved_if_a_power_of_two(comm, x) if comm.size & (comm.size - 1) == 0 else answers.circulant(comm, x)


@of("02.zigzag_tile")
def with_open_ends(rank, source, length):
    if source == rank:
        return slice(None), slice(None), True
    return (slice(None), slice(length // 2), False) if source < rank else (slice(length // 2, None), slice(None), False)


@of("02.zigzag_tile")
def with_numbers_of_numpy(rank, source, length):
    half, kind = np.int64(length) // 2, np.sign(source - rank)
    return slice(half if kind > 0 else 0, length), slice(0, half if kind < 0 else length), kind == 0


@of("02.merge")
def by_a_sigmoid(out_a, lse_a, out_b, lse_b):
    difference = np.nan_to_num(lse_b - lse_a, nan=0.0)
    share = 1 / (1 + np.exp(difference))[:, None]
    return share * out_a + (1 - share) * out_b, np.logaddexp(lse_a, lse_b)


@of("02.merge")
def by_the_larger_one_in_place(out_a, lse_a, out_b, lse_b):
    top = np.maximum(lse_a, lse_b)
    top[np.isneginf(top)] = 0
    a, b = np.exp(lse_a - top), np.exp(lse_b - top)
    out_a *= (a / np.where(a + b == 0, 1, a + b))[:, None]
    out_a += out_b * (b / np.where(a + b == 0, 1, a + b))[:, None]
    lse_a[:] = top + np.log(a + b)
    return out_a, lse_a


@of("02.ring")
def from_no_keys_on(comm, kv, attend_to, merge):
    out, lse = np.zeros_like(kv[0]), np.full(len(kv[0]), -np.inf)
    for source in range(comm.rank + comm.size, comm.rank, -1):
        last = source == comm.rank + 1
        requests = [] if last else [comm.isend(kv, (comm.rank + 1) % comm.size), comm.irecv(comm.left, like=kv)]
        out, lse = merge(out, lse, *attend_to(source % comm.size, kv))
        for request in requests:
            kv = request.wait()
    return out, lse


@of("02.bring_home")
def in_one_loop(comm, x):
    total = np.zeros_like(x[0])
    for hop in range(comm.size):
        total = total + x[(comm.rank - hop) % comm.size]
        total = comm.sendrecv(total, comm.right, comm.left)
    return total


@of("02.bring_home")
def home_by_requests(comm, x):
    total = x[comm.rank]
    for source in [*((comm.rank - hop) % comm.size for hop in range(1, comm.size)), None]:
        sent, arriving = comm.isend(total, comm.right), comm.irecv(comm.left, like=x[0])
        total = arriving.wait() + (0 if source is None else x[source])
        sent.wait()
    return total


@of("03.usp")
def in_one_message(comm, q, k, v, ulysses):
    """q, k and v of a query-head group travel together."""
    group, ring = comm.split(comm.rank // ulysses), comm.split(comm.rank % ulysses)
    per = q.shape[1] // ulysses, k.shape[1] // ulysses
    parts = [
        np.concatenate([q[:, i * per[0] : (i + 1) * per[0]], *(x[:, i * per[1] : (i + 1) * per[1]] for x in (k, v))], 1)
        for i in range(ulysses)
    ]
    together = group.all_to_all(np.concatenate(parts, axis=1), 1, 2)
    q, k, v = np.split(together, [per[0], per[0] + per[1]], axis=1)
    out, _ = ring_attention(ring, *(np.ascontiguousarray(x) for x in (q, k, v)), causal=True)
    return group.all_to_all(out, 2, 1)


@of("03.usp")
def by_a_ring_of_ones_own(comm, q, k, v, ulysses):
    """The K/V go around by hand, and a merge by lse is made of the tiles."""
    group, ring = comm.split(comm.rank // ulysses), comm.split(comm.rank % ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    out, lse = dense_attention(q, k, v, causal=True)
    for hop in range(1, ring.size):
        k, v = (ring.sendrecv(x, ring.right, ring.left) for x in (k, v))
        if hop <= ring.rank:
            part, of_part = dense_attention(q, k, v)
            total = np.logaddexp(lse, of_part)
            out = np.exp(lse - total)[..., None] * out + np.exp(of_part - total)[..., None] * part
            lse = total
    return group.all_to_all(out, 2, 1)


@of("03.heads")
def dealt_by_numpy(rank, size, H, G):
    mine = np.array_split(np.arange(H), size)[rank]
    return mine, np.unique(mine // (H // G))


@of("03.hops")
def rounded_up(rank, size, documents):
    c = documents[-1] // size
    stop = next(edge for edge in documents if edge >= (rank + 1) * c)
    return -(-stop // c) - 1 - rank


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


def _by_halves(comm, x):
    """The sum of ranks, as a reduce-scatter and an all-gather of rows that are padded to the ranks' number."""
    flat = np.pad(x.ravel(), (0, -x.size % comm.size))
    return comm.all_gather(comm.reduce_scatter(flat))[: x.size].reshape(x.shape)


RIGHT["05.mlp_step"].append(labs.mlp_step)


@of("05.mlp_step")
def with_the_gradients_of_weights_while_dx_travels(comm, x, A, C, dy):
    z = np.where(x @ A > 0, x @ A, 0)
    y = comm.all_reduce(np.matmul(z, C), op="sum")
    dz = np.where(z > 0, np.dot(dy, C.T), 0)
    travelling = comm.iall_reduce(dz @ A.T)
    dA, dC = x.T @ dz, z.T @ dy
    return y, travelling.wait(), dA, dC


@of("05.mlp_step")
def with_both_sums_in_one_message(comm, x, A, C, dy):
    z = np.maximum(x @ A, 0)
    dz = (z > 0) * (dy @ C.T)
    y, dx = comm.all_reduce(np.stack([z @ C, dz @ A.T]))
    return y, dx, x.T @ dz, z.T @ dy


def block_summed_by(summed):
    def step(comm, *given):
        return answers.block_step(SimpleNamespace(all_reduce=lambda x: summed(comm, x)), *given)

    return step


RIGHT["05.block_step"] += [
    block_summed_by(lambda comm, x: comm.iall_reduce(x).wait()),
    block_summed_by(_by_halves),
]


@of("05.parallel_loss")
def with_both_sums_in_one(comm, logits, targets, first):
    own = targets - first
    hit = np.arange(logits.shape[-1]) == own[..., None]
    shifted = logits - comm.all_reduce(logits.max(-1), op="max")[..., None]
    total, chosen = comm.all_reduce(np.stack([np.exp(shifted).sum(-1), (shifted * hit).sum(-1)]))
    return (np.log(total) - chosen).mean(), (np.exp(shifted) / total[..., None] - hit) / targets.size


@of("05.parallel_loss")
def with_a_float_where_there_is_one_rank(comm, *given):
    loss, dlogits = answers.parallel_loss(comm, *given)
    return (float(loss) if comm.size == 1 else loss), dlogits


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


@of("04b.lower_bound")
def by_the_librarys_bound(p, m, limit, f, i, w, c):
    return lower_bound(p, m, Costs(f, i, w, c), limit)


@of("04b.place_weights")
def with_a_deque_and_a_tuple(row, arrivals, limit):
    waiting, placed, time, kept = deque(), [], 0, 0
    for number, action in enumerate(row):
        arrival = arrivals[number]
        while waiting and time < arrival:
            placed.append(waiting.popleft())
            time += 1
            kept -= 1
        if action.kind == "F" and kept == limit:
            placed.append(waiting.popleft())
            time += 1
            kept -= 1
        placed.append(action)
        time = max(time + 1, arrival + 1)
        if action.kind == "F":
            kept += 1
        else:
            waiting.append(Action("W", action.stage, action.microbatch))
    return (*placed, *waiting)


@of("04b.place_weights")
def newest_first(row, arrivals, limit):
    placed, stack, time, kept = [], [], 0, 0
    for action, arrival in zip(row, arrivals, strict=True):
        while stack and (arrival > time or (kept >= limit and action.kind == "F")):
            placed += [stack.pop()]
            time, kept = time + 1, kept - 1
        placed += [action]
        time, kept = max(arrival, time) + 1, kept + (action.kind == "F")
        stack += [action._replace(kind="W")] * (action.kind == "I")
    return placed + stack[::-1]


@of("04b.uneven")
def as_ranges(layers, p):
    return balance(layers, p)


@of("07.find_bug")
def by_the_number_of_copies_apart(ask):
    apart = ask("copies")  # the table; or k and v, and norms, of layers
    if len(apart) == 1:
        return "ends not summed"
    return "K/V heads not summed" if apart[1:] and apart[0][-8] == "j" else "norms not summed" if apart else alike(ask)


def alike(ask):
    """No copies differ."""
    if ask("loss") != 1:
        return "mean of means"
    norm = ask("norm")
    return "none" if abs(norm - 1) < 1e-9 else "extra mean" if norm < 1 else "copies counted"


@of("07.find_bug")
def with_a_match(ask):
    match sorted({name.split(".")[-2] for name in ask("copies")}):
        case ["embed_tokens"]:
            return "ends not summed"
        case ["k_proj", "v_proj"]:
            return "K/V heads not summed"
        case []:
            return alike(ask)
    return "norms not summed"


@of("07.who_sums")
def axis_after_axis(mesh, ends, kind, gradient):
    for group in (mesh.dp, mesh.cp):
        gradient = group.all_reduce(gradient) / group.size
    if kind in ("norm", "K/V"):
        return mesh.tp.all_reduce(gradient)
    return ends.all_reduce(gradient) if kind == "tied" else gradient


@of("07.who_sums")
def in_place(mesh, ends, kind, gradient):
    if kind != "cut":
        gradient[:] = (mesh.tp if kind in ("norm", "K/V") else ends).all_reduce(gradient)
    gradient[:] = mesh.data.all_reduce(gradient)
    gradient /= mesh.data.size
    return gradient


@of("07.who_sums")
def reduced_and_broadcast(mesh, ends, kind, gradient):
    groups = [*{"norm": [mesh.tp], "K/V": [mesh.tp], "tied": [ends]}.get(kind, []), mesh.data]
    for group in groups:
        x = group.reduce(gradient)
        gradient = group.broadcast(gradient if x is None else x)
    return gradient * (1 / mesh.data.size)


@of("08.memory")
def with_numpy(params, kept, d, p, t, m, zero, bytes_each):
    cut = np.where(np.arange(1, 4) <= zero, d, 1)
    return np.array(bytes_each)[::-1] / cut @ np.full(3, params / (p * t)) + np.minimum(p, m) * kept / (p * t)


@of("08.memory")
def of_each_stage_the_most(params, kept, d, p, t, m, zero, bytes_each):
    states = answers.memory(params, 0, d, p, t, m, zero, bytes_each)
    return max(states + min(m, p - rank) * kept / (p * t) for rank in range(p))


@of("08.step_time")
def as_work_over_what_is_not_bubble(work, nbytes, speed, d, p, t, v, batch):
    m = batch // d
    busy = m * (work + (t - 1) * nbytes / speed) / (p * t)
    return busy * (1 + (p - 1) / (v * m))


@of("09.fit")
def by_its_two_halves(size, nbytes, seconds):
    """The latency from the smaller half, the bandwidth from the larger one, each with the other known."""
    each, n, half = seconds / (2 * (size - 1)), nbytes / size, len(seconds) // 2
    bandwidth = n[-1] / each[-1]
    for _ in range(50):
        latency = np.mean(each[:half] - n[:half] / bandwidth)
        bandwidth = 1 / np.mean((each[half:] - latency) / n[half:])
    return latency, bandwidth


def neighbours(comm):
    return [other for other in (comm.rank - 1, comm.rank + 1) if 0 <= other < comm.size]


@of("09.buffering")
def all_posted_ahead(comm, x):
    row = {other: x[:1] if other < comm.rank else x[-1:] for other in neighbours(comm)}
    sent = [comm.isend(row[other], other) for other in row]
    came = {other: comm.irecv(other, like=row[other]) for other in row}
    around = [came[other].wait() if other in came else x[:0] for other in (comm.rank - 1, comm.rank + 1)]
    for request in sent:
        request.wait()
    return np.vstack([around[0], x, around[1]])


@of("09.buffering")
def rows_without_their_axis(comm, x):
    sent = [comm.isend(x[0 if other < comm.rank else -1], other) for other in neighbours(comm)]
    came = {other: comm.irecv(other, like=x[0]).wait() for other in neighbours(comm)}
    for request in sent:
        request.wait()
    rows = [x]
    if comm.rank - 1 in came:
        rows.insert(0, came[comm.rank - 1][None])
    if comm.rank + 1 in came:
        rows.append(came[comm.rank + 1][None])
    return np.concatenate(rows)


RIGHT["10.mixture"].append(answers.layer())


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
