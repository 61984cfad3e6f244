"""Training under every stage beside serial training, with every option; and stage 3's gathers on the clock."""

from __future__ import annotations

import numpy as np
import pytest

from parlab import Cluster, run
from parlab.labs import EXERCISES
from parlab.nn.optimizer import AdamW, gradient_norm
from parlab.world import Link
from parlab.zero import Offload, Zero, tokens_to_hide_a_gather, zero_1
from tests.nn.parity import assert_parity
from tests.zero.models import (
    NUM_PARAMS,
    STAGES,
    batches,
    device,
    library,
    model,
    same_bits,
    serial,
    trained,
)

CLIP = 1.0  # shrinks most steps of the small model
SIZE = 4


def assert_serial(found, expected):
    assert found.keys() == expected.keys()
    assert_parity(list(found.values()), list(expected.values()), 1e-12)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_neither_model_divides_among_2_3_4_or_6_ranks(tied):
    num_params = sum(x.size for x in model(tie_word_embeddings=tied).weights.values())
    assert num_params == NUM_PARAMS[tied]
    assert all(num_params % size for size in (2, 3, 4, 6))


@pytest.mark.parametrize(
    ("size", "max_norm", "tied"),
    [(1, None, False), (2, CLIP, True), (3, CLIP, False), (6, None, True)],
)
def test_3_steps_of_every_stage_are_the_serial_optimizers_and_stages_1_2_3_each_other_to_the_bit(size, max_norm, tied):
    """The third step uses moments of both earlier ones; a later one repeats it."""
    plain, *stages = (trained(stage, size, 3, tied=tied, max_norm=max_norm) for stage in STAGES)
    for found in (plain, *stages):
        assert_serial(found, serial(size, 3, max_norm, tied=tied))
    assert same_bits(stages[0], stages[1])
    assert same_bits(stages[0], stages[2])


def test_the_norm_to_which_is_clipped_shrinks_the_first_steps_of_the_small_model():
    _, gradients = model().loss_and_gradients(*batches(3, 1)[0])
    assert gradient_norm(gradients) > CLIP


@library
@pytest.mark.parametrize("stage", STAGES)
def test_2_steps_are_serial_on_every_array_library(library, stage):
    assert_serial(trained(stage, 3, 2, xp=library, max_norm=CLIP), serial(3, 2, CLIP))


@device
@pytest.mark.parametrize("stage", STAGES)
def test_float32_weights_with_float64_masters_stay_within_1e_5_of_serial(library, stage):
    """Mixed precision where a library has no float16."""
    found = trained(stage, 3, 2, xp=library, dtype="float32")
    assert {x.dtype for x in found.values()} == {np.dtype("float32")}
    assert_parity(list(found.values()), list(serial(3, 2).values()), 1e-5)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_what_only_moves_things_changes_no_bit_in_2_steps(tied):
    expected = trained(1, SIZE, 2, tied=tied)
    assert same_bits(trained(3, SIZE, 2, tied=tied, keep_after_forward=True), expected)
    elsewhere = Offload(Link(1e-6, 1e9), 1e9)
    for stage in (1, 2, 3):
        assert same_bits(trained(stage, SIZE, 2, tied=tied, offload=elsewhere), expected)
    assert same_bits(trained(0, SIZE, 2, tied=tied, offload=elsewhere), trained(0, SIZE, 2, tied=tied))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("stage", "option"), [(1, "overlap_gather"), (2, "overlap_gather"), (3, "keep_last_block")])
def test_3_steps_that_gather_in_the_next_forward_or_keep_the_last_block_are_serial_and_change_no_bit(
    stage, option, size
):
    found = trained(stage, size, 3, max_norm=CLIP, **{option: True})
    assert_serial(found, serial(size, 3, CLIP))
    assert same_bits(found, trained(stage, size, 3, max_norm=CLIP))


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        (1, {"overlap_gather": True}),
        (2, {"overlap_gather": True, "ranks_per_node": 2}),
        (3, {"keep_last_block": True}),
        (3, {"keep_last_block": True, "ranks_per_node": 2}),
    ],
)
def test_so_do_2_steps_of_2_microbatches_with_nodes_and_a_tied_table(stage, options):
    plain = {name: value for name, value in options.items() if "node" in name}
    expected = trained(stage, SIZE, 2, microbatches=2, tied=True, **plain)
    assert same_bits(trained(stage, SIZE, 2, microbatches=2, tied=True, **options), expected)


