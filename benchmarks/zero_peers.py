"""PyTorch's data parallelism on two processes and gloo, run as `python -m benchmarks.zero_peers ddp|fsdp`.

The model, the weights and the batches are those of `bench_zero`. Process 0 takes the commands and starts process 1,
which follows it. Each computes on one thread, as our ranks do.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, Popen

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from benchmarks.bench_training_step import CONFIG, pytorch_rotary
from benchmarks.bench_zero import LR, RANKS, ROWS, STEPS, draw
from benchmarks.contest import serve
from parlab.nn.llama import Llama


class Layer(nn.Module):
    """One decoder layer; its weights by the last part of their names that tells."""

    def __init__(self, start: Llama, number: int):
        super().__init__()
        prefix = f"model.layers.{number}."
        for name, weight in start.weights.items():
            if name.startswith(prefix):
                self.register_parameter(name.split(".")[-2], nn.Parameter(torch.tensor(weight)))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = CONFIG.head_dim // 2

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(-1, (-1, CONFIG.head_dim)).transpose(1, 2)

        def rotate(x: torch.Tensor) -> torch.Tensor:
            return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin

        y = norm(x, self.input_layernorm)
        q, k, v = heads(y @ self.q_proj), heads(y @ self.k_proj), heads(y @ self.v_proj)
        out = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + out.transpose(1, 2).flatten(2) @ self.o_proj
        y = norm(x, self.post_attention_layernorm)
        return x + (functional.silu(y @ self.gate_proj) * (y @ self.up_proj)) @ self.down_proj


class Model(nn.Module):
    """From tokens and targets to the loss."""

    def __init__(self, start: Llama):
        super().__init__()
        table, last_norm, head = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
        self.table, self.norm, self.head = (
            nn.Parameter(torch.tensor(start.weights[x])) for x in (table, last_norm, head)
        )
        self.layers = nn.ModuleList(Layer(start, number) for number in range(CONFIG.num_hidden_layers))
        self.rotary = pytorch_rotary(torch)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = functional.embedding(tokens, self.table)
        for layer in self.layers:
            x = layer(x, *self.rotary)
        return functional.cross_entropy((norm(x, self.norm) @ self.head).flatten(0, 1), targets.flatten())


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (CONFIG.hidden_size,), weight, CONFIG.rms_norm_eps)


def steps_of(kind: str, rank: int) -> Callable[[], float]:
    """STEPS steps on this process's rows; returns the first loss, averaged over the processes."""
    model: nn.Module = Model(Llama.random(CONFIG))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in [*model.layers, model]:
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    text = torch.tensor(draw()[rank * ROWS : (rank + 1) * ROWS])

    def steps() -> float:
        losses = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(text[:, :-1], text[:, 1:])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        dist.all_reduce(losses[0])
        return float(losses[0]) / RANKS

    return steps


def join(kind: str, rank: int, meeting_point: str) -> Callable[[], float]:
    """`steps_of`, each run of which the follower's runs wait for."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=RANKS)
    steps, start = steps_of(kind, rank), torch.ones(1)

    def together() -> float:
        dist.broadcast(start, src=0)
        return steps()

    return together


def lead(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        meeting_point = str(Path(folder, "meeting-point"))
        with Popen([sys.executable, "-m", "benchmarks.zero_peers", kind, meeting_point], stdin=DEVNULL) as follower:
            steps = join(kind, 0, meeting_point)
            serve({"steps": steps}, steps())
            follower.kill()


def follow(kind: str, meeting_point: str) -> None:
    steps = join(kind, 1, meeting_point)
    while True:
        steps()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        lead(sys.argv[1])
    else:
        follow(*sys.argv[1:])
