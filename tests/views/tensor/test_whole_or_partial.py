"""The picture of whole arrays and partial sums tells the two apart, on the arrays of a step of the exercise."""

import numpy as np
import pytest

from parlab import run, views
from parlab.labs.bare import arrays_of_step, bare_block, block_step
from parlab.tensor import shard_weights
from tests.tensor.models import model
from tests.views.drawn import artists

ONE = np.arange(6.0).reshape(1, 2, 3)


def arrays(size, step=block_step):
    serial = model(num_key_value_heads=2)
    x, dy = np.random.default_rng(1).standard_normal((2, 2, 8, serial.config.hidden_size))
    owned = [shard_weights(serial.config, serial.weights, rank, size) for rank in range(size)]
    return run(
        lambda comm: arrays_of_step(comm, bare_block(comm, serial.config, owned[comm.rank]), step, x, dy), size
    ).results


def test_every_number_of_every_rank_is_drawn_above_those_of_one_rank():
    figure = views.whole_or_partial([{"a": ONE / 2}, {"a": ONE / 2}], {"a": ONE})
    for row, expected in enumerate((ONE / 2, ONE / 2, ONE)):
        (image,) = artists(figure, f"a {row}")
        assert np.array_equal(image.get_array(), -expected[0])
        assert image.get_clim() == (-5, 5)


def test_an_array_that_is_neither_whole_nor_a_partial_sum_is_named():
    assert "neither" in repr(views.whole_or_partial([{"a": 2 * ONE}, {"a": ONE}], {"a": ONE}))


def test_a_step_that_never_runs_the_backward_is_refused():
    with pytest.raises(Exception, match="step: it makes no dm"):
        arrays(2, lambda comm, block, x, dy: (block.mlp.forward(block.attention.forward(x)[0])[0], dy, {}))
