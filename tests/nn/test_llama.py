"""The serial Llama against Hugging Face's, and the stage protocol against itself."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from functools import partial
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
from safetensors.numpy import load_file

from parlab.arrays import owning_buffer, to_numpy
from parlab.nn import llama
from parlab.nn.attention import attention, attention_backward
from parlab.nn.config import REQUIRED, GPTConfig
from parlab.nn.layers import Core
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.stage import add_gradients
from tests.libraries import EACH_LIBRARY
from tests.nn.kept import arrays_by_place
from tests.nn.transformers_reference import CONFIGURATIONS, SIZES, draw_tokens, evaluate, float64_throughout, make_model

STORED = Path(__file__).parents[1] / "data" / "llama"
PEERS_MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
live = pytest.mark.skipif(bool(PEERS_MISSING), reason=f"not installed: {PEERS_MISSING} (pip install -e '.[peers]')")
every_configuration = pytest.mark.parametrize("name", CONFIGURATIONS)


def turned(name: str, x: np.ndarray) -> np.ndarray:
    """A matrix as transformers has it: `[out, in]`."""
    return x.T if x.ndim == 2 and name != "model.embed_tokens.weight" else x


def assert_agrees(model: Llama, expected: dict[str, np.ndarray], tokens, targets, tolerance: float) -> None:
    """Logits, loss and every gradient within `tolerance` of the largest entry of each expected array."""
    loss, gradients = model.loss_and_gradients(tokens, targets)
    found = {name: turned(name, to_numpy(gradient)) for name, gradient in gradients.items()}
    found |= {"loss": np.asarray(loss), "logits": to_numpy(model.logits(tokens))}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        error = np.max(np.abs(found[name] - array)) / np.max(np.abs(array))
        assert error <= tolerance, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@every_configuration
def test_logits_loss_and_gradients_equal_transformers_stored(name, dtype, tolerance, xp):
    model = llama.load(STORED / name, xp=xp, dtype=dtype)
    assert model.weights["model.norm.weight"].dtype == getattr(xp, dtype)
    expected = load_file(STORED / name / "expected.safetensors")
    tokens, targets = (xp.asarray(expected.pop(key)) for key in ("tokens", "targets"))
    assert_agrees(model, expected, tokens, targets, tolerance)


@live
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@every_configuration
def test_folders_written_here_open_in_transformers_and_agree(name, dtype, tolerance, tmp_path):
    from contextlib import nullcontext

    from transformers import LlamaForCausalLM

    model = Llama.random(LlamaConfig(**CONFIGURATIONS[name]), seed=5, dtype=dtype)
    model.save(tmp_path)
    tokens, targets = draw_tokens(5)
    with float64_throughout() if dtype == "float64" else nullcontext():
        theirs, report = LlamaForCausalLM.from_pretrained(
            tmp_path, output_loading_info=True, attn_implementation="eager"
        )
        assert str(theirs.dtype) == f"torch.{dtype}"
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        expected = evaluate(theirs, tokens, targets)
    assert_agrees(model, expected, tokens, targets, tolerance)


@live
@pytest.mark.parametrize("max_shard_size", ["1GB", "3KB"])
@every_configuration
def test_folders_that_transformers_writes_open_here_and_agree(name, max_shard_size, tmp_path):
    tokens, targets = draw_tokens(6)
    with float64_throughout():
        theirs = make_model(CONFIGURATIONS[name], seed=6)
        expected = evaluate(theirs, tokens, targets)
    theirs.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (max_shard_size == "3KB")
    assert_agrees(llama.load(tmp_path), expected, tokens, targets, 1e-10)


@live
@pytest.mark.filterwarnings("ignore:.*generation.*")
def test_bfloat16_folders_open_as_float32_with_the_same_values(tmp_path):
    import torch

    with float64_throughout():
        theirs = make_model(SIZES).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    model = llama.load(tmp_path)
    for name, weight in theirs.named_parameters():
        assert model.weights[name].dtype == np.float32
        assert (turned(name, model.weights[name]) == weight.detach().double().numpy()).all()


def test_a_float16_model_has_float16_gradients_near_those_of_float32():
    config = small_model(initializer_range=0.1).config  # calm: rounding errors are not blown up by peaked attention
    tokens, targets = draw_tokens()
    halves = Llama.random(config, dtype="float16")
    singles = Llama(config, {name: x.astype(np.float32) for name, x in halves.weights.items()})
    loss, gradients = halves.loss_and_gradients(tokens, targets)
    expected_loss, expected = singles.loss_and_gradients(tokens, targets)
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    for name, gradient in gradients.items():
        assert gradient.dtype == np.float16
        assert np.max(np.abs(gradient - expected[name])) <= 0.02 * np.max(np.abs(expected[name]))


@pytest.mark.parametrize("xp", EACH_LIBRARY[1:])
def test_a_model_in_another_library_is_saved_alike(tmp_path, xp):
    config = LlamaConfig(**SIZES)
    for library, folder in ((np, "numpy"), (xp, "other")):
        Llama.random(config, seed=4, xp=library).save(tmp_path / folder)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "numpy" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def small_model(**changes) -> Llama:
    return Llama.random(LlamaConfig(**SIZES | {"num_hidden_layers": 3} | changes), seed=1, dtype="float64")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "layers", [[range(3)], [range(1), range(1, 3)], [range(1), range(1, 2), range(2, 3)], [range(0), range(3)]]
)
def test_cut_into_stages_gives_bitwise_the_whole_models_loss_and_gradients(layers, tied):
    model = small_model(tie_word_embeddings=tied)
    tokens, targets = draw_tokens()
    expected_loss, expected = model.loss_and_gradients(tokens, targets)
    stages = model.stages(layers)
    x, caches = tokens, []
    for stage in stages[:-1]:
        x, cache = stage.forward(x)
        caches.append(cache)
    loss, cache = stages[-1].forward(x, targets)
    caches.append(cache)
    dy, gradients = 1.0, {}
    for stage, cache in zip(reversed(stages), reversed(caches), strict=True):
        dy, pending = stage.backward_input(dy, cache)
        gradients = add_gradients(gradients, stage.backward_weight(pending))
    assert float(loss) == expected_loss
    assert gradients.keys() == expected.keys()
    assert all((gradients[name] == expected[name]).all() for name in expected)


def test_weight_parts_of_three_microbatches_in_any_order_are_bitwise_the_joint_backward():
    """Nothing that one microbatch's backward does may touch what another one left."""
    model = small_model()
    batches = [draw_tokens(seed) for seed in range(3)]
    joint = [model.loss_and_gradients(*batch)[1] for batch in batches]
    caches = [model.chain.forward(*batch)[1] for batch in batches]
    pending = {i: model.chain.backward_input(1.0, caches[i])[1] for i in (1, 0, 2)}
    for i in (2, 0, 1):
        gradients = model.chain.backward_weight(pending[i])
        assert all((gradients[name] == joint[i][name]).all() for name in gradients)
    again = model.chain.backward(1.0, caches[0])[1]  # a cache is read, never written
    assert all((again[name] == joint[0][name]).all() for name in again)


