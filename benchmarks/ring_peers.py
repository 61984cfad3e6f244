"""The contenders of `bench_ring_attention`, each run as `python -m benchmarks.ring_peers NAME`.

Each computes causal attention of the same float32 `q, k, v [1, 8, 4096, 64]`, "forward" and "both" (with the backward),
on two cores.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np

from benchmarks.contest import serve

B, H, S, D = 1, 8, 4096, 64
RANKS = 4
TILE = 512


def draw() -> list[np.ndarray]:
    """dout, q, k, v."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((B, H, S, D)).astype(np.float32) for _ in range(4)]


def answer(*arrays: Any) -> float:
    """One number that tells right results from wrong ones."""
    return sum(float(np.sum(np.abs(np.asarray(x, dtype=np.float64)))) for x in arrays)


def parlab(layout: str) -> None:
    """Our ring on threads; also with peaked logits (q × 30)."""
    from parlab import per_rank, run
    from parlab.sequence import ring_attention, ring_attention_backward, shard

    def both(comm: Any, dout: Any, q: Any, k: Any, v: Any, **how: Any) -> Any:
        out, lse = ring_attention(comm, q, k, v, **how)
        return out, *ring_attention_backward(comm, dout, q, k, v, out, lse, **how)

    dout, q, k, v = (per_rank(shard(x, RANKS, layout)) for x in draw())
    peaked = per_rank([30 * piece for piece in q.items])
    how: dict[str, Any] = {"causal": True, "layout": layout}
    tasks: dict[str, Callable[[], Any]] = {
        "forward": lambda: run(ring_attention, RANKS, q, k, v, **how),
        "both": lambda: run(both, RANKS, dout, q, k, v, **how),
        "peaked forward": lambda: run(ring_attention, RANKS, peaked, k, v, **how),
        "peaked both": lambda: run(both, RANKS, dout, peaked, k, v, **how),
    }
    serve(tasks, answer(*(x for result in tasks["both"]().results for x in result)))


def floor() -> None:
    """The products alone: q kᵀ and p v of half of the 512-row blocks, by tiles into a reused buffer, on two threads."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    _, q, k, v = draw()

    def products(heads: range) -> None:
        scores, out = np.empty((TILE, TILE), np.float32), np.empty((TILE, D), np.float32)
        for h in heads:
            for first in range(0, S, 2 * TILE):
                for key in range(0, S, TILE):
                    np.matmul(q[0, h, first : first + TILE], k[0, h, key : key + TILE].T, out=scores)
                    np.matmul(scores, v[0, h, key : key + TILE], out=out)

    with ThreadPoolExecutor(2) as pool:
        serve({"forward": lambda: list(pool.map(products, [range(0, H, 2), range(1, H, 2)]))}, 0.0)


def jax_ring(hidden: str) -> None:
    """Contiguous ring attention with shard_map and ppermute on 4 host devices.

    `hidden` blocks are "masked", computed for nothing as the plain ring does, or "skipped".
    """
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={RANKS}"
    jax: Any = import_module("jax")
    jnp, sharding = jax.numpy, jax.sharding
    mesh = sharding.Mesh(np.array(jax.devices()), ("ring",))
    spec = sharding.PartitionSpec(None, None, "ring", None)
    around = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]

    def ring(q: Any, k: Any, v: Any) -> Any:
        rank, tokens = jax.lax.axis_index("ring"), jnp.arange(q.shape[2])
        sums = jnp.zeros_like(q), jnp.full_like(q[..., 0], -jnp.inf), jnp.zeros_like(q[..., 0])
        for hop in range(RANKS):
            source = (rank - hop) % RANKS
            arriving = [jax.lax.ppermute(x, "ring", around) for x in (k, v)] if hop < RANKS - 1 else (k, v)

            def attend(sums: Any, k: Any = k, v: Any = v, source: Any = source) -> Any:
                out, largest, total = sums
                scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(D)
                visible = (rank * len(tokens) + tokens)[:, None] >= source * len(tokens) + tokens
                scores = jnp.where(visible, scores, -jnp.inf)
                before, largest = largest, jnp.maximum(largest, scores.max(-1))
                weights, shrink = jnp.exp(scores - largest[..., None]), jnp.exp(before - largest)
                out = out * shrink[..., None] + jnp.einsum("bhqk,bhkd->bhqd", weights, v)
                return out, largest, total * shrink + weights.sum(-1)

            seen = source <= rank if hidden == "skipped" else True
            sums = jax.lax.cond(seen, attend, lambda sums: sums, sums)
            k, v = arriving
        return sums[0] / sums[2][..., None]

    def both(dout: Any, q: Any, k: Any, v: Any) -> Any:
        out, pull = jax.vjp(sharded, q, k, v)
        return out, *pull(dout)

    sharded = jax.shard_map(ring, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    forward, backward = jax.jit(sharded), jax.jit(both)
    dout, q, k, v = (jax.device_put(x, sharding.NamedSharding(mesh, spec)) for x in draw())
    tasks = {
        "forward": lambda: jax.block_until_ready(forward(q, k, v)),
        "both": lambda: jax.block_until_ready(backward(dout, q, k, v)),
    }
    serve(tasks, answer(*tasks["both"]()))


def torch_fused() -> None:
    """PyTorch's fused attention on one device with two threads: no ring, what all rings are up against."""
    torch: Any = import_module("torch")
    torch.set_num_threads(2)
    dout, q, k, v = (torch.tensor(x) for x in draw())
    inputs = [x.requires_grad_() for x in (q, k, v)]
    attention = torch.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        with torch.no_grad():
            return attention(q, k, v, is_causal=True)

    def both() -> Any:
        out = attention(q, k, v, is_causal=True)
        return out.detach(), *torch.autograd.grad(out, inputs, dout)

    serve({"forward": forward, "both": both}, answer(*both()))


