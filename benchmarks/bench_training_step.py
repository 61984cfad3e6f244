"""A training step of the serial Llama beside PyTorch's, eager, with its fused attention, on the same CPU.

4 layers, E 256, H 8, G 4, M 688, V 256, sequence 256, batch 8, float32; forward, backward and AdamW. Target: at most
2 × PyTorch's time; aim: 1.6 ×.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import ratio
from parlab.nn.llama import Llama, LlamaConfig
from parlab.nn.optimizer import AdamW

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
)
BATCH, LENGTH, LR = 8, 256, 1e-3


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed (pip install -e '.[peers]'): nothing to compare with")
        return
    text = np.random.default_rng(0).integers(CONFIG.vocab_size, size=(BATCH, LENGTH + 1))
    print("training step, parlab / PyTorch (target 2.00, aim 1.60):", ratio(our_step(text), pytorch_step(text)))


def our_step(text: np.ndarray) -> Callable[[], float]:
    """A step of parlab's."""
    model, optimizer = Llama.random(CONFIG), AdamW(lr=LR)
    tokens, targets = text[:, :-1].copy(), text[:, 1:].copy()

    def step() -> float:
        loss, gradients = model.loss_and_gradients(tokens, targets)
        optimizer.step(model.weights, gradients)
        return loss

    return step


def pytorch_step(text: np.ndarray) -> Callable[[], float]:
    """A step of the same model from the same weights in PyTorch; its first loss is checked against ours."""
    import torch

    start = Llama.random(CONFIG)
    weights = {name: torch.tensor(x, requires_grad=True) for name, x in start.weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=LR)
    tokens, targets = torch.tensor(text[:, :-1]), torch.tensor(text[:, 1:])
    rotary = pytorch_rotary(torch)

    def step() -> float:
        optimizer.zero_grad()
        logits = pytorch_logits(torch, weights, rotary, tokens)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    expected, _ = start.loss_and_gradients(text[:, :-1], text[:, 1:])
    assert abs(step() - expected) < 1e-4, "the two libraries do not compute the same model"
    return step


def pytorch_rotary(torch: Any) -> tuple[Any, Any]:
    """cos and sin, `[S, D]`."""
    frequencies = CONFIG.rope_theta ** (-torch.arange(0, CONFIG.head_dim, 2) / CONFIG.head_dim)
    angles = torch.arange(LENGTH)[:, None] * torch.cat([frequencies, frequencies])
    return angles.cos(), angles.sin()


def pytorch_logits(torch: Any, weights: dict[str, Any], rotary: tuple[Any, Any], tokens: Any) -> Any:
    """The Llama of `parlab.nn.llama` in PyTorch's own operations."""
    functional, D = torch.nn.functional, CONFIG.head_dim
    cos, sin = rotary

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (-1, D)).transpose(1, 2)

    def rotate(x: Any) -> Any:
        return x * cos + torch.cat([-x[..., D // 2 :], x[..., : D // 2]], dim=-1) * sin

    def norm(x: Any, name: str) -> Any:
        return functional.rms_norm(x, (CONFIG.hidden_size,), weights[f"model.{name}.weight"], CONFIG.rms_norm_eps)

    x = functional.embedding(tokens, weights["model.embed_tokens.weight"])
    for layer in range(CONFIG.num_hidden_layers):
        at = {name.split(".")[-2]: w for name, w in weights.items() if name.startswith(f"model.layers.{layer}.")}
        y = norm(x, f"layers.{layer}.input_layernorm")
        q, k, v = (heads(y @ at[f"{name}_proj"]) for name in "qkv")
        out = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + out.transpose(1, 2).flatten(2) @ at["o_proj"]
        y = norm(x, f"layers.{layer}.post_attention_layernorm")
        x = x + (functional.silu(y @ at["gate_proj"]) * (y @ at["up_proj"])) @ at["down_proj"]
    return norm(x, "norm") @ weights["lm_head.weight"]


if __name__ == "__main__":
    main()
