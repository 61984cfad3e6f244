"""A training run that fits a pocket: the command `parlab train`.

A file of settings says what is trained, a mesh on what. The first decides the losses; the second must not.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parlab import pipeline, run
from parlab.arguments import amount, one_of, positive, whole
from parlab.nn import AdamW, Llama, LlamaConfig, MarkovSource, warmup_cosine
from parlab.pipeline import Schedule
from parlab.train.checkpoint import load, read_index, save
from parlab.train.data import Samples
from parlab.train.mesh import Mesh
from parlab.train.trainer import Trainer
from parlab.world import Comm, Run

SCHEDULES = {
    "gpipe": 0,  # and whether it takes chunks
    "one_f_one_b": 0,
    "zb_h1": 0,
    "zb_h2": 0,
    "zb_v": 0,
    "v_half": 0,
    "v_min": 0,
    "one_f_one_b_v": 0,
    "dualpipe": 0,
    "dualpipe_v": 0,
    "looped_bfs": 1,
    "interleaved_one_f_one_b": 1,
}


@dataclass(frozen=True)
class Settings:
    """What is trained; the fields are the file's, `pocket.toml` beside this module says them.

    Raises:
        ValueError: a number out of its range.
    """

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
        for name in ("characters", "length", "batch", "steps"):
            whole(name, getattr(self, name), 1)
        positive("lr", self.lr, finite=True)
        amount("weight_decay", self.weight_decay)
        one_of("dtype", self.dtype, ("float32", "float64"))
        whole("seed", self.seed, 0)
        warmup_cosine(0, peak=self.lr, warmup_steps=self.warmup_steps, total_steps=self.steps)

    @classmethod
    def read(cls, path: Path | None = None) -> Settings:
        """From a file; None: the built-in one.

        Raises:
            ValueError: it is no TOML, or has a table or a name that is not known.
        """
        source = path or files("parlab.train") / "pocket.toml"
        try:
            tables = tomllib.loads(source.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: {error}") from error
        data = ("text", "characters", "length", "batch")
        rest = tuple(name for name in cls.__dataclass_fields__ if name not in ("model", *data))
        known = {"data": data, "training": rest}
        for table, values in tables.items():
            one_of("table", table, ("model", *known))
            for name in values if table in known else ():
                one_of(f"name in [{table}]", name, known[table])
        return cls(tables.get("model", {}), **tables.get("data", {}), **tables.get("training", {}))

    @property
    def entropy(self) -> float | None:
        """The least mean loss that there can be, in nats; None where it is not known."""
        return MarkovSource(seed=self.seed).entropy_rate if self.text is None else None

    def tokens(self) -> tuple[np.ndarray, int]:
        """The text `[N]`, and the size of its vocabulary."""
        if self.text is None:
            source = MarkovSource(seed=self.seed)
            drawn, _ = source.batch(0, batch_size=1, length=self.characters, seed=self.seed, xp=np)
            return drawn[0], source.vocab_size
        characters = np.frombuffer(Path(self.text).read_text(encoding="utf-8").encode("utf-32-le"), dtype=np.uint32)
        alphabet, tokens = np.unique(characters, return_inverse=True)
        return tokens, len(alphabet)


@dataclass(frozen=True)
class Place:
    """What it runs on: the mesh, and the trainer's options.

    Raises:
        ValueError: there is no such schedule.
    """

    mesh: Mapping[str, int] = field(default_factory=dict)
    schedule: str = "one_f_one_b"
    microbatches: int | None = None  # None: as many as stages' ranks, or twice that where a schedule needs them
    chunks: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)  # of `Trainer`

    @property
    def ranks(self) -> int:
        """How many the mesh has."""
        return int(np.prod([whole(axis, size, 1) for axis, size in self.mesh.items()], dtype=int))

    def built(self) -> Schedule | None:
        """The schedule; None where one rank has all layers."""
        one_of("schedule", self.schedule, tuple(SCHEDULES))
        pp = self.mesh.get("pp", 1)
        if pp == 1:
            return pipeline.gpipe(1, self.microbatches or 1)
        chunks = (self.chunks,) if SCHEDULES[self.schedule] else ()
        schedule: Schedule = getattr(pipeline, self.schedule)(pp, self.microbatches or 2 * pp, *chunks)
        return schedule


class Progress(NamedTuple):
    """After a step: how many are done, of how many; its loss; tokens a second, and seconds left at this rate."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float


def train(
    settings: Settings,
    place: Place,
    *,
    folder: Path | None = None,
    resume: bool = False,
    every: int = 100,
    stop_after: int | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Run:
    """Train; the run's results are each rank's losses, one a step.

    Args:
        settings: what.
        place: on which mesh.
        folder: for checkpoints, every `every` steps and at the end; None: none.
        resume: go on from the checkpoint there.
        every: steps.
        stop_after: steps of this run; None: all.
        tell: called on rank 0 after each step.
    """
    schedule = place.built()
    tokens, vocab_size = settings.tokens()
    samples = Samples(tokens, settings.length, settings.seed)
    config = LlamaConfig(vocab_size=vocab_size, **settings.model)
    serial = Llama.random(config, seed=settings.seed, dtype=settings.dtype)
    optimizer = AdamW(lr=settings.lr, weight_decay=settings.weight_decay)
    options = {"schedule": schedule, "max_norm": settings.max_norm, **place.options}

    def program(comm: Comm) -> list[float]:
        mesh = Mesh(comm, **place.mesh)
        if resume and folder is not None:
            trainer = load(folder, mesh, **options)
        else:
            trainer = Trainer(mesh, serial, optimizer, **options)
        done = trainer.samples // settings.batch
        last = settings.steps if stop_after is None else min(settings.steps, done + stop_after)
        losses: list[float] = []
        began = time.perf_counter()
        for step in range(done, last):
            lr = warmup_cosine(
                step,
                peak=settings.lr,
                warmup_steps=settings.warmup_steps,
                total_steps=settings.steps,
                floor=settings.lr / 10,
            )
            batch = samples.batch(trainer.samples, settings.batch, xp=trainer.xp)
            losses.append(trainer.step(*batch, lr).loss)
            if folder is not None and ((step + 1) % every == 0 or step + 1 == last):
                save(trainer, folder, notes=asdict(settings))
            if comm.rank == 0:
                seconds = (time.perf_counter() - began) / len(losses)
                rate = settings.batch * settings.length / seconds
                tell(Progress(step + 1, settings.steps, losses[-1], rate, (last - step - 1) * seconds))
        return losses

    return run(program, place.ranks)


def settings_of(folder: Path) -> Settings:
    """With which the checkpoint in `folder` was trained."""
    return Settings(**read_index(folder)["notes"])
