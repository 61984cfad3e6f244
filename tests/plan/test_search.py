"""The search against plain loops, the published layout, and what must hold of any best."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from parlab.nn import LlamaConfig
from parlab.plan import A100, LLAMA_8B, LLAMA_405B, GPTConfig, Layout, estimate, search, why
from parlab.world import CLASSROOM, DGX_A100, DGX_H100

LLAMA_3 = {"batch": 2048, "sequence": 8192}
SMALL = LlamaConfig(256, 512, 1408, 6, 8, 4), GPTConfig(256, 512, 6, 8)


def by_loops(config, cluster, ranks, batch, sequence, memory, **fixed):
    """The least seconds that fit, or None: each combination of knobs that may come to `ranks`, one estimate each."""
    every = range(1, ranks + 1)
    best = None
    for t, c, p, v, b in itertools.product(every, every, every, range(1, 9), range(1, batch + 1)):
        if ranks % (t * c * p) or p * v > 8 or (p == 1 and v > 1) or batch % b:
            continue
        layout = Layout(ranks // (t * c * p), p, c, t, v, b, **fixed)
        try:
            found = estimate(config, cluster, layout, batch=batch, sequence=sequence)
        except ValueError:
            continue
        if found.total_bytes <= memory and (best is None or found.total_seconds < best):
            best = found.total_seconds
    return best


@pytest.mark.parametrize("seed", range(12))
def test_the_best_is_that_of_plain_loops(seed):
    draw = np.random.default_rng(seed)
    config, ranks = SMALL[seed % 2], int(draw.choice([2, 4]))
    batch, sequence = int(draw.choice([2, 4])), int(draw.choice([64, 96, 2048]))
    fixed = {
        "zero": int(draw.integers(4)),
        "schedule": str(draw.choice(["1f1b", "looped_bfs"])),
        "sequence_parallel": bool(draw.integers(2)),
        "recompute": str(draw.choice(["none", "selective", "full"])),
    }
    needed = search(config, DGX_A100, ranks, batch=batch, sequence=sequence, memory=1e15, **fixed).bytes
    memory = float(draw.uniform(0.9 * needed.min(), np.median(needed)))
    plans = search(config, DGX_A100, ranks, batch=batch, sequence=sequence, memory=memory, **fixed)
    expected = by_loops(config, DGX_A100, ranks, batch, sequence, memory, **fixed)
    assert (plans.best.total_seconds if len(plans) else None) == expected


def test_309_060_layouts_of_405b_on_16_384_gpus_and_half_of_llama_3s_pipeline_first_when_c_is_1():
    plans = search(LLAMA_405B, DGX_H100, 16384, **LLAMA_3)
    assert len(plans.layouts) == 309_060
    alone = search(LLAMA_405B, DGX_H100, 16384, cp=1, **LLAMA_3)
    best = alone.best.layout
    assert (best.tp, best.cp, best.pp, best.dp, best.recompute) == (8, 1, 8, 256, "mlp.hidden")
    assert plans.best.total_seconds < alone.best.total_seconds  # two ranks for each sequence are faster still
    assert alone.best.total_bytes <= 80e9


def test_plans_are_in_order_fit_and_have_the_front_of_plain_loops():
    plans = search(LLAMA_8B, DGX_H100, 8, batch=8, sequence=4096)
    found = list(plans)
    times = [entry.total_seconds for entry in found]
    assert times == sorted(times)
    assert max(entry.total_bytes for entry in found) <= plans.memory
    assert found[0] == plans.best == plans[0]
    least, front = float("inf"), []
    for entry in found:
        if entry.total_bytes < least:
            least = entry.total_bytes
            front.append(entry)
    assert plans.front() == front


def test_layouts_that_come_to_the_same_are_listed_once_unless_asked_for():
    asked = {"batch": 64, "sequence": 64, "memory": 1e15}
    rows = vars(search(LLAMA_8B, DGX_H100, 2, **asked).layouts)
    assert not ((rows["dp"] * rows["cp"] == 1) & (rows["zero"] > 1)).any()
    assert not ((rows["tp"] == 1) & rows["sequence_parallel"]).any()
    assert set(rows["zero"]) == {1, 2, 3}
    assert max(rows["microbatch"]) == 16
    rows = vars(search(LLAMA_8B, DGX_H100, 2, zero=[2, 3], sequence_parallel=True, **asked).layouts)
    assert set(zip(rows["tp"].tolist(), rows["zero"].tolist(), strict=True)) == {(1, 2), (1, 3), (2, 2), (2, 3)}


def test_offload_makes_room_and_costs_time():
    options = {"batch": 8, "sequence": 4096, "dp": 1, "zero": 0}
    kept, away = (search(LLAMA_8B, DGX_H100, 4, memory=1e15, offload=x, **options) for x in (False, True))
    assert away.bytes.min() < kept.bytes.min()
    assert away.best == kept.best


KEPT_OR_NOT = {"recompute": ["none", "full"]}  # as Llama 3 and Megatron's first papers


def test_why_says_what_binds_beside_llama_3():
    plans = search(LLAMA_405B, DGX_H100, 16384, cp=1, **LLAMA_3, **KEPT_OR_NOT)
    table = why(plans)
    found = {(n.field, n.value): n for n in table}
    assert found["sequence_parallel", False].binds.startswith("memory: 18")
    assert found["chunks", 4].binds.startswith("bubble")
    assert found["zero", 3].binds.startswith("dp")
    assert found["tp", 16].binds.startswith("tp")
    assert 0.3 < found["recompute", "full"].change < 0.4
    assert all(n.change >= 0 or n.binds.startswith("memory") for n in table)
    text = str(table)
    assert text.startswith("dp 128, pp 16, cp 1, tp 8, chunks 8, ZeRO-2")
    assert len(text.splitlines()) == 1 + len(list(table)) + 2


def test_no_layout_is_listed_twice_where_cp_gives_its_ranks_to_tp():
    layouts = [str(n.found.layout) for n in why(search(LLAMA_405B, DGX_H100, 16384, **LLAMA_3))]
    assert len(set(layouts)) == len(layouts)


def test_the_neighbour_with_dp_256_is_2_percent_faster_and_has_77_7_gib():
    plans = search(LLAMA_405B, DGX_H100, 16384, cp=1, **LLAMA_3, **KEPT_OR_NOT)
    (shorter,) = [n for n in why(plans) if (n.field, n.value) == ("pp", 8)]
    assert shorter.in_words == "pp 8, dp 256"
    assert shorter.binds == "memory: 77.7 GiB of 74.5 GiB"
    assert round(shorter.change, 2) == -0.02


def test_between_72_and_79_6_gib_of_an_h100_the_best_layout_changes_at_77_0():
    """Up to 77.0 GiB it is Llama 3's mesh; from there on the pipeline is half as long, with twice the replicas."""
    plans = search(LLAMA_405B, DGX_H100, 16384, cp=1, **LLAMA_3, **KEPT_OR_NOT)
    assert [round(end / 2**30, 1) for end in plans.band] == [72, 79.6]
    flips = plans.flips()
    assert [(round(e.total_bytes / 2**30, 1), e.layout.pp, e.layout.dp) for e in flips] == [
        (71.0, 16, 128), (77.0, 8, 256)
    ]  # fmt: skip
    assert flips[0] == plans.best
    for e in flips:  # each is the best from its own bytes on
        limit = max(e.total_bytes, plans.band[0])
        assert replace(plans, memory=limit).best == e
    assert replace(plans, memory=flips[1].total_bytes - 1).best == flips[0]
    assert repr(plans).endswith("; another one from 77.0 GiB of usable memory on")
    lines = why(plans).verdict()
    assert lines[0].startswith("usable memory decides: up to 77.0 GiB the best is dp 128, pp 16")
    assert lines[1].startswith("  from 77.0 GiB on dp 256, pp 8, cp 1, tp 8, chunks 16")


