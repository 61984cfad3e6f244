"""The planner says what a run counts: bytes by strategy and kept bytes exactly, and the simulated clock's seconds."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.pipeline import gpipe, interleaved_one_f_one_b, looped_bfs, one_f_one_b, run_schedule
from parlab.pipeline.closed_forms import Pipeline, exposed_transfers
from parlab.plan import GPTConfig, Layout, estimate
from parlab.plan.case import Case
from parlab.plan.memory import kept_of_layer
from parlab.sequence import ring_attention, ring_attention_backward
from parlab.tensor import ParallelLlama
from parlab.world import CLASSROOM, Cluster
from parlab.zero import MIXED, StateBytes, elements_sent
from parlab.zero.training import replica_of, train_replica
from tests.nn.kept import itemize
from tests.pipeline.models import tanh_model
from tests.tensor.models import B, S, in_turn, model, text

FLOAT64 = {"itemsize": 8, "state": StateBytes(8, 8, 16)}


def all_sent(timeline) -> int:
    return sum(timeline.bytes_sent(rank) for rank in range(timeline.size))


def of(config, layout, batch=B, sequence=S, cluster=CLASSROOM):
    return estimate(config, cluster, layout, batch=batch, sequence=sequence, **FLOAT64)


def tensor_step(comm, serial, change=lambda parallel: None, **options):
    tokens, targets = text(vocab_size=serial.config.vocab_size)
    parallel = ParallelLlama.from_full(comm, serial, **options)
    change(parallel)
    return parallel.loss_and_gradients(tokens, targets)


def ring_step(comm, config, dtype):
    """Attention of a layer and its backward; each rank has a part of the sequence."""
    draw = np.random.default_rng(comm.rank)
    q, dout = draw.normal(size=(2, B, config.num_attention_heads, S // comm.size, config.head_dim)).astype(dtype)
    k, v = draw.normal(size=(2, B, config.num_key_value_heads, S // comm.size, config.head_dim)).astype(dtype)
    out, lse = ring_attention(comm, q, k, v, causal=True, layout="zigzag")
    ring_attention_backward(comm, dout, q, k, v, out, lse, causal=True, layout="zigzag")


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("size", "heads"), [(2, 8), (4, 2)])
def test_tensor_parallel_bytes_sent_equal_the_counted_ones(size, heads, sequence_parallel):
    serial = model(num_key_value_heads=heads)
    timeline = run(tensor_step, size, serial, sequence_parallel=sequence_parallel).timeline
    layout = Layout(tp=size, microbatch=B, sequence_parallel=sequence_parallel)
    assert of(serial.config, layout).sent["tp"] == all_sent(timeline)


@pytest.mark.parametrize(
    "cluster", [CLASSROOM, Cluster("two a node", CLASSROOM.device, 2, CLASSROOM.intra, CLASSROOM.inter)]
)
@pytest.mark.parametrize("size", [2, 4])
def test_a_tensor_parallel_step_takes_the_seconds_of_the_clock(size, cluster):
    """To the rounding of a picosecond a message; 20 words, so that the ranks' parts of the head are alike."""
    serial = model(vocab_size=20)
    timeline = run(tensor_step, size, serial, in_turn, cluster=cluster).timeline
    found = of(serial.config, Layout(tp=size, microbatch=B, zero=0), cluster=cluster)
    assert found.total_seconds * 1e12 == pytest.approx(timeline.makespan, abs=200)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("size", [1, 4])
def test_kept_bytes_of_a_layer_equal_the_counted_ones(size, sequence_parallel):
    serial = model(num_key_value_heads=2)
    options = {"sequence_parallel": sequence_parallel}

    def program(comm):
        layer = ParallelLlama.from_full(comm, serial, **options).blocks[0]
        rows = S // (comm.size if sequence_parallel else 1)
        x = np.random.default_rng(0).normal(size=(B, rows, serial.config.hidden_size))
        kept = itemize(layer.forward(x)[1]).items()
        return sum(nbytes for place, nbytes in kept if ".tables." not in place)  # which all layers share

    case = Case(serial.config, Layout(tp=size, microbatch=B, **options), B, S, MIXED, 8)
    assert kept_of_layer(case, np.array("none")).item() == run(program, size).results[0]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_context_parallel_bytes_sent_equal_the_rings(size):
    config = model(num_hidden_layers=1).config
    found = of(config, Layout(cp=size, microbatch=B))
    assert found.sent["cp"] == all_sent(run(ring_step, size, config, "f8").timeline)


@pytest.mark.parametrize("size", [2, 4])
def test_in_16_bits_the_loss_and_the_gradients_of_keys_travel_in_32(size):
    """In float64 nothing is wider, and the bytes of a wrong formula would be the same."""
    half = {"itemsize": 2, "state": StateBytes()}
    serial = model(dtype="float16", num_key_value_heads=4)
    timeline = run(tensor_step, size, serial).timeline
    found = estimate(serial.config, CLASSROOM, Layout(tp=size, microbatch=B), batch=B, sequence=S, **half)
    assert found.sent["tp"] == all_sent(timeline)

    config = model(num_hidden_layers=1).config
    found = estimate(config, CLASSROOM, Layout(cp=size, microbatch=B), batch=B, sequence=S, **half)
    assert found.sent["cp"] == all_sent(run(ring_step, size, config, "f2").timeline)


@pytest.mark.parametrize(("size", "heads"), [(2, 4), (4, 2)])
def test_a_rank_holds_the_weights_that_tensor_parallelism_gives_it(size, heads):
    """Key/value heads of which several ranks share one are held by each; norms are whole on every rank."""
    serial = model(num_key_value_heads=heads, vocab_size=24)

    def held(comm):
        return sum(x.size for x in ParallelLlama.from_full(comm, serial).weights.values())

    found = of(serial.config, Layout(tp=size, microbatch=B, zero=0)).bytes
    assert [found["weights"]] * size == [8 * params for params in run(held, size).results]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_rank_holds_the_weights_of_a_gpts_layers_that_tensor_parallelism_gives_it(size):
    """The biases of column layers are cut, those of row layers and the norms are whole."""
    one, two = (
        estimate(GPTConfig(8, 16, layers, 4), CLASSROOM, Layout(tp=size, zero=0), batch=1, sequence=8).bytes["weights"]
        for layers in (1, 2)
    )
    cut, whole = 12 * 16**2 + (3 + 4) * 16, 2 * 16 + 2 * 2 * 16  # the matrices, biases of q, k, v and up; the others'
    assert two - one == 2 * (cut // size + whole)


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


@pytest.mark.parametrize("kind", ["1f1b", "looped_bfs", "gpipe"])
def test_a_pipeline_waits_for_the_transfers_that_the_clock_waits_for(kind):
    p, m, config = 4, 8, model(num_hidden_layers=4).config
    hop = CLASSROOM.intra.latency + 8 * S * config.hidden_size / CLASSROOM.intra.bandwidth
    found = of(config, Layout(pp=p, schedule=kind), batch=m).seconds["pp"]
    alternates = kind == "1f1b"
    pipeline = Pipeline(*map(np.asarray, (p, m, 1)), alternates, np.asarray(p if alternates else m))
    assert found == pytest.approx(hop * exposed_transfers(pipeline, apart=True))