def test_positions_and_core_let_context_parallelism_take_over():
    """Two ranks' worth of zigzag tokens in one batch row, with a core that knows their order: the same logits."""
    model = small_model()
    tokens, _ = draw_tokens()
    order = np.concatenate([np.arange(0, 6), np.arange(18, 24), np.arange(6, 18)])
    back = np.argsort(order)

    def forward(q, k, v):
        out, lse = attention(q[:, :, back], k[:, :, back], v[:, :, back], causal=True)
        return out[:, :, order], lse[:, :, order]

    core = Core(forward, partial(attention_backward, causal=True))
    shuffled = Llama(model.config, model.weights, positions=order, core=core)
    expected = model.logits(tokens)
    found = shuffled.logits(tokens[:, order])[:, back]
    assert np.max(np.abs(found - expected)) <= 1e-13 * np.max(np.abs(expected))
    wrong = Llama(model.config, model.weights, core=core)  # positions of a range: the usual silent mistake
    assert np.max(np.abs(wrong.logits(tokens[:, order])[:, back] - expected)) > 1e-3


def test_weights_replaced_between_forward_and_backward_are_the_ones_used():
    """ZeRO-3 frees a block's weights after the forward and gathers them again: no cache may hold them."""
    model = small_model()
    tokens, targets = draw_tokens()
    _, expected = model.loss_and_gradients(tokens, targets)
    kept = dict(model.weights)
    _, cache = model.chain.forward(tokens, targets)
    model.weights.clear()
    with pytest.raises(KeyError):
        model.chain.backward(1.0, cache)
    held = [id(owning_buffer(x)) for x in kept.values()]
    assert not [place for place, x in arrays_by_place(cache) if id(owning_buffer(x)) in held]
    model.weights.update({name: x.copy() for name, x in kept.items()})
    _, gradients = model.chain.backward(1.0, cache)
    assert all((gradients[name] == expected[name]).all() for name in expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_here_or_for_another_process_has_weights_of_its_own_and_the_same_logits(copied):
    model = small_model()
    tokens = np.arange(10).reshape(2, 5) % model.config.vocab_size
    expected = model.logits(tokens)  # makes its tables
    other = copied(model)
    assert np.array_equal(other.logits(tokens), expected)
    other.weights["model.norm.weight"] *= 2
    assert np.array_equal(model.logits(tokens), expected)


@pytest.mark.parametrize("tied", [False, True])
def test_weight_blocks_hold_every_weight_once(tied):
    model = small_model(tie_word_embeddings=tied)
    assert list(model.weight_blocks) == ["embedding", "layers.0", "layers.1", "layers.2", "head"]
    names = [name for block in model.weight_blocks.values() for name in block]
    assert sorted(names) == sorted(model.weights)
    assert model.config.num_parameters == sum(x.size for x in model.weights.values())


def test_what_a_configuration_does_not_say_is_what_transformers_documents():
    sizes = {name: SIZES[name] for name in REQUIRED}
    config = LlamaConfig(**sizes)
    assert (config.num_key_value_heads, config.head_dim) == (4, 2)  # as many as query heads; hidden size / heads
    assert (config.rms_norm_eps, config.rope_theta, config.rope_scaling) == (1e-6, 10000.0, None)
    assert (config.max_position_embeddings, config.initializer_range) == (2048, 0.02)
    assert not config.tie_word_embeddings
    assert LlamaConfig.from_dict(sizes | {"model_type": "llama", "head_dim": None, "rope_scaling": None}) == config


def test_num_parameters_of_llama_3_8b_is_8_030_261_248():
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8,
    )  # fmt: skip
    assert config.num_parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vocab_size": 0}, "vocab_size=0: must be a whole number, at least 1"),
        ({"num_attention_heads": 3}, "hidden_size 8 does not divide among num_attention_heads 3"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 do not divide among num_key_value_heads 3"),
        ({"head_dim": 3}, "head_dim 3 is odd"),
        ({"head_dim": -2}, "head_dim=-2: must be a whole number, at least 1"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps=0.0: must be a number greater than 0 and finite"),
    ],
)
def test_bad_configurations_are_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        LlamaConfig(**SIZES | changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vocab_size": 0}, "vocab_size=0: must be a whole number, at least 1"),
        ({"num_attention_heads": 3}, "hidden_size 8 does not divide among num_attention_heads 3"),
    ],
)
def test_bad_configurations_of_a_gpt_are_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        GPTConfig(**{"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4} | changes)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda model, x: model.logits(x[0]), r"tokens: an array \[batch, sequence\] .*shape \(24,\)"),
        (lambda model, x: model.logits(x[:, :0]), r"not shape \(2, 0\)"),
        (lambda model, x: model.logits([[0]]), r"tokens: an array \[batch, sequence\] of whole numbers is needed"),
        (lambda model, x: model.loss_and_gradients(x[0], x[0]), r"tokens: an array \[batch, sequence\]"),
        (lambda model, x: model.loss_and_gradients(x, None), r"targets: an array \[batch, sequence\]"),
        (lambda model, x: model.logits(x + 6), r"the vocabulary has 0..10"),
        (lambda model, x: model.loss_and_gradients(x, x[:, 1:]), r"one target a token is needed, \(2, 24\)"),
        (lambda model, x: model.loss_and_gradients(x, 0 * x - 100), r"targets are all -100, the ignored label"),
        (lambda model, x: model.stages([range(2), range(1, 3)]), "ranges that join to 0..2"),
        (lambda model, x: model.stages(3), "layers=3: a list of ranges that join to 0..2"),
        (lambda model, x: model.stages([1, 2]), r"layers=\[1, 2\]: a list of ranges"),
        (lambda model, x: Llama(model.weights, model.config), "config={.*must be a LlamaConfig"),
        (lambda model, x: Llama(model.config, model.weights, positions=np.arange(5)).logits(x), "5 positions for 24"),
        (lambda model, x: Llama(model.config, [x]), r"weights=\[array.*: must be a Mapping"),
        (lambda model, x: Llama(model.config, {}), "30 weights are missing.*lm_head"),
        (lambda model, x: Llama(model.config, model.weights | {"more": x}), "1 weights are surplus.*more"),
        (
            lambda model, x: Llama(model.config, model.weights | {"lm_head.weight": np.ones((11, 8))}),
            r"lm_head.weight has shape \(11, 8\): the configuration asks for \(8, 11\)",
        ),
        (
            lambda model, x: Llama(model.config, model.weights | {"lm_head.weight": np.ones((8, 11), np.float32)}),
            r"lm_head.weight has dtype float32: one floating dtype for all",
        ),
        (
            lambda model, x: Llama(model.config, {name: w.astype(int) for name, w in model.weights.items()}),
            "has dtype int64: one floating dtype for all",
        ),
        (lambda model, x: Llama.random(3), "config=3: must be a LlamaConfig"),
        (lambda model, x: Llama.random(model.config, seed=-1), "seed=-1: must be a whole number, at least 0"),
        (lambda model, x: Llama.random(model.config, dtype="int32"), "dtype='int32': float64, float32 or, where"),
        (lambda model, x: Llama.random(model.config, xp=array_api_strict, dtype="float16"), "dtype='float16'"),
    ],
)
def test_bad_input_is_refused_before_any_work(call, text):
    with pytest.raises(ValueError, match=text):
        call(small_model(), draw_tokens()[0])