def test_where_the_verdict_stays_the_same_why_says_nothing_of_memory():
    plans = search(LLAMA_8B, DGX_H100, 8, batch=64, sequence=2048)
    assert plans.flips() == [plans.best]
    assert why(plans).verdict() == []


def with_band(plans, low, high):
    """The same plans on a device of which this much is usable."""
    hardware = A100.but(usable=(low / 2**30, high / 2**30))
    return replace(plans, memory=high, asked=plans.asked | {"hardware": hardware})


@pytest.mark.parametrize(("low", "high"), [(0.3, 2.0), (0.01, 0.02)])
def test_flips_are_the_bests_of_plain_searches_at_every_limit(low, high):
    plans = search(SMALL[0], DGX_A100, 4, batch=4, sequence=2048, memory=1e15)
    middle = float(np.median(plans.bytes))
    ends = low * middle, high * middle
    limits = [ends[0], *sorted(x for x in plans.bytes if ends[0] < x <= ends[1])]
    bests = [replace(plans, memory=limit) for limit in limits]
    expected = list(dict.fromkeys((p.best.total_seconds, str(p.best.layout)) for p in bests if len(p)))
    found = [e.total_seconds for e in with_band(plans, *ends).flips()]
    assert found == list(dict.fromkeys(seconds for seconds, _ in expected))


