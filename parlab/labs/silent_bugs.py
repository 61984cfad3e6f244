"""Lesson 07: a trainer with one silent bug of six, and checks with a price; diagnoses compete in naming the bug."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from parlab.arguments import one_of, positive, text
from parlab.arrays import to_numpy
from parlab.nn import IGNORED, AdamW, Llama, LlamaConfig, MarkovSource
from parlab.nn.cross_entropy import number_of_targets
from parlab.nn.optimizer import clip_gradients
from parlab.tensor import SummedOverTokens
from parlab.train import Mesh, Trainer
from parlab.train.step import microbatches
from parlab.world import Comm, run

AXES = {"dp": 1, "pp": 2, "cp": 2, "tp": 2}
SOURCE = MarkovSource()
RANKS, STEPS = math.prod(AXES.values()), 10
LR, MAX_NORM = 1e-2, 0.1
RIGHT = 1e-12  # a relative difference up to this is none
NONE, HEADS = "none", "K/V heads not summed"


def no_bug(trainer: Trainer) -> None:
    """The trainer as it is."""


def extra_mean(trainer: Trainer) -> None:
    """Gradients are divided by cp once more."""
    trainer.parts.replica.guard.terms *= trainer.parts.job.mesh.cp.size


def mean_of_means(trainer: Trainer) -> None:
    """Each rank takes the mean over its own target tokens, however few they are."""
    job = trainer.parts.job
    job.target_tokens_a_rank = lambda targets: sum(  # type: ignore[method-assign]
        number_of_targets(own) for own in microbatches(job, targets)
    )


def norms_not_summed(trainer: Trainer) -> None:
    """Under sequence parallelism, the gradient of a norm stays that of one rank's tokens."""
    for block in trainer.parts.model.llama.blocks:
        for name, part in block.parts.items():  # type: ignore[attr-defined]
            if isinstance(part, SummedOverTokens):
                block.parts[name] = part.inside  # type: ignore[attr-defined]
                setattr(block, name, part.inside)


def heads_not_summed(trainer: Trainer) -> None:
    """The ranks that share a key/value head keep the gradients of their own query heads."""
    for block in trainer.parts.model.llama.blocks:
        block.attention.sharers = ALONE  # type: ignore[attr-defined]


def ends_not_summed(trainer: Trainer) -> None:
    """Each end of the pipeline updates its copy of the tied table by its own gradient."""
    trainer.parts.shared.update(dict.fromkeys(trainer.parts.shared, ALONE))


def copies_counted(trainer: Trainer) -> None:
    """In the norm of all gradients, a weight counts once for each rank that has a copy."""
    replica = trainer.parts.replica
    cut = replica.model_parallel
    assert cut is not None
    replica.model_parallel = cut._replace(in_norm=dict.fromkeys(cut.in_norm, 1.0))


ALONE: Any = SimpleNamespace(all_reduce=lambda x: x)  # a group whose sum is one's own
BUGS: dict[str, Callable[[Trainer], None]] = {
    "extra mean": extra_mean,
    "mean of means": mean_of_means,
    "norms not summed": norms_not_summed,
    HEADS: heads_not_summed,
    "ends not summed": ends_not_summed,
    "copies counted": copies_counted,
}
PRICES = {"copies": 1, "loss": 2, "norm": 2, "gradients": 5, "ten losses": 20}
SEES = {  # of each bug, the checks that see it
    "extra mean": ("norm", "gradients"),
    "mean of means": ("loss", "norm", "gradients", "ten losses"),
    "norms not summed": ("copies", "norm", "gradients", "ten losses"),
    HEADS: ("copies", "norm", "gradients", "ten losses"),
    "ends not summed": ("copies", "norm", "gradients", "ten losses"),
    "copies counted": ("norm", "ten losses"),
}
MODELS = 3  # seeds of the model and the batch


