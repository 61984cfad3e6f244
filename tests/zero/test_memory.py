"""Bytes that a rank holds at each moment of a step: its state as the formula has it, the rest within its bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from parlab.world import Link
from parlab.zero import LossScale, Offload, StateBytes, model_state_bytes, shard_range, state_bytes_held
from parlab.zero.gradients import LEAVING
from parlab.zero.state import OFFLOADED
from parlab.zero.training import ACTIVATIONS
from parlab.zero.weights import GATHERED
from tests.zero.models import NUM_PARAMS, STAGES, model, timed

PSI = NUM_PARAMS[False]
STATE = {"weights", "gradients", "optimizer"}
FLOAT16 = {"dtype": "float16", "loss_scale": LossScale(256.0)}


def expected_state(stage, rank, ranks, state):
    """What a rank holds of everything, or of its shard."""
    own = len(shard_range(PSI, rank, ranks))
    weight, gradient, optimizer = state
    return {
        "weights": weight * (own if stage >= 3 else PSI),
        "gradients": gradient * (own if stage >= 2 else PSI),
        "optimizer": optimizer * (own if stage >= 1 else PSI),
    }


def most(timeline, rank, name):
    return max((total for _, total in timeline.held_by_name(rank).get(name, [])), default=0)


BOOKS = {  # the dtype of the weights, how they are trained, and the bytes of a parameter's state
    "float16": ("float32", FLOAT16, (2, 2, 12)),
    "float32": ("float32", {}, (4, 4, 8)),
    "float64": ("float64", {}, (8, 8, 16)),
    "float32 with float64 masters": ("float64", {"dtype": "float32"}, (4, 4, 24)),
}


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("book", BOOKS)
def test_float16_state_is_16_psi_4_psi_12_psi_over_n_2_psi_14_psi_over_n_16_psi_over_n_to_the_byte(book, stage, size):
    """So are the others, each with its own bytes a parameter."""
    dtype, options, state = BOOKS[book]
    timeline = timed(stage, size, microbatches=2, start=model(dtype=dtype), **options)
    found = [state_bytes_held(timeline, rank) for rank in range(size)]
    assert found == [expected_state(stage, rank, size, state) for rank in range(size)]
    mean = sum(sum(held.values()) for held in found) / size
    assert mean == pytest.approx(model_state_bytes(PSI, size, stage, state=StateBytes(*state)), rel=1e-15)


def test_a_blocks_own_gradients_are_gone_when_the_bucket_of_all_655_is_sent():
    assert most(timed(0, 3, bucket_bytes=8 * PSI), 1, "gradients") == 8 * PSI


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_nodes_of_2_share_among_2_and_repeat_on_the_other_node(stage):
    timeline = timed(stage, 4, ranks_per_node=2)
    assert [state_bytes_held(timeline, rank) for rank in range(4)] == [
        expected_state(stage, rank % 2, 2, (8, 8, 16)) for rank in range(4)
    ]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offloaded_12_bytes_a_parameter_are_not_on_the_device(stage):
    timeline = timed(stage, 3, start=model(dtype="float32"), offload=Offload(Link(0, 1e9), 1e9), **FLOAT16)
    for rank in range(3):
        state = expected_state(stage, rank, 3, (2, 2, 12))
        assert most(timeline, rank, OFFLOADED) == state["optimizer"]
        assert state_bytes_held(timeline, rank) == state | {"optimizer": 0}


@pytest.mark.parametrize("microbatches", [1, 2])
def test_gathered_are_at_most_2_blocks_and_on_their_way_the_gradients_of_1(microbatches):
    start = model()
    sizes = [sum(start.weights[name].size for name in names) for names in start.weight_blocks.values()]
    in_use = max(a + b for a, b in itertools.pairwise(sizes))
    timeline = timed(3, 3, steps=2, microbatches=microbatches)
    for rank in range(3):
        assert most(timeline, rank, GATHERED) == 8 * in_use
        assert most(timeline, rank, LEAVING) == 8 * max(sizes)


def test_a_tied_table_is_one_gathered_block_more():
    start = model(tie_word_embeddings=True)
    sizes = [sum(start.weights[name].size for name in names) for names in start.weight_blocks.values()]
    timeline = timed(3, 3, steps=2, start=start)
    assert most(timeline, 0, GATHERED) <= 8 * (max(a + b for a, b in itertools.pairwise(sizes)) + sizes[0])


def test_kept_after_forward_all_blocks_are_gathered_at_the_turn():
    assert most(timed(3, 3, keep_after_forward=True), 0, GATHERED) == 8 * PSI


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_stages_before_3_gather_nothing_and_only_stage_2_has_gradients_on_their_way(stage):
    timeline = timed(stage, 3)
    assert most(timeline, 1, GATHERED) == 0
    assert (most(timeline, 1, LEAVING) > 0) == (stage == 2)


@pytest.mark.parametrize("stage", STAGES)
def test_besides_state_and_blocks_in_use_there_are_activations_and_messages_alone(stage):
    names = set(timed(stage, 3).held_by_name(0))
    assert STATE <= names <= STATE | {GATHERED, LEAVING, ACTIVATIONS, "received", "sent"}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_one_message_comes_and_one_leaves_at_a_time_each_a_quarter_of_the_largest_block_or_bucket_on_4_ranks(
    stage, microbatches
):
    start = model()
    largest = max(sum(start.weights[name].size for name in names) for names in start.weight_blocks.values())
    timeline = timed(stage, 4, microbatches=microbatches, start=start, max_norm=1.0)
    piece = 8 * math.ceil((PSI if stage == 0 else largest) / 4)
    for rank in range(4):
        assert most(timeline, rank, "received") == piece
        assert most(timeline, rank, "sent") == piece


@pytest.mark.parametrize("stage", STAGES)
def test_it_does_not_shard_activations_each_rank_holds_those_of_its_own_rows(stage):
    assert most(timed(stage, 3), 1, ACTIVATIONS) == most(timed(0, 1), 0, ACTIVATIONS) > 0


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("stage", STAGES)
def test_tokens_are_the_callers_and_count_as_nothing_however_long_the_text(stage, steps):
    assert timed(stage, 2, steps=steps).peak_bytes(0) == timed(stage, 2).peak_bytes(0)


@pytest.mark.parametrize("options", [{}, {"microbatches": 2}, {"max_norm": 1.0}], ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_after_each_of_4_steps_weights_and_moments_are_held_and_nothing_else(stage, options):
    """But for the rotary tables, which the model makes once."""

    def mark(comm, replica):
        comm.hold("mark", np.ones(1))

    timeline = timed(stage, 3, steps=4, after_step=mark, **options)
    for rank in range(3):
        state = expected_state(stage, rank, 3, (8, 0, 16))
        totals, at_marks = {}, []
        for _, nbytes, name in timeline._held[rank]:
            totals[name] = totals.get(name, 0) + nbytes
            if name == "mark" and nbytes > 0:
                at_marks.append({name: total for name, total in totals.items() if name not in ("mark", ACTIVATIONS)})
        assert len(at_marks) == 4
        assert [{name: total for name, total in held.items() if total} for held in at_marks] == [
            {name: total for name, total in state.items() if total}
        ] * 4