@pytest.mark.parametrize(
    ("cluster", "memory", "band"),
    [
        (CLASSROOM, 1e9, (1e9, 1e9)),  # nothing is published
        (DGX_H100, 24e9, (24e9, 24e9)),  # no device of 80 GB
        (DGX_H100, 141e9, (141e9, 141e9)),
        (DGX_H100, 72 * 2**30, (72 * 2**30, 79.6 * 2**30)),
        (DGX_A100, None, (72 * 2**30, 79.3 * 2**30)),
    ],
)
def test_the_band_is_the_devices_or_the_memory_that_was_asked_for(cluster, memory, band):
    assert search(SMALL[0], cluster, 2, batch=2, sequence=64, memory=memory).band == band


def test_why_of_a_layout_that_loses_names_what_is_faster():
    plans = search(LLAMA_405B, DGX_H100, 16384, cp=1, **LLAMA_3)
    slow = plans.best.layout.but(chunks=4)
    assert {n.binds for n in why(plans, slow) if (n.field, n.value) == ("chunks", 8)} == {"nothing: it is faster"}


def test_a_neighbour_of_just_the_memory_there_is_fits():
    plans = search(LLAMA_8B, DGX_H100, 8, batch=64, sequence=8192)
    layout = plans.best.layout
    limit = min(n.found.total_bytes for n in why(plans) if n.binds.startswith("memory"))
    neighbours = why(replace(plans, memory=limit), layout)
    assert {n.binds.startswith("memory") for n in neighbours if n.found.total_bytes == limit} == {False}
    assert all(n.binds.startswith("memory") == (n.found.total_bytes > limit) for n in neighbours)


def test_of_one_microbatch_on_one_device_either_order_takes_as_long():
    neighbours = why(search(LLAMA_8B, DGX_H100, 1, batch=1, sequence=512, memory=1e15))
    assert [(n.change, n.binds) for n in neighbours if n.field == "schedule"] == [(0, "nothing: it takes as long")]


