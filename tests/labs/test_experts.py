"""The checkers of notebook 10's exercises accept the solutions and refuse mistakes, with the cause."""

from functools import partial

import numpy as np
import pytest

from parlab import labs, run
from parlab.experts import exchange_rows
from parlab.labs import EXERCISES
from parlab.labs.exercise import PASSED
from parlab.labs.recording import library_functions
from parlab.nn import AdamW, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.train.mixture import is_expert
from tests.labs import answers, lucky_answers
from tests.labs.answers import refused

SIZES = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
CONFIG = MixtralConfig(vocab_size=5, num_local_experts=4, num_experts_per_tok=2, **SIZES)


def rank_alone(comm, *given):
    return lucky_answers.sorted_by_rank_alone(comm, *given)


def gates_twice(comm, *given):
    return answers.mixture(comm, *given, gate=lambda gates: gates**2)


def own_rows_through_the_network(comm, x, chosen, gates, num_experts, expert):
    """Each rank also sends its own rows once around."""
    own = x[np.isin(chosen // (num_experts // comm.size), comm.rank).any(axis=1)]
    sizes = comm.all_gather(np.array([len(own)]))
    comm.sendrecv(own, comm.right, comm.left, like=np.empty((sizes[comm.left], x.shape[1])))
    return answers.mixture(comm, x, chosen, gates, num_experts, expert)


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
    return sum(
        gates[:, [s]] * np.concatenate([expert(e, x[[t]]) for t, e in enumerate(chosen[:, s])]) for s in range(2)
    )


def without_an_inverse(comm, *given):
    return answers.mixture(comm, *given, back=lambda returned, order: returned)


def without_gates(comm, *given):
    return answers.mixture(comm, *given, gate=np.ones_like)


def numbers_of_experts_travel(comm, x, chosen, gates, num_experts, expert):
    comm.all_gather(chosen.reshape(-1))
    return answers.mixture(comm, x, chosen, gates, num_experts, expert)


def one_row_a_token(comm, x, chosen, gates, num_experts, expert):
    """NumPy's += keeps one of the rows of a token that stands in the index more than once."""

    def back(returned, order):
        k = chosen.shape[1]
        y = np.zeros_like(x)
        y[order // k] += returned * gates.reshape(-1, 1)[order]
        slots = np.zeros_like(returned)
        slots[::k] = y
        return slots

    return answers.mixture(comm, x, chosen, gates, num_experts, expert, gate=np.ones_like, back=back)


def gates_not_sorted(comm, x, chosen, gates, num_experts, expert):
    def back(returned, order):
        slots = np.empty_like(returned)
        slots[order] = returned * gates.reshape(-1, 1)
        return slots

    return answers.mixture(comm, x, chosen, gates, num_experts, expert, gate=np.ones_like, back=back)


def counts_not_swapped_in_combine(comm, x, chosen, gates, num_experts, expert):
    T, k = chosen.shape
    order = np.argsort(chosen.ravel(), kind="stable")
    table = comm.all_gather(np.bincount(chosen.ravel(), minlength=num_experts)).reshape(comm.size, comm.size, -1)
    sent, received = table[comm.rank].sum(axis=1), table[:, comm.rank].sum(axis=1)
    rows = exchange_rows(comm, x[order // k], sent, received)
    own = comm.rank * table.shape[2] + np.arange(table.shape[2])
    number = np.concatenate([np.repeat(own, of_source) for of_source in table[:, comm.rank]])
    answers = np.empty_like(rows)
    for e in own:
        answers[number == e] = expert(e, rows[number == e])
    back = exchange_rows(comm, answers, sent, received)
    slots = np.empty_like(back)
    slots[order] = back
    return (slots.reshape(T, k, -1) * gates[..., None]).sum(axis=1)


def with_other_rows_or_answers(
    comm, x, chosen, gates, num_experts, expert, token_of=None, answers_of=None, gate_first=False
):
    k = chosen.shape[1]
    order = np.argsort(chosen.ravel(), kind="stable")
    table = comm.all_gather(np.bincount(chosen.ravel(), minlength=num_experts)).reshape(comm.size, comm.size, -1)
    sent, received = table[comm.rank].sum(axis=1), table[:, comm.rank].sum(axis=1)
    leaving = x[token_of(order, k, len(x)) if token_of else order // k]
    if gate_first:
        leaving, gates = leaving * gates.ravel()[order, None], np.ones_like(gates)
    rows = exchange_rows(comm, leaving, sent, received)
    own = comm.rank * table.shape[2] + np.arange(table.shape[2])
    number = np.concatenate([np.repeat(own, of_source) for of_source in table[:, comm.rank]])
    answered = np.empty_like(rows)
    for e in own:
        answered[number == e] = expert(e, rows[number == e])
    slots = np.empty((chosen.size, x.shape[1]))
    slots[order] = exchange_rows(comm, answers_of(answered, number) if answers_of else answered, received, sent)
    return (slots.reshape(*chosen.shape, -1) * gates[..., None]).sum(axis=1)


def rows_not_sorted(comm, *given):
    return with_other_rows_or_answers(comm, *given, token_of=lambda order, k, T: np.arange(len(order)) // k)


def tokens_by_the_remainder(comm, *given):
    return with_other_rows_or_answers(comm, *given, token_of=lambda order, k, T: order % T)


def answers_joined_expert_by_expert(comm, *given):
    return with_other_rows_or_answers(
        comm, *given, answers_of=lambda answered, number: answered[np.argsort(number, kind="stable")]
    )


def tokens_by_the_slot(comm, *given):
    return with_other_rows_or_answers(comm, *given, token_of=lambda order, k, T: order % k)


def as_on_one_rank(comm, x, chosen, gates, num_experts, expert, *, number=False, back=False, counts=False):
    """The layer of one rank, in which one thing was not changed for several ranks."""
    T, k = chosen.shape
    order = np.argsort(chosen.ravel(), kind="stable")
    table = comm.all_gather(np.bincount(chosen.ravel(), minlength=num_experts)).reshape(comm.size, comm.size, -1)
    sent, received = table[comm.rank].sum(axis=1), table[:, comm.rank].sum(axis=1)
    rows = exchange_rows(comm, x[order // k], sent, sent if counts else received)
    own = comm.rank * table.shape[2] + np.arange(table.shape[2])
    of_row = np.concatenate([np.repeat(own, of_source) for of_source in table[:, comm.rank]])
    if number:
        of_row = chosen.ravel()[order]
    answered = np.empty_like(rows)
    for e in np.unique(of_row):
        answered[of_row == e] = expert(e, rows[of_row == e])
    slots = np.empty((T * k, x.shape[1]))
    slots[order] = answered if back else exchange_rows(comm, answered, received, sent)
    return (slots.reshape(T, k, -1) * gates[..., None]).sum(axis=1)


def averaged(comm, *given):
    return answers.mixture(comm, *given) / given[1].shape[1]


def gates_before_the_expert(comm, *given):
    return with_other_rows_or_answers(comm, *given, gate_first=True)


def slots_by_slot(comm, x, chosen, gates, *given):
    def by_slot(returned, order):
        slots = np.empty_like(returned)
        slots[order] = returned
        return slots.reshape(chosen.shape[1], len(x), -1).swapaxes(0, 1).reshape(slots.shape)

    return answers.mixture(comm, x, chosen, gates, *given, back=by_slot)


def counts_not_summed_over_experts(comm, x, chosen, gates, num_experts, expert):
    table = comm.all_gather(np.bincount(chosen.ravel(), minlength=num_experts)).reshape(comm.size, comm.size, -1)
    return exchange_rows(comm, np.repeat(x, chosen.shape[1], axis=0), table[comm.rank], table[:, comm.rank])


def counts_swapped_in_dispatch(comm, x, chosen, gates, num_experts, expert):
    order = np.argsort(chosen.reshape(-1), kind="stable")
    table = comm.all_gather(np.bincount(chosen.reshape(-1), minlength=num_experts)).reshape(comm.size, comm.size, -1)
    return exchange_rows(
        comm, x[order // chosen.shape[1]], table[:, comm.rank].sum(axis=1), table[comm.rank].sum(axis=1)
    )


def in_one_place(mistake):
    """An answer with one mistake on the way to the experts; nothing comes back where the way there stops already."""

    def answer(comm, x, chosen, gates, num_experts, expert):
        T, k = chosen.shape
        order = np.argsort(chosen.ravel(), kind="stable")
        counts = np.bincount(chosen.ravel(), minlength=0 if mistake == "no minlength" else num_experts)
        table = comm.all_gather(counts).reshape(comm.size, comm.size, -1)
        sent, received = table[comm.rank].sum(axis=int(mistake != "axis 0")), table[:, comm.rank].sum(axis=1)
        if mistake == "swapped":
            sent, received = received, sent
        tokens = {"pairs": order, "2 for k": order // 2}.get(mistake, order // k)
        rows = exchange_rows(comm, x[tokens], sent, received)
        own = comm.rank * table.shape[2] + np.arange(table.shape[2])
        number = np.concatenate([np.repeat(own, of_source) for of_source in table[:, comm.rank]])
        answered = np.empty_like(rows)
        for e in own:
            answered[number == e] = expert(e, rows[number == e])
        slots = np.empty((T * k, x.shape[1]))
        slots[order] = exchange_rows(comm, answered, received, sent)
        return (slots.reshape(T, k, -1) * gates[..., None]).sum(axis=1)

    return answer


def received_as_if_sorted(comm, *given):
    return answers.mixture(comm, *given, received_as=np.sort)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (counts_not_swapped_in_combine, "adds up to 2, and 3 rows are given; in dispatch it counts this rank's pairs"),
        (counts_not_swapped_in_combine, "in combine the rows that came from each, at line"),
        (counts_not_swapped_in_combine, "likely cause: on the way back sent and received change places"),
        (counts_swapped_in_dispatch, "adds up to 3, and 2 rows are given; in dispatch it counts this rank's pairs"),
        (partial(as_on_one_rank, number=True), "the expert of each row that came is expert_of_each(comm, table)"),
        (
            partial(as_on_one_rank, back=True),
            "as many come back as left by exchange_rows(comm, answers, received, sent)",
        ),
        (partial(as_on_one_rank, counts=True), "what comes from rank i is table[i, comm.rank], what goes to rank j is"),
        (rows_not_sorted, "the rows that leave are not sorted: row i is of the token of pair order[i], x[order // k]"),
        (averaged, "a token's answers times its gates are averaged; they are added"),
        (answers_joined_expert_by_expert, "the answers lie by expert when they go back, and the rows came by source"),
        (counts_not_summed_over_experts, "2 whole numbers are needed, how many rows go to each rank"),
        (counts_not_summed_over_experts, "are [rank, which of its experts]: sum(axis=1) adds up over experts"),
        (in_one_place("axis 0"), "are [rank, which of its experts]: sum(axis=1) adds up over experts"),
        (in_one_place("swapped"), "on the way there table[comm.rank] is sent, and table[:, comm.rank] comes"),
        (in_one_place("pairs"), "order numbers pairs, and x has one row a token: the token of pair p is p // k"),
        (in_one_place("2 for k"), "the token of pair p is p // k, where k is chosen.shape[1], and not always 2"),
        (tokens_by_the_slot, "the token of pair p is p // k, where k is chosen.shape[1]"),
        (in_one_place("no minlength"), "np.bincount(..., minlength=num_experts) counts experts that nobody chose, too"),
        (anothers_expert, "an expert answers on its own rank: rows travel to it"),
        (one_row_a_token, "keeps the last of a token's rows alone"),
        (gates_not_sorted, "the answers are sorted by expert, the gates by token"),
        (received_as_if_sorted, "the rows received lie by source"),
        (rank_alone, "sorted by rank and not by expert"),
        (gates_twice, "the gates are in it twice"),
        (own_rows_through_the_network, "the results are right, but not what was counted"),
        (every_pair_to_every_rank, "not what was counted"),
        (anothers_expert, "which has the experts"),
        (without_an_inverse, "were not put back at their tokens"),
        (without_gates, "the gates are missing"),
        (numbers_of_experts_travel, "counts, rows and answers travel once each"),
    ],
)
def test_a_mistake_in_dispatch_and_combine_is_refused_with_its_cause(answer, said):
    assert said in refused("10.mixture", answer)


@pytest.mark.parametrize("answer", [tokens_by_the_remainder, gates_before_the_expert, slots_by_slot])
def test_a_rare_mistake_in_dispatch_and_combine_is_refused_with_its_numbers_and_with_no_cause_that_is_another_ones(
    answer,
):
    text = refused("10.mixture", answer)
    assert "expected" in text
    assert "likely cause" not in text


def a_row_a_token_leaves(comm, x, chosen, *given):
    if chosen.shape[1] == 1:
        return answers.mixture(comm, x, chosen, *given)
    table = comm.all_gather(np.bincount(chosen.ravel(), minlength=4)).reshape(comm.size, comm.size, -1)
    return exchange_rows(comm, x, table[comm.rank].sum(axis=1), table[:, comm.rank].sum(axis=1))


@pytest.mark.parametrize(("answer", "rows"), [(counts_swapped_in_dispatch, 2), (a_row_a_token_leaves, 3)])
def test_counts_that_do_not_fit_on_the_way_there_are_not_blamed_on_the_way_back(answer, rows):
    text = refused("10.mixture", answer)
    assert f"and {rows} rows are given" in text
    assert "on the way back" not in text


def test_the_layer_of_one_rank_with_both_journeys_passes():
    assert EXERCISES["10.mixture"].review(as_on_one_rank).status == PASSED


def test_own_rows_beside_those_of_others_are_seen_by_the_bytes_alone():
    """As many messages as needed; the last one is longer."""

    def longer(comm, x, chosen, gates, num_experts, expert):
        k = chosen.shape[1]
        order = np.argsort(chosen.reshape(-1), kind="stable")
        table = comm.all_gather(np.bincount(chosen.reshape(-1), minlength=4 * num_experts))  # a table 4 times as wide
        table = table.reshape(comm.size, -1)[:, :num_experts].reshape(comm.size, comm.size, -1)
        sent, received = table[comm.rank].sum(axis=1), table[:, comm.rank].sum(axis=1)
        rows = exchange_rows(comm, x[order // k], sent, received)
        own = num_experts // comm.size
        of_row = np.concatenate([np.repeat(np.arange(own), n) for n in table[:, comm.rank]])
        answered = np.empty_like(rows)
        for e in range(own):
            answered[of_row == e] = expert(comm.rank * own + e, rows[of_row == e])
        back = exchange_rows(comm, answered, received, sent)
        slots = np.empty_like(back)
        slots[order] = back
        return (slots.reshape(*chosen.shape, -1) * gates[..., None]).sum(axis=1)

    text = refused("10.mixture", longer)
    assert "bytes that rank 0 sends" in text
    assert "only rows of others' experts" in text


def test_the_function_that_stands_in_for_the_mean_gradient_passes_its_checker_and_is_flagged_in_grading():
    exercise = EXERCISES["10.mean_gradient"]
    assert exercise.review(labs.mean_gradient).status == PASSED

    def answer(mesh, of_expert, gradient):
        return labs.mean_gradient(mesh, of_expert, gradient)

    assert library_functions(exercise, answer) == ["uses parlab.labs.mean_gradient"]
    assert library_functions(exercise, answers.SOLUTIONS["10.mean_gradient"]) == []


def test_an_expert_gradient_that_is_ep_times_too_large_is_told_so():
    text = refused("10.mean_gradient", lucky_answers.ep_times_too_large)
    assert "2 times too large: the gradient holds the tokens of all 2 ranks of ep already" in text


def test_a_rank_whose_experts_nobody_chose_is_named_where_an_answer_joins_its_rows_one_by_one():
    def one_by_one(comm, x, chosen, gates, num_experts, expert):
        def joined(rows, number):
            return np.stack([expert(e, row[None])[0] for e, row in zip(number, rows, strict=True)])

        order = np.argsort(chosen.ravel(), kind="stable")
        counts = np.bincount(chosen.ravel(), minlength=num_experts)
        table = comm.all_gather(counts).reshape(comm.size, comm.size, -1)
        sent, received = table[comm.rank].sum(axis=1), table[:, comm.rank].sum(axis=1)
        rows = exchange_rows(comm, x[order // chosen.shape[1]], sent, received)
        own = np.arange(table.shape[2]) + comm.rank * table.shape[2]
        number = np.concatenate([np.repeat(own, of_source) for of_source in table[:, comm.rank]])
        back = exchange_rows(comm, joined(rows, number), received, sent)
        y = np.zeros_like(x)
        np.add.at(y, order // chosen.shape[1], gates.ravel()[order][:, None] * back)
        return y

    text = refused("10.mixture", one_by_one)
    assert "need at least one array to stack" in text
    assert "likely cause: no token of any rank chose an expert of rank" in text


def test_an_answer_with_a_row_for_each_pair_is_told_to_add_them():
    def pairs(comm, x, chosen, gates, num_experts, expert):
        return np.repeat(x, chosen.shape[1], axis=0)

    def slots(comm, x, chosen, gates, num_experts, expert):
        return x[:, None] * gates[..., None]

    def one_row(comm, x, chosen, gates, num_experts, expert):
        return x[:1]

    cause = "one row a pair; the k answers of a token"
    assert cause in refused(
        "10.mixture", lambda *given: pairs(*given) if given[2].shape[1] > 1 else answers.mixture(*given)
    )
    assert cause in refused("10.mixture", slots)
    assert cause not in refused("10.mixture", one_row)


@pytest.mark.parametrize(
    ("group_of", "mean", "said"),
    [
        (
            lambda mesh, of_expert: None,
            False,
            "nothing was summed: the sum is over mesh.data, whose ranks all have this",
        ),
        (
            lambda mesh, of_expert: None if of_expert else mesh.data,
            False,
            "the sum is over mesh.edp, the ranks with this",
        ),
        (
            lambda mesh, of_expert: mesh.edp if of_expert else mesh.dp,
            True,
            "the mean over a part of mesh.data: every rank",
        ),
        (lambda mesh, of_expert: mesh.edp, False, "summed over a part of mesh.data: every rank of it has this weight"),
    ],
)
def test_a_gradient_summed_over_no_or_another_group_is_told_which_ranks_have_the_weight(group_of, mean, said):
    def answer(mesh, of_expert, gradient):
        group = group_of(mesh, of_expert)
        total = gradient if group is None else group.all_reduce(gradient)
        return total / (group.size if mean and not of_expert else mesh.data.size)

    assert said in refused("10.mean_gradient", answer)


def test_a_gradient_summed_over_ep_is_told_so_and_where_ep_is_all_ranks_either_may_have_been_meant():
    def of_ep(mesh, of_expert, gradient):
        group = mesh.ep if of_expert and mesh.ep.size > 1 else mesh.edp if of_expert else mesh.data
        return group.all_reduce(gradient) / mesh.data.size

    def of_ep_unless_all(mesh, of_expert, gradient):
        right = mesh.ep.size == mesh.data.size or not of_expert
        return labs.mean_gradient(mesh, of_expert, gradient) if right else of_ep(mesh, of_expert, gradient)

    assert "summed over mesh.data or mesh.ep, with ranks of other" in refused("10.mean_gradient", of_ep)
    assert "summed over mesh.ep, whose ranks have other experts" in refused("10.mean_gradient", of_ep_unless_all)


def test_where_each_rank_has_its_own_experts_a_gradient_that_is_ep_times_too_large_is_not_said_to_be_unsummed():
    assert "nothing was summed" not in refused("10.mean_gradient", lucky_answers.ep_times_too_large)


def test_after_30_steps_the_planted_bug_is_seen_by_the_norm_and_not_by_the_loss():
    right, wrong = labs.thirty_steps(bug=False), labs.thirty_steps(bug=True)
    assert wrong[0].loss == pytest.approx(right[0].loss, rel=1e-12)
    assert wrong[-1].loss == pytest.approx(right[-1].loss, rel=1e-4)
    assert wrong[0].norm > 1.2 * right[0].norm


def test_what_is_no_trainer_has_no_place_for_the_bug():
    with pytest.raises(ValueError, match="trainer=None: must be a Trainer"):
        labs.ep_times_too_large(None)


@pytest.mark.parametrize("ep", [2, 4])
def test_the_planted_bug_multiplies_the_gradients_of_experts_by_ep_and_no_other(ep):
    def gradients(comm, bug):
        model = Mixtral.random(CONFIG, seed=0, dtype="float64", xp=np)
        trainer = Trainer(Mesh(comm, dp=4, ep=ep), model, AdamW(), zero=2)
        if bug:
            labs.ep_times_too_large(trainer)
        tokens = np.arange(16).reshape(4, 4) % 5
        trainer.step(tokens, tokens[::-1])
        return trainer.full_gradients()

    right, wrong = (run(gradients, 4, bug).results[0] for bug in (False, True))
    for name, gradient in right.items():
        np.testing.assert_allclose(wrong[name], (ep if is_expert(name) else 1) * gradient, rtol=1e-12)
