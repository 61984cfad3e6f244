"""Wrong answers that are right on many cases by luck, by exercise: the fixed cases must tell them from right ones."""

import numpy as np

from parlab.pipeline import Action, Costs, Schedule, gpipe, simulate, zb_auto
from parlab.zero import shard_range
from tests.labs import answers

LUCKY, of = answers.by_exercise()


# Ranks and messages


@of("00.exchange")
def of_flat_arrays(comm, x):
    from_left, from_right = answers.exchange(comm, x)
    return from_left.reshape(-1), from_right.reshape(-1)


@of("00.overlap")
def that_sends_its_own_piece_each_time(comm, x, work):
    """Right on two ranks, where there is one round."""
    total, piece = 0, x
    for _ in range(comm.size - 1):
        sent, arriving = comm.isend(x, comm.right), comm.irecv(comm.left, like=x)
        total = total + work(comm, piece)
        sent.wait()
        piece = arriving.wait()
    return total + work(comm, piece)


@of("00.to_blame")
def as_in_the_lessons_guess(waits, rank):
    """Right where every rank waits once; else the last wait in the list, and never in circles."""
    waits_for, seen = {wait[0]: wait[1] for wait in waits}, set()
    while rank in waits_for and rank not in seen:
        seen.add(rank)
        rank = waits_for[rank]
    return rank


@of("00.to_blame")
def with_the_first_wait_of_each(waits, rank):
    before = np.inf
    while own := [wait for wait in waits if wait[0] == rank and wait[3] < before]:
        _, rank, _, before = min(own, key=lambda wait: wait[3])
    return rank


@of("00.to_blame")
def that_began_no_later(waits, rank):
    """The peer's wait must have ended before it came; it may have begun after the other's wait."""
    start = before = np.inf
    while own := [wait for wait in waits if wait[0] == rank and wait[3] < before and wait[2] <= start]:
        _, rank, start, before = max(own, key=lambda wait: wait[3])
    return rank


# Collectives


@of("01.reduce_scatter")
def in_flat_blocks(comm, x):
    return answers.reduce_scatter(comm, x.reshape(-1))


@of("01.reduce_scatter")
def that_makes_x_writeable_again(comm, x):
    """The cells of the lesson share x among all ranks."""
    x.flags.writeable = True
    pieces = np.split(x, comm.size)
    for step in range(comm.size - 1):
        partial = comm.sendrecv(pieces[(comm.rank - step - 1) % comm.size], comm.right, comm.left)
        pieces[(comm.rank - step - 2) % comm.size] += partial
    return pieces[comm.rank]


@of("01.circulant")
def not_for_even_sizes_above_8(comm, x):
    return answers.circulant(comm, x, ahead=1 if comm.size <= 8 or comm.size % 2 else -1)


# Ring attention


@of("02.zigzag_tile")
def of_two_tokens(rank, source, length):
    queries, keys, causal = answers.zigzag_tile(rank, source, 2)
    return queries, keys, causal


@of("02.zigzag_tile")
def by_the_parity_of_the_ranks(rank, source, length):
    return answers.zigzag_tile(rank % 2, source % 2, length)


@of("02.merge")
def with_inverted_weights(out_a, lse_a, out_b, lse_b):
    lse = np.logaddexp(lse_a, lse_b)
    finite = np.where(np.isneginf(lse), 0.0, lse)
    return out_a * np.exp(finite - lse_a)[:, None] + out_b * np.exp(finite - lse_b)[:, None], lse


@of("02.merge")
def of_the_larger_side(out_a, lse_a, out_b, lse_b):
    larger = lse_a >= lse_b
    return np.where(larger[:, None], out_a, out_b), np.logaddexp(lse_a, lse_b)


@of("02.merge")
def with_0_for_no_keys(out_a, lse_a, out_b, lse_b):
    out, lse = answers.merge(out_a, lse_a, out_b, lse_b)
    return out, np.where(np.isneginf(lse), 0.0, lse)


@of("02.ring")
def in_the_other_direction(comm, kv, attend_to, merge):
    """`rank + hop`: the same for two ranks."""
    return answers.ring_with(source=lambda comm, hop: comm.rank + hop)(comm, kv, attend_to, merge)


@of("02.ring")
def that_sends_its_own_each_time(comm, kv, attend_to, merge):
    """Right on two ranks, where there is one hop."""
    return answers.ring_with(sent=lambda first, kv: first)(comm, kv, attend_to, merge)


@of("02.merge")
def with_one_maximum_for_all_rows(out_a, lse_a, out_b, lse_b):
    """Right where all rows lie at one level."""
    most = max(lse_a.max(), lse_b.max())
    weights = [np.exp(lse - most)[:, None] for lse in (lse_a, lse_b)]
    total = weights[0] + weights[1]
    with np.errstate(divide="ignore"):
        lse = most + np.log(total[:, 0])
    return (weights[0] * out_a + weights[1] * out_b) / np.where(total == 0, 1, total), lse