def test_a_batch_without_a_target_is_refused_before_a_layer_runs():
    model, (tokens, targets) = small_model(), draw_tokens()
    model.chain = None
    with pytest.raises(ValueError, match="targets are all -100, the ignored label"):
        model.loss_and_gradients(tokens, 0 * targets - 100)


@pytest.mark.parametrize(
    ("more", "factor", "text"),
    [
        ((11, 0), 1, r"tokens hold 11\.\..*: the vocabulary has 0\.\.10"),
        ((0, 11), 1, r"targets hold .*: the vocabulary has 0\.\.10"),
        ((0, -100), 0, "targets are all -100, the ignored label"),
    ],
)
def test_what_cannot_be_seen_on_a_device_without_a_wait_is_refused_when_the_loss_is_there(more, factor, text):
    model = Llama.random(LlamaConfig(**SIZES), xp=array_api_strict, dtype="float64")  # its arrays are not on the host
    tokens, targets = (array_api_strict.asarray(x) for x in draw_tokens())
    with pytest.raises(ValueError, match=text):
        model.loss_and_gradients(tokens + more[0], factor * targets + more[1])


def test_positions_may_be_a_function_of_the_number_of_tokens():
    model, tokens = small_model(), np.arange(6)[None, :]
    shifted = {S: Llama(model.config, model.weights, positions=np.arange(S) * 3).logits(tokens[:, :S]) for S in (4, 6)}
    asked = Llama(model.config, model.weights, positions=lambda S: np.arange(S) * 3)
    assert all((asked.logits(tokens[:, :S]) == logits).all() for S, logits in shifted.items())


def test_no_gradient_needs_its_weight():
    """ZeRO-3 may free the weights when the backward for the input is done."""
    model, tokens = small_model(), np.arange(6)[None, :]
    expected = model.loss_and_gradients(tokens, tokens)[1]
    _, cache = model.chain.forward(tokens, tokens)
    _, pending = model.chain.backward_input(1.0, cache)
    model.weights.clear()
    found = model.chain.backward_weight(pending)
    assert all((found[name] == gradient).all() for name, gradient in expected.items())
