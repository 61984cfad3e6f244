"""What is counted on the arrays equals the closed forms."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from parlab.nn.attention import attention, attention_backward
from parlab.nn.dense_attention import dense_attention, dense_attention_backward
from parlab.nn.formulas import (
    add_flops,
    attention_flops,
    block_flops,
    block_kept_bytes,
    causal_attention_flops,
    flops_by_block,
    linear_flops,
)
from parlab.nn.layers import Core
from parlab.nn.llama import Llama, LlamaConfig
from tests.nn.counter import Counter
from tests.nn.finite_differences import draw
from tests.nn.kept import itemize
from tests.nn.transformers_reference import SIZES, draw_tokens

DENSE = Core(partial(dense_attention, causal=True), partial(dense_attention_backward, causal=True))


def products_of(counter, call):
    before = counter.products
    result = call()
    return result, counter.products - before


def model_flops(config, B, S):
    return add_flops(*flops_by_block(config, B, S).values())


def test_every_part_of_the_model_costs_what_the_formula_says():
    """Forward, input part and weight part; the norms' own small products come on top and are taken off here."""
    config = LlamaConfig(**SIZES)
    counter = Counter()
    plain = Llama.random(config, xp=np, dtype="float64", core=DENSE)
    model = Llama(config, {name: counter.watch(x) for name, x in plain.weights.items()}, core=DENSE)
    tokens, targets = map(counter.watch, draw_tokens())
    B, S = tokens.shape
    (loss, cache), forward = products_of(counter, lambda: model.chain.forward(tokens, targets))
    (_, pending), backward_input = products_of(counter, lambda: model.chain.backward_input(1.0, cache))
    _, backward_weight = products_of(counter, lambda: model.chain.backward_weight(pending))
    norm = 2 * B * S * config.hidden_size * (2 * config.num_hidden_layers + 1)  # one in F, and one each for dx and dw
    expected = model_flops(config, B, S)
    assert (forward - norm, backward_input - 2 * norm, backward_weight) == expected
    assert float(loss) == plain.loss_and_gradients(*draw_tokens())[0]


def test_model_flops_are_6_a_weight_and_token_and_attention():
    """The rule of thumb, 6 N a token, is what the linear layers cost; attention adds 14 H S D a token and layer."""
    config = LlamaConfig(**SIZES)
    matrices = sum(np.prod(s) for name, s in config.weight_shapes.items() if len(s) == 2 and "embed" not in name)
    attention = 14 * config.num_attention_heads * 24 * config.head_dim * config.num_hidden_layers
    assert sum(model_flops(config, 2, 24)) == 2 * 24 * (6 * matrices + attention)
    block = add_flops(*block_flops(config, 2, 24).values())
    assert add_flops(block, block, linear_flops(48, 8, 11)) == model_flops(config, 2, 24)


def test_shared_arrays_and_views_count_once_and_whole(xp):
    x = draw(xp, 4, 6)
    assert itemize({"a": x, "b": (x, [x[:2, :]]), "c": None, "d": 3.0}) == {"a": 8 * 24}
    assert itemize([x[1:2, :]]) == {"0": 8 * 24}  # the view keeps all of x alive


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_llama_block_keeps_what_the_formula_says_array_by_array(dtype):
    config = LlamaConfig(**SIZES)
    model = Llama.random(config, xp=np, dtype=dtype)
    tokens, _ = draw_tokens()
    _, caches = model.chain.forward(tokens)
    items = itemize(caches[1])
    itemsize = np.dtype(dtype).itemsize
    assert [items.pop(f"attention.tables.{i}") for i in (0, 1)] == [24 * config.head_dim * itemsize] * 2
    assert items == block_kept_bytes(config, *tokens.shape, itemsize)
    both = itemize(caches[1:3])
    assert sum(both.values()) == 2 * sum(items.values()) + 2 * 24 * config.head_dim * itemsize  # one pair of tables


def test_causal_tiles_save_between_a_quarter_and_a_half_of_the_dense_products_at_1024_tokens():
    counter = Counter()
    q, k, v, dout = (counter.watch(draw(np, 1, 1, 1024, 64)) for _ in range(4))
    (out, lse), forward = products_of(counter, lambda: attention(q, k, v, causal=True))
    _, backward = products_of(counter, lambda: attention_backward(dout, q, k, v, out, lse, causal=True))
    dense = attention_flops(B=1, H=1, S=1024, D=64)
    for counted, whole in ((forward, dense.forward), (backward, dense.backward_input)):
        assert 0.5 < counted / whole < 0.75


def test_causal_attention_of_2_sequences_3_heads_4_tokens_and_head_size_5_has_10_pairs_a_head():
    products = 2 * 2 * 3 * (1 + 2 + 3 + 4) * 5  # a product and an addition for each sequence, head, pair and number
    assert tuple(causal_attention_flops(2, 3, 4, 5))[:2] == (2 * products, 5 * products)
