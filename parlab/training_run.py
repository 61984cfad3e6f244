"""A training run from a file of settings: the command `parlab train`.

The settings say which model is trained on which text, and decide the losses. The mesh says on which ranks, and changes
no loss but by rounding. Begin with `train`: its `program` is the loop that each rank runs.

Invariant: step n trains on the samples from number n · batch on, at `settings.rate(n)`, whether the run began at step 0
or goes on from a checkpoint, and whichever mesh saved that.
"""

from __future__ import annotations

import hashlib
import math
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parlab import pipeline, run
from parlab.arguments import amount, flag, instance, one_of, positive, whole
from parlab.arguments import text as check_text
from parlab.nn import AdamW, Llama, LlamaConfig, MarkovSource, Mixtral, MixtralConfig, warmup_cosine
from parlab.nn.config import REQUIRED
from parlab.pipeline import Schedule
from parlab.train import Mesh, Samples, Trainer, load, read_index, save
from parlab.train.arguments import check_folder
from parlab.train.lock import locked
from parlab.world import Comm, Run

CHUNKED = ("looped_bfs", "interleaved_one_f_one_b")  # schedules of several chunks a rank
SCHEDULES = (
    "gpipe", "one_f_one_b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "one_f_one_b_v", "dualpipe", "dualpipe_v",
    *CHUNKED,
)  # fmt: skip
AXES = ("dp", "pp", "cp", "tp", "ep")
BUILT_IN = {"llama-pocket": "training_run.toml", "mixtral-pocket": "mixtral_pocket.toml"}  # beside this module
CHECKSUM = "text_checksum"  # stands in the notes of a checkpoint, beside the settings
TABLES = {  # of a file of settings, and the names in each
    "model": tuple(field.name for field in fields(MixtralConfig) if field.name not in ("vocab_size", "other")),
    "data": ("text", "characters", "length", "batch"),
    "training": ("steps", "lr", "warmup_steps", "weight_decay", "max_norm", "dtype", "seed", "auxiliary", "bias_rate"),
}


class Text(NamedTuple):
    """A text, character by character."""

    tokens: np.ndarray  # [N]
    vocab_size: int
    checksum: str  # the SHA-256 of what was read or drawn


