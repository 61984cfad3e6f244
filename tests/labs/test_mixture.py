"""The checker of 10.mixture refuses mistakes in dispatch and combine, with the cause."""

import numpy as np
import pytest

from parlab.experts import exchange_rows
from tests.labs import answers, lucky_answers
from tests.labs.answers import HOME, THERE, layer, refused

rank_alone = lucky_answers.sorted_by_rank_alone
counts_not_swapped_in_combine = layer(home=THERE)


class Wide:
    """The ranks, of which rank 1 of 2 sends its counts four times as wide as it needs to."""

    def __init__(self, comm):
        self.comm = comm

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def all_gather(self, x):
        wide = np.tile(x, 4)
        mine, like = (wide, x) if self.comm.rank else (x, wide)
        came = self.comm.sendrecv(mine, self.comm.right, self.comm.left, like=like)[: len(x)]
        return np.concatenate([came, x] if self.comm.rank else [x, came])


def wide_on_rank_1(comm, *given):
    return answers.mixture(Wide(comm) if comm.size == 2 else comm, *given)


def every_pair_to_every_rank(comm, x, chosen, gates, num_experts, expert):
    """Right, and nothing is dispatched."""
    all_x, all_chosen = comm.all_gather(x), comm.all_gather(chosen)
    own = num_experts // comm.size
    y = np.zeros((*all_chosen.shape, x.shape[1]))
    for number in range(comm.rank * own, (comm.rank + 1) * own):
        there = np.argwhere(all_chosen == number)
        y[there[:, 0], there[:, 1]] = expert(number, all_x[there[:, 0]])
    return (comm.reduce_scatter(y) * gates[..., None]).sum(axis=1)


def anothers_expert(comm, x, chosen, gates, num_experts, expert):
    return gates[:, [0]] * np.concatenate([expert(e, x[[t]]) for t, e in enumerate(chosen[:, 0])])


def numbers_of_experts_travel(comm, x, chosen, gates, num_experts, expert):
    comm.all_gather(chosen.reshape(-1))
    return answers.mixture(comm, x, chosen, gates, num_experts, expert)


def one_row_a_token(comm, x, chosen, gates, num_experts, expert):
    """NumPy's += keeps one of the rows of a token that stands in the index more than once."""

    def back(returned, order):
        k = chosen.shape[1]
        slots = np.zeros_like(returned)
        slots[order // k * k] += returned * gates.reshape(-1, 1)[order]
        return slots

    return layer(gate=np.ones_like, put_back=back)(comm, x, chosen, gates, num_experts, expert)


def a_row_a_token_leaves(comm, x, chosen, *given):
    if chosen.shape[1] == 1:
        return answers.mixture(comm, x, chosen, *given)
    table = comm.all_gather(np.bincount(chosen.ravel(), minlength=4)).reshape(comm.size, comm.size, -1)
    return exchange_rows(comm, x, table[comm.rank].sum(axis=1), table[:, comm.rank].sum(axis=1))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (layer(there=HOME), "on the way there table[comm.rank] is sent, and table[:, comm.rank] comes"),
        (layer(experts_of=lambda came, mine: mine), "the expert of each row that came is expert_of_each(comm, table)"),
        (layer(axis=0), "are [rank, which of its experts]: sum(axis=1) adds up over experts"),
        (layer(tokens=lambda order, k: order), "order numbers pairs, and x has one row a token: the token of"),
        (layer(minlength=False), "np.bincount(..., minlength=num_experts) counts experts that nobody chose, too"),
        (anothers_expert, "which has the experts|an expert answers on its own rank: rows travel to it"),
        (one_row_a_token, "keeps the last of a token's rows alone"),
        (layer(gate=lambda gates: gates**2), "the gates are in it twice"),
        (layer(put_back=lambda returned, order: returned), "were not put back at their tokens"),
        (layer(put_back=lambda returned, order: returned[order]), "the answers are put back by answers[order]"),
        (numbers_of_experts_travel, "counts, rows and answers travel once each"),
        (wide_on_rank_1, "bytes that rank 1 sends"),
    ],
)
def test_a_mistake_in_dispatch_and_combine_is_refused_with_its_cause(answer, said):
    refused("10.mixture", answer, said)


@pytest.mark.parametrize(
    "answer",
    [
        layer(tokens=lambda order, k: np.arange(len(order)) // k),  # rows that leave are not sorted
        layer(tokens=lambda order, k: order // 2),  # k is not always 2
        lambda *given: answers.mixture(*given) / given[2].shape[1],  # averaged
        layer(experts_of=lambda came, mine: np.sort(came)),
        lambda *given: answers.mixture(*given)[:1],
        lambda *given: answers.mixture(*given) * (1 + 1e-9),
    ],
)
def test_a_rare_mistake_in_dispatch_and_combine_is_refused_with_its_numbers_and_no_cause_of_another(answer):
    assert "likely cause" not in refused("10.mixture", answer, "expected")


@pytest.mark.parametrize(("answer", "rows"), [(layer(there=HOME), 2), (a_row_a_token_leaves, 3)])
def test_counts_that_do_not_fit_on_the_way_there_are_not_blamed_on_the_way_back(answer, rows):
    assert "on the way back" not in refused("10.mixture", answer, f"and {rows} rows are given")
