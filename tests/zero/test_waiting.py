"""What each stage waits for in a step: the closed form, and the clock."""

from itertools import pairwise, product

import numpy as np
import pytest

from parlab import Cluster, run
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.zero import replica_of, step_waiting, train_replica

S, P, BANDWIDTH = 8, 4, 1e9
BEST = {0: {"bucket_bytes": 1}, 1: {"overlap_gather": True}, 2: {"overlap_gather": True}, 3: {}}


def config(layers):
    return LlamaConfig(
        vocab_size=4, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2
    )


def train(layers, steps, stage, rows, microbatches=1):
    weights = Llama.random(config(layers), seed=1, dtype="float64").weights
    drawn = [np.random.default_rng(number).integers(4, size=(2, P * rows, S)) for number in range(steps * microbatches)]
    text = [(tokens, targets) for tokens, targets in drawn]

    def program(comm):
        model = Llama(config(layers), dict(weights))
        given = {"max_norm": None, "microbatches": microbatches} | BEST[stage]
        replica = replica_of(comm, model, stage, AdamW(lr=1e-2), **given)
        train_replica(replica, model, text)

    cluster = Cluster.uniform(latency=0, bandwidth=BANDWIDTH, flops=1e10)
    return run(program, P, cluster=cluster).timeline


def waits(layers, steps, stage, rows, microbatches):
    """Picoseconds in which rank 0 computes nothing."""
    shown = train(layers, steps, stage, rows, microbatches)
    return shown.makespan - sum(span.end - span.start for span in shown.computes if span.rank == 0)


def of_one_layer(stage, rows, microbatches):
    """Of one more layer in one more step: the ends of a step, and those of the run, are in all four numbers."""
    w = {(layers, steps): waits(layers, steps, stage, rows, microbatches) for layers, steps in product((3, 4), (2, 3))}
    return w[4, 3] - w[4, 2] - w[3, 3] + w[3, 2]


@pytest.mark.parametrize(
    ("stage", "rows", "microbatches"),
    [
        (0, 1, 1),
        (1, 1, 1),
        (1, 3, 1),
        (3, 12, 1),
        *(pytest.param(stage, 1, 3, marks=pytest.mark.slow) for stage in (2, 3)),
    ],
)
def test_on_the_clock_one_more_layer_waits_as_the_closed_form_says(stage, rows, microbatches):
    shown = train(3, 2, stage, rows)
    last = {kind: lasts(shown, f"{kind} layers.1") for kind in ("forward", "backward")}
    elements = sum(n for name, n in sizes().items() if ".layers.1." in name)
    message = 1e12 * 8 * 3 * elements / 4 / BANDWIDTH  # picoseconds of three quarters of a layer, 8 bytes each
    expected = step_waiting(stage, last["forward"], last["backward"], message, message, microbatches=microbatches)
    if stage in (1, 2):  # new weights travel beside the update of the next layer, too: the optimizer's work is apart
        expected -= max(span.end - span.start for span in shown.computes if span.rank == 0 and span.name == "AdamW")
    assert of_one_layer(stage, rows, microbatches) == pytest.approx(expected, abs=10)


def sizes():
    return {name: int(np.prod(shape)) for name, shape in config(3).weight_shapes.items()}


def lasts(shown, name):
    return next(span.end - span.start for span in shown.computes if span.rank == 0 and span.name == name)


def test_gradients_in_float32_take_twice_as_long_and_cost_stage_0_most():
    assert [step_waiting(stage, 1.0, 2.0, 1.0, 2.0) for stage in range(4)] == [2.0, 0.0, 0.0, 1.0]


def test_of_3_microbatches_stages_0_and_1_reduce_the_last_ones_gradients_and_stages_2_and_3_each_ones():
    waits = [step_waiting(stage, 1.0, 1.0, 1.5, 2.0, microbatches=3) for stage in range(4)]
    assert waits == [3.0, 0.5 + 1.0, 0.5 + 3 * 1.0, 3 * (0.5 + 2.5)]


def test_a_kept_last_block_leaves_the_wait_for_the_block_before_at_the_turn(monkeypatch):
    def turn():
        shown = train(3, 1, 3, rows=12)
        spans = {span.name: span for span in shown.computes if span.rank == 0}
        names = ("forward head", "backward head", "backward layers.2", "backward layers.1")
        used = [spans[name] for name in names]
        return [after.start - before.end for before, after in pairwise(used)]

    for_head, for_layer, after = turn()
    assert for_head > 0 < for_layer
    assert after == 0
    monkeypatch.setitem(BEST, 3, {"keep_last_block": True})
    assert turn() == [0, for_layer, 0]
