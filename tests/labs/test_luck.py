"""No wrong answer passes by luck: the fixed cases refuse each, whatever is drawn beside them, and say why."""

from functools import cache

import pytest

from parlab.labs import EXERCISES
from tests.labs import lucky_answers
from tests.labs.lucky_answers import LUCKY

ALL = [(name, answer) for name, answers in LUCKY.items() for answer in answers]


@cache
def reviewed(name, answer):
    return EXERCISES[name].review(answer, seconds=30, seed=0, extra=0)


@pytest.mark.parametrize(("name", "answer"), ALL, ids=[f"{name}-{answer.__name__}" for name, answer in ALL])
def test_a_wrong_answer_is_refused_by_the_fixed_cases_so_with_any_seed(name, answer):
    assert reviewed(name, answer).status == "not yet"


def test_each_exercise_has_a_lucky_answer():
    """One for each set of cases that alone refuse some answer: what a larger set refuses, a smaller one shows, too."""
    assert all(LUCKY[name] for name in EXERCISES), list(LUCKY)


CAUSES = {  # what a learner is told of some of them: the smallest case, what was expected and found, the true cause
    "with_the_first_wait_of_each": "returned 1, expected 2|the way back: 0 waits for 2 until 44"
    "|of a rank's waits the last one counts, not the first|or: of a rank's waits the last one counts, not the",
    "that_began_no_later": "waits=[(0, 1, 0, 10), (1, 2, 5, 8)], rank=0|returned 1, expected 2|rank 1 had waited "
    "itself, for rank 2 until 8; the way goes on|or: a peer's wait counts if it had ended before the peer",
    "in_flat_blocks": "the numbers are right, but only one axis is left: cut x with np.split(x, P)",
    "that_makes_x_writeable_again": "with 2 ranks|`x` is read-only, and the pieces of np.split are parts of it",
    "not_for_even_sizes_above_8": "with 10 ranks|they are sent back: the rank h *ahead*",
    "with_inverted_weights": "with 2 rows|the exponent has the wrong sign",
    "of_the_larger_side": "with 2 rows|the side with the larger lse alone",
    "with_one_maximum_for_all_rows": "and, in every second row, around 2000|one maximum is subtracted in all rows",
    "with_0_for_no_keys": "lse: returned [0, |a row without keys has the lse −∞",
    "that_sends_its_own_each_time": "with 3 ranks|call 3 of attend_to: source is 1, but these are the K/V of "
    "rank 2|each hop sends the rank's own K/V again",
    "around_to_the_left": "with 3 ranks|rank 0 sends to rank 2, should be to its right, rank 1|a gradient travels",
    "up_to_8_ranks": "with 9 ranks, ulysses=3",
    "with_as_many_kv_heads_as_the_share_says": "this is the K/V head of the first query head alone",
    "to_the_shard_of_the_edge": "too many: token 1, the last one of rank 0, ends its document; no later rank",
    "dealt_like_cards": "query heads [0, 2], expected [0, 1]|dealt like cards, by h % P",
    "rounded_up": "heads(1, 3, 4, 2): query heads [2, 3], expected [2]|every rank takes ⌈H/P⌉ heads",
    "of_first_and_last": "K/V heads [0, 2], expected [0, 1, 2]|between the first and the last are missing",
    "for_fewer_than_2p_microbatches": "with 2 ranks, 5 microbatches|more forwards before its first",
    "of_a_search": "no schedule takes less than 176, but this one takes 164",
    "with_the_neighbours_share_alone": "behind the rows each rank has a partial sum of every entry",
    "without_counts": "Ψ = 5 weights|the shards are not of one length: give `reduce_scatter`",
    "with_counts_not_named": "axis=[2, 2]|`counts` is not the second argument: name it, counts=...",
    "with_whole_moments_in_state": "bytes of moments that a rank holds: 64, should be",
    "over_dp_alone": "the ranks of cp are not in it",
    "over_the_whole_pipeline": "only the two ends have the tied table and call the function: sum over `ends`",
    "with_a_mean_of_two": "it is 1.5 times what it should be",
    "with_the_sum_thrown_away": "kind 'norm'|the sum over tp was made and not used",
    "read_out_of_the_closure": "returned 'none' after asking for nothing|so it is a guess",
    "with_p_microbatches": "there are not more than m microbatches to keep",
    "without_chunks": "chunks make what is waited for so many times shorter",
    "with_half_a_turn": "a turn around tp ranks is tp - 1 hops of 1/tp of the bytes",
    "by_square_roots": "with 3 ranks|the largest times still count too much",
    "as_texts": "returned tuple ('6.32|expected (latency, bandwidth)",
    "without_gates_where_k_is_1": "with 2 ranks, 2 experts, k = 1|the gates are missing",
    "up_or_down_always": "bias = [-0.3, 0.3]|expected [-0.3, 0.3]; the loads are [1, 1]|an expert with the mean",
    "ep_times_too_large": "dp=2, cp=1, ep=2|gradient of an expert|2 times too large: the gradient holds the tokens",
}


@pytest.mark.parametrize(("answer", "said"), CAUSES.items())
def test_a_lucky_answer_is_told_the_case_the_numbers_and_the_cause(answer, said):
    (name,) = (name for name, known in ALL if known.__name__ == answer)
    text = reviewed(name, getattr(lucky_answers, answer)).text
    missing = [part for part in said.split("|") if part not in text]
    assert not missing, text
