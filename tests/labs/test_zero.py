"""The checkers of notebook 06's exercises on shards refuse what learners write on the way."""

import numpy as np
import pytest

from parlab import run
from parlab.labs import zero
from parlab.labs.counts import peak_bytes
from parlab.zero import shard_range
from tests.labs.answers import refused, reviewed, zero_1


def changed(answer, **options):
    return lambda *arguments: answer(*arguments, **options)


all_reduce_first = changed(zero_1, summed=lambda comm, gradient: comm.all_reduce(gradient) / comm.size)  # 3Ψ
nothing_summed = changed(zero_1, summed=lambda comm, gradient: gradient)  # each owner's own gradient


def padded(comm, weights, gradient, state, update):
    length = -(-weights.size // comm.size)
    pad = length * comm.size - weights.size
    gradient = comm.reduce_scatter(np.pad(gradient, (0, pad))) / comm.size
    shard = np.pad(weights, (0, pad))[comm.rank * length : (comm.rank + 1) * length]
    mean, square = state.setdefault("moments", (np.zeros(length), np.zeros(length)))
    update(shard, gradient, mean, square)
    return comm.all_gather(shard)[: weights.size]


def the_last_takes_the_rest(comm, weights, gradient, state, update):
    """Disjoint and complete, and uneven: the last rank may have nearly P more than the others."""
    length = weights.size // comm.size
    counts = [length] * (comm.size - 1) + [weights.size - length * (comm.size - 1)]
    shard = weights[comm.rank * length :][: counts[comm.rank]]
    gradient = comm.reduce_scatter(gradient, counts=counts) / comm.size
    mean, square = state.setdefault("moments", (np.zeros(shard.size), np.zeros(shard.size)))
    update(shard, gradient, mean, square)
    return comm.all_gather(shard, counts=counts)


def one_by_one(comm, weights, gradient, state, update):
    """Right, and as many numbers: a reduce and a broadcast for each owner."""
    own = shard_range(weights.size, comm.rank, comm.size)
    moments = state.setdefault("moments", (np.zeros(len(own)), np.zeros(len(own))))
    for owner in range(comm.size):
        shard = shard_range(weights.size, owner, comm.size)
        here = slice(shard.start, shard.stop)
        total = comm.reduce(gradient[here], root=owner)
        if comm.rank == owner:
            update(weights[here], total / comm.size, *moments)
        weights[here] = comm.broadcast(weights[here], root=owner)
    return weights


def no_messages(comm, weights, gradient, state, update):
    mean, square = state.setdefault("moments", (np.zeros(weights.size), np.zeros(weights.size)))
    update(weights, gradient, mean, square)
    return weights


def test_a_step_that_serves_one_owner_after_another_passes_and_is_told_so():
    review = reviewed("06.zero_1", one_by_one)
    assert review.status == "passed", review.text
    assert "but one owner is served after another" in review.text
    assert "one owner" not in reviewed("06.zero_1", zero_1).text


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (changed(zero_1, parts=1), "likely cause: the gradient is 2 times too large: the mean over ranks is needed"),
        (changed(zero_1, parts=4), "likely cause: the gradient is 2 times too small"),
        (changed(zero_1, forget=True), "whose shard is 0 to 1\n  likely cause: this is the old weight"),
        (
            lambda comm, weights, *rest: zero_1(comm, weights, *rest)[: -(-weights.size // comm.size)],
            "returned float64[2], expected float64[4]\n  likely cause: this is the rank's shard alone",
        ),
        (changed(zero_1, keep=False), "after step 2, rank 0|likely cause: the moments start from 0 again: keep them"),
        (changed(zero_1, gather=False), "likely cause: this rank did not receive the other ranks' new weights"),
        (no_messages, "likely cause: updated with this rank's own gradient: nothing was summed"),
        (nothing_summed, "likely cause: each owner updated with its own gradient: nothing was summed"),
        (padded, "send in a step: 12, should be 2Ψ(P − 1) = 10\n  likely cause: ranks send padding"),
    ],
)
def test_wrong_steps_of_zero_1_are_refused(answer, says):
    refused("06.zero_1", answer, says)


def test_of_what_no_rank_held_there_are_0_bytes():
    assert peak_bytes(run(lambda comm: None, 2).timeline, zero.MOMENTS) == 0


def test_an_uneven_cut_is_refused_where_the_last_rank_has_2_more():
    held = "bytes of moments that a rank holds: 48, should be 2 moments · ⌈Ψ/P⌉ · 8 = 32"
    refused("06.zero_1", the_last_takes_the_rest, f"It fails with 4 ranks, Ψ = 6 weights:|{held}")