@pytest.mark.parametrize("ranks_per_node", [1, 2, 4])
def test_2_steps_sharded_inside_nodes_are_serial_and_stages_1_2_3_each_other_to_the_bit(ranks_per_node):
    options = {"ranks_per_node": ranks_per_node, "max_norm": CLIP}
    plain, first, *others = (trained(stage, SIZE, 2, **options) for stage in STAGES)
    assert_serial(plain, serial(SIZE, 2, CLIP))
    assert_serial(first, serial(SIZE, 2, CLIP))
    assert all(same_bits(first, other) for other in others)


def test_2_steps_of_3_microbatches_are_serial_and_stages_2_and_3_equal_to_the_bit():
    """Stage 1 adds microbatches and then ranks, the others the other way round: there bits may differ."""
    plain, *stages = (trained(stage, 3, 2, microbatches=3, max_norm=CLIP) for stage in STAGES)
    for found in (plain, *stages):
        assert_serial(found, serial(9, 2, CLIP))
    assert same_bits(stages[1], stages[2])
    assert same_bits(trained(3, 3, 2, microbatches=3, max_norm=CLIP, keep_after_forward=True), stages[1])


@pytest.mark.parametrize("stage", STAGES)
def test_params_that_all_ranks_and_runs_share_stay_as_they_are(stage):
    """As a program has them that finds them outside of itself, and does not get them as an argument."""
    params = {"w": np.ones((3, 2)), "b": np.zeros(5)}

    def program(comm):
        replica = Zero(comm, params, stage, AdamW(lr=0.5))
        for block in reversed(replica.block_names):
            with replica.weights(block) as weights:
                gradients = {name: np.ones_like(x) for name, x in weights.items()}
            replica.add_gradients(block, gradients)
        replica.step()
        return replica.full_weights()

    first, second = (run(program, 3).results for _ in range(2))
    assert all(same_bits(found, first[0]) for found in (*first, *second))
    assert (params["w"] == 1).all()
    assert (params["b"] == 0).all()
    np.testing.assert_allclose(first[0]["b"], -0.5, rtol=1e-6)


# The clock. L blocks of n weights; ring messages without latency: a gather and a reduce-scatter last g each.

