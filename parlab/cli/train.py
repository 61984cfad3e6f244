"""`parlab train`: train a small model on a mesh."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

from parlab.arguments import whole
from parlab.cli.options import Words, path, say

if TYPE_CHECKING:
    from parlab.training_run import Settings

MESH_RANKS = 256  # the most that a model is cut among: one thread a rank
MOST_ACTIONS = 2**18  # of a pipeline's schedule
NAMES = {  # the library's argument -> the option; a schedule's p is the axis pp of --mesh
    **{name: f"--{name}" for name in ("schedule", "microbatches", "chunks", "zero", "attention", "recompute")},
    "p": "pp",
    "m": "--microbatches",
    "folder": "--folder",
    "every": "--every",
    "stop_after": "--steps",
}


def add(words: Words) -> None:
    """Add the word and its options."""
    word = words.add_parser("train", help="train a small model on a mesh", description=train.__doc__)
    add_mesh_and_model(word)
    word.add_argument("--folder", type=path, help="where checkpoints go; else there are none")
    word.add_argument("--resume", action="store_true", help="go on from the checkpoint in --folder, on any mesh")
    word.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    word.add_argument("--steps", type=int, help="how many of this run; else all")
    word.set_defaults(command=train, names=NAMES)


def add_mesh_and_model(word: argparse.ArgumentParser) -> None:
    """Add the options that say how the model is cut, and what is trained."""
    word.add_argument("--mesh", default="", help="dp=2,pp=2,cp=1,tp=2,ep=1; what is not named is 1")
    word.add_argument(
        "--schedule", default="one_f_one_b", help="of the pipeline: gpipe, zb_h1, interleaved_one_f_one_b, ..."
    )
    word.add_argument("--microbatches", type=int, help="else two for each rank of a pipeline, and one without")
    word.add_argument("--chunks", type=int, default=2, help="a rank, of schedules that have several")
    word.add_argument("--zero", type=int, default=1, help="0, 1, 2 or 3")
    word.add_argument("--attention", default="ring", help="over cp: ring, ulysses or allgather")
    word.add_argument("--sequence-parallel", action="store_true", help="divide the tokens between tp's regions")
    word.add_argument("--recompute", default="none", help="none or full")
    word.add_argument("--float16", action="store_true", help="train in float16, with a loss scale")
    word.add_argument("--config", type=path, help="what to train, as TOML; else --model")
    word.add_argument(
        "--model", default="llama-pocket", help="llama-pocket, of 100 thousand weights, or mixtral-pocket, with experts"
    )


def train(chosen: argparse.Namespace) -> int:
    """Train a small Llama or Mixtral, cut along any axes; every mesh computes one rank's losses, up to rounding.

    The status is 1 if the mean of the last losses is not a number.
    """
    from parlab import training_run

    if chosen.resume and (chosen.folder is None or chosen.config is not None):
        raise ValueError("--resume needs --folder, which also says what is trained: leave --config out")
    if chosen.resume:
        settings = training_run.settings_of_checkpoint(chosen.folder)
    else:
        settings = training_run.read_settings(chosen.config, chosen.model)
    check_size(settings)
    mesh, options = mesh_and_options(chosen)
    live, skipped = sys.stdout.isatty(), 0
    after = "\n" if live else ""  # after a line that is written over

    def tell(step: int, loss: float, rate: float, left: float, now_skipped: int) -> None:
        nonlocal skipped
        if now_skipped and not skipped:
            say(f"{after}step {step} is skipped: a gradient overflowed, and no weight changed")
        skipped = now_skipped
        if live or step == 1 or step % 25 == 0 or step == settings.steps:
            line = f"step {step:4}/{settings.steps}  loss {loss:.4f}  {rate:8.0f} tokens/s  {left:4.0f} s left"
            say(f"\r{line}" if live else line, end="" if live else "\n")

    losses = training_run.train(
        settings,
        mesh,
        folder=chosen.folder,
        resume=chosen.resume,
        every=chosen.every,
        stop_after=chosen.steps,
        tell=tell,
        **options,
    ).results[0]
    last = losses[-25:]
    mean = sum(last) / len(last)
    floor = _floor(training_run.entropy_of_text(settings))
    told = f"{skipped} of {len(losses)} steps skipped: a gradient overflowed\n" if skipped else ""
    say(f"{after}{told}mean loss of the last {len(last)} steps {mean:.4f}{floor}")
    return int(math.isnan(mean))


def _floor(entropy: float | None) -> str:
    """The loss below which no model can be, in words, if the text's source is known."""
    unseen = "which no model can pass on text that it has not seen"
    return "" if entropy is None else f"; the entropy of the text's source, {unseen}, is {entropy:.4f}"


def mesh_and_options(chosen: argparse.Namespace) -> tuple[dict[str, int], dict[str, Any]]:
    """The size of each axis of the mesh, and the trainer's options."""
    from parlab.training_run import default_microbatches, schedule_of

    mesh = _mesh(chosen.mesh)
    pp = mesh.get("pp", 1)
    microbatches = chosen.microbatches or default_microbatches(pp)
    actions = pp * chosen.chunks * microbatches
    if actions > MOST_ACTIONS:
        said = f"--mesh pp={pp}, --microbatches={microbatches}, --chunks={chosen.chunks}"
        raise ValueError(f"{said}: their product is {actions}, and {MOST_ACTIONS} is the most; use smaller numbers")
    options = {name: getattr(chosen, name) for name in ("zero", "attention", "sequence_parallel", "recompute")}
    if chosen.float16:
        options["dtype"] = "float16"
    options["schedule"] = schedule_of(chosen.schedule, pp, chosen.microbatches, chosen.chunks)
    return mesh, options


def _mesh(text: str) -> dict[str, int]:
    """The size of each axis that `text` names."""
    from parlab.training_run import AXES

    mesh: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        axis, _, size = item.partition("=")
        if axis not in AXES or not size.isdecimal() or len(size) > 18:
            raise ValueError(f"--mesh {text:.60}: axes and sizes are needed, as in dp=2,tp=2")
        if axis in mesh:
            raise ValueError(f"--mesh {text:.60}: {axis} is there twice; give it one size")
        mesh[axis] = whole(f"--mesh {text:.60}: {axis}", int(size), 1)
    if (ranks := math.prod(n for axis, n in mesh.items() if axis != "ep")) > MESH_RANKS:
        raise ValueError(f"--mesh {text:.60}: these are {ranks} ranks, one thread each; use at most {MESH_RANKS}")
    return mesh


def check_size(settings: Settings) -> None:
    """Refuse a model that is too large for threads on one machine, before it is made."""
    layers = settings.model["num_hidden_layers"]
    if layers > 1000:
        raise ValueError(f"num_hidden_layers={layers} in --config: use at most 1000")
    weights = settings.config(vocab_size=1).num_parameters
    if weights > 10**9:
        raise ValueError(f"--config: the model has {weights:.3g} weights; use a model of at most 1e9")