def torch_ring(rank: int, meeting: str) -> None:
    """Contiguous ring attention on 4 gloo processes of one thread, each block by PyTorch's fused kernel.

    Rank 0 is asked; it tells the others by a broadcast, and times until all have met again.
    """
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dout, q, k, v = (torch.tensor(np.split(x, RANKS, axis=2)[rank]) for x in draw())

    def pass_on(*tensors: Any) -> Callable[[], list[Any]]:
        """Start to send these to the right; the call returns what came from the left."""
        sent = torch.stack(tensors)
        came = torch.empty_like(sent)
        right, left = (rank + 1) % RANKS, (rank - 1) % RANKS
        requests = [dist.isend(sent, right), dist.irecv(came, left)]

        def arrived() -> list[Any]:
            for request in requests:
                request.wait()
            return list(came)

        return arrived

    def forward() -> Any:
        out, lse, (key, value) = torch.zeros_like(q), torch.full(q.shape[:3], -torch.inf), (k, v)
        for hop in range(RANKS):
            arrived = pass_on(key, value) if hop < RANKS - 1 else None
            if hop <= rank:
                part, part_lse = kernel(q, key, value, 0.0, hop == 0)
                part_lse = part_lse.reshape(lse.shape)
                merged = torch.logaddexp(lse, part_lse)
                out = out * (lse - merged).exp()[..., None] + part * (part_lse - merged).exp()[..., None]
                lse = merged
            if arrived is not None:
                key, value = arrived()
        return out, lse

    def both() -> Any:
        out, lse = forward()
        dq, gradients, (key, value), returned = torch.zeros_like(q), [], (k, v), None
        for hop in range(RANKS):
            arrived = pass_on(key, value) if hop < RANKS - 1 else None
            share = kernel_backward(dout, q, key, value, out, lse, 0.0, hop == 0) if hop <= rank else None
            gradients = returned() if returned is not None else [torch.zeros_like(k), torch.zeros_like(v)]
            if share is not None:
                dq, gradients = dq + share[0], [gradients[0] + share[1], gradients[1] + share[2]]
            returned = pass_on(*gradients)
            if arrived is not None:
                key, value = arrived()
        assert returned is not None
        return out, dq, *returned()

    def obey(number: int = -1) -> bool:
        """Run the task that rank 0 names, on all ranks, until all have met; False when there is no more."""
        task = torch.tensor([number])
        dist.broadcast(task, 0)
        if task.item() < 0:
            return False
        (forward, both)[task.item()]()
        dist.barrier()
        return True

    checked = torch.tensor([answer(*both())], dtype=torch.float64)
    dist.all_reduce(checked)
    if rank == 0:
        serve({"forward": lambda: obey(0), "both": lambda: obey(1)}, checked.item())
        obey(-1)
    else:
        while obey():
            pass


def torch_ring_of_processes() -> None:
    """Start ranks 1 to 3, and be rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        command = [sys.executable, "-m", "benchmarks.ring_peers", "torch_ring"]
        others = [Popen([*command, str(rank), meeting]) for rank in range(1, RANKS)]
        torch_ring(0, meeting)
        for process in others:
            process.wait()


def memory() -> None:
    """Print the peak of this process in MB: S 16 384, 8 ranks, forward and backward."""
    import resource

    from parlab import per_rank, run
    from parlab.sequence import ring_attention, ring_attention_backward

    def both(comm: Any, dout: Any, q: Any, k: Any, v: Any) -> None:
        out, lse = ring_attention(comm, q, k, v, causal=True, layout="zigzag")
        ring_attention_backward(comm, dout, q, k, v, out, lse, causal=True, layout="zigzag")

    rng = np.random.default_rng(0)
    shards = [per_rank([rng.standard_normal((1, 8, 2048, 64)).astype(np.float32) for _ in range(8)]) for _ in range(4)]
    run(both, 8, *shards)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "torch_ring":
        torch_ring(int(arguments[0]), arguments[1])
    else:
        globals()[name](*arguments)
