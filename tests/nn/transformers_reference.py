"""Hugging Face's Llama as the reference: what it says of given tokens, in float32 as it comes, or in true float64.

Importing this needs neither torch nor transformers; calling it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

SIZES = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.3,  # large enough for attention to be peaked and gradients to be felt everywhere
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "grouped_query": SIZES,
    "one_key_value_head": SIZES | {"num_key_value_heads": 1},
    "tied_head": SIZES | {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "rope_scaling": SIZES | {"rope_theta": 100.0, "rope_scaling": LLAMA3_ROPE},
}


EAGER = {"attn_implementation": "eager"}
EAGER_EXPERTS = EAGER | {"experts_implementation": "eager"}  # the grouped products know no float64
MIXTURES: dict[str, dict[str, Any]] = {
    "top_2_of_5": SIZES | {"num_local_experts": 5, "num_experts_per_tok": 2},
    "top_3_of_4_tied": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 3, "tie_word_embeddings": True},
}


@contextmanager
def float64_throughout() -> Iterator[None]:
    """transformers computes norms, rotary angles and the router's softmax in float32, whatever the model's dtype: here
    that means float64.
    """
    import torch

    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def make_model(configuration: dict[str, Any], seed: int = 0) -> Any:
    """A random Llama or Mixtral in float64, its norm weights random too. Call it within `float64_throughout`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    torch.manual_seed(seed)
    mixture = "num_local_experts" in configuration
    config, kind = (MixtralConfig, MixtralForCausalLM) if mixture else (LlamaConfig, LlamaForCausalLM)
    model = kind(config(**configuration, **(EAGER_EXPERTS if mixture else EAGER))).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


def evaluate(model: Any, tokens: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """`logits`, `loss`, and every parameter's gradient under its name, matrices still `[out, in]`."""
    import torch

    model.zero_grad()
    logits = model(input_ids=torch.tensor(tokens), use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
    loss.backward()
    gradients = {
        part: gradient
        for name, weight in model.named_parameters()
        for part, gradient in named_as_stored(name, weight.grad.numpy().copy())
    }
    return {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(), **gradients}


def named_as_stored(name: str, x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A weight by the names in a file: transformers 5 joins a layer's experts in memory, and parts them in the file."""
    name = name.replace(".mlp.gate.weight", ".block_sparse_moe.gate.weight")
    prefix, _, joined = name.partition(".mlp.experts.")
    if not joined:
        yield name, x
        return
    for expert, own in enumerate(x):
        halves = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}[joined]
        for part, matrix in zip(halves, np.split(own, len(halves)), strict=True):
            yield f"{prefix}.block_sparse_moe.experts.{expert}.{part}.weight", matrix.copy()


def draw_tokens(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets, `[2, 24]`: long enough for the scaled rotary positions to differ from plain ones."""
    text = np.random.default_rng(seed).integers(SIZES["vocab_size"], size=(2, 25))
    return text[:, :-1].copy(), text[:, 1:].copy()
