"""A training run that fits a pocket: the command `parlab train`.

A file of settings says what is trained, a mesh on what. The first decides the losses; the second must not.
"""

from __future__ import annotations

import math
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from parlab import pipeline, run
from parlab.arguments import amount, instance, one_of, positive, text, whole
from parlab.nn import AdamW, Llama, LlamaConfig, MarkovSource, warmup_cosine
from parlab.nn.config import REQUIRED
from parlab.pipeline import Schedule
from parlab.train import Mesh, Samples, Trainer, load, read_index, save
from parlab.world import Comm, Run

CHUNKED = ("looped_bfs", "interleaved_one_f_one_b")  # schedules that take chunks
SCHEDULES = (
    "gpipe", "one_f_one_b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "one_f_one_b_v", "dualpipe", "dualpipe_v",
    *CHUNKED,
)  # fmt: skip
SIZES = tuple(item.name for item in fields(LlamaConfig) if item.name not in ("vocab_size", "other"))  # of a model


@dataclass(frozen=True)
class Settings:
    """What is trained; the fields are the file's, `pocket.toml` beside this module says them."""

    model: Mapping[str, Any]
    text: str | None = None
    characters: int = 65536
    length: int = 64
    batch: int = 16
    steps: int = 250
    lr: float = 4e-3
    warmup_steps: int = 25
    weight_decay: float = 0.1
    max_norm: float | None = 1.0
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"characters": 1, "length": 1, "batch": 1, "steps": 1, "warmup_steps": 0, "seed": 0}
        for name, value in least.items():
            whole(name, getattr(self, name), value)
        if self.steps <= self.warmup_steps:
            warmup = f"warmup_steps={self.warmup_steps}"
            raise ValueError(f"steps={self.steps}: must be more than {warmup}: use more, or set fewer warmup_steps")
        positive("lr", self.lr, finite=True)
        amount("weight_decay", self.weight_decay)
        if self.max_norm is not None:
            positive("max_norm", self.max_norm)
        if self.text is not None:
            text("text", self.text)
        one_of("dtype", self.dtype, ("float32", "float64"))
        instance("model", self.model, Mapping)
        for name in self.model:
            one_of("name in [model]", name, SIZES)
        if missing := [name for name in REQUIRED if name in SIZES and name not in self.model]:
            raise ValueError(f"[model] lacks {', '.join(missing)}")
        LlamaConfig(vocab_size=1, **self.model)  # refuses what is no size

    @classmethod
    def read(cls, path: Path | None = None) -> Settings:
        """From a file; None: the built-in one. A table or a name that is not known is refused, as is a wrong value."""
        names = tuple(cls.__dataclass_fields__)
        known = {"model": (), "data": names[1:5], "training": names[5:]}  # the model's: `__post_init__`
        try:
            tables = tomllib.loads((path or files("parlab") / "pocket.toml").read_text(encoding="utf-8"))
            for table, values in tables.items():
                one_of("table", table, tuple(known))
                if not isinstance(values, dict):
                    raise ValueError(f"{table}={values!r:.60}: must be a table, [{table}]")
                for name in values if known[table] else ():
                    one_of(f"name in [{table}]", name, known[table])
            return cls(tables.get("model", {}), **tables.get("data", {}), **tables.get("training", {}))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def of(cls, folder: Path) -> Settings:
        """Of the run that wrote the checkpoint there."""
        notes = read_index(folder)["notes"]
        if not isinstance(notes, dict) or not {"model"} <= notes.keys() <= cls.__dataclass_fields__.keys():
            otherwise = "so it does not say what is trained; go on with parlab.train.load"
            raise ValueError(f"{folder}: its checkpoint was not written by `parlab train`, {otherwise}")
        return cls(**notes)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        course = {"warmup_steps": self.warmup_steps, "total_steps": self.steps}
        return warmup_cosine(step, peak=self.lr, floor=self.lr / 10, **course)

    @property
    def entropy(self) -> float | None:
        """Of the text's source, in nats: the least mean loss on text not seen before; None where it is not known."""
        return MarkovSource(seed=self.seed).entropy_rate if self.text is None else None

    def tokens(self) -> tuple[np.ndarray, int]:
        """The text `[N]`, and the size of its vocabulary."""
        if self.text is None:
            source = MarkovSource(seed=self.seed)
            drawn, _ = source.batch(0, batch_size=1, length=self.characters, seed=self.seed, xp=np)
            return drawn[0], source.vocab_size
        try:
            read = Path(self.text).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"text={self.text!r}: {error}; a text in UTF-8 is needed") from error
        characters = np.frombuffer(read.encode("utf-32-le"), dtype=np.uint32)
        alphabet, tokens = np.unique(characters, return_inverse=True)
        return tokens, len(alphabet)


