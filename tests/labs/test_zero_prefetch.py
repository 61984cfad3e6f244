"""The checker of notebook 06's exercise on time accepts the solution, and refuses gathers that wait, pile up or mix."""

import numpy as np
import pytest

from parlab.labs import gathered_ahead as prefetch
from tests.labs.answers import refused, reviewed
from tests.labs.lucky_answers import one_at_a_time as one_by_one


def everything_at_start(comm, uses, gather, work, x):
    requests = [gather(block) for block in uses]
    for block, request in zip(uses, requests, strict=True):
        x = work(block, request.wait(), x)
    return x


def never_turns(comm, uses, gather, work, x):
    """Prefetches as if the way went forward only."""
    blocks = max(uses) + 1
    request = gather(uses[0])
    for number, block in enumerate(uses):
        weights = request.wait()
        if number + 1 < len(uses):
            request = gather((block + 1) % blocks)
        x = work(block, weights, x)
    return x


def forward_only(comm, uses, gather, work, x):
    turn = len(uses) // 2
    x = prefetch(comm, uses[:turn], gather, work, x)
    return one_by_one(comm, uses[turn:], gather, work, x)


def request_instead_of_weights(comm, uses, gather, work, x):
    for block in uses:
        request = gather(block)
        x = work(block, request, x)
        request.wait()
    return x


def with_other_weights_on_rank_1(comm, uses, gather, work, x):
    """The result does not show it: `work` only looks at what it is given."""
    return prefetch(comm, uses, gather, lambda block, given, x: work(block, given * (comm.rank != 1), x), x)


def one_gather_too_many(comm, uses, gather, work, x):
    x = prefetch(comm, uses, gather, work, x)
    gather(0).wait()
    return x


def test_prefetch_shows_315_microseconds_as_computed_by_hand():
    work = [30, 30, 12, 40, 25, 25, 40, 12, 30, 30]
    gathers = [24, 18, 30, 12, 36, 36, 12, 30, 18, 24]  # six hops, each 1 µs and an element a µs
    assert gathers[0] + sum(map(max, work[:-1], gathers[1:])) + work[-1] == 315
    assert reviewed("06.prefetch", prefetch).text.endswith(
        "  elements that all ranks send: 1260; closed form: 2Ψ(P − 1) = 1260\n"
        "  bytes of gathered weights held: 560; closed form: two blocks = 560\n"
        "  makespan: 315 µs; closed form: first gather + Σ max(work, next gather) + last work = 315 µs"
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (one_by_one, "before use 1, block 1, rank 0 waits 3.00 µs: its gather takes 3.00 µs, and must start before"),
        (forward_only, "before use 2, block 1, rank 0 waits"),
        (everything_at_start, "likely cause: gather one block ahead, not more"),
        (never_turns, "was given the weights of block 0|the next block is that of uses[2], on the way back, too"),
        (request_instead_of_weights, "was given a CollectiveRequest: wait() returns the weights"),
        (lambda *arguments: np.ones(2) * prefetch(*arguments), "rank 0 returned array([576., 576.])"),
        (one_gather_too_many, "elements that all ranks send: 20, should be 2Ψ(P − 1) = 16"),
        (with_other_weights_on_rank_1, "rank 1, use 0 (from 0): work on block 0 was given weights of no block"),
    ],
)
def test_wrong_ways_to_prefetch_are_refused(answer, says):
    refused("06.prefetch", answer, says)
