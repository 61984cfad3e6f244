"""Weights that come and go: what is there when, that nothing stale is ever used, and what a freed weight says."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest

from parlab import run
from parlab.nn.llama import Llama
from parlab.nn.optimizer import AdamW
from parlab.zero import Zero
from parlab.zero.pieces import restore, state_pieces
from tests.libraries import EACH_LIBRARY
from tests.zero.models import add_all, batches, model, replica_of, same_bits, toy

FREED = "is sharded, and not gathered now: use it inside `with zero.weights"


@pytest.mark.parametrize("xp", EACH_LIBRARY)
def test_a_stage_3_weight_used_outside_weights_says_how_to_use_it(xp):
    def program(comm, use):
        mine = Llama(model(xp).config, dict(model(xp).weights))
        Zero(comm, mine.weights, 3, AdamW(), blocks=mine.weight_blocks)
        use(mine)

    uses = {
        "model.embed_tokens.weight": lambda mine: mine.loss_and_gradients(*batches(1, 1, xp)[0]),
        "model.norm.weight": lambda mine: xp.sum(mine.weights["model.norm.weight"]),
        "lm_head.weight": lambda mine: mine.weights["lm_head.weight"].shape,
    }
    for (name, use), block in zip(uses.items(), ("embedding", "head", "head"), strict=True):
        with pytest.raises(RuntimeError, match=re.escape(f"{name} {FREED}({block!r}):`")):
            run(program, 2, use)


@pytest.mark.parametrize(
    "use",
    [lambda w: w @ np.ones((2, 2)), lambda w: np.ones((2, 2)) @ w, np.asarray, copy.copy, copy.deepcopy],
    ids=["w @ x", "x @ w", "asarray", "copy", "deepcopy"],
)
def test_however_it_is_used(use):
    def program(comm):
        params = {"w": np.ones((2, 2))}
        Zero(comm, params, 3, AdamW(), blocks={"w": ("w",)})
        use(params["w"])

    with pytest.raises(RuntimeError, match=rf"cannot be copied|w {FREED}\('w'\):`"):
        run(program, 1)


def test_a_freed_weight_is_freed_again_after_its_block_was_used_and_what_was_handed_out_is_emptied():
    def program(comm):
        params = toy(0)
        zero = Zero(comm, params, 3, AdamW(), blocks={name: (name,) for name in params})
        with zero.weights("b") as weights:
            assert weights["b"] is params["b"]
            assert (params["b"] == toy(0)["b"]).all()
        assert weights == {}
        with pytest.raises(RuntimeError, match="b is sharded"):
            params["b"].shape  # noqa: B018
        zero.full_weights()  # ends the gather of c, which was started ahead

    run(program, 3)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_before_stage_3_weights_are_views_of_one_array_that_stay(stage):
    def program(comm):
        params = toy(0)
        replica = replica_of(comm, params, stage, blocks={"all": ("a", "b", "c")})
        seen = dict(params)
        add = {name: np.ones(x.shape) for name, x in params.items()}
        replica.add_gradients("all", add)
        replica.step()
        return all(params[name] is seen[name] and params[name].base is params["a"].base for name in params)

    assert run(program, 2).results == [True, True]


@pytest.mark.parametrize("keep", [False, True])
def test_what_was_gathered_before_a_step_is_never_used_after_it(keep):
    """Forwards of all lengths, which leave gathers ahead, and a step without a backward pass after each."""

    def program(comm):
        params = {f"w{i}": np.full(3, 1.0) for i in range(4)}
        zero = Zero(comm, params, 3, AdamW(lr=1.0, weight_decay=0.0), keep_after_forward=keep)
        for step, length in enumerate([4, 1, 2, 3, 1, 4, 2]):
            for name in zero.block_names[:length]:
                with zero.weights(name) as weights:
                    assert weights[name] == pytest.approx(np.full(3, 1.0 - step), abs=1e-6)
            add_all(zero, {name: np.ones(3) for name in params})
            zero.step()  # Adam moves every weight by lr
        return zero.full_weights()

    for weights in run(program, 2).results:
        assert all(x == pytest.approx(np.full(3, -6.0), abs=1e-6) for x in weights.values())


def test_a_weight_that_is_being_gathered_after_a_step_says_so_until_its_block_is_opened():
    def program(comm):
        params = toy(0)
        zero = Zero(comm, params, 1, AdamW(), blocks={name: (name,) for name in params}, overlap_gather=True)
        seen = dict(params)
        add_all(zero, toy(1))
        zero.step()
        with pytest.raises(RuntimeError, match=re.escape("b is being gathered after a step: use it inside")):
            params["b"].shape  # noqa: B018
        with zero.weights("b") as weights:
            assert weights["b"] is params["b"] is seen["b"]
        zero.finish()
        return all(params[name] is seen[name] for name in params)

    assert run(program, 3).results == [True] * 3


@pytest.mark.parametrize("stage", [1, 2])
def test_state_written_and_restored_while_new_weights_are_being_gathered_is_what_every_rank_gets(stage):
    def program(comm):
        zero = Zero(comm, toy(0), stage, AdamW(), overlap_gather=True)
        add_all(zero, toy(1))
        zero.step()
        for piece in state_pieces(zero):
            piece.master[...] = 7.0
        restore(zero, zero.guard.progress)
        return zero.full_weights()

    for weights in run(program, 3).results:
        assert all((x == 7.0).all() for x in weights.values())


def test_gradients_of_a_block_whose_gather_is_still_under_way_leave_no_request_behind():
    def program(comm):
        zero = Zero(comm, toy(0), 3, AdamW())
        with zero.weights("a"):
            pass  # starts b
        add_all(zero, toy(1))
        with zero.weights("b"):
            pass
        zero.step()
        return zero.full_weights()

    def expected(comm):
        zero = Zero(comm, toy(0), 1, AdamW())
        add_all(zero, toy(1))
        zero.step()
        return zero.full_weights()

    assert same_bits(run(program, 2).results[0], run(expected, 2).results[0])


def test_a_skipped_step_ends_the_gathers_that_were_started_ahead():
    def program(comm):
        zero = Zero(comm, toy(0), 3, AdamW(), max_norm=1.0)
        with zero.weights("a"):
            pass
        add_all(zero, {name: x * np.nan for name, x in toy(1).items()})
        assert zero.step().skipped

    run(program, 2)