@dataclass(frozen=True)
class Settings:
    """The model, the text and the training; `training_run.toml` beside this module explains each field."""

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
    auxiliary: float = 0.0
    bias_rate: float = 0.0

    def __post_init__(self) -> None:
        instance("model", self.model, Mapping)
        if self.text is not None:
            check_text("text", self.text)
        for count in ("characters", "length", "batch", "steps"):
            whole(count, getattr(self, count), 1)
        positive("lr", self.lr, finite=True)
        whole("warmup_steps", self.warmup_steps, 0)
        amount("weight_decay", self.weight_decay)
        if self.max_norm is not None:
            positive("max_norm", self.max_norm)
        one_of("dtype", self.dtype, ("float32", "float64"))
        whole("seed", self.seed, 0)
        amount("auxiliary", self.auxiliary)
        amount("bias_rate", self.bias_rate)
        if self.steps <= self.warmup_steps:
            warmup = f"warmup_steps={self.warmup_steps}"
            raise ValueError(f"steps={self.steps}: must be more than {warmup}: use more, or set fewer warmup_steps")
        for name in self.model:
            one_of("name in [model]", name, TABLES["model"])
        if missing := [name for name in REQUIRED if name in TABLES["model"] and name not in self.model]:
            raise ValueError(f"[model] lacks {', '.join(missing)}")
        self.config(vocab_size=1)  # which refuses wrong sizes
        if (self.auxiliary or self.bias_rate) and not self.has_experts:
            raise ValueError(f"auxiliary={self.auxiliary}, bias_rate={self.bias_rate}: the model has no experts")

    @property
    def has_experts(self) -> bool:
        """Whether the model is a Mixtral."""
        return "num_local_experts" in self.model

    def config(self, vocab_size: int) -> LlamaConfig:
        """The configuration of the model, a Mixtral's if it has experts."""
        return (MixtralConfig if self.has_experts else LlamaConfig)(vocab_size=vocab_size, **self.model)

    @classmethod
    def read(cls, path: Path | None = None, model: str = "llama-pocket") -> Settings:
        """Read a file; None: the built-in one of `model`, one of BUILT_IN.

        Raises:
            ValueError: with the file's name: a table, a name or a value that is none of `Settings`; another model.
        """
        one_of("model", model, tuple(BUILT_IN))
        try:
            tables = tomllib.loads((path or files("parlab") / BUILT_IN[model]).read_text(encoding="utf-8"))
            for table, values in tables.items():
                one_of("table", table, tuple(TABLES))
                if not isinstance(values, dict):
                    raise ValueError(f"{table}={values!r:.60}: must be a table, [{table}]")
                for name in values:
                    one_of(f"name in [{table}]", name, TABLES[table])
            return cls(tables.get("model", {}), **tables.get("data", {}), **tables.get("training", {}))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def saved_in(cls, folder: Path) -> Settings:
        """The settings of the run that saved the checkpoint in the folder."""
        notes = read_index(folder)["notes"]
        if notes.keys() != {*cls.__dataclass_fields__, CHECKSUM}:
            otherwise = "so it does not say what is trained; go on with parlab.train.load"
            raise ValueError(f"{folder}: its checkpoint was not written by `parlab train`, {otherwise}")
        del notes[CHECKSUM]
        return cls(**notes)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        course = {"warmup_steps": self.warmup_steps, "total_steps": self.steps}
        return warmup_cosine(step, peak=self.lr, floor=self.lr / 10, **course)

    @property
    def entropy(self) -> float | None:
        """The entropy rate of the text's source, in nats: no model has a smaller mean loss on text that it has not
        seen. None for a text from a file.
        """
        return MarkovSource(seed=self.seed).entropy_rate if self.text is None else None

    def read_text(self) -> Text:
        """The text in the file, or the one that the seed draws."""
        if self.text is None:
            source = MarkovSource(seed=self.seed)
            drawn, _ = source.batch(0, batch_size=1, length=self.characters, seed=self.seed, xp=np)
            return Text(drawn[0], source.vocab_size, hashlib.sha256(drawn.tobytes()).hexdigest())
        try:
            read = Path(self.text).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"text={self.text!r}: {error}; a text in UTF-8 is needed") from error
        characters = np.frombuffer(read.encode("utf-32-le"), dtype=np.uint32)
        alphabet, tokens = np.unique(characters, return_inverse=True)
        return Text(tokens, len(alphabet), hashlib.sha256(read.encode()).hexdigest())


def schedule_of(name: str, ranks: int, microbatches: int | None = None, chunks: int = 2) -> Schedule:
    """The pipeline's schedule by its name; one rank has no pipeline, and runs one microbatch after the other.

    Args:
        name: one of SCHEDULES.
        ranks: of the pipeline.
        microbatches: None: two for each rank of a pipeline, or one.
        chunks: pipeline stages of a rank, for the schedules that have several.
    """
    one_of("schedule", name, SCHEDULES)
    whole("chunks", chunks, 1)
    if microbatches is not None:
        whole("microbatches", microbatches, 1)
    microbatches = microbatches or default_microbatches(ranks)
    if ranks == 1:
        return pipeline.one_f_one_b(1, microbatches)
    make: Callable[..., Schedule] = getattr(pipeline, name)
    if name in CHUNKED:
        return make(ranks, microbatches, chunks)
    return make(ranks, microbatches)


