"""Each line of the tables below breaks the code on purpose; the test named beside it must notice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from parlab.nn import activation, corpus, counting, embedding, huggingface, layers, llama, norm, optimizer, rotary
from parlab.nn import stage as stage_module
from parlab.nn.attention import attention, attention_backward
from parlab.nn.layers import Core
from tests.nn import test_corpus, test_counting, test_huggingface, test_llama, test_optimizer, test_pieces
from tests.nn.transformers_reference import CONFIGURATIONS


def functions_of(module: ModuleType) -> dict[str, FunctionType]:
    """Every function and method that the module defines."""
    found = {}
    for name, item in vars(module).items():
        members = vars(item) if inspect.isclass(item) else {"": item}
        for member, thing in members.items():
            thing = getattr(thing, "__func__", getattr(thing, "fget", thing))
            if inspect.isfunction(thing):
                found[f"{name}.{member}"] = inspect.unwrap(thing)  # behind the checks of its arguments
    return found


@contextmanager
def broken(module: ModuleType, right: str, wrong: str) -> Iterator[None]:
    """Within, `module` runs as if its source said `wrong` for `right`, for everybody who imported from it."""
    source = inspect.getsource(module)
    assert source.count(right) == 1, f"{module.__name__} says {source.count(right)} times: {right}"
    mutant = ModuleType(module.__name__)
    mutant.__dict__.update(__name__=module.__name__, __file__=module.__file__)
    exec(compile(source.replace(right, wrong), module.__file__, "exec"), mutant.__dict__)
    ours, theirs = functions_of(module), functions_of(mutant)
    kept = {name: function.__code__ for name, function in ours.items() if name in theirs}
    try:
        for name in kept:
            ours[name].__code__ = theirs[name].__code__
        yield
    finally:
        for name, code in kept.items():
            ours[name].__code__ = code


def pieces(name: str, *arguments: Any) -> Callable[[Any], None]:
    return lambda tmp_path: getattr(test_pieces, name)(np, *arguments)


def fixture(name: str) -> Callable[[Any], None]:
    """The stored parity with transformers, of one configuration."""
    return lambda tmp_path: test_llama.test_logits_loss_and_gradients_equal_transformers_stored(
        name, "float64", 1e-10, np
    )


def plain(test: Callable[..., None], *arguments: Any) -> Callable[[Any], None]:
    return lambda tmp_path: test(*arguments)


def in_folder(test: Callable[..., None], *arguments: Any) -> Callable[[Any], None]:
    return lambda tmp_path: test(*arguments, tmp_path)


def failed_write(tmp_path: Any) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        test_huggingface.test_a_write_that_fails_leaves_the_old_model_whole(None, tmp_path, monkeypatch)


MUTANTS = {
    "RMSNorm's backward without its projection": (
        norm, " - x * _column(along, x)\n", "\n",
        pieces("test_rms_norm_matches_finite_differences"),
    ),
    "RMSNorm without eps": (norm, "_mean_product(x, x) + eps", "_mean_product(x, x)", fixture("grouped_query")),
    "RMSNorm's statistics in float16": (
        norm, "return xp.astype(x, xp.result_type(x.dtype, xp.float32), copy=False)", "return x",
        plain(test_pieces.test_rms_norm_of_float16_does_not_overflow),
    ),
    "rotary backward turned the wrong way": (
        rotary, "(cos, -signed_sin)", "(cos, signed_sin)",
        pieces("test_rotary_matches_finite_differences", [7, 2, 2]),
    ),
    "rotary turned the other way, forward and backward": (
        rotary, "xp.concat([-sin, sin], axis=-1)", "xp.concat([sin, -sin], axis=-1)",
        fixture("one_key_value_head"),
    ),
    "rotary of neighbours instead of halves": (
        rotary, "xp.concat([cos, cos], axis=-1)", "xp.repeat(cos, 2, axis=-1)",
        fixture("one_key_value_head"),
    ),
    "positions of a range, whatever was given": (
        rotary, "if self.positions is None else self.positions", "",
        plain(test_llama.test_positions_and_core_let_context_parallelism_take_over),
    ),
    "Llama 3's rope scaling left out": (
        rotary, "    return frequencies * (kept + (1 - kept) / scaling[\"factor\"])", "    return frequencies",
        fixture("rope_scaling"),
    ),
    "Llama 3's rope scaling with its two bounds swapped": (
        rotary, "(turns - low) / (high - low)", "(high - turns) / (high - low)",
        fixture("rope_scaling"),
    ),
    "SwiGLU's slope without its first term": (
        activation, "(gate - silu + 1)", "(gate - silu)", pieces("test_swiglu_matches_finite_differences"),
    ),
    "SwiGLU's backward writes into its cache": (
        activation, "slope = (gate - silu + 1)", "gate -= silu\n    slope = (gate + 1)",
        plain(test_llama.test_weight_parts_of_three_microbatches_in_any_order_are_bitwise_the_joint_backward),
    ),
    "a sigmoid that overflows": (
        activation, "namespace(z).tanh(z * 0.5)", "2 * namespace(z).exp(z) / (1 + namespace(z).exp(z)) - 1",
        pieces("test_swiglu_of_huge_gates_is_finite"),
    ),
    "a repeated token's gradients not added up": (
        embedding, "return add_at(dweight, xp.reshape(cache, (-1,)), as_rows(dy))",
        "dweight[xp.reshape(cache, (-1,))] = as_rows(dy); return dweight",
        pieces("test_embedding_matches_finite_differences_and_adds_repeated_tokens"),
    ),
    "the loss's weight in the whole forgotten": (
        embedding, "share = float(dloss) / _count", "share = 1 / _count",
        pieces("test_cross_entropy_matches_finite_differences_with_its_weight_in_the_whole"),
    ),
    "cross-entropy summed, not averaged": (
        embedding, "float(dloss) / _count(counted, xp.float64)", "xp.asarray(float(dloss))",
        fixture("grouped_query"),
    ),
    "an ignored token's gradient left in": (
        embedding, "xp.astype(xp.where(counted, share, xp.zeros_like(share)), dtype)",
        "xp.astype(xp.broadcast_to(share, counted.shape), dtype)",
        pieces("test_cross_entropy_of_two_targets_of_five_tokens_is_that_of_the_two_and_the_others_have_no_gradient"),
    ),
    "an ignored token counted in the mean": (
        embedding, "xp.count_nonzero(counted), xp", "xp.asarray(counted.size), xp",
        pieces("test_cross_entropy_of_two_targets_of_five_tokens_is_that_of_the_two_and_the_others_have_no_gradient"),
    ),
    "softmax without taking off the maximum": (
        embedding, "    largest = xp.max(wide, axis=-1, keepdims=True)", "    largest = xp.zeros_like(wide[..., :1])",
        pieces("test_cross_entropy_of_a_uniform_guess_is_log_v_and_of_huge_logits_is_finite"),
    ),
    "a residual's gradient lost": (
        layers, "        dy = dy + dx\n        dx, of_attention =", "        dy = dx\n        dx, of_attention =",
        fixture("grouped_query"),
    ),
    "dx of q, k and v not added up": (
        layers, "    for more, _ in parts[1:]:\n        dx += more\n", "", fixture("grouped_query"),
    ),
    "a tied table's two gradients not added": (
        stage_module, "total[name] + gradient if name in total else gradient", "gradient", fixture("tied_head"),
    ),
    "matrices not turned": (llama, "else x.T.copy(order=\"C\")", "else x", fixture("grouped_query")),
    "files written in place": (huggingface, "folder / f\".{name}.partial\"", "folder / name", failed_write),
    "an old model's files left behind": (
        huggingface, "    for path in stale:\n        path.unlink()\n", "",
        in_folder(test_huggingface.test_saving_over_another_layout_leaves_no_file_of_the_old_model),
    ),
    "Adam without bias correction of the mean": (
        optimizer, "m / (1 - betas[0] ** step)", "m", plain(test_optimizer.test_adamw_is_algorithm_2_of_its_paper, np),
    ),
    "Adam without bias correction of the square": (
        optimizer, "v / (1 - betas[1] ** step)", "v", plain(test_optimizer.test_adamw_is_algorithm_2_of_its_paper, np),
    ),
    "eps within the root": (
        optimizer, "(xp.sqrt(unbiased_v) + eps)", "xp.sqrt(unbiased_v + eps)",
        plain(test_optimizer.test_adamw_is_algorithm_2_of_its_paper, np),
    ),
    "decay in the gradient instead of apart": (
        optimizer, "    m = betas[0] * m", "    g = g + decay * w\n    m = betas[0] * m",
        plain(test_optimizer.test_decay_is_decoupled_from_the_gradients_size),
    ),
    "the last number of an array not updated": (
        optimizer, "min(start + piece, weight.size)", "min(start + piece, weight.size - 1)",
        plain(test_optimizer.test_shards_get_bitwise_what_the_whole_gets, (0, 1, 7, 70_000, 100_003), "float64"),
    ),
    "clipping by the sum of norms": (
        optimizer, "to_host(sum(sum_of_squares(gradient) for gradient in gradients.values()))",
        "sum(math.sqrt(sum_of_squares(gradient)) for gradient in gradients.values()) ** 2",
        plain(test_optimizer.test_clipping_gives_norm_1_and_leaves_small_gradients_alone),
    ),
    "warm-up from 0": (
        optimizer, "peak * (step + 1) / warmup_steps", "peak * step / warmup_steps",
        plain(test_optimizer.test_warmup_reaches_the_peak_after_10_steps_and_the_cosine_its_floor_after_100),
    ),
    "a source whose contexts are drawn evenly": (
        corpus, "p=self.stationary", "p=None",
        plain(test_corpus.test_400_000_characters_have_the_sources_frequencies),
    ),
    "a source that is one character late": (
        corpus, "chances[self.order :]", "chances[self.order + 1 :]",
        plain(test_corpus.test_windows_shorter_than_the_order_are_drawn_too, 3),
    ),
    "a view counted without the array that it keeps alive": (
        counting, "buffer = owning_buffer(x)", "buffer = x",
        plain(test_counting.test_shared_arrays_and_views_count_once_and_whole, np),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, tmp_path):
    module, right, wrong, test = MUTANTS[name]
    with broken(module, right, wrong), np.errstate(all="ignore"), pytest.raises((AssertionError, ValueError)):
        test(tmp_path)


def one_head_of_a_group(dout, q, k, v, out, lse):
    """Grouped-query attention whose shared heads hear from the first of their queries alone."""
    group = q.shape[1] // k.shape[1]
    dq, dk, dv = attention_backward(dout, q, k.repeat(group, axis=1), v.repeat(group, axis=1), out, lse, causal=True)
    return dq, dk[:, ::group], dv[:, ::group]


FORWARD, BACKWARD = partial(attention, causal=True), partial(attention_backward, causal=True)
CORES = {
    "without 1/√D": Core(partial(FORWARD, scale=1.0), partial(BACKWARD, scale=1.0)),
    "without 1/√D in the backward": Core(FORWARD, partial(BACKWARD, scale=1.0)),
    "without the causal mask": Core(attention, attention_backward),
    "without the causal mask in the backward": Core(FORWARD, attention_backward),
    "gradients of a group's heads not added up": Core(FORWARD, one_head_of_a_group),
}


@pytest.mark.parametrize("name", CORES)
def test_a_wrong_core_is_caught_by_the_parity_with_transformers(name, monkeypatch):
    monkeypatch.setattr(test_llama.llama, "load", partial(llama.load, core=CORES[name]))
    with pytest.raises(AssertionError, match="relative error"):
        fixture("grouped_query")(None)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_parity_holds_again_afterwards(name):
    fixture(name)(None)
