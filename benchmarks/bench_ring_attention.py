"""Ring attention beside its peers: S 4096, 8 heads, D 64, float32, causal, 4 ranks, two cores.

Targets: forward at most 0.65 (aim 0.50) of JAX's contiguous ring and 2.0 (aim 1.6) × the tiled floor, the products
alone; forward and backward at most 0.42 (aim 0.35) of JAX's; peaked logits (q × 30) at most 2 × the time of ordinary
ones; and under 1 GB at S 16 384 on 8 ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from math import isclose

from benchmarks.contest import Contender, contest

ROUNDS = 5
LAYOUTS = ("contiguous", "zigzag", "striped")
PEERS = {  # package, how `ring_peers` is called, what is known
    "JAX's ring on 4 host devices": ("jax", "jax_ring masked", "(forward: target 0.65, aim 0.50; both: 0.42, 0.35)"),
    "JAX's ring that skips hidden blocks": ("jax", "jax_ring skipped", ""),
    "PyTorch's ring on 4 gloo processes": ("torch", "torch_ring_of_processes", "(prototypes: forward 1.1, both 0.95)"),
    "PyTorch's fused attention on one device": ("torch", "torch_fused", ""),
}


def main() -> None:
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # else its threads spin for a while after each product
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Contender:
            return stack.enter_context(Contender(name, ["-m", "benchmarks.ring_peers", *arguments]))

        ours = [start(layout, "parlab", layout) for layout in LAYOUTS]
        floor = start("floor", "floor")
        peers = [start(name, *call.split()) for name, (package, call, _) in PEERS.items() if find_spec(package)]
        for contender in (*ours, *peers):
            assert isclose(contender.answer, ours[0].answer, rel_tol=1e-5), f"{contender.name} computes something else"
        tasks = ["forward", "both"]
        entries = [(contender, task) for contender in (*ours, *peers) for task in tasks]
        entries += [(floor, "forward"), (ours[0], "peaked forward"), (ours[0], "peaked both")]
        contest(ROUNDS, entries)
        for layout in ours:
            print(f"{layout.name}, forward / tiled floor (target 2.00, aim 1.60): {layout.over(floor, 'forward')}")
        for task in tasks:
            print(f"peaked / ordinary logits, {task} (target 2.00): {ours[0].over(ours[0], f'peaked {task}', task)}")
        for peer in peers:
            print(f"/ {peer.name} {PEERS[peer.name][2]}")
            for task in tasks:
                for layout in ours:
                    print(f"    {task:8} {layout.name:11} {layout.over(peer, task)}")
    for name, (package, _, _) in PEERS.items():
        if not find_spec(package):
            print(f"/ {name}: {package} is not installed (pip install -e '.[peers]')")
    command = [sys.executable, "-m", "benchmarks.ring_peers", "memory"]
    peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"S 16384, 8 ranks, forward and backward: the process peaks at {peak:.0f} MB (target 1000)")


if __name__ == "__main__":
    main()
