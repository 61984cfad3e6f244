"""Which rank has which stage, and which way a microbatch goes: straight, around, on a V, or from both ends."""

from __future__ import annotations

from parlab.pipeline import Schedule

PLACEMENTS = {  # how schedules of each are drawn where several are compared
    "straight": {"color": "#222222", "marker": "o"},
    "V": {"color": "#882255", "marker": "v"},
    "around": {"color": "#D55E00", "marker": "^"},
    "both ends": {"color": "#117755", "marker": "D"},
    "other": {"color": "#666666", "marker": "s"},
}


def paths_of(schedule: Schedule) -> list[tuple[int, ...]]:
    """The ranks that a microbatch passes, stage by stage: each way that some of them go."""
    ways = (
        tuple(schedule.rank_of(stage, microbatch) for stage in range(schedule.num_stages))
        for microbatch in range(schedule.num_microbatches)
    )
    return list(dict.fromkeys(ways))


def placement_of(schedule: Schedule) -> str:
    """The name of its placement, of `PLACEMENTS`."""
    p, paths = schedule.num_ranks, paths_of(schedule)
    down, rounds = tuple(range(p)), schedule.num_stages // p
    named = {"straight": [down], "V": [down + down[::-1]], "around": [down * rounds], "both ends": [down, down[::-1]]}
    return next((name for name, ways in named.items() if sorted(paths) == sorted(ways)), "other")
