"""The exercises of notebook 05 on a block and on the loss, and how their results are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from parlab.labs.bare import bare_block
from parlab.labs.counts import Count, bytes_sent
from parlab.labs.difference import apart, kind
from parlab.labs.exercise import Exercise
from parlab.labs.trial import Trial
from parlab.labs.wrong import Wrong, need_messages
from parlab.nn.embedding import cross_entropy, cross_entropy_backward
from parlab.nn.layers import CAUSAL_ATTENTION
from parlab.nn.llama import Llama, LlamaConfig, decoder_block
from parlab.nn.rotary import Rotary
from parlab.nn.stage import Weights
from parlab.tensor import Collective, block_collectives, shard_weights, traffic
from parlab.tensor.slices import owned_tokens
from parlab.world import Comm, Run, per_rank, run

PREFIX = "model.layers.0"
TOLERANCE = 1e-10  # of the largest entry
SUMMED = "it is summed over the ranks: a rank has all of the gradient of its own slices, and sends nothing"
FORGOTTEN = "*copy* is forgotten: what comes back through the columns is a partial sum; sum {} before the norm reads it"
AFTER = (
    "the sum stands behind the norm's backward: this is linear, so what it passes on comes out right, but the gradient "
    "of the norm's own weights does not; sum {} before the norm reads it"
)
PLACES = {"post_attention_layernorm.weight": "dm, at 6←,", "input_layernorm.weight": "da, at 2←,"}  # the lesson's
SMALL = 1e-6  # the least value of a largest entry: far from the largest logit a rank's softmax may be 0


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
        f"{of_x}, and m": (size, size, 1),
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


@dataclass(frozen=True)
class LossCase:
    """t ranks, V tokens in the vocabulary, logits up to `largest`."""

    size: int
    V: int
    largest: float
    seed: int = 0

    def __str__(self) -> str:
        return f"t = {self.size}, V = {self.V}, logits up to {self.largest:g}"


def _try_loss(trial: Trial, case: LossCase) -> list[str]:
    draw = np.random.default_rng([case.seed, case.size, case.V])
    logits = draw.uniform(-case.largest, case.largest, size=(2, 3, case.V))
    targets = draw.integers(case.V, size=(2, 3))
    loss, cache = cross_entropy(logits, targets)
    dlogits = cross_entropy_backward(1.0, cache)
    parts = [owned_tokens(case.V, rank, case.size) for rank in range(case.size)]
    own = per_rank([logits[..., part] for part in parts])
    first = per_rank([part.start for part in parts])

    def program(comm: Comm, logits: Any, first: int) -> Any:
        return trial.answer(comm, logits, targets.copy(), first)

    done = trial.ran(program, case.size, own, first)
    for rank, result in enumerate(done.results):
        check_form(rank, result, 2, "(loss, dlogits)")
        found = np.float64(result[0]) if type(result[0]) is float else result[0]
        part = parts[rank]
        compare(rank, "the loss", found, np.asarray(loss), case.size, _wrong_losses(logits, targets, parts, rank))
        wrong = _wrong_dlogits(logits, targets, dlogits, part)
        compare(rank, "dlogits", result[1], dlogits[..., part], case.size, wrong)
    need_messages(done)
    numbers = targets.size * logits.itemsize
    allowed = [3 * sent for sent in all_reduce_bytes(targets.size, logits.itemsize, case.size)]
    return counted(done, allowed, f"3 all-reduces of B·S numbers ({numbers} bytes)")


@np.errstate(all="ignore")
def _wrong_losses(logits: Any, targets: Any, parts: list[slice], rank: int) -> dict[str, Any]:
    """The losses that well-known mistakes give, by cause."""
    starts = [part.start for part in parts]
    logits_of = [logits[..., part] for part in parts]
    lse, own_lse = _log_sum_exp(logits), _log_sum_exp(logits_of[rank])  # [B, S]
    chosen = [_at_targets(x, targets - first) for x, first in zip(logits_of, starts, strict=True)]
    without_first = [_at_targets(x, targets) for x in logits_of]
    largest = [x.max(axis=-1) for x in logits_of]
    sums = [np.exp(x - most[..., None]).sum(axis=-1) for x, most in zip(logits_of, largest, strict=True)]
    return {
        "the largest logit is this rank's alone: all ranks must subtract the same": np.mean(
            largest[rank] + np.log(sum(sums)) - sum(chosen)
        ),
        "the largest logit is subtracted, and not added again behind the log": np.mean(
            lse - logits.max(axis=-1) - sum(chosen)
        ),
        "`first` is not used: a target's place in this part is targets − first": np.mean(lse - sum(without_first)),
        "the target's logit is this rank's alone: sum it over the ranks": np.mean(lse - chosen[rank]),
        "the sum of exp is this rank's alone: sum it over the ranks": np.mean(own_lse - sum(chosen)),
        "the mean over the B·S targets is missing": np.sum(lse - sum(chosen)),
    }


@np.errstate(all="ignore")
def _wrong_dlogits(logits: Any, targets: Any, dlogits: Any, part: slice) -> dict[str, Any]:
    """The gradients of a rank's logits that well-known mistakes give, by cause."""
    own, right = logits[..., part], dlogits[..., part]
    tokens = np.arange(part.stop - part.start)
    one_hot, without_first = (targets[..., None] - first == tokens for first in (part.start, 0))
    softmax, own_softmax = (np.exp(own - _log_sum_exp(x)[..., None]) for x in (logits, own))
    return {
        "`first` is not used: the one-hot stands at targets − first": (softmax - without_first) / targets.size,
        "the softmax is over this rank's logits alone: divide by the sum over all ranks": (
            (own_softmax - one_hot) / targets.size
        ),
        "the one-hot is missing": softmax / targets.size,
        "it is not divided by B·S: the loss is a mean": right * targets.size,
    }


