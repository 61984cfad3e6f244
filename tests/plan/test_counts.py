"""The planner says what a run counts: bytes by strategy and kept bytes exactly, and the simulated clock's makespan."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.pipeline import Costs, gpipe, interleaved_one_f_one_b, looped_bfs, one_f_one_b, run_schedule, simulate
from parlab.plan import CLOCK, Layout, estimate
from parlab.plan.estimate import in_flight, kept_of_layer
from parlab.plan.layout import Case
from parlab.plan.seconds import Pass, exposed_transfers, step
from parlab.sequence import ring_attention, ring_attention_backward
from parlab.tensor import ParallelLlama, kept_items
from parlab.world import CLASSROOM, Cluster
from parlab.zero import MIXED, StateBytes, elements_sent
from parlab.zero.training import replica_of, train_replica
from tests.pipeline.models import tanh_model
from tests.tensor.models import B, S, model, text

FLOAT64 = {"itemsize": 8, "state": StateBytes(8, 8, 16)}


def all_sent(timeline) -> int:
    return sum(timeline.bytes_sent(rank) for rank in range(timeline.size))


def of(config, layout, batch=B, sequence=S, cluster=CLASSROOM):
    return estimate(config, cluster, layout, batch=batch, sequence=sequence, **FLOAT64)


def tensor_step(comm, serial, **options):
    tokens, targets = text(vocab_size=serial.config.vocab_size)
    return ParallelLlama.from_full(comm, serial, **options).loss_and_gradients(tokens, targets)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("size", "heads"), [(2, 8), (2, 4), (4, 2), (8, 1)])
def test_tensor_parallel_bytes_sent_equal_the_counted_ones(size, heads, sequence_parallel):
    serial = model(num_key_value_heads=heads)
    timeline = run(tensor_step, size, serial, sequence_parallel=sequence_parallel).timeline
    layout = Layout(tp=size, microbatch=B, sequence_parallel=sequence_parallel)
    assert of(serial.config, layout).sent["tp"] == all_sent(timeline)


@pytest.mark.parametrize(
    "cluster", [CLASSROOM, Cluster("two a node", CLASSROOM.device, 2, CLASSROOM.intra, CLASSROOM.inter)]
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_tensor_parallel_step_takes_the_seconds_of_the_clock(size, cluster):
    """To the rounding of a picosecond a message; 20 words, so that the ranks' parts of the head are alike."""
    serial = model(vocab_size=20)
    timeline = run(tensor_step, size, serial, overlap=False, cluster=cluster).timeline
    found = of(serial.config, Layout(tp=size, microbatch=B, zero=0), cluster=cluster)
    assert found.total_seconds * 1e12 == pytest.approx(timeline.makespan, abs=200)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_kept_bytes_of_a_layer_equal_the_counted_ones(size, sequence_parallel):
    serial = model(num_key_value_heads=2)
    options = {"sequence_parallel": sequence_parallel}

    def program(comm):
        layer = ParallelLlama.from_full(comm, serial, **options).blocks[0]
        rows = S // (comm.size if sequence_parallel else 1)
        x = np.random.default_rng(0).normal(size=(B, rows, serial.config.hidden_size))
        return sum(kept_items(layer.forward(x)[1]).values())

    case = Case(serial.config, Layout(tp=size, microbatch=B, **options), B, S, MIXED, 8)
    assert kept_of_layer(case, np.array("none")).item() == run(program, size).results[0]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_context_parallel_bytes_sent_equal_the_rings(size):
    config = model(num_hidden_layers=1).config

    def program(comm):
        draw = np.random.default_rng(comm.rank)
        q, dout, out = draw.normal(size=(3, B, config.num_attention_heads, S // size, config.head_dim))
        k, v = draw.normal(size=(2, B, config.num_key_value_heads, S // size, config.head_dim))
        out, lse = ring_attention(comm, q, k, v, causal=True, layout="zigzag")
        ring_attention_backward(comm, dout, q, k, v, out, lse, causal=True, layout="zigzag")

    layout = Layout(cp=size, microbatch=B)
    assert of(config, layout).sent["cp"] == all_sent(run(program, size).timeline)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_data_parallel_bytes_sent_equal_zeros_count(stage, microbatches):
    serial, size = model(), 2
    batch = size * microbatches

    def program(comm):
        mine = Llama(serial.config, dict(serial.weights))
        replica = replica_of(comm, mine, stage, AdamW(), microbatches=microbatches)
        train_replica(replica, mine, [text()] * microbatches)

    found = of(serial.config, Layout(dp=size, zero=stage), batch=batch).sent["dp"]
    assert found == 8 * elements_sent(serial.config.num_parameters, size, stage, microbatches=microbatches)
    assert found == all_sent(run(program, size).timeline)


@pytest.mark.parametrize(
    "schedule",
    [one_f_one_b(2, 4), interleaved_one_f_one_b(2, 4, 2), looped_bfs(2, 4, 2), gpipe(4, 4)],
    ids=lambda s: s.name,
)
def test_pipeline_bytes_sent_equal_the_counted_ones(schedule):
    width, rows, stages, m = 16, S, schedule.num_stages, schedule.num_microbatches
    parts, _, _, inputs, targets = tanh_model(stages, m, rows=rows, width=width)
    timeline = run(run_schedule, schedule.num_ranks, schedule, parts, inputs, targets).timeline
    kind = "looped_bfs" if stages > 2 and "breadth" in schedule.name else "1f1b"
    layout = Layout(pp=schedule.num_ranks, chunks=stages // schedule.num_ranks, schedule=kind)
    config = model(num_hidden_layers=stages).config
    assert of(config, layout, batch=m).sent["pp"] == all_sent(timeline)


def random_steps(count, seed, heavier):
    """p, m, v, a chunk, and a last chunk that is slower or quicker."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        p, v = int(draw.integers(2, 7)), int(draw.integers(1, 5))
        m = p * int(draw.integers(1 if heavier else 2, 4)) if v > 1 else int(draw.integers(p, 17))
        forward = draw.uniform(0.5, 2)
        ratio = draw.uniform(1, 3) if heavier else 2
        last = draw.uniform(1, 3) if heavier else draw.uniform(0.02, 1)
        yield p, m, v, Pass(forward, ratio * forward), Pass(last * forward, last * ratio * forward)


@pytest.mark.parametrize("kind", ["1f1b", "looped_bfs"])
@pytest.mark.parametrize("heavier", [True, False])
def test_closed_form_of_the_step_equals_simulate_on_300_random_pipelines_with_an_uneven_last_stage(kind, heavier):
    for p, m, v, chunk, last in random_steps(75, 7, heavier):
        one_by_one = interleaved_one_f_one_b(p, m, v) if v > 1 else one_f_one_b(p, m)
        schedule = one_by_one if kind == "1f1b" else looped_bfs(p, m, v)
        every = [chunk] * (p * v - 1) + [last]
        halves = [x.backward / 2 for x in every]
        timeline = simulate(schedule, Costs([x.forward for x in every], halves, halves))
        found = step(np.array(p), np.array(m), np.array(v), chunk, chunk, last, kind == "1f1b")
        assert sum(map(float, found)) == pytest.approx(timeline.makespan, rel=1e-9)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 1), (4, 8, 1), (4, 16, 1), (2, 4, 2), (4, 8, 2), (4, 8, 4)])
@pytest.mark.parametrize("kind", ["1f1b", "looped_bfs", "gpipe"])
def test_makespan_with_transfers_that_are_waited_for_is_the_simulated_one(kind, p, m, v):
    if kind == "gpipe" and v > 1:
        v = 1
    config = model(num_hidden_layers=p * v).config
    case = Case(config, Layout(pp=p, chunks=v, schedule=kind), m, S, MIXED, 8)
    schedules = {"looped_bfs": looped_bfs(p, m, v), "gpipe": gpipe(p, m)}
    schedule = schedules.get(kind) or (interleaved_one_f_one_b(p, m, v) if v > 1 else one_f_one_b(p, m))
    transfer = 1e-3
    timeline = simulate(schedule, Costs(1, 1, 1, transfer))
    one = Pass(1.0, 2.0)
    whole = sum(map(float, map(np.max, step(case.p, case.m, case.v, one, one, one, kind == "1f1b"))))
    waited = exposed_transfers(case, "pp" in CLOCK.hides).item() * transfer
    assert whole + waited == pytest.approx(timeline.makespan, rel=1e-9)
    assert [in_flight(case, rank).item() for rank in range(p)] == timeline.peak_activations
