"""Make tests/data/attention.safetensors: what PyTorch's attention and its autograd compute, in float64.

Run from the repository's root with torch installed (the extra `peers`):

    python -m tests.data.make_attention_fixture
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

FILE = Path(__file__).parent / "attention.safetensors"
B, H, G, S, D = 2, 4, 2, 7, 3


def main() -> None:
    rng = np.random.default_rng(20)
    shapes = {"q": (B, H, S, D), "k": (B, G, S, D), "v": (B, G, S, D), "dout": (B, H, S, D)}
    inputs = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    saved = dict(inputs)
    for case, causal in (("full", False), ("causal", True)):
        q, k, v = (torch.tensor(inputs[name], requires_grad=True) for name in "qkv")
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        out.backward(torch.tensor(inputs["dout"]))
        scores = (q @ k.repeat_interleave(H // G, dim=1).mT).detach() / D**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(S, S).triu(1).bool(), -torch.inf)
        results = {"out": out.detach(), "lse": scores.logsumexp(-1), "dq": q.grad, "dk": k.grad, "dv": v.grad}
        saved |= {f"{case}.{name}": x.numpy() for name, x in results.items()}
    save_file(saved, FILE)


if __name__ == "__main__":
    main()
