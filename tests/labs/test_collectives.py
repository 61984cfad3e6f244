"""The checkers of notebook 01 accept the solutions and refuse what learners write on the way there."""

import numpy as np
import pytest

from tests.labs.answers import average_gradients, hierarchical_all_reduce, reduce_scatter, refused, reviewed


def test_the_passing_text_shows_count_beside_closed_form():
    review = reviewed("01.hierarchical_all_reduce", hierarchical_all_reduce)
    assert review.text == (
        "01.hierarchical_all_reduce: passed, 14 cases and 4 drawn anew. "
        "With 12 ranks in nodes of 4, x float32[36] on each:\n"
        "  bytes a rank sends to other nodes: 48; closed form: 2(k − 1)/k · n/g = 48\n"
        "  bytes a rank sends inside its node: 216; closed form: 2(g − 1)/g · n = 216"
    )


def shifted_right(comm, x):
    return reduce_scatter(comm, x, shift=1)


def without_the_last_step(comm, x):
    return reduce_scatter(comm, x, steps=comm.size - 2)


def with_one_step_too_many(comm, x):
    return reduce_scatter(comm, x, steps=comm.size)


def without_adding(comm, x):
    return reduce_scatter(comm, x, add=lambda own, partial: partial)


def with_the_whole_array_travelling(comm, x):
    total, block = x, x
    for _ in range(comm.size - 1):
        block = comm.sendrecv(block, comm.right, comm.left)
        total = total + block
    return np.split(total, comm.size)[comm.rank]


def in_two_halves(comm, x):
    blocks = np.split(x, comm.size)
    for step in range(comm.size - 1):
        outgoing, incoming = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        cuts = np.array_split(blocks[outgoing], 2)
        partial = np.concatenate([comm.sendrecv(cut, comm.right, comm.left) for cut in cuts])
        blocks[incoming] = blocks[incoming] + partial
    return blocks[comm.rank]


def only_on_rank_0(comm, x):
    own = reduce_scatter(comm, x)
    return own if comm.rank == 0 else np.split(x, comm.size)[comm.rank]


def that_returns_the_mean(comm, x):
    return reduce_scatter(comm, x) / comm.size


def where_rank_0_receives_first(comm, x):
    blocks = np.split(x, comm.size)
    for step in range(comm.size - 1):
        outgoing, incoming = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        partial = comm.recv(comm.left, like=blocks[incoming])
        comm.send(blocks[outgoing], comm.right)
        blocks[incoming] = blocks[incoming] + partial
    return blocks[comm.rank]


def where_the_last_rank_turns_round(comm, x):
    blocks = np.split(x, comm.size)
    to, source = (comm.right, comm.left) if comm.rank < comm.size - 1 else (comm.left, comm.right)
    for step in range(comm.size - 1):
        outgoing, incoming = (comm.rank - step - 1) % comm.size, (comm.rank - step - 2) % comm.size
        blocks[incoming] = blocks[incoming] + comm.sendrecv(blocks[outgoing], to, source)
    return blocks[comm.rank]


def where_rank_1_leaves_early(comm, x):
    return reduce_scatter(comm, x, steps=0 if comm.rank == 1 else None)


def by_calling_reduce_scatter(comm, x):
    return comm.reduce_scatter(x)


def in_float64(comm, x):
    return reduce_scatter(comm, x.astype("float64"))


def as_a_list(comm, x):
    return reduce_scatter(comm, x).tolist()


def without_the_mean(comm, x):
    return average_gradients(comm, x) * comm.size


def with_the_mean_of_the_mean(comm, x):
    return average_gradients(comm, x) / comm.size


def without_communication(comm, x):
    return x / comm.size


def without_padding(comm, x):
    return comm.all_gather(comm.reduce_scatter(x)) / comm.size


def with_the_padding_left_on(comm, x):
    padded = np.pad(x, (0, -len(x) % comm.size))
    return comm.all_gather(comm.reduce_scatter(padded)) / comm.size


def with_everything_gathered(comm, x):
    return comm.all_gather(x[None, :]).mean(axis=0, dtype=x.dtype)


def where_one_rank_skips_the_gather(comm, x):
    padded = np.pad(x, (0, -len(x) % comm.size))
    own = comm.reduce_scatter(padded)
    return own / comm.size if comm.rank == 0 and comm.size > 2 else comm.all_gather(own)[: len(x)] / comm.size


def where_the_ranks_call_in_different_orders(comm, x):
    padded = np.pad(x, (0, -len(x) % comm.size))
    if comm.rank == 0:
        comm.all_gather(padded)
    own = comm.reduce_scatter(padded)
    return comm.all_gather(own)[: len(x)] / comm.size


