"""The exercise 05.block_step: the four sums of a block that is cut over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlab.labs.bare import bare_block
from parlab.labs.compared import SUMMED, alike, check_form, compare, counted
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.nn.layers import CAUSAL_ATTENTION
from parlab.nn.llama import Llama, LlamaConfig, decoder_block
from parlab.nn.rotary import Rotary
from parlab.nn.stage import Weights
from parlab.tensor import block_collectives, shard_weights, traffic
from parlab.world import Comm, run

PREFIX = "model.layers.0"
FORGOTTEN = "*copy* is forgotten: what comes back through the columns is a partial sum; sum {} before the norm reads it"
AFTER = (
    "the sum stands behind the norm's backward: this is linear, so what it passes on comes out right, but the gradient "
    "of the norm's own weights does not; sum {} before the norm reads it"
)
PLACES = {"post_attention_layernorm.weight": "dm, at 6←,", "input_layernorm.weight": "da, at 2←,"}  # the lesson's


@dataclass(frozen=True)
class BlockCase:
    """t ranks, H query heads and G key/value heads; values are drawn from `seed`."""

    size: int
    H: int
    G: int
    seed: int = 0

    def __str__(self) -> str:
        return f"t = {self.size}, H = {self.H}, G = {self.G}"

    def config(self) -> LlamaConfig:
        """The configuration of the smallest such block."""
        return LlamaConfig(
            vocab_size=self.size,
            hidden_size=2 * self.H,
            intermediate_size=3 * self.size,
            num_hidden_layers=1,
            num_attention_heads=self.H,
            num_key_value_heads=self.G,
            initializer_range=0.5,
        )


def _try_block(trial: Trial, case: BlockCase) -> list[str]:
    config = case.config()
    weights = Llama.random(config, seed=case.size + case.seed, xp=np, dtype="float64").weights
    x, dy = np.random.default_rng([case.seed, case.G]).normal(size=(2, 1, 4, config.hidden_size))
    serial = decoder_block(config, weights, 0, Rotary(config.head_dim), CAUSAL_ATTENTION)
    y, cache = serial.forward(x)
    dx, gradients = serial.backward(dy, cache)
    owned = [shard_weights(config, weights, rank, case.size) for rank in range(case.size)]
    of_blocks = [{name: array.copy() for name, array in own.items()} for own in owned]  # each block's own weights

    def program(comm: Comm) -> Any:
        return trial.answer(comm, bare_block(comm, config, of_blocks[comm.rank]), x.copy(), dy.copy())

    done = trial.ran(program, case.size)
    of_block = {name: gradient for name, gradient in gradients.items() if name.startswith(PREFIX)}
    mistakes = _wrong_outputs(config, weights, x, case.size)
    without_dh = {"dh is missing: dx is dh plus what comes back through attention": dx - _dh(config, weights, x, dy)}
    of_shards = [shard_weights(config, {**weights, **of_block}, rank, case.size) for rank in range(case.size)]
    for rank, result in enumerate(done.results):
        check_form(rank, result, 3, "(y, dx, gradients)")
        found_y, found_dx, found = result
        own = of_shards[rank]
        compare(rank, "y", found_y, y, case.size, mistakes)
        for name in reversed(of_block):
            if not isinstance(found, dict) or name not in found:
                raise Wrong(f"rank {rank} returned no gradient of {name}")
            short = name.removeprefix(PREFIX + ".")
            if alike(found[name], own[name]):
                known = {}
            elif short in PLACES:  # norms are not cut
                of_dh = f"{PREFIX}.self_attn.o_proj.weight"  # right if dh is, the sum behind the MLP's norm
                later = {
                    "post_attention_layernorm.weight": alike(found.get(of_dh), own[of_dh]),
                    "input_layernorm.weight": alike(found_dx, dx),
                }
                cause = (AFTER if later[short] else FORGOTTEN).format(PLACES[short])
                known = {cause: _norms_of_partial_sums(config, owned, x, dy)[rank][short]}
            else:
                known = {SUMMED: sum(of[name] for of in of_shards)}
            compare(rank, f"the gradient of {short}", found[name], own[name], case.size, known)
        compare(rank, "dx", found_dx, dx, case.size, without_dh)
        if changed := [name for name, array in of_blocks[rank].items() if not np.array_equal(array, owned[rank][name])]:
            raise Wrong(
                f"rank {rank}: it changed the weights {changed[0]}: a step forward and backward only reads them"
            )
    need_messages(done)
    calls = [
        call for back in (False, True) for call in block_collectives(config, 1, 4, case.size, x.itemsize, backward=back)
    ]
    sent = traffic(calls, case.size).nbytes
    formula = "4 all-reduces of B·S·E, and those of k and v where G < t"
    return counted(done, sent, formula, ", or sum twice what one earlier sum would settle (dm or da, before its norm)")


def _wrong_outputs(config: LlamaConfig, weights: Weights, x: Any, size: int) -> dict[str, Any]:
    """y where a residual is missing, or is summed with the partial sum (`size` times), or sums are divided."""

    def one_rank(comm: Comm, of_x: int, of_h: int, divided: int) -> Any:
        block = bare_block(comm, config, weights)
        h = of_x * x + block.attention.forward(block.attention_norm.forward(x)[0])[0] / divided
        return of_h * h + block.mlp.forward(block.mlp_norm.forward(h)[0])[0] / divided

    of_x = f"x is summed, too: x is whole on every rank, so S(x + a) = {size}·x + S(a); sum a alone"
    of_h = f"h is summed, too: h is whole on every rank, so S(h + m) = {size}·h + S(m); sum m alone"
    mean = f"the sums are divided by {size}: partial sums add up to the whole, no mean is needed"
    times = {
        of_x: (size, 1, 1),
        of_h: (1, size, 1),
        mean: (1, 1, size),
        "x is missing: h is x plus the sum of a": (0, 1, 1),
        "h is missing: y is h plus the sum of m": (1, 0, 1),
    }
    return {cause: run(one_rank, 1, *how).results[0] for cause, how in times.items()}


def _norms_of_partial_sums(config: LlamaConfig, owned: list[dict[str, Any]], x: Any, dy: Any) -> list[dict[str, Any]]:
    """The gradients of each rank's two norms if they read this rank's own dm and da, and all else is right."""

    def step(comm: Comm) -> dict[str, Any]:
        block = bare_block(comm, config, owned[comm.rank])
        a, norm_1 = block.attention_norm.forward(x)
        a, attention = block.attention.forward(a)
        m, norm_2 = block.mlp_norm.forward(x + comm.all_reduce(a))
        dm, _ = block.mlp.backward(dy, block.mlp.forward(m)[1])
        dh = dy + block.mlp_norm.backward(comm.all_reduce(dm), norm_2)[0]
        da, _ = block.attention.backward(dh, attention)
        found = block.mlp_norm.backward(dm, norm_2)[1] | block.attention_norm.backward(da, norm_1)[1]
        return {name.removeprefix(f"{PREFIX}."): gradient for name, gradient in found.items()}

    return run(step, len(owned)).results


def _dh(config: LlamaConfig, weights: Weights, x: Any, dy: Any) -> Any:
    """The gradient between attention and the MLP."""

    def one_rank(comm: Comm) -> Any:
        block = bare_block(comm, config, weights)
        h = x + block.attention.forward(block.attention_norm.forward(x)[0])[0]
        m, norm = block.mlp_norm.forward(h)
        dm, _ = block.mlp.backward(dy, block.mlp.forward(m)[1])
        return dy + block.mlp_norm.backward(dm, norm)[0]

    return run(one_rank, 1).results[0]


CASES = [
    BlockCase(*sizes)
    for sizes in ((2, 2, 2), (2, 4, 2), (2, 2, 1), (1, 2, 1), (3, 6, 3), (4, 4, 2), (4, 8, 1), (8, 8, 2))
]


def _draw_block(random: np.random.Generator, size: int) -> BlockCase:
    """t and G, of which one divides the other, and H, which both divide."""
    size = 2 if size < 5 else size // 2 * 2 if size < 10 else 8
    G = int(random.choice([g for g in (1, 2, 4, 8) if g % size == 0 or size % g == 0]))
    return BlockCase(size, max(size, G) * int(random.integers(1, 3)), G)


BLOCK = Exercise(
    "05.block_step",
    "block_step(comm, block, x, dy)",
    CASES,
    _try_block,
    _draw_block,
    on_ranks=True,
    solved_by=("parlab.labs.block_step", "parlab.tensor.ParallelAttention", "parlab.tensor.ParallelMLP"),
)

EXERCISES = (BLOCK,)
