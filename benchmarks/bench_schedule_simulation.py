"""How fast a schedule is simulated: against PyTorch's own simulator, and as the schedule grows.

Targets: 1F1B with p 64, m 1024 (131 072 actions) under 0.15 s, checks included, and at least 5 × faster than PyTorch,
whose simulator gets its actions with the communication already added; time in proportion to the actions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.timing import ratio, seconds
from parlab.pipeline import Schedule, one_f_one_b, simulate


def main() -> None:
    for p, m in ((8, 32), (8, 1024), (64, 128), (64, 512), (64, 1024), (64, 4096)):
        schedule = one_f_one_b(p, m)
        taken = min(seconds(partial(simulate, schedule)) for _ in range(5))
        actions = 2 * p * m
        print(f"p {p:>2}, m {m:>4}: {actions:>7,} actions {1e3 * taken:8.2f} ms, {actions / taken:9,.0f} a second")
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: no comparison (pip install torch)")
        return
    schedule = one_f_one_b(64, 1024)
    pair = ratio(partial(simulate, schedule), pytorch_simulator(schedule), 5)
    print(f"p 64, m 1024: ours / PyTorch's {pair}; targets 150 ms and 0.20")


def pytorch_simulator(schedule: Schedule) -> Callable[[], Any]:
    from torch.distributed.pipelining import schedules as peer

    def rank_of(stage: int) -> int:
        return schedule.rank_of(stage, 0)

    rows = {rank: [peer._Action.from_str(str(a)) for a in row] for rank, row in enumerate(schedule.actions)}
    with_messages = peer._add_send_recv(rows, rank_of, schedule.num_stages)
    return partial(peer._simulate_comms_compute, with_messages, rank_of, schedule.num_stages)
