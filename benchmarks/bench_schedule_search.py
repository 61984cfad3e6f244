"""How long a search for a schedule takes: the rows of the Zero Bubble paper, and one of 98 304 actions.

Targets: each row under 5 s, p 64 with m 512 under 30 s. `simulate` is timed by bench_schedule_simulation.
"""

from __future__ import annotations

from functools import partial

from benchmarks.timing import seconds
from parlab.pipeline import Costs, MemoryLimit, best_schedule, lower_bound, simulate, v_half, zb_auto

ROWS = {  # p, m, F, I, W, c, M_W / M_B: Tables 5 and 9
    "1.5B p 8 m 24": (8, 24, 18.522, 18.086, 9.337, 0.601, 0.366),
    "1.5B p 8 m 64": (8, 64, 18.546, 18.097, 9.321, 0.762, 0.366),
    "6.2B p 8 m 32": (8, 32, 29.802, 29.428, 19.530, 0.577, 0.432),
    "14.6B p 16 m 48": (16, 48, 11.347, 11.248, 8.132, 0.377, 0.432),
}


def main() -> None:
    for name, (p, m, f, i, w, c, rest) in ROWS.items():
        for times in (1, 2):
            costs = Costs(f, i, w, c)
            search = partial(zb_auto, p, m, costs, MemoryLimit(times * p, pending=rest))
            bubble = simulate(search(), costs).bubble_fraction("longest_stage")
            print(f"ZB-{times}p {name:16} {seconds(search):6.2f} s, bubble {bubble:.4f}; target 5 s")
    print(f"zb_auto(64, 512)       {seconds(lambda: zb_auto(64, 512, Costs(10, 9, 5, 1), 64)):6.2f} s; target 30 s")
    print(f"v_half(16, 64)         {seconds(lambda: v_half(16, 64)):6.2f} s")
    print(f"best_schedule(3, 4)    {seconds(lambda: best_schedule(3, 4, Costs([3, 1, 2], 2, 1, 1), 2)):6.2f} s")
    print(f"lower_bound(64, 512)   {seconds(lambda: lower_bound(64, 512, Costs(10, 9, 5, 1), 64)):6.2f} s")


if __name__ == "__main__":
    main()