def with_one_block_too_many(comm, x):
    """One of 2(P − 1) more: less than the whole array."""
    padded = np.pad(x, (0, -len(x) % comm.size))
    own = comm.reduce_scatter(padded)
    comm.sendrecv(own, comm.right, comm.left)
    return comm.all_gather(own)[: len(x)] / comm.size


def by_calling_all_reduce(comm, x):
    return comm.all_reduce(x) / comm.size


def flat(comm, x, ranks_per_node):
    return comm.all_gather(comm.reduce_scatter(x))


def with_everything_crossing(comm, x, ranks_per_node):
    inside = comm.split(comm.rank // ranks_per_node)
    between = comm.split(comm.rank % ranks_per_node)
    node = inside.all_gather(inside.reduce_scatter(x))
    return between.all_gather(between.reduce_scatter(node))


def without_crossing(comm, x, ranks_per_node):
    inside = comm.split(comm.rank // ranks_per_node)
    return inside.all_gather(inside.reduce_scatter(x))


def by_the_built_in(comm, x, ranks_per_node):
    return comm.all_reduce(x, algorithm="hierarchical", ranks_per_node=ranks_per_node)


def with_a_whole_sum_inside(comm, x, ranks_per_node):
    inside = comm.split(comm.rank // ranks_per_node)
    between = comm.split(comm.rank % ranks_per_node)
    node = inside.all_gather(inside.reduce_scatter(x))
    own = np.split(node, ranks_per_node)[inside.rank]
    return inside.all_gather(between.all_gather(between.reduce_scatter(own)))


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("01.reduce_scatter", shifted_right, "this is the rank's own contribution; nothing was added to it"),
        ("01.reduce_scatter", without_the_last_step, "this is the rank's own contribution; nothing was added to it"),
        ("01.reduce_scatter", with_one_step_too_many, "or makes one step too many"),
        ("01.reduce_scatter", without_adding, "rank 0's contribution is missing"),
        ("01.reduce_scatter", with_the_whole_array_travelling, "n(P − 1)/P"),
        ("01.reduce_scatter", with_the_whole_array_travelling, "a rank sends more than one piece in a step"),
        ("01.reduce_scatter", in_two_halves, "messages a rank sends: 2, should be P − 1 = 1"),
        ("01.reduce_scatter", only_on_rank_0, "right on ranks: 0; wrong on: 1"),
        ("01.reduce_scatter", that_returns_the_mean, "2 times too little"),
        ("01.reduce_scatter", where_rank_0_receives_first, "every rank receives first"),
        ("01.reduce_scatter", where_the_last_rank_turns_round, "rank 0 waits in sendrecv(to 1, from 2)"),
        ("01.reduce_scatter", where_rank_1_leaves_early, "rank 1 has already returned from the program"),
        (
            "01.reduce_scatter",
            by_calling_reduce_scatter,
            "comm.reduce_scatter did the work: build it from comm.send, comm.recv, comm.sendrecv",
        ),
        ("01.reduce_scatter", in_float64, "expected float32["),
        ("01.reduce_scatter", as_a_list, "returned list, expected float"),
        ("01.average_gradients", without_the_mean, "2 times too much: divide by the number of ranks, once"),
        ("01.average_gradients", with_the_mean_of_the_mean, "2 times too little"),
        ("01.average_gradients", without_communication, "this is the rank's own contribution; nothing was added to it"),
        ("01.average_gradients", without_padding, "do not divide among"),
        ("01.average_gradients", with_the_padding_left_on, "expected float"),
        ("01.average_gradients", with_everything_gathered, "ranks send whole arrays where a piece of 1/P would do"),
        ("01.average_gradients", with_one_block_too_many, "ranks send whole arrays where a piece of 1/P would do"),
        ("01.average_gradients", where_one_rank_skips_the_gather, "rank 0 has already returned from the program"),
        (
            "01.average_gradients",
            where_the_ranks_call_in_different_orders,
            "entered different collectives: rank 0 calls all_gather",
        ),
        ("01.average_gradients", by_calling_all_reduce, "comm.all_reduce did the work: build it from"),
        ("01.hierarchical_all_reduce", flat, "bytes a rank sends to other nodes"),
        ("01.hierarchical_all_reduce", with_everything_crossing, "4 ranks in nodes of 2"),
        ("01.hierarchical_all_reduce", with_everything_crossing, "whole arrays go to other nodes"),
        (
            "01.hierarchical_all_reduce",
            without_crossing,
            "this is the rank's own contribution; nothing was added to it",
        ),
        ("01.hierarchical_all_reduce", by_the_built_in, "comm.all_reduce did the work"),
        ("01.hierarchical_all_reduce", with_a_whole_sum_inside, "a reduce-scatter is enough"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(name, answer, reason):
    assert reason in refused(name, answer)
