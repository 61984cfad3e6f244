"""A small Llama, what serial training makes of it, and what a mesh does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import array_api_strict
import numpy as np

from parlab import run
from parlab.arrays import asarray, namespace, to_numpy
from parlab.nn import IGNORED
from parlab.nn.optimizer import AdamW, clip_gradients, gradient_norm
from parlab.pipeline import (
    Schedule,
    dualpipe,
    dualpipe_v,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    one_f_one_b,
    one_f_one_b_v,
    v_half,
    zb_h1,
    zb_h2,
    zb_v,
)
from parlab.train import Mesh, Trainer
from parlab.zero.pieces import full_gradients
from tests.models import random_batches, random_llama
from tests.nn.parity import worst_error

LR = 1e-2
LIBRARIES = {"numpy": np, "strict": array_api_strict}
SIZES = {
    "vocab_size": 17,  # does not divide: the first tensor-parallel ranks own one token more
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,  # large enough for gradients to be felt everywhere
}
EXPERTS = {"intermediate_size": 4, "num_local_experts": 4, "num_experts_per_tok": 2}


def model(xp: Any = np, dtype: str = "float64", **changes: Any) -> Any:
    """A Llama, or with `EXPERTS` a Mixtral."""
    return random_llama(xp, dtype, **{**SIZES, **changes})


def batches(B: int, S: int, steps: int = 1, xp: Any = np, ignored: int | None = None) -> list[tuple[Any, Any]]:
    """Tokens and targets; with a seed, `ignored`, of which some rows have few, and some no target."""
    text = random_batches(SIZES["vocab_size"], B, S, steps, xp)
    return text if ignored is None else [(tokens, masked(targets, ignored)) for tokens, targets in text]


def masked(targets: Any, seed: int) -> Any:
    """All, two thirds, a tenth or none of a row's targets, and at least one in all."""
    draw, own = np.random.default_rng([7, seed]), to_numpy(targets).copy()
    kept = draw.choice([1.0, 0.67, 0.1, 0.0], size=(own.shape[0], 1))
    drop = draw.random(own.shape) >= kept
    drop.flat[draw.integers(own.size)] = False
    own[drop] = IGNORED
    return asarray(own, namespace(targets))


def ranks_of(axes: dict[str, int]) -> int:
    """How many ranks a mesh has: those of ep are ranks of dp and cp."""
    return math.prod(size for axis, size in axes.items() if axis != "ep")


def serial_steps(start: Any, text: list[tuple[Any, Any]], max_norm: float | None = None) -> list[tuple[Any, ...]]:
    """Loss, norm, gradients before clipping and the weights after each step."""
    trained = type(start)(start.config, {name: x.copy() for name, x in start.weights.items()})
    optimizer, found = AdamW(lr=LR), []
    for tokens, targets in text:
        loss, gradients = trained.loss_and_gradients(tokens, targets)
        clipped = gradients if max_norm is None else clip_gradients(gradients, max_norm)[0]
        optimizer.step(trained.weights, clipped)
        found.append((loss, gradient_norm(gradients), gradients, {n: x.copy() for n, x in trained.weights.items()}))
    return found


class Case(NamedTuple):
    """A mesh, a model and a batch, and how the one trains the other."""

    axes: dict[str, int]
    model: dict[str, Any]
    B: int
    S: int
    max_norm: float | None
    options: dict[str, Any]
    ignored: int | None = None  # the seed that draws which targets are ignored; None: every token has one


def case(
    dp: int = 1,
    pp: int = 1,
    cp: int = 1,
    tp: int = 1,
    *,
    B: int = 8,
    S: int = 8,
    max_norm: float | None = None,
    layers: int = 4,
    tied: bool = False,
    heads: int = 2,
    **options: Any,
) -> Case:
    """A small Llama on a mesh; `heads`: of keys and values."""
    sizes = {"tie_word_embeddings": tied, "num_key_value_heads": heads, "num_hidden_layers": layers}
    return Case({"dp": dp, "pp": pp, "cp": cp, "tp": tp}, sizes, B, S, max_norm, options)


