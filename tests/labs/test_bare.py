"""The step of a block on a rank's shards: equal to serial, in four all-reduces."""

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.arrays import to_numpy
from parlab.labs.bare import bare_block, block_step, mlp_step
from parlab.nn.layers import CAUSAL_ATTENTION
from parlab.nn.llama import decoder_block
from parlab.nn.rotary import Rotary
from parlab.tensor import shard_weights
from tests.libraries import EACH_LIBRARY
from tests.nn.parity import relative_error
from tests.tensor.models import model


@pytest.mark.parametrize(("size", "heads"), [(1, 4), (2, 4), (4, 4), (4, 2), (8, 2), (8, 1)])
def test_y_dx_and_all_9_gradients_equal_serial_to_1e_12(size, heads):
    serial = model(num_key_value_heads=heads)
    config, prefix = serial.config, "model.layers.0"
    x, dy = np.random.default_rng(1).standard_normal((2, 2, 8, config.hidden_size))
    block = decoder_block(config, serial.weights, 0, Rotary(config.head_dim), CAUSAL_ATTENTION)
    y, cache = block.forward(x)
    dx, gradients = block.backward(dy, cache)
    owned = [shard_weights(config, serial.weights, rank, size) for rank in range(size)]
    done = run(lambda comm: block_step(comm, bare_block(comm, config, owned[comm.rank]), x, dy), size)
    for rank, (found_y, found_dx, found) in enumerate(done.results):
        own = shard_weights(config, {**serial.weights, **gradients}, rank, size)
        assert relative_error(found_y, y) <= 1e-12
        assert relative_error(found_dx, dx) <= 1e-12
        assert len(found) == 9
        assert all(relative_error(found[name], own[name]) <= 1e-12 for name in found if name.startswith(prefix))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("xp", EACH_LIBRARY)
def test_an_mlp_step_is_bitwise_that_of_numpy_on_whole_numbers_in_2_all_reduces(xp, size):
    draw = np.random.default_rng(1)
    x, A, C, dy = (draw.integers(-3, 4, size=shape).astype(float) for shape in ((6, 8), (8, 24), (24, 8), (6, 8)))
    h = np.maximum(x @ A, 0)
    dh = (dy @ C.T) * (x @ A > 0)
    cut = [xp.asarray(part) for part in np.split(A, size, 1)], [xp.asarray(part) for part in np.split(C, size)]
    done = run(mlp_step, size, xp.asarray(x), *map(per_rank, cut), xp.asarray(dy))
    columns = [slice(rank * 24 // size, (rank + 1) * 24 // size) for rank in range(size)]
    for own, result in zip(columns, done.results, strict=True):
        expected = h @ C, dh @ A.T, x.T @ dh[:, own], h[:, own].T @ dy
        assert all(np.array_equal(to_numpy(found), array) for found, array in zip(result, expected, strict=True))
    assert [done.timeline.messages(rank) for rank in range(size)] == [2 * 2 * (size - 1)] * size
