"""The numbers of lesson 05: the first stage of the 405B, the fastest t, and what the small Llama is."""

import numpy as np

from parlab import labs


def test_a_block_of_405b_is_fastest_on_32_of_1_to_32_ranks():
    assert labs.fastest_t() == 32


def test_the_small_llama_has_21_weights_one_key_value_head_and_the_task_to_say_the_token_before():
    serial, tokens, targets = labs.small_llama()
    assert len(serial.weights) == 21
    assert serial.config.num_key_value_heads == 1
    assert np.array_equal(np.asarray(targets)[:, 1:], np.asarray(tokens)[:, :-1])


def test_of_the_six_arrays_a_m_dm_and_da_differ_from_rank_to_rank_and_add_up_to_those_of_one():
    serial, *_ = labs.small_llama()
    on_four, (alone,) = (labs.six_arrays(labs.block_step, serial, size) for size in (4, 1))
    for name, whole in alone.items():
        parts = [np.asarray(of_rank[name]) for of_rank in on_four]
        partial = name in ("a", "m", "dm", "da")
        assert np.allclose(sum(parts) if partial else parts[2], whole, rtol=1e-12, atol=1e-12), name
        assert np.allclose(parts[1], parts[2], rtol=1e-12) != partial, name


def test_a_gradient_that_is_off_by_more_than_rounding_or_no_number_is_wrong():
    right = {"a": np.ones(3), "b": np.ones(2)}
    assert labs.wrong_arrays({"a": np.ones(3) * (1 + 1e-15), "b": np.full(2, 2.0)}, right) == 1
    assert labs.wrong_arrays({"a": np.full(3, np.nan), "b": np.full(2, 2.0)}, right) == 2