L, N_BLOCK = 4, 840
CLUSTER = Cluster.uniform(latency=0, bandwidth=1e9, flops=1e12, memory_bandwidth=float("inf"))
GATHER = (SIZE - 1) * (N_BLOCK // SIZE) * 8 * 1000  # picoseconds: 8 bytes a weight, 1000 ps a byte


def layers_program(comm, forward, backward, steps=1, **options):
    """Blocks whose computations last as said, in picoseconds, and steps that take no time and send nothing."""
    params = {f"w{i}": np.ones(N_BLOCK) for i in range(L)}
    zero = Zero(comm, params, 3, AdamW(), **options)
    for _ in range(steps):
        for name in zero.block_names:
            with zero.weights(name), comm.compute(f"forward {name}", seconds=forward / 1e12):
                pass
        for name in reversed(zero.block_names):
            with zero.weights(name), comm.compute(f"backward {name}", seconds=backward / 1e12):
                pass
            zero.add_gradients(name, {name: np.ones(N_BLOCK)})
        zero.step()


def makespan(forward, backward, **options):
    return run(layers_program, SIZE, forward, backward, cluster=CLUSTER, **options).timeline.makespan


@pytest.mark.parametrize("backward", [0.1, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("forward", [0.1, 1.0, 1.3])
def test_prefetch_exposes_the_first_gather_the_turn_and_the_last_reduction_and_hides_the_rest_if_there_is_room(
    forward, backward
):
    """Forward: the gather of the next block beside each computation. Backward: beside each computation, the reduction
    of the block before it and then the gather of the next; the first has no reduction, and the last no gather.
    """
    g = GATHER
    f, b = round(forward * g), round(backward * g)
    expected = g + (L - 1) * max(f, g) + f
    expected += g + max(b, g) + (L - 2) * max(b, 2 * g) + max(b, g) + g
    assert makespan(f, b) == expected
    if f >= g and b >= 2 * g:
        assert expected == L * (f + b) + 3 * g


def test_a_third_step_gathers_ahead_as_the_first_one_does():
    """The block that a backward ends with is the first of the next forward: there the direction turns back."""
    assert makespan(GATHER, 2 * GATHER, steps=3) == 3 * makespan(GATHER, 2 * GATHER)


@pytest.mark.parametrize("backward", [0.1, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("forward", [0.1, 1.0, 1.3])
def test_the_last_block_kept_at_the_turn_leaves_the_first_gather_and_the_last_reduction_alone_to_wait_for(
    forward, backward
):
    """At f = g, b = 2g and 4 blocks a step takes 14 g; without the option 15 g."""
    g = GATHER
    f, b = round(forward * g), round(backward * g)
    expected = g + (L - 1) * max(f, g) + f
    expected += max(b, g) + (L - 2) * max(b, 2 * g) + max(b, g) + g
    assert makespan(f, b, keep_last_block=True) == expected == makespan(f, b) - g


def two_steps(comm, stage, forward, overlap_gather):
    """Blocks whose forward lasts as said, in picoseconds, and whose backward lasts as long as a gather; the end waits
    for all weights.
    """
    zero = Zero(comm, {f"w{i}": np.ones(N_BLOCK) for i in range(L)}, stage, AdamW(), overlap_gather=overlap_gather)
    for _ in range(2):
        for name in zero.block_names:
            with zero.weights(name), comm.compute(f"forward {name}", seconds=forward / 1e12):
                pass
        for name in reversed(zero.block_names):
            with comm.compute(f"backward {name}", seconds=GATHER / 1e12):
                pass
            zero.add_gradients(name, {name: np.ones(N_BLOCK)})
        zero.step()
    zero.finish()


@pytest.mark.parametrize("forward", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("stage", [1, 2])
def test_gathers_in_the_next_forward_hide_all_but_the_first_behind_its_computations(stage, forward):
    """At f = b = g and 4 blocks two steps take 23 g; without the option 26 g."""
    g, f = GATHER, round(forward * GATHER)
    waiting, overlapped = (
        run(two_steps, SIZE, stage, f, overlap, cluster=CLUSTER).timeline.makespan for overlap in (False, True)
    )
    assert waiting == 2 * (L * f + L * g + g + L * g)
    assert overlapped == waiting - (L - 1) * min(f, g)


def test_the_gathers_are_hidden_from_tokens_to_hide_a_gather_on_to_the_token():
    """4 ranks, 8 bytes a weight, 10¹² FLOP/s, 10⁹ bytes/s: 3000 tokens."""
    crossing = tokens_to_hide_a_gather(CLUSTER.device.flops, CLUSTER.intra.bandwidth, SIZE, itemsize=8)
    assert crossing == 3000

    def program(comm, tokens):
        zero = Zero(comm, {f"w{i}": np.ones(N_BLOCK) for i in range(L)}, 3, AdamW())
        for name in zero.block_names:
            with zero.weights(name), comm.compute(name, flops=2 * N_BLOCK * tokens):
                pass

    def exposed(tokens):
        timeline = run(program, SIZE, tokens, cluster=CLUSTER).timeline
        return timeline.makespan - timeline.busy(0)

    a_token = 2 * N_BLOCK  # picoseconds
    assert exposed(3000) == exposed(3001) == exposed(6000) == GATHER
    assert exposed(2999) == GATHER + (L - 1) * a_token
    assert exposed(2990) == GATHER + (L - 1) * 10 * a_token


def test_the_step_of_stage_1_on_a_flat_array_passes_the_exercise():
    review = EXERCISES["06.zero_1"].review(zero_1, 30.0)
    assert review.status == "passed", review.text