def _log_sum_exp(logits: Any) -> Any:
    largest = logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]


def _at_targets(logits: Any, place: Any) -> Any:
    """The logit at each place, 0 where this part has no such place."""
    here = (place >= 0) & (place < logits.shape[-1])
    found = np.take_along_axis(logits, np.where(here, place, 0)[..., None], axis=-1)[..., 0]
    return np.where(here, found, 0.0)


def all_reduce_bytes(elements: int, itemsize: int, size: int) -> list[int]:
    """The bytes that each rank sends in a ring's all-reduce."""
    return traffic([Collective("all_reduce", "", elements, itemsize, size)], size).nbytes


def check_form(rank: int, result: Any, length: int, form: str) -> None:
    """Raise `Wrong` if `result` is no tuple of this length."""
    if not isinstance(result, tuple | list) or len(result) != length:
        raise Wrong(f"rank {rank} returned {kind(result)}, expected {form}")


def compare(
    rank: int, what: str, found: Any, expected: Any, size: int, mistakes: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Raise `Wrong` if `found` is not `expected`; the cause is the one of `mistakes` that gives `found`."""
    if not isinstance(found, np.ndarray | np.generic):
        raise Wrong(f"rank {rank}: {what} is a {kind(found)}, expected an array of float64")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        form = f"{found.dtype} and shape {found.shape}"
        raise Wrong(f"rank {rank}: {what} has dtype {form}, expected {expected.dtype} and {expected.shape}")
    if not np.isfinite(found).all():
        cause = "exp overflows: subtract the largest logit of all ranks first" if "lo" in what else "a division by 0"
        raise Wrong(f"rank {rank}: {what} is not finite", f"likely cause: {cause}")
    error = _error(found, expected)
    if error <= TOLERANCE:
        return
    off = f"{error:.0%}" if error >= 0.01 else f"{error:.1e}"
    place = np.unravel_index(np.argmax(np.abs(found - expected)), expected.shape)
    at = f" at [{', '.join(map(str, place))}]" if expected.ndim else ""
    one, other = apart(np.asarray(found)[place], expected[place])
    known = next((cause for cause, array in mistakes.items() if _error(found, array) <= TOLERANCE), "")
    raise Wrong(
        f"rank {rank}: {what} is wrong: {off} of its largest entry off: returned {one}{at}, expected {other}",
        f"likely cause: {known or _cause(what, found, expected, size)}",
    )


def alike(found: Any, expected: Any) -> bool:
    """Whether `found` is an array of this shape with these numbers."""
    same = isinstance(found, np.ndarray) and found.shape == expected.shape
    return same and _error(found, expected) <= TOLERANCE


@np.errstate(all="ignore")
def _error(found: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest entry."""
    return float(np.max(np.abs(found - expected)) / max(np.max(np.abs(expected)), SMALL))


def _cause(what: str, found: Any, expected: Any, size: int) -> str:
    if np.max(np.abs(found - expected)) <= 1e-6 * np.max(np.abs(expected)):
        return "it is nearly right: a constant that is too coarse, or float32 on the way"
    if np.max(np.abs(found - size * expected)) <= TOLERANCE * size * np.max(np.abs(expected)):
        return f"{size} times too much: ranks summed something that was the sum already"
    if what == "the loss":
        return "the largest logit, the target's logit (0 where it is elsewhere) and the sum of exp each need all ranks"
    if what == "dlogits":
        return "it is (softmax − one-hot) / (B·S): softmax over all ranks' logits, one-hot where targets − first hits"
    if what == "y":
        return "behind the rows each rank has a partial sum of every entry: sum over the ranks"
    return "what comes back through the columns is a partial sum: sum over the ranks before a norm reads it"


def counted(done: Run, allowed: list[int], formula: str, or_else: str = "") -> list[str]:
    """The line with the bytes of all ranks together: the padding of a ring, which differs by rank, does not matter."""
    sent = Count("bytes that all ranks send", [sum(bytes_sent(done).numbers)])
    return [sent.check(formula, sum(allowed), f"ranks send something that every rank has, or can compute{or_else}")]


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
    solved_by=("parlab.tensor.ParallelAttention", "parlab.tensor.ParallelMLP"),
)


def _draw_loss(random: np.random.Generator, size: int) -> LossCase:
    largest = float(random.choice([3, 30, 2000]))
    return LossCase(size, size + int(random.integers(size, 3 * size)), largest)


LOSS = Exercise(
    "05.parallel_loss",
    "parallel_loss(comm, logits, targets, first)",
    [
        LossCase(*sizes)
        for sizes in ((2, 4, 3.0), (2, 7, 3.0), (2, 6, 2e3), (1, 5, 3.0), (3, 8, 30.0), (4, 9, 2e3), (8, 20, 2e3))
    ],
    _try_loss,
    _draw_loss,
    on_ranks=True,
    solved_by=("parlab.tensor.vocab_parallel_cross_entropy",),
)

EXERCISES = (BLOCK, LOSS)