def drawn(seed: int, ranks: int = 16) -> Case:
    """A random one, of at most so many ranks, each choice as likely as the others that fit."""
    draw = np.random.default_rng([6, seed])

    def choose(*choices: Any) -> Any:
        return choices[draw.integers(len(choices))]

    axes = {"dp": 1, "pp": 1, "cp": 1, "tp": 1}
    for axis in draw.permutation(list(axes)):
        room = ranks // np.prod(list(axes.values()))
        axes[axis] = choose(*(size for size in ((1, 2, 4) if axis == "tp" else (1, 2, 3, 4)) if size <= room))
    heads = choose(*(G for G in (1, 2, 4) if axes["tp"] % G == 0 or G % axes["tp"] == 0))
    schedule = schedule_of(int(draw.integers(len(SCHEDULES))), axes["pp"])
    attention = choose("ring", "ring", "allgather", *(["ulysses"] if axes["cp"] * axes["tp"] <= 4 else []))
    zero = choose(0, 1, 2, 3)
    options = {
        "schedule": schedule,
        "zero": zero,
        "attention": attention,
        "layout": None if attention == "ulysses" else choose("contiguous", "zigzag", "striped"),
        "sequence_parallel": choose(False, True),
        "recompute": choose("none", "none", "full"),
        "reduce": choose("accumulate", "each") if zero > 1 else None,
    }
    sizes = {"num_key_value_heads": heads, "tie_word_embeddings": choose(False, True)}
    sizes["num_hidden_layers"] = schedule.num_stages + choose(0, 1)
    S = 2 * axes["cp"] * axes["tp"]
    return Case(axes, sizes, axes["dp"] * schedule.num_microbatches, S, choose(None, 0.5), options)


SCHEDULES: list[Callable[[int], Schedule]] = [
    lambda p: gpipe(p, 2),
    lambda p: one_f_one_b(p, p),
    lambda p: interleaved_one_f_one_b(p, p, 2) if p > 1 else gpipe(1, 3),
    lambda p: looped_bfs(p, 2, 2),
    lambda p: zb_h1(p, p + 1),
    lambda p: zb_h2(p, 2 * p - 1),
    lambda p: zb_v(p, max(p, 2)),
    lambda p: v_half(p, p),
    lambda p: dualpipe_v(p, 2 * p),
    lambda p: dualpipe(p, 2 * p) if p % 2 == 0 else one_f_one_b_v(p, p),
]


@cache
def schedule_of(number: int, p: int) -> Schedule:
    return SCHEDULES[number](p)


@cache
def _serial(
    model_key: tuple[Any, ...], B: int, S: int, steps: int, ignored: int | None, max_norm: float | None
) -> list[tuple[Any, ...]]:
    return serial_steps(model(**dict(model_key)), batches(B, S, steps, ignored=ignored), max_norm)


def expected(case: Case, steps: int) -> list[tuple[Any, ...]]:
    """What serial training gives, made once for each model and batch."""
    return _serial(tuple(sorted(case.model.items())), case.B, case.S, steps, case.ignored, case.max_norm)


def faults(case: Case, steps: int = 1, library: str = "numpy", change: Callable[[Trainer], object] = id) -> set[str]:
    """Which checks see that something is wrong: none, where the steps equal the serial ones. `change` may break the
    trainers.
    """
    start, right = model(LIBRARIES[library], **case.model), expected(case, steps)
    text = batches(case.B, case.S, steps, LIBRARIES[library], case.ignored)

    def program(comm: Any) -> tuple[Any, ...]:
        trainer = Trainer(Mesh(comm, **case.axes), start, AdamW(lr=LR), max_norm=case.max_norm, **case.options)
        change(trainer)
        results = [trainer.step(*text[0])]
        gradients = {name: to_numpy(x) for name, x in trainer.full_gradients().items()}
        results += [trainer.step(*batch) for batch in text[1:]]
        weights = {name: to_numpy(x) for name, x in trainer.full_weights().items()}
        own = {"weight": trainer.parts.replica.full_weights(), "gradient": full_gradients(trainer.parts.replica)}
        place = trainer.parts.model.llama.slices
        copies = {(kind, n, place[n]): to_numpy(x).tobytes() for kind, of in own.items() for n, x in of.items()}
        return results, gradients, weights, copies

    (loss, norm, gradients, _), weights = right[0], right[-1][-1]
    limits = {"loss": 1e-12, "norm": 1e-12, "gradients": 1e-12, "losses": 1e-10, "weights": 1e-8}
    wrong: set[str] = set()
    bits: dict[Any, bytes] = {}  # of a part of a weight, or of its gradient, on the first rank that has it
    for results, own_gradients, own_weights, copies in run(program, ranks_of(case.axes)).results:
        off = {
            "loss": abs(results[0].loss / loss - 1),
            "norm": abs(results[0].norm / norm - 1),
            "gradients": worst_error([own_gradients[n] for n in gradients], list(gradients.values())),
            "losses": max(abs(found.loss / step[0] - 1) for found, step in zip(results, right, strict=True)),
            "weights": worst_error([own_weights[n] for n in weights], list(weights.values())),
        }
        wrong |= {name for name, error in off.items() if not error <= limits[name]}
        if any(bits.setdefault(place, own) != own for place, own in copies.items()):
            wrong.add("copies")
    return wrong