@pytest.mark.parametrize("place", [0, 40, 400])
def test_the_neighbours_are_those_of_plain_loops_over_all_layouts(place):
    plans = search(SMALL[1], DGX_A100, 4, batch=4, sequence=64, offload=True)
    half = replace(plans, memory=float(np.median(plans.bytes)))
    every = [plans.grid[number] for number in range(len(plans.layouts))]
    assert place < len(half) < len(every)
    base, mesh = half[place], ("dp", "pp", "cp", "tp")
    groups = {}
    for knob in vars(base.layout):
        near = {}
        for found in every:
            others = [name for name, x in vars(found.layout).items() if x != getattr(base.layout, name)]
            if knob in others and set(others) - {knob} <= set(mesh) and len(others) <= 2 and knob != "dp":
                near.setdefault(getattr(found.layout, knob), []).append(found)
        at = getattr(base.layout, knob)
        if isinstance(at, int) and not isinstance(at, bool):  # the next lower and the next higher
            near = {
                x: near[x] for x in (*sorted(x for x in near if x < at)[-1:], *sorted(x for x in near if x > at)[:1])
            }
        groups |= {(knob, value): those for value, those in near.items()}
    assert len(groups) >= 7
    for memory in (half.memory, *{n.found.total_bytes for n in why(replace(plans, memory=1e15), base.layout)}):
        expected = set()
        for those in groups.values():
            fits = [e for e in those if e.total_bytes <= memory]
            forbidden = [e for e in those if e.total_bytes > memory]
            faster = [e for e in forbidden if e.total_seconds < base.total_seconds]
            lean = [] if fits or faster else forbidden
            chosen = [min(group, key=lambda e: (e.total_seconds, e.total_bytes)) for group in (fits, faster) if group]
            chosen += [min(lean, key=lambda e: (e.total_bytes, e.total_seconds))] if lean else []
            expected |= {(e.total_seconds, e.total_bytes) for e in chosen}
        found = why(replace(plans, memory=memory), base.layout)
        assert {(n.found.total_seconds, n.found.total_bytes) for n in found} == expected
    for n in why(half, base.layout):
        assert n.change == n.found.total_seconds / base.total_seconds - 1
        now, before = vars(n.found.layout), vars(base.layout)
        moved = [f"{name} {now[name]}" for name in mesh if name != n.field and now[name] != before[name]]
        assert n.in_words == ", ".join([f"{n.field} {n.value}", *moved])


@pytest.mark.parametrize(("gpus", "costs"), [(4096, (2.6, 1.2)), (8192, (2.7, 1.2)), (16384, (2.2, 1.6))])
def test_of_pp_dp_bubble_and_tp_forgetting_dp_costs_most_on_4096_8192_and_16_384_gpus(gpus, costs):
    """And nothing if ZeRO-3 may not be chosen, which looks free without dp."""
    plans = search(LLAMA_405B, DGX_H100, gpus, cp=1, **LLAMA_3)

    def times_the_best(kind, among):
        seconds = np.where(among, sum(x for name, x in plans.grid.seconds.items() if name != kind), np.inf)
        fits = plans.bytes <= plans.memory
        chosen = np.lexsort((plans.bytes, np.where(fits, seconds, np.inf)))[0]
        return plans.seconds[chosen] / plans.seconds[fits & among].min()

    every = np.ones(len(plans.seconds), bool)
    found = {kind: times_the_best(kind, every) for kind in ("pp", "dp", "bubble", "tp")}
    assert max(found, key=found.get) == "dp"
    assert (round(found["dp"], 1), round(found["tp"], 1)) == costs
    assert round(found["pp"], 2) == 1
    assert round(times_the_best("dp", plans.layouts.zero < 3), 2) == 1


def test_an_exactly_full_limit_fits_and_a_byte_less_does_not():
    asked = {"batch": 2048, "sequence": 8192, "cp": 1}
    plans = search(LLAMA_405B, DGX_H100, 16384, **asked)
    last = plans.flips()[-1]
    full, less = (with_band(plans, plans.band[0], high).flips() for high in (last.total_bytes, last.total_bytes - 1))
    assert full[-1].layout == last.layout
    assert last.layout not in [e.layout for e in less]
    full = search(LLAMA_405B, DGX_H100, 16384, memory=last.total_bytes, **asked)
    assert full.best.layout == last.layout
    assert full.front()[0].layout == last.layout
    less = search(LLAMA_405B, DGX_H100, 16384, memory=last.total_bytes - 1, **asked)
    assert less.best.layout != last.layout
