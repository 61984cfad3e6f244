"""The block-by-block loop against the serial model's own, and what it notes on the clock."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import run
from parlab.nn.formulas import flops_by_block
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.nn.training import train
from parlab.zero import Zero, forward_backward, train_replica
from parlab.zero import replica_of as made_of
from tests.nn.parity import assert_parity
from tests.zero.models import LR, STAGES, TOKENS, batches, device, model, timed


class Noting(Zero):
    """It keeps what it is given."""

    def add_gradients(self, block, gradients):
        self.given = getattr(self, "given", {}) | dict(gradients)
        super().add_gradients(block, gradients)


@device
@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_loss_and_scaled_gradients_are_the_serial_models(library, tied, scale):
    from parlab.zero import LossScale

    xp = library
    start = model(xp, tie_word_embeddings=tied)
    (tokens, targets), *_ = batches(2, 1, xp)

    def program(comm):
        mine = Llama(start.config, dict(start.weights))
        scaled = None if scale == 1 else LossScale(scale)
        replica = Noting(comm, mine.weights, 0, AdamW(), blocks=mine.weight_blocks, loss_scale=scaled)
        return forward_backward(replica, mine, tokens, targets), replica.given

    ((loss, found),) = run(program, 1).results
    expected_loss, expected = start.loss_and_gradients(tokens, targets)
    assert loss == expected_loss
    assert found.keys() == expected.keys()
    assert_parity([found[name] for name in expected], [scale * expected[name] for name in expected], 1e-14)


@pytest.mark.parametrize("stage", STAGES)
def test_every_block_is_a_forward_and_a_backward_of_its_flops_on_the_clock(stage):
    timeline = timed(stage, 2)
    names = [span.name for span in timeline.computes if span.rank == 1 and span.name != "AdamW"]
    blocks = ["embedding", "layers.0", "layers.1", "head"]
    assert names == [f"forward {block}" for block in blocks] + [f"backward {block}" for block in reversed(blocks)]
    flops = flops_by_block(model().config, 1, TOKENS)
    for span in timeline.computes:
        if span.name != "AdamW":
            direction, block = span.name.split()
            forward, *backward = flops[block]
            expected = forward if direction == "forward" else sum(backward)
            assert span.end - span.start == expected  # picoseconds: the classroom computes 10¹² a second


@pytest.mark.parametrize("stage", STAGES)
def test_when_the_backward_comes_to_a_layer_only_the_activations_of_it_and_those_before_it_are_held(stage):
    """As many as when its forward was through: all that came after has died."""
    timeline = timed(stage, 2)
    steps = timeline.held_by_name(1)["activations"]

    def held(time):
        return [total for at, total in steps if at <= time][-1]

    ends = {span.name: span.end for span in timeline.computes if span.rank == 1}
    starts = {span.name: span.start for span in timeline.computes if span.rank == 1}
    after = [held(ends[f"forward {block}"]) for block in ("layers.0", "layers.1", "head")]
    assert after == sorted(set(after))
    assert [held(starts[f"backward {block}"]) for block in ("layers.0", "layers.1", "head")] == after


@device
@pytest.mark.parametrize("stage", STAGES)
def test_three_ranks_on_their_rows_of_each_batch_lose_and_learn_what_one_does(library, stage):
    xp = library
    text, alone = batches(6, 3, xp), model(xp)
    expected = train(alone, text, AdamW(lr=LR), max_norm=np.inf)

    def program(comm):
        mine = Llama(model(xp).config, model(xp).weights)
        replica = made_of(comm, mine, stage, AdamW(lr=LR))
        return train_replica(replica, mine, text), replica.full_weights()

    losses, weights = zip(*run(program, 3).results, strict=True)
    assert np.mean(losses, axis=0) == pytest.approx(expected, rel=1e-12)
    for found in weights:
        assert_parity([found[name] for name in alone.weights], list(alone.weights.values()), 1e-12)


@pytest.mark.parametrize("stage", STAGES)
def test_of_4_batches_with_2_microbatches_a_step_2_steps_are_made(stage):
    def program(comm):
        mine = Llama(model().config, dict(model().weights))
        replica = made_of(comm, mine, stage, AdamW(), microbatches=2)
        return len(train_replica(replica, mine, batches(2, 4))), replica.guard.steps

    assert run(program, 2).results == [(4, 2), (4, 2)]