class Steps(NamedTuple):
    """The losses and norms of all steps, and of the first one the gradients by name, and names of unequal copies."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, Any]
    apart: list[str]


@cache
def _model(seed: int) -> Llama:
    config = LlamaConfig(
        vocab_size=SOURCE.vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Llama.random(config, seed=seed, xp=np, dtype="float64")


@cache
def _batch(seed: int, long_prompts: bool = False) -> tuple[Any, Any]:
    """Rows whose first tokens, a prompt, have no targets: 1 to 7 of 16, or 9 to 12. All steps train on this batch."""
    tokens, targets = map(to_numpy, SOURCE.batch(seed, batch_size=4, length=16))
    shortest, end = (9, 13) if long_prompts else (1, 8)
    prompt = np.random.default_rng(seed).integers(shortest, end, size=(4, 1))
    prompt[0] = min(prompt[0], 11)  # so every rank has a target
    return tokens, np.where(np.arange(16) < prompt, IGNORED, targets)


@cache
def _serial(seed: int, steps: int, long_prompts: bool = False, max_norm: float = MAX_NORM) -> Steps:
    """The steps of one rank, with the same clipping."""
    start, optimizer = _model(seed), AdamW(lr=LR)
    model = Llama(start.config, {name: x.copy() for name, x in start.weights.items()})
    losses: list[float] = []
    norms: list[float] = []
    first: dict[str, Any] = {}
    for _ in range(steps):
        loss, gradients = model.loss_and_gradients(*_batch(seed, long_prompts))
        losses.append(loss)
        first = first or gradients
        clipped, norm = clip_gradients(gradients, max_norm)
        norms.append(norm)
        optimizer.step(model.weights, clipped)
    return Steps(losses, norms, first, [])


@cache
def _trained(bug: str, seed: int, steps: int, long_prompts: bool = False, max_norm: float = MAX_NORM) -> Steps:
    """The steps of the mesh."""

    def program(comm: Comm) -> tuple[Any, ...]:
        trainer = Trainer(Mesh(comm, **AXES), _model(seed), AdamW(lr=LR), sequence_parallel=True, max_norm=max_norm)
        BUGS.get(bug, no_bug)(trainer)
        first = trainer.step(*_batch(seed, long_prompts))
        gradients, slices = trainer.full_gradients(), trainer.parts.model.llama.slices
        own = {(name, slices[name]): x.tobytes() for name, x in trainer.parts.replica.full_weights().items()}
        every = [first, *(trainer.step(*_batch(seed, long_prompts)) for _ in range(steps - 1))]
        return [step.loss for step in every], [step.norm for step in every], gradients, own

    results = run(program, RANKS).results
    losses, norms, gradients, _ = results[0]
    copies: dict[Any, set[bytes]] = {}
    for *_, own in results:
        for place, bits in own.items():
            copies.setdefault(place, set()).add(bits)
    apart = sorted({name for (name, _), bits in copies.items() if len(bits) > 1})
    return Steps(losses, norms, gradients, apart)


class Suspect:
    """A trainer on eight ranks (pp 2, cp 2, tp 2), which may have one of six silent bugs; checks cost a price.

    It trains with sequence parallelism, one key/value head, a tied table, clipping, and rows whose first tokens have no
    target. One rank trains the same model beside it, and is right.

    Args:
        bug: its name, or "none".
        seed: of the model and the batch.
        long_prompts: prompts of 9 to 12 tokens of 16 instead of 1 to 7. Some ranks then have few targets.
        max_norm: the limit of clipping.

    Attributes:
        price: of all checks that were asked for.

    Raises:
        ValueError: no such bug, or a limit that is not greater than 0.
    """

    def __init__(self, bug: str, seed: int = 0, long_prompts: bool = False, max_norm: float = MAX_NORM):
        one_of("bug", bug, (NONE, *BUGS))
        positive("max_norm", max_norm)
        self._bug, self._how = bug, (seed, long_prompts, max_norm)
        self.price, self.asked = 0, []  # type: int, list[str]

    def __repr__(self) -> str:
        asked = ", ".join(f"{check} ({PRICES[check]})" for check in self.asked) or "nothing"
        return f"a trainer on {RANKS} ranks; asked for {asked}: {self.price} in all"

    def ask(self, check: str) -> Any:
        """The result of a check, whose price is added.

        Args:
            check: "copies" (1): after one step, the names of the weights whose copies differ in bits. "loss" (2): the
                first loss over the right one. "norm" (2): the norm of the first gradient over the right one.
                "gradients" (5): of each weight by name, the largest error of its first gradient over its largest entry.
                "ten losses" (20): the losses of ten steps over the right ones. What differs by 1e-12 or less is 1, or
                0 for an error.

        Raises:
            ValueError: no such check.
        """
        one_of("check", check, tuple(PRICES))
        self.price += PRICES[check]
        self.asked.append(check)
        steps = STEPS if check == "ten losses" else 1
        right, found = self._steps(steps)
        if check == "copies":
            return list(found.apart)
        if check == "gradients":
            return {name: _error(found.gradients[name], x) for name, x in right.gradients.items()}
        if check == "norm":
            return _ratio(found.norms[0], right.norms[0])
        ratios = [_ratio(a, b) for a, b in zip(found.losses, right.losses, strict=True)]
        return ratios if check == "ten losses" else ratios[0]

    def sees(self, check: str) -> bool:
        """Whether a check comes out wrong; for nothing."""
        return self.difference(check) > 0

    def difference(self, check: str) -> float:
        """How far a check is from right, for nothing: the largest of its relative differences; 0.0 is right.

        Of "copies" it is the number of weights whose copies differ.
        """
        found = Suspect(self._bug, *self._how).ask(check)
        if check == "copies":
            return float(len(found))
        if isinstance(found, dict):
            return max(found.values())
        return max(abs(ratio - 1) for ratio in (found if isinstance(found, list) else [found]))

    @property
    def losses(self) -> dict[str, list[float]]:
        """The losses of ten steps of one rank, and of this trainer."""
        right, found = self._steps(STEPS)
        return {"one rank": right.losses, "eight ranks": found.losses}

    @property
    def norms(self) -> dict[str, list[float]]:
        """The norms of the gradient, before clipping, of the same steps."""
        right, found = self._steps(STEPS)
        return {"one rank": right.norms, "eight ranks": found.norms}

    def _steps(self, steps: int) -> tuple[Steps, Steps]:
        """Of one rank, and of this trainer."""
        seed, long_prompts, max_norm = self._how
        return _serial(seed, steps, long_prompts, max_norm), _trained(self._bug, seed, steps, long_prompts, max_norm)


def _ratio(found: float, right: float) -> float:
    return round(found / right, 12)


def _error(found: Any, right: Any) -> float:
    error = float(np.max(np.abs(found - right)) / np.max(np.abs(right)))
    return round(error, 12)


def suspect(name: str) -> Suspect:
    """A trainer with one of six silent bugs, drawn by your name: the same name gives the same bug."""
    text("name", name)
    return Suspect(list(BUGS)[zlib.crc32(name.strip().casefold().encode()) % len(BUGS)])


def find_bug(ask: Callable[[str], Any]) -> str:
    """The library's answer to the exercise: copies first, which need no second model; then the norm; then the loss."""
    apart = " ".join(ask("copies"))
    for part, bug in (("embed", "ends not summed"), ("layernorm", "norms not summed"), ("k_proj", HEADS)):
        if part in apart:
            return bug
    norm = ask("norm")
    if norm == 1:
        return NONE
    if abs(norm - 1 / AXES["cp"]) <= RIGHT:
        return "extra mean"
    return "copies counted" if ask("loss") == 1 else "mean of means"


