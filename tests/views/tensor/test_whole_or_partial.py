"""The picture of whole arrays and partial sums tells the two apart, on the arrays of a step of the exercise."""

import numpy as np
import pytest

from parlab import run, views
from parlab.labs.bare import arrays_of_step, bare_block, block_step
from parlab.tensor import shard_weights
from tests.tensor.models import model
from tests.views.drawn import artists, check_text, title

ONE = np.arange(6.0).reshape(1, 2, 3)


def arrays(size, step=block_step):
    serial = model(num_key_value_heads=2)
    x, dy = np.random.default_rng(1).standard_normal((2, 2, 8, serial.config.hidden_size))
    owned = [shard_weights(serial.config, serial.weights, rank, size) for rank in range(size)]
    return run(
        lambda comm: arrays_of_step(comm, bare_block(comm, serial.config, owned[comm.rank]), step, x, dy), size
    ).results


def test_of_six_arrays_of_a_block_step_a_m_dm_and_da_are_partial_sums():
    figure = views.whole_or_partial(arrays(4), arrays(1)[0])
    assert title(figure) == "4 of 6 arrays are partial sums, and need a message: a, m, dm, da"
    said = dict(line.split(maxsplit=1) for line in repr(figure).splitlines()[1:])
    assert [name for name, verdict in said.items() if verdict == "whole"] == ["y", "dh"]
    check_text(figure)


def test_every_number_of_every_rank_is_drawn_above_those_of_one_rank():
    figure = views.whole_or_partial([{"a": ONE / 2}, {"a": ONE / 2}], {"a": ONE})
    for row, expected in enumerate((ONE / 2, ONE / 2, ONE)):
        (image,) = artists(figure, f"a {row}")
        assert np.array_equal(image.get_array(), -expected[0])
        assert image.get_clim() == (-5, 5)


def test_an_array_that_is_neither_whole_nor_a_partial_sum_is_named():
    assert "neither" in repr(views.whole_or_partial([{"a": 2 * ONE}, {"a": ONE}], {"a": ONE}))


def test_without_a_message_behind_attention_m_adds_up_to_nothing_known():
    def without(comm, block, x, dy):
        class Deaf:
            def all_reduce(self, array):
                return array

        return block_step(Deaf(), block, x, dy)

    assert "neither" in repr(views.whole_or_partial(arrays(2, without), arrays(1)[0]))


def test_a_step_that_never_runs_the_backward_is_refused():
    with pytest.raises(Exception, match="step: it makes no dm"):
        arrays(2, lambda comm, block, x, dy: (block.mlp.forward(block.attention.forward(x)[0])[0], dy, {}))
