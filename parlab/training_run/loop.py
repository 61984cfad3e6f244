"""The loop of a run, on each rank of a mesh.

Invariant: step n trains on the samples from number n · batch on, at `learning_rate(settings, n)`, whether the run began
at step 0 or goes on from a checkpoint, and whichever mesh saved that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from parlab import run
from parlab.arguments import flag, instance, one_of, whole
from parlab.nn import AdamW, Llama, Mixtral, warmup_cosine
from parlab.train import Mesh, Samples, Trainer, load, save
from parlab.train.arguments import check_folder
from parlab.train.lock import locked
from parlab.training_run.going_on import notes_of, steps_done
from parlab.training_run.settings import Settings
from parlab.training_run.text import read_text
from parlab.world import Comm, Run

AXES = ("dp", "pp", "cp", "tp", "ep")


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
    check_run(settings, axes, folder, resume, every, stop_after)
    text = read_text(settings)
    samples, notes = Samples(text.tokens, settings.length, settings.seed), notes_of(settings, text)
    trainer_on = maker_of_trainers(settings, text.vocab_size, folder if resume else None, options)

    def program(comm: Comm, done: int, end: int) -> list[float]:
        """Train in the steps from `done` up to, not including, `end`; return the loss of each."""
        trainer = trainer_on(Mesh(comm, **axes))
        losses: list[float] = []
        skipped = 0
        began = time.perf_counter()
        for step in range(done, end):
            batch = samples.batch(step * settings.batch, settings.batch, xp=trainer.parts.job.xp)
            result = trainer.step(*batch, learning_rate(settings, step))
            losses.append(result.loss)
            skipped += result.skipped
            if folder is not None and ((step + 1) % every == 0 or step + 1 == end):
                save(trainer, folder, notes=notes)
            if comm.rank == 0:
                seconds = (time.perf_counter() - began) / len(losses)
                tokens_a_second = settings.batch * settings.length / seconds
                tell(step + 1, losses[-1], tokens_a_second, (end - step - 1) * seconds, skipped)
        return losses

    ranks = math.prod(size for axis, size in axes.items() if axis != "ep")  # ep's ranks are those of dp and cp
    with locked(Path(folder), "training") if folder is not None else nullcontext():
        done = steps_done(folder, settings, text) if folder is not None and resume else 0
        end = settings.steps if stop_after is None else min(settings.steps, done + stop_after)
        return run(program, ranks, done, end)


def maker_of_trainers(
    settings: Settings, vocab_size: int, checkpoint: Path | None, options: Mapping[str, Any]
) -> Callable[[Mesh], Trainer]:
    """Makes a rank's trainer on its mesh: of the checkpoint in a folder; None: of new weights, drawn here once."""
    of_settings = {name: getattr(settings, name) for name in ("max_norm", "auxiliary", "bias_rate")}
    options = {**of_settings, **options}
    if checkpoint is not None:
        return lambda mesh: load(checkpoint, mesh, **options)
    model_kind = Mixtral if settings.has_experts else Llama
    serial = model_kind.random(settings.config(vocab_size), seed=settings.seed, dtype=settings.dtype)
    optimizer = AdamW(lr=settings.lr, weight_decay=settings.weight_decay)
    return lambda mesh: Trainer(mesh, serial, optimizer, **options)


def learning_rate(settings: Settings, step: int) -> float:
    """The learning rate of a step: it rises to `lr`, and falls by half a cosine to a tenth of it."""
    course = {"warmup_steps": settings.warmup_steps, "total_steps": settings.steps}
    return warmup_cosine(step, peak=settings.lr, floor=settings.lr / 10, **course)


def check_run(settings: Any, axes: Any, folder: Any, resume: Any, every: Any, stop_after: Any) -> None:
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