class Contest(NamedTuple):
    """The price of each bug for each diagnosis, the mean of three models: [name][bug]. None: it named another bug."""

    prices: dict[str, dict[str, float | None]]

    def mean(self, name: str) -> float | None:
        """The mean price of a diagnosis over all bugs and a right trainer. None: it is wrong once or more."""
        paid = [price for price in self.prices[name].values() if price is not None]
        return sum(paid) / len(paid) if len(paid) == len(self.prices[name]) else None

    def __repr__(self) -> str:
        widths = {name: max(8, len(name)) + 2 for name in self.prices}
        lines = [f"{'':>20}" + "".join(f"{name:>{width}}" for name, width in widths.items())]
        for bug in (*BUGS, NONE):
            paid = {name: self.prices[name][bug] for name in widths}
            lines.append(f"{bug:>20}" + "".join(f"{_or_wrong(paid[name]):>{widths[name]}}" for name in widths))
        means = {name: self.mean(name) for name in widths}
        return "\n".join([*lines, f"{'mean':>20}" + "".join(f"{_or_wrong(means[n]):>{widths[n]}}" for n in widths)])


def _or_wrong(price: Any) -> str:
    return "wrong" if price is None else f"{price:.3g}"


def compete(diagnoses: Mapping[str, Callable[[Callable[[str], Any]], str]]) -> Contest:
    """Let several answers to the exercise diagnose each bug and a right trainer, on three models: what do they pay?

    Args:
        diagnoses: by name, functions `find_bug(ask)`, up to 6.

    Raises:
        ValueError: none, more than 6, or something that cannot be called.

    >>> compete({"library": find_bug}).mean("library")  # (3 + 5 + 1 + 1 + 1 + 5 + 3) / 7
    2.7142857142857144
    """
    if not isinstance(diagnoses, Mapping) or not 1 <= len(diagnoses) <= 6:
        raise ValueError(f"diagnoses={diagnoses!r:.60}: must be {{name: find_bug}}, 1 to 6 of them")
    for name, diagnose in diagnoses.items():
        if not callable(diagnose):
            raise ValueError(f"diagnoses[{name!r}]={diagnose!r:.60}: must be a function find_bug(ask)")
    return Contest(
        {str(name): {bug: _paid(diagnose, bug) for bug in (*BUGS, NONE)} for name, diagnose in diagnoses.items()}
    )


def _paid(diagnose: Callable[[Callable[[str], Any]], str], bug: str) -> float | None:
    patients = [Suspect(bug, seed) for seed in range(MODELS)]
    right = all([diagnose(patient.ask) == bug for patient in patients])
    return sum(patient.price for patient in patients) / MODELS if right else None
