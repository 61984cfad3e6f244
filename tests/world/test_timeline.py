"""Timelines: what they count, what they print, and the file that Perfetto opens."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from parlab.world import CLASSROOM, Cluster, Link, run
from parlab.world.timeline import Timeline
from parlab.world.units import format_bytes, format_time
from tests.world.random_programs import program, random_steps

TICKS = Cluster.uniform(latency=10e-12, bandwidth=1e12)


def relay(comm):
    """0 → 1 → 2 of 100 bytes each, with a compute of 50 ticks on rank 1 between."""
    x = np.zeros(100, dtype=np.uint8)
    if comm.rank > 0:
        x = comm.recv(comm.left, x)
    if comm.rank == 1:
        with comm.compute("add", seconds=50e-12):
            x = x + 1
    if comm.rank < 2:
        comm.send(x, comm.right)


def test_spans_of_a_relay_are_its_computes_both_ends_of_its_messages_and_its_waits():
    timeline = run(relay, 3, cluster=TICKS).timeline
    assert [tuple(span) for span in timeline.spans] == [
        (0, 0, 110, "send", "message"),
        (0, 0, 110, "wait", "send"),
        (1, 0, 110, "receive", "message"),
        (1, 0, 110, "wait", "receive"),
        (1, 110, 160, "compute", "add"),
        (1, 160, 270, "send", "message"),
        (1, 160, 270, "wait", "send"),
        (2, 0, 270, "wait", "receive"),
        (2, 160, 270, "receive", "message"),
    ]
    assert [timeline.busy(rank) for rank in range(3)] == [0, 50, 0]
    assert [timeline.waited(rank) for rank in range(3)] == [110, 220, 270]
    assert [timeline.messages(rank) for rank in range(3)] == [1, 1, 0]
    assert [timeline.bytes_sent(rank) for rank in range(3)] == [100, 100, 0]
    assert timeline.makespan == 270
    assert [(t.src, t.dst, t.nbytes, t.name, t.label) for t in timeline.transfers] == [
        (0, 1, 100, "message", None),
        (1, 2, 100, "message", None),
    ]


def test_messages_of_a_collective_carry_its_name_and_their_piece_and_others_their_label():
    def labelled(comm):
        comm.all_reduce(np.ones(2))
        comm.sendrecv(np.ones(1), comm.right, comm.left, label=("F", 3))

    transfers = run(labelled, 2).timeline.transfers
    ring = {("all_reduce", f"{how} piece {piece}") for how in ("add", "take") for piece in range(2)}
    assert {(t.name, t.label) for t in transfers} == ring | {("message", ("F", 3))}


def test_a_table_shows_times_counts_and_bytes_of_each_rank():
    text = repr(run(relay, 3, cluster=TICKS).timeline)
    assert text.splitlines() == [
        "Timeline: 3 ranks, makespan 270 ps on uniform",
        "rank    compute       wait messages       sent  peak held",
        "   0        0 s     110 ps        1      100 B      100 B",
        "   1      50 ps     220 ps        1      100 B      100 B",
        "   2        0 s     270 ps        0        0 B      100 B",
    ]


SHOWN = {
    format_time: {0: "0 s", 1: "1 ps", 999: "999 ps", 1000: "1.00 ns", 1_234_567: "1.23 µs", 12_345_678: "12.3 µs"}
    | {999_999_999: "1.00 ms", 10**12: "1.00 s", 1234 * 10**12: "1234 s"},
    format_bytes: {0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1536: "1.50 KiB", 2**20 - 1: "1.00 MiB"}
    | {5 * 2**40: "5.00 TiB", float("inf"): "inf B"},
}


@pytest.mark.parametrize("shown", SHOWN)
def test_times_and_bytes_have_three_digits_in_the_largest_unit_that_fits(shown):
    assert {value: shown(value) for value in SHOWN[shown]} == SHOWN[shown]


def test_a_timeline_of_a_schedule_counts_in_its_own_unit_of_which_perfetto_draws_one_as_a_second(tmp_path):
    timeline = Timeline(1, 3, computes=([0], [1], [3], ["F"]), unit="units of cost")
    assert repr(timeline).splitlines()[0] == "Timeline: 1 rank, makespan 3 units of cost"
    assert [(e["ts"], e["dur"]) for e in events_of(timeline, tmp_path) if e["ph"] == "X"] == [(1e6, 2e6)]


def test_messages_that_start_together_come_by_sender_not_by_end():
    columns = ([1, 0, 0], [2, 2, 1], [5, 9, 9], [0, 0, 0], [0, 0, 0], [5, 9, 7], ["m"] * 3, [None] * 3)
    transfers = Timeline(3, 9, transfers=columns).transfers
    assert [(t.src, t.dst, t.end) for t in transfers] == [(0, 1, 7), (0, 2, 9), (1, 2, 5)]


# The Chrome trace


def events_of(timeline, tmp_path):
    path = tmp_path / "trace.json"
    timeline.save_chrome_trace(path)
    document = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert document["displayTimeUnit"] == "ns"
    return document["traceEvents"]


REQUIRED = {
    "X": {"name", "cat", "pid", "tid", "ts", "dur"},
    "M": {"name", "pid", "args"},
    "C": {"name", "pid", "ts", "args"},
}
REQUIRED |= {"s": {"name", "cat", "id", "pid", "tid", "ts"}, "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"}}


def test_the_trace_of_a_relay_holds_each_span_in_microseconds_an_arrow_a_message_and_the_held_bytes(tmp_path):
    timeline = run(relay, 3, cluster=TICKS).timeline
    events = events_of(timeline, tmp_path)
    for event in events:
        assert set(event) >= REQUIRED[event["ph"]], event
    slices = sorted(
        (e["pid"], round(e["ts"] * 1e6), round(e["dur"] * 1e6), e["cat"], e["name"]) for e in events if e["ph"] == "X"
    )
    assert slices == sorted((s.rank, s.start, s.end - s.start, s.kind, s.name) for s in timeline.spans)
    arrows = {(e["ph"], e["id"]): e["pid"] for e in events if e["ph"] in "sf"}
    assert arrows == {("s", 0): 0, ("f", 0): 1, ("s", 1): 1, ("f", 1): 2}
    held = [(e["pid"], round(e["ts"] * 1e6), e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert held == [(rank, *step) for rank in range(3) for step in timeline.held(rank)]
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1"), (2, "rank 2")}


@pytest.mark.parametrize("ports", [1, 2, None])
def test_slices_of_a_track_never_overlap_halfway_so_that_perfetto_draws_them_all(tmp_path, ports):
    for seed in range(4):
        steps = random_steps(Random(seed), 4, 40)
        cluster = Cluster("other", CLASSROOM.device, 2, Link(1e-6, 3e9), Link(3e-6, 1e9), ports=ports)
        tracks = {}
        for event in events_of(run(program, 4, steps, cluster=cluster).timeline, tmp_path):
            if event["ph"] == "X":
                tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"]))
        for slices in tracks.values():
            open_until = []
            for start, minus_duration in sorted(slices):
                while open_until and open_until[-1] <= start + 1e-9:
                    open_until.pop()
                end = start - minus_duration
                assert not open_until or end <= open_until[-1] + 1e-9
                open_until.append(end)


def test_messages_one_after_the_other_share_one_track(tmp_path):
    timeline = run(lambda comm: comm.all_reduce(np.ones(40)), 4, cluster=TICKS).timeline
    tracks = {(e["pid"], e["cat"], e["tid"]) for e in events_of(timeline, tmp_path) if e["ph"] == "X"}
    assert {track for track in tracks if track[1] != "wait"} == {
        (rank, kind, tid) for rank in range(4) for kind, tid in (("send", 1), ("receive", 2))
    }


def test_every_arrow_starts_and_ends_at_a_slice_and_messages_that_take_no_time_have_none(tmp_path):
    timeline = run(program, 4, random_steps(Random(1), 4, 40)).timeline
    events = events_of(timeline, tmp_path)
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    arrows = [e for e in events if e["ph"] in "sf"]
    assert len(arrows) == 2 * sum(t.end > t.start for t in timeline.transfers)
    assert {(e["pid"], e["tid"], e["ts"]) for e in arrows} <= slices


def test_messages_of_a_named_group_say_its_name_also_beside_the_program_and_in_groups_split_off_it():
    x = np.zeros(4)

    def named(comm):
        group = comm.split(comm.rank // 2, name="tp")
        group.sendrecv(x, group.right, group.left)
        group.all_reduce(x)
        group.iall_gather(x).wait()
        group.split(0).all_reduce(x)
        comm.all_reduce(x)
        return repr(group), repr(group.split(0))

    done = run(named, 4)
    assert {t.name for t in done.timeline.transfers} == {
        "tp: message",
        "tp: all_reduce",
        "tp: all_gather",
        "all_reduce",
    }
    assert done.results[2] == (
        "Comm(rank 0 of 2, group tp 1 (world/1))",
        "Comm(rank 0 of 2, group tp 1 (world/1)/2:0)",
    )
