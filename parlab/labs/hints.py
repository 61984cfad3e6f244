"""Three hints for each exercise: a question, the idea, the skeleton of an answer."""

from __future__ import annotations

HINTS: dict[str, tuple[str, str, str]] = {
    "00.exchange": (
        "What does the rank on your right get, and when may it take it? Who receives, if all send first?",
        "Two rounds: all arrays move one place to the right, then one to the left. `sendrecv` does both ends at once.",
        """def exchange(comm, x):
    from_left = comm.sendrecv(x, ..., ...)   # to the right, from the left
    from_right = comm.sendrecv(x, ..., ...)
    return from_left, from_right""",
    ),
    "00.tree_sum": (
        "After the first step half of the ranks are through. Which ones, and what do the others hold?",
        "With distance 1, 2, 4, ...: ranks that are odd multiples of it send their sum that far down, and leave.",
        """def tree_sum(comm, x):
    distance = 1
    while distance < comm.size:
        if comm.rank % (2 * distance) == distance:
            ...                              # send, and return
        if comm.rank + distance < comm.size:
            x = x + ...
        distance *= 2
    return x""",
    ),
    "00.overlap": (
        "What can a rank do with the block that it has while the next one is on its way?",
        "Post isend and irecv of the block, work on it, and wait only then. The last block is not passed on.",
        """def overlap(comm, x, work):
    total, block = 0, x
    for _ in range(comm.size - 1):
        sent, arriving = comm.isend(...), comm.irecv(...)
        total = total + work(comm, block)
        ...                                  # wait for both; the new block
    return total + work(comm, block)""",
    ),
    "01.reduce_scatter": (
        "Which block must come last, so that it is complete with you? So which one do you send first?",
        "A block starts on the rank after its owner and goes round to the right; every rank adds its share on the way.",
        """def reduce_scatter(comm, x):
    blocks = np.split(x, comm.size)
    for step in range(comm.size - 1):
        outgoing = (comm.rank - step - 1) % comm.size
        incoming = ...
        blocks[incoming] = blocks[incoming] + comm.sendrecv(...)
    return blocks[comm.rank]""",
    ),
    "01.average_gradients": (
        "What is left over if 10 numbers go to 4 ranks, and who could own it?",
        "Fill up with zeros to a multiple of N, reduce-scatter, divide the own piece, all-gather, cut off the zeros.",
        """def average_gradients(comm, x):
    padded = np.pad(x, (0, ...))
    own = comm.reduce_scatter(padded) / ...
    return comm.all_gather(own)[...]""",
    ),
    "01.hierarchical_all_reduce": (
        "Of what the node sums up, which part need *this* rank carry to the other nodes?",
        "Reduce-scatter inside the node; all-reduce the own piece among the ranks at your place; all-gather inside.",
        """def hierarchical_all_reduce(comm, x, ranks_per_node):
    inside, between = comm.split(...), comm.split(...)
    piece = inside.reduce_scatter(x)
    piece = ...                              # its sum over the nodes: reduce_scatter and all_gather
    return inside.all_gather(piece)""",
    ),
    "02.zigzag_block": (
        "Rank r owns chunks r and 2N − 1 − r. Which of rank s's two chunks lie before which of yours?",
        "An earlier rank: all queries see its first half. A later one: your second half sees all. Your own: causal.",
        """def zigzag_block(rank, source, size, length):
    everything, half = slice(0, length), length // 2
    if source == rank:
        return everything, everything, True
    if source < rank:
        return ..., ..., False
    return ..., ..., False""",
    ),
    "02.merge": (
        "What is the sum of exp(score) over both sides, written with lse_a and lse_b? What share of it has side a?",
        "Each side has the weight exp(its lse − merged lse): subtract before any exp. And −∞ − (−∞) is NaN.",
        """def merge_two(out_a, lse_a, out_b, lse_b):
    lse = np.logaddexp(lse_a, lse_b)
    finite = np.where(np.isneginf(lse), 0.0, lse)
    weight_a, weight_b = ...
    return ..., lse""",
    ),
    "02.bring_home": (
        "After N − 1 hops to the right, on which rank is a gradient that started at home?",
        "Start with your share of your own gradient; after each hop add your share of what came; then one more hop.",
        """def bring_home(comm, x):
    total = x[comm.rank]
    for hop in range(1, comm.size):
        total = comm.sendrecv(total, comm.right, comm.left) + x[...]
    return ...""",
    ),
    "03.heads": (
        "Rank 2 of 4 has query heads 4 and 5 of 8. With 2 K/V heads, which one do these two read?",
        "The first H mod P ranks have one head more. Query head h reads K/V head h // (H/G): from first to last head.",
        """def heads(rank, size, H, G):
    first = rank * (H // size) + min(rank, ...)
    last = first + H // size + (...) - 1
    group = H // G                           # query heads that share a K/V head
    return range(first, last + 1), range(first // group, ...)""",
    ),
    "03.hops": (
        "Which of a rank's tokens is looked at by the ranks furthest to the right?",
        "Its last one: up to the end of that token's document. On which rank does this document's last token lie?",
        """def hops(rank, size, documents):
    c = documents[-1] // size
    last = (rank + 1) * c - 1
    stop = min(edge for edge in documents if ...)
    return ... - rank""",
    ),
    "03.cuts": (
        "If you knew the best first p − 1 cuts for every place of the last one, how would you find the next?",
        "The least sum of n chunks up to b: the least of n − 1 chunks up to some a ≤ b − shortest, plus crossing[b].",
        """def cuts(crossing, ranks, shortest):
    S = len(crossing) - 1
    best = {0: (0.0, [])}                    # where the last chunk ends: its sum, and the cuts
    for chunk in range(ranks):
        ends = range(shortest, S + 1) if chunk < ranks - 1 else [S]
        best = {
            b: min((total + crossing[b], [*before, b]) for a, (total, before) in best.items() if ...)
            for b in ends
            if any(...)
        }
    return best[S][1][:-1]""",
    ),
    "04.listing": (
        "Which microbatches does the last rank send forward in the picture, and which does it send back?",
        "Only the last rank's forwards are numbered wrongly: by one.",
        """def repaired(listing):
    *others, last = listing.ranks
    lower = [action._replace(microbatch=...) if action.kind == "F" else action for action in last]
    return Schedule([*others, lower])""",
    ),
    "04.faster": (
        "In ZB-H1 rank 0 waits behind its first forwards. What may it do meanwhile if it keeps one activation more?",
        "Four forwards before the first I on ranks 0 and 1, W's where a rank would wait: `simulate(...).idle(rank)`.",
        '''def faster(costs):
    return """
        0F0,0F1,0F2,0F3,0I0,0W0,...
        1F0,1F1,1F2,1F3,1I0,1W0,...
        2F0,2I0,2F1,2F2,2I1,2I2,...
    """''',
    ),
    "04.place_weights": (
        "How many I's may rank r do before its first W, if it is to keep p activations? Count its forwards.",
        "Rank r has p − r forwards ahead: it may put off r W's. With the next one, it does the oldest.",
        """def place_weights(row, rank, p):
    placed, put_off = [], []
    for action in row:
        placed.append(action)
        if action.kind == "I":
            put_off.append(...)
        if len(put_off) > ...:
            placed.append(put_off.pop(0))
    return placed + put_off""",
    ),
    "04b.place_weights": (
        "At which two moments does a W cost nothing, or cannot be put off any longer?",
        "Keep a clock and a count: before each action, W's while its input is not there, or while an F has no room.",
        """def place_weights(row, arrivals, limit):
    placed, put_off, time, kept = [], [], 0, 0
    for action, arrival in zip(row, arrivals):
        while put_off and (time < arrival or ...):
            placed.append(put_off.pop(0))
            time, kept = ...
        placed.append(action)
        ...                                  # the clock, the count, the W that may now be put off
    return placed + put_off""",
    ),
    "04b.uneven": (
        "If you may not load a stage above t, how few stages can you do with? For which t is it p?",
        "Try t's from small to large: fill each stage up to t; stop at the first t for which p stages are enough.",
        """def cut(layers, p):
    t = max(layers)
    while True:
        numbers, load = [0], 0
        for i, layer in enumerate(layers):
            left = len(layers) - i           # layers, for the stages that must not stay empty
            if numbers[-1] and (load + layer > t or ...):
                numbers.append(0)
                load = 0
            ...
        if len(numbers) == p:
            return numbers
        t += 1""",
    ),
    "04b.beat_heuristic": (
        "Which rank has most to do, and when does it stand idle under the heuristic's schedule?",
        "Rank 2 must never wait: what it waits for has to come before ranks 0 and 1 do W's that nobody needs yet.",
        '''def beat(costs):
    return """
        0F0,0F1,0I0,0W0,0F2,...
        1F0,1F1,1I0,1W0,...
        2F0,2F1,2I0,2I1,...
    """''',
    ),
    "05.block_step": (
        "Where in the forward has a rank a part of a sum, and where, going back, a share of a gradient?",
        "All-reduce behind each row layer (forward), in front of each column layer (backward), and shared k's and v's.",
        """def block_step(comm, block, x, dy):
    h = x + comm.all_reduce(a)               # and the same for m
    ...
    dm, of_norm_2 = block.mlp_norm.backward(comm.all_reduce(dm), norm_2)   # and the same for da
    if block.kv_sharers is not None:
        ...                                  # sum the gradients of k_proj and v_proj over them""",
    ),
    "05.parallel_loss": (
        "log Σ exp(logit) − the target's logit: which three numbers for each token need all ranks?",
        "The largest logit (op max), the target's logit (0 where it is not yours), the sum of exp(logit − largest).",
        """def parallel_loss(comm, logits, targets, first):
    largest = comm.all_reduce(logits.max(axis=-1), op="max")
    here = (targets >= first) & (targets < first + logits.shape[-1])
    chosen = comm.all_reduce(np.where(here, ..., 0.0))
    weights = np.exp(logits - largest[..., None])
    total = comm.all_reduce(...)
    return ..., (weights / total[..., None] - ...) / targets.size""",
    ),
    "06.zero_1": (
        "Which weights does this rank update, and what does it need for that: of the gradient, of the moments?",
        "Reduce-scatter the gradient, divide by N, update the own shard with the own moments, all-gather the weights.",
        """def zero_1(comm, weights, gradient, state, update):
    counts = [len(shard_range(weights.size, rank, comm.size)) for rank in range(comm.size)]
    own = shard_range(weights.size, comm.rank, comm.size)
    gradient = comm.reduce_scatter(gradient, counts=counts) / ...
    if not state:
        ...                                  # zeros, as long as the shard
    update(...)
    return comm.all_gather(..., counts=counts)""",
    ),
    "06.stage_2": (
        "When a block's gradient comes, what of it do you still need a moment later?",
        "Reduce-scatter each gradient as it comes, and add up shards over the microbatches, not whole gradients.",
        """def stage_2(comm, backward, microbatches):
    shards = {}
    for block, gradient in backward:
        part = comm.reduce_scatter(gradient, counts=...)
        shards[block] = shards.get(block, 0) + ...
    return shards""",
    ),
    "06.prefetch": (
        "When is the first moment at which you may start the next gather, if two blocks may be there?",
        "Wait for this block, start the next one's gather, then work.",
        """def prefetch(comm, uses, gather, work, x):
    request = gather(uses[0])
    for block, following in zip(uses, [*uses[1:], None]):
        weights = request.wait()
        if following is not None:
            request = ...
        x = work(...)
    return x""",
    ),
    "07.who_sums": (
        "Two ranks that differ in one coordinate only: do they have the same weight? Did they see the same tokens?",
        "Sum what was made from other tokens or by another use of the same weight; the loss is a mean over dp × cp.",
        """def sum_gradient(mesh, ends, kind, gradient):
    if kind == "norm":
        gradient = mesh.tp.all_reduce(...)
    if kind == "tied":
        gradient = ...
    return mesh.data.all_reduce(gradient) / ...""",
    ),
    "07.norm": (
        "How often does the square of a weight's gradient come, if each rank adds all that it holds?",
        "Each rank adds its squares by 1 / copies; the sum goes over one replica, mesh.model.",
        """def norm(mesh, gradients, copies):
    squares = sum(float((x**2).sum()) / ... for name, x in gradients.items())
    return float(mesh.model.all_reduce(np.array([squares]))[0]) ** 0.5""",
    ),
    "07.cut_batch": (
        "Which token follows the last one of a chunk, and on which rank does it lie?",
        "Shift first, then cut: positions first, then inputs at them and targets one further on.",
        """def cut_batch(mesh, tokens):
    rows = ...                               # of tokens, this replica's
    chunk = (tokens.shape[1] - 1) // (2 * mesh.cp.size)
    positions = np.concatenate([...])        # chunks c and 2·cp − 1 − c
    return rows[:, positions], rows[:, ...], positions""",
    ),
    "08.memory": (
        "The first stage: how many microbatches has it sent forward when the first one comes back to it?",
        "Three sizes a parameter, 2, 2 and 12 bytes: which of them does your stage of ZeRO divide by d? And min(p, m).",
        """def memory(params, kept, d, p, t, m, zero):
    weights = 2 / (d if zero >= 3 else 1)
    gradients = ...
    optimizer = ...
    return params / (p * t) * (...) + ... * kept / (p * t)""",
    ),
    "08.step_time": (
        "For how many microbatches' time is a stage busy, and for how long does it wait in all?",
        "A microbatch takes a stage (its share of the work + its turns) / p. A step: m of these, and (p − 1)/v more.",
        """def step_time(work, nbytes, speed, d, p, t, v, batch):
    traffic = (t - 1) / t * ...
    stage = (...) / p
    return stage * (batch / d + ...)""",
    ),
    "08.fits_best": (
        "Go through the layouts that fit, the fastest first: when is the next one worth having?",
        "If it needs less memory than all that came before it. Of equally fast ones, look at the leanest first.",
        """def fits_best(seconds, nbytes, memory):
    fits = [i for i in range(len(seconds)) if ...]
    front, least = [], float("inf")
    for i in sorted(fits, key=lambda i: (..., ...)):
        if nbytes[i] < least:
            ...
    return front""",
    ),
    "08.why": (
        "Which of the two bills can forbid a layout, whatever the other one says?",
        "First memory; then whether the step became longer at all; then the kind with the greatest after − before.",
        """def why(before, after, nbytes, memory):
    if ...:
        return "memory"
    if sum(...) < sum(...):
        return "nothing"
    return max(before, key=lambda kind: ...)""",
    ),
    "09.all_reduce": (
        "If each rank adds the arrays in the order in which they reach it, are the last bits of all sums equal?",
        "Cut x into N pieces. A piece is added up in one order, on its way around the ring; then the sum is passed on.",
        """def all_reduce(comm, x):
    pieces = [piece.copy() for piece in np.array_split(x, comm.size)]
    for step in range(comm.size - 1):        # as 01.reduce_scatter
        out, into = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        pieces[into] += comm.sendrecv(pieces[out], comm.right, comm.left, like=...)
    for step in range(comm.size - 1):        # the sums, around once more
        ...
    return np.concatenate(pieces)""",
    ),
    "09.fit": (
        "An error of 2 % at the largest size: how many times the whole time of the smallest is that?",
        "Seconds over 2(N − 1) are α + (n/N)/bandwidth: a line over n/N. Weigh each size by one over its seconds.",
        """def fit(size, nbytes, seconds):
    each = seconds / ...                     # of one message
    slope, height = np.polyfit(nbytes / size, each, 1, w=...)
    return height, ...""",
    ),
    "09.buffering": (
        "All ranks are in their first send. Who receives?",
        "Two rounds: rows move to the right, all at once, then to the left. Post both ends of a message together.",
        """def borders(comm, x):
    above = below = x[:0]                    # no rows
    first, last = comm.rank == 0, comm.rank == comm.size - 1
    down = None if last else comm.isend(x[-1:], comm.rank + 1)
    if not first:
        above = comm.recv(...)
    ...                                      # wait for what was posted; then the same upwards
    return np.concatenate([above, x, below])""",
    ),
}