def default_microbatches(ranks: int) -> int:
    """Two for each rank of a pipeline; one where there is no pipeline."""
    return 2 * ranks if ranks > 1 else 1


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
        tell: called on rank 0 after each step, with how many are done, the loss, tokens a second, seconds left, and how
            many steps of this run were skipped because a gradient overflowed.
        options: of `Trainer`.

    Raises:
        ValueError: an argument that is not as said; another run trains in the folder; the checkpoint there is trained
            to its end, or on another text.
    """
    _check_run(settings, axes, folder, resume, every, stop_after)
    text = settings.read_text()
    samples = Samples(text.tokens, settings.length, settings.seed)
    model_kind = Mixtral if settings.has_experts else Llama
    serial = model_kind.random(settings.config(text.vocab_size), seed=settings.seed, dtype=settings.dtype)
    optimizer = AdamW(lr=settings.lr, weight_decay=settings.weight_decay)
    notes = {**asdict(settings), CHECKSUM: text.checksum}
    options = {name: getattr(settings, name) for name in ("max_norm", "auxiliary", "bias_rate")} | options
    ranks = math.prod(size for axis, size in axes.items() if axis != "ep")  # ep's ranks are those of dp and cp

    def program(comm: Comm, done: int, end: int) -> list[float]:
        """Train in the steps from `done` up to, not including, `end`; return the loss of each."""
        mesh = Mesh(comm, **axes)
        trainer = load(folder, mesh, **options) if folder and resume else Trainer(mesh, serial, optimizer, **options)
        losses: list[float] = []
        skipped = 0
        began = time.perf_counter()
        for step in range(done, end):
            batch = samples.batch(trainer.samples, settings.batch, xp=trainer.job.xp)
            result = trainer.step(*batch, settings.rate(step))
            losses.append(result.loss)
            skipped += result.skipped
            if folder is not None and ((step + 1) % every == 0 or step + 1 == end):
                save(trainer, folder, notes=notes)
            if comm.rank == 0:
                seconds = (time.perf_counter() - began) / len(losses)
                tokens_a_second = settings.batch * settings.length / seconds
                tell(step + 1, losses[-1], tokens_a_second, (end - step - 1) * seconds, skipped)
        return losses

    with locked(Path(folder), "training") if folder is not None else nullcontext():
        done = _steps_done(folder, settings, text) if folder is not None and resume else 0
        end = settings.steps if stop_after is None else min(settings.steps, done + stop_after)
        return run(program, ranks, done, end)


def _check_run(settings: Any, axes: Any, folder: Any, resume: Any, every: Any, stop_after: Any) -> None:
    """Refuse an argument of `train` that is not as said."""
    instance("settings", settings, Settings)
    instance("axes", axes, Mapping)
    for axis, size in axes.items():
        one_of("axis of the mesh", axis, AXES)
        whole(axis, size, 1)
    if folder is not None:
        check_folder(folder)
    flag("resume", resume)
    whole("every", every, 1)
    if stop_after is not None:
        whole("stop_after", stop_after, 1)
    if resume and folder is None:
        raise ValueError("resume=True: needs a folder, with the checkpoint to go on from")


def _steps_done(folder: Path, settings: Settings, text: Text) -> int:
    """How many steps the checkpoint has behind it. A ValueError, if this run cannot go on from there."""
    index = read_index(folder)
    done, rest = divmod(index["progress"]["samples"], settings.batch)
    if rest:
        raise ValueError(
            f"{folder}: its checkpoint has progress samples={done * settings.batch + rest}: "
            f"no whole number of batches of {settings.batch}; go on with parlab.train.load"
        )
    if index["notes"].get(CHECKSUM) != text.checksum:
        source = "the drawn text" if settings.text is None else f"text={settings.text!r}"
        raise ValueError(
            f"{folder}: {source} is not the text that its checkpoint was trained on: "
            "put that text back, or train in another folder"
        )
    if done >= settings.steps:
        raise ValueError(f"{folder}: all of its {settings.steps} steps are done: nothing is left to train")
    return done