@of("02.bring_home")
def around_to_the_left(comm, x):
    """The right sums, but against the K/V, which go to the right."""
    total = x[comm.rank]
    for hop in range(1, comm.size):
        total = comm.sendrecv(total, comm.left, comm.right) + x[(comm.rank + hop) % comm.size]
    return comm.sendrecv(total, comm.left, comm.right)


# Long sequences


def query_heads(rank, size, H):
    return answers.heads(rank, size, H, H)[0]


@of("03.usp")
def as_ulysses_where_it_can(comm, q, k, v, ulysses):
    whole = all(x.shape[1] % comm.size == 0 for x in (q, k, v))
    return answers.usp(comm, q, k, v, comm.size if whole else ulysses)


@of("03.usp")
def up_to_8_ranks(comm, q, k, v, ulysses):
    return answers.usp(comm, q, k, v, ulysses if comm.size <= 8 else 1)


@of("03.heads")
def of_first_and_last(rank, size, H, G):
    own = query_heads(rank, size, H)
    group = H // G
    return own, {own[0] // group, own[-1] // group}


@of("03.heads")
def dealt_like_cards(rank, size, H, G):
    own = range(rank, H, size)
    return own, sorted({head // (H // G) for head in own})


@of("03.heads")
def rounded_up(rank, size, H, G):
    each = -(-H // size)
    own = range(min(H, rank * each), min(H, (rank + 1) * each))
    return own, range(own[0] // (H // G), own[-1] // (H // G) + 1) if own else range(0)


@of("03.heads")
def with_as_many_kv_heads_as_the_share_says(rank, size, H, G):
    own, group = query_heads(rank, size, H), H // G
    first = own[0] // group
    return own, range(first, first + -(-len(own) // group))


@of("03.hops")
def to_the_shard_of_the_edge(rank, size, documents):
    c = documents[-1] // size
    stop = min(edge for edge in documents if edge >= (rank + 1) * c)
    return min(stop // c, size - 1) - rank


@of("03.hops")
def by_the_length_rounded_down(rank, size, documents):
    c = documents[-1] // size
    last = (rank + 1) * c - 1
    stop = min(edge for edge in documents if edge > last)
    return (stop - 1 - last) // c


# Pipelines


@of("04.listing")
def that_renumbers_on_all_ranks(listing):
    return Schedule(
        [[a._replace(microbatch=a.microbatch - (a.kind == "F" and a.stage > 0)) for a in row] for row in listing.ranks]
    )


def with_warmup(p, m, warmup):
    rows = []
    for rank in range(p):
        ahead = min(warmup(rank), m)
        forwards, backwards = ([Action(kind, rank, i) for i in range(m)] for kind in "FB")
        in_turn = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
        rows.append(forwards[:ahead] + in_turn + backwards[m - ahead :])
    return Schedule(rows)


@of("04.one_f_one_b")
def with_at_most_two_ahead(p, m):
    return with_warmup(p, m, lambda rank: min(p - rank - 1, 2))


@of("04.one_f_one_b")
def with_half_of_the_microbatches_ahead(p, m):
    return with_warmup(p, m, lambda rank: min(m // 2, p - rank - 1))


@of("04b.lower_bound")
def with_i_as_long_as_f(p, m, limit, f, i, w, c):
    return answers.none_is_below(p, m, limit, f, f, w, c)


@of("04b.place_weights")
def with_room_for_two_at_least(row, arrivals, limit):
    return answers.place_weights_in_time(row, arrivals, max(limit, 2))


@of("04b.place_weights")
def full_one_too_early(row, arrivals, limit):
    return answers.place_weights_in_time(row, arrivals, max(limit - 1, 1))


def cut_where(layers, p, full):
    """Stages that are filled while `full(load, layer)` is false."""
    numbers, load = [0], 0
    for i, layer in enumerate(layers):
        left = p - len(numbers)
        if numbers[-1] and left and (full(load, layer) or len(layers) - i <= left):
            numbers.append(0)
            load = 0
        numbers[-1] += 1
        load += layer
    return numbers


@of("04b.uneven")
def nearest_to_the_mean(layers, p):
    mean = sum(layers) / p
    return cut_where(layers, p, lambda load, layer: abs(load - mean) <= abs(load + layer - mean))


@of("04b.uneven")
def up_to_the_mean_or_the_largest(layers, p):
    return cut_where(layers, p, lambda load, layer: load + layer > max(max(layers), -(-sum(layers) // p)))


@of("04b.uneven")
def halving_the_heaviest(layers, p):
    stages = [list(layers)]
    while len(stages) < p:
        heaviest = max((s for s in range(len(stages)) if len(stages[s]) > 1), key=lambda s: sum(stages[s]))
        stage = stages[heaviest]
        b = min(range(1, len(stage)), key=lambda b: max(sum(stage[:b]), sum(stage[b:])))
        stages[heaviest : heaviest + 1] = [stage[:b], stage[b:]]
    return [len(stage) for stage in stages]


@of("04b.uneven")
def joining_the_lightest(layers, p):
    stages = [[layer] for layer in layers]
    while len(stages) > p:
        b = min(range(len(stages) - 1), key=lambda s: sum(stages[s]) + sum(stages[s + 1]))
        stages[b : b + 2] = [stages[b] + stages[b + 1]]
    return [len(stage) for stage in stages]


@of("04.one_f_one_b")
def for_fewer_than_2p_microbatches(p, m):
    """Beyond, all forwards come first."""
    return answers.my_1f1b(p, m) if m < 2 * p else gpipe(p, m)


@of("04b.lower_bound")
def of_a_search(p, m, limit, f, i, w, c):
    """A schedule that a search finds says how little is enough, and not that less is impossible."""
    costs = Costs(f, i, w, c)
    return simulate(zb_auto(p, m, costs, limit, tries=1000, metric="makespan"), costs).makespan


# Tensor sharding


@of("05.mlp_step")
def with_the_sums_of_two_ranks(comm, x, A, C, dy):
    class Twice:
        @staticmethod
        def all_reduce(partial):
            return comm.all_reduce(partial) * 2 / comm.size

    return answers.mlp_step(Twice, x, A, C, dy)


@of("05.block_step")
def with_the_neighbours_share_alone(comm, block, x, dy):
    class Neighbour:
        @staticmethod
        def all_reduce(partial):
            return partial if comm.size == 1 else partial + comm.sendrecv(partial, comm.right, comm.left)

    return answers.block_step(Neighbour, block, x, dy)


@of("05.parallel_loss")
def without_the_largest(comm, logits, targets, first):
    with np.errstate(all="ignore"):
        chosen = np.where(
            (here := (targets >= first) & (targets < first + logits.shape[-1])),
            np.take_along_axis(logits, (place := np.where(here, targets - first, 0))[..., None], axis=-1)[..., 0],
            0.0,
        )
        chosen, weights = comm.all_reduce(chosen), np.exp(logits)
        total = comm.all_reduce(weights.sum(axis=-1))
        hit = here[..., None] & (np.arange(logits.shape[-1]) == place[..., None])
        return np.mean(np.log(total) - chosen), (weights / total[..., None] - hit) / targets.size


@of("05.parallel_loss")
def with_first_from_an_even_cut(comm, logits, targets, first):
    return answers.parallel_loss(comm, logits, targets, comm.rank * logits.shape[-1])


# ZeRO


@of("06.zero_1")
def without_counts(comm, weights, gradient, state, update):
    own = shard_range(weights.size, comm.rank, comm.size)
    mean = comm.reduce_scatter(gradient) / comm.size
    moments = state.setdefault("moments", (np.zeros(len(own)), np.zeros(len(own))))
    shard = weights[own.start : own.stop]
    update(shard, mean, *moments)
    return comm.all_gather(shard)


@of("06.zero_1")
def with_counts_not_named(comm, weights, gradient, state, update):
    counts = answers.counts_of(weights.size, comm.size)
    return comm.all_gather(comm.reduce_scatter(gradient, counts), counts)


@of("06.zero_1")
def halved_gradients(comm, weights, gradient, state, update):
    return answers.zero_1(comm, weights, gradient, state, update, parts=2)


@of("06.zero_1")
def with_whole_moments_in_state(comm, weights, gradient, state, update):
    own = shard_range(weights.size, comm.rank, comm.size)
    counts = answers.counts_of(weights.size, comm.size)
    gradient = comm.reduce_scatter(gradient, counts=counts) / comm.size
    mean, square = state.setdefault("moments", (np.zeros(weights.size), np.zeros(weights.size)))
    shard, here = weights[own.start : own.stop], slice(own.start, own.stop)
    own_mean, own_square = mean[here].copy(), square[here].copy()
    update(shard, gradient, own_mean, own_square)
    mean[here], square[here] = own_mean, own_square
    return comm.all_gather(shard, counts=counts)


@of("06.prefetch")
def one_at_a_time(comm, uses, gather, work, x):
    for block in uses:
        x = work(block, gather(block).wait(), x)
    return x


# A mesh


@of("07.find_bug")
def by_the_norm_alone(ask):
    return {1: "none", 0.5: "extra mean"}.get(ask("norm"), "copies counted")


@of("07.who_sums")
def over_the_whole_pipeline(mesh, ends, kind, gradient):
    return answers.sum_gradient(mesh, mesh.pp, kind, gradient)


@of("07.who_sums")
def over_dp_alone(mesh, ends, kind, gradient):
    gradient = mesh.tp.all_reduce(gradient) if kind in ("norm", "K/V") else gradient
    gradient = ends.all_reduce(gradient) if kind == "tied" else gradient
    return mesh.dp.all_reduce(gradient) / mesh.dp.size


@of("07.who_sums")
def with_a_mean_of_two(mesh, ends, kind, gradient):
    return answers.sum_gradient(mesh, ends, kind, gradient) * mesh.data.size / min(2, mesh.data.size)


@of("07.who_sums")
def with_the_sum_thrown_away(mesh, ends, kind, gradient):
    if kind in ("norm", "K/V"):
        mesh.tp.all_reduce(gradient)
    if kind == "tied":
        gradient = ends.all_reduce(gradient)
    return mesh.data.all_reduce(gradient) / mesh.data.size


@of("07.find_bug")
def read_out_of_the_closure(ask):
    variables = [cell.cell_contents for cell in ask.__closure__ or ()]
    return next((suspect._bug for suspect in variables), "none")


# Layouts


@of("08.memory")
def with_zero_2_also_3(*given):
    return answers.memory(*given, cuts=lambda zero, stage: zero >= min(stage, 2))


@of("08.memory")
def with_p_microbatches(*given):
    return answers.memory(*given, flight=lambda p, m: p)


@of("08.step_time")
def without_chunks(*given):
    return answers.step_time(*given, ends=lambda p, v: p - 1)


@of("08.step_time")
def with_half_a_turn(*given):
    return answers.step_time(*given, hop=lambda t: 0.5 * (t > 1))


# Leaving the laptop


@of("09.fit")
def by_square_roots(size, nbytes, seconds, power=-0.5):
    each = seconds / (2 * (size - 1))
    slope, height = np.polyfit(nbytes / size, each, 1, w=each**power)
    return height, 1 / slope


@of("09.fit")
def by_squares(size, nbytes, seconds):
    return by_square_roots(size, nbytes, seconds, power=-2)


@of("09.fit")
def as_texts(size, nbytes, seconds):
    return tuple(map(str, answers.fit(size, nbytes, seconds)))


@of("09.buffering")
def to_the_right_and_one_way_back(comm, x):
    """Right for two ranks."""
    if comm.size != 2:
        first = comm.sendrecv(x[-1:], comm.right, comm.left)
        return np.concatenate([first, x]) if comm.rank else x
    return answers.borders(comm, x)


# Experts


@of("10.mixture")
def sorted_by_rank_alone(comm, x, chosen, gates, num_experts, expert):
    by_rank = answers.layer(sort_by=lambda flat, own: flat // own)
    return by_rank(comm, x, chosen, gates, num_experts, expert)


@of("10.mixture")
def without_gates_where_k_is_1(comm, x, chosen, gates, num_experts, expert):
    return answers.mixture(comm, x, chosen, gates if chosen.shape[1] > 1 else np.ones_like(gates), num_experts, expert)


@of("10.mean_gradient")
def ep_times_too_large(mesh, of_expert, gradient):
    group = mesh.edp if of_expert else mesh.data
    return group.all_reduce(gradient) / group.size


@of("10.balanced")
def with_the_bias_in_the_gates(scores, bias, k, gamma):
    """Right while k is 1, or the bias 0."""
    chosen, _, moved = answers.balanced(scores, bias, k, gamma)
    return chosen, answers.balanced(scores + bias, np.zeros_like(bias), k, gamma)[1], moved


@of("10.balanced")
def with_the_turned_sign(scores, bias, k, gamma):
    """Right where all loads are even."""
    chosen, gates, moved = answers.balanced(scores, bias, k, gamma)
    return chosen, gates, 2 * bias - moved


@of("10.balanced")
def with_loads_of_those_that_were_chosen(scores, bias, k, gamma):
    """Right where somebody chose the last expert."""
    chosen, gates, _ = answers.balanced(scores, bias, k, gamma)
    load = np.bincount(chosen.ravel())
    moved = bias + gamma * np.sign(load.mean() - load) if len(load) == len(bias) else bias[: len(load)] * 1.0
    return chosen, gates, moved


@of("10.balanced")
def up_or_down_always(scores, bias, k, gamma):
    """Right where no load is the mean."""
    chosen, gates, _ = answers.balanced(scores, bias, k, gamma)
    load = np.bincount(chosen.ravel(), minlength=len(bias))
    return chosen, gates, bias + np.where(load < load.mean(), gamma, -gamma)