def schedule_of(name: str, ranks: int, microbatches: int | None = None, chunks: int = 2) -> Schedule:
    """The pipeline's schedule; on one rank, microbatches come one after the other.

    Args:
        microbatches: None: twice as many as ranks, or one where there is no pipeline.
        chunks: a rank, of schedules that take several.
    """
    one_of("schedule", name, SCHEDULES)
    whole("chunks", chunks, 1)
    if microbatches is not None:
        whole("microbatches", microbatches, 1)
    if ranks == 1:
        return pipeline.one_f_one_b(1, microbatches or 1)
    of_chunks = (chunks,) if name in CHUNKED else ()
    schedule: Schedule = getattr(pipeline, name)(ranks, microbatches or 2 * ranks, *of_chunks)
    return schedule


def train(
    settings: Settings,
    axes: Mapping[str, int],
    *,
    folder: Path | None = None,
    resume: bool = False,
    every: int = 100,
    stop_after: int | None = None,
    tell: Callable[..., object] = lambda *progress: None,
    **options: Any,
) -> Run:
    """Train; the run's results are each rank's losses, one a step.

    Args:
        axes: sizes of the mesh.
        folder: for checkpoints, every `every` steps and at the end; None: none.
        resume: go on from the checkpoint there.
        stop_after: steps of this run; None: all.
        tell: called on rank 0 after each step, with how many are done, the loss, tokens a second, and seconds left.
        options: of `Trainer`.

    Raises:
        ValueError: `every` or `stop_after` below 1, or what is there is trained to its end.
    """
    whole("every", every, 1)
    whole("stop_after", settings.steps if stop_after is None else stop_after, 1)
    done = read_index(folder)["progress"]["samples"] // settings.batch if folder and resume else 0
    if done >= settings.steps:
        raise ValueError(f"{folder}: all of its {settings.steps} steps are done: nothing is left to train")
    last = settings.steps if stop_after is None else min(settings.steps, done + stop_after)
    tokens, vocab_size = settings.tokens()
    samples = Samples(tokens, settings.length, settings.seed)
    config = LlamaConfig(vocab_size=vocab_size, **settings.model)
    serial = Llama.random(config, seed=settings.seed, dtype=settings.dtype)
    optimizer = AdamW(lr=settings.lr, weight_decay=settings.weight_decay)
    options = {"max_norm": settings.max_norm, **options}

    def program(comm: Comm) -> list[float]:
        mesh = Mesh(comm, **axes)
        trainer = load(folder, mesh, **options) if folder and resume else Trainer(mesh, serial, optimizer, **options)
        losses: list[float] = []
        began = time.perf_counter()
        for step in range(done, last):
            batch = samples.batch(trainer.samples, settings.batch, xp=trainer.xp)
            losses.append(trainer.step(*batch, settings.rate(step)).loss)
            if folder is not None and ((step + 1) % every == 0 or step + 1 == last):
                save(trainer, folder, notes=asdict(settings))
            if comm.rank == 0:
                seconds = (time.perf_counter() - began) / len(losses)
                rate = settings.batch * settings.length / seconds
                tell(step + 1, losses[-1], rate, (last - step - 1) * seconds)
        return losses

    return run(program, math.prod(whole(axis, size, 1) for axis, size in axes.items()))
