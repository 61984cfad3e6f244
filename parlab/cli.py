"""The command `parlab`; each of its words is a thin call."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import secrets
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parlab.arguments import one_of, positive, whole

if TYPE_CHECKING:
    from parlab.plan import Estimate, Plans


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `parlab ARGUMENTS`; the exit status: 0, 2 where the arguments cannot be used, 130 after Ctrl-C, 141 where
    nobody reads what is printed any more (`| head`). What a rank program of `parlab run` raises is raised."""
    parser = argparse.ArgumentParser(prog="parlab", description="A laboratory for large-model parallel training.")
    words = parser.add_subparsers(dest="word", required=True)
    _add_grade(words)
    _add_doctor(words)
    _add_run(words)
    _add_train(words)
    _add_trace(words)
    _add_plan(words)
    chosen = parser.parse_args(arguments)
    try:
        status = int(chosen.does(chosen))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter tries once more at its end
        return 141
    except (ValueError, OSError) as error:
        if chosen.word == "run" and hasattr(error, "run"):  # the program's own: whoever wrote it needs the place
            raise
        print(f"parlab {chosen.word}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _add_grade(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("grade", help="mark a folder of submissions", description=_grade.__doc__)
    word.add_argument("folder", type=Path, help="notebooks or programs, one a student, or a folder a student")
    word.add_argument("--out", type=Path, default=Path("grades.csv"), help="the table; reports go beside it")
    word.add_argument(
        "--exercises", default="", help="01.reduce_scatter,01.average_gradients; else all that are checked"
    )
    word.add_argument("--seed", type=int, help="of the cases drawn anew, the same for all; else a new one")
    word.add_argument("--extra", type=int, default=4, help="how many cases are drawn")
    word.add_argument("--seconds", type=float, default=10.0, help="limit of a case")
    word.add_argument("--limit", type=float, default=120.0, help="seconds for a submission, whatever it does")
    word.add_argument("--jobs", type=int, help="how many at once; else as many as there are cores")
    word.set_defaults(does=_grade)


def _grade(chosen: argparse.Namespace) -> int:
    """Mark each submission in a process of its own, on a copy; write a table, and a report for each."""
    from parlab.labs import EXERCISES
    from parlab.labs.marking import grade

    exercises = list(dict.fromkeys(filter(None, chosen.exercises.split(","))))
    if unknown := [name for name in exercises if name not in EXERCISES]:
        raise ValueError(f"--exercises {unknown[0]}: the exercises are {', '.join(EXERCISES)}")
    if not chosen.folder.is_dir():
        found = "it is a file; a folder is needed" if chosen.folder.exists() else "there is no such folder"
        raise ValueError(f"folder={str(chosen.folder)!r}: {found}")
    for name in ("seconds", "limit", "jobs"):
        if (value := getattr(chosen, name)) is not None and not value > 0:
            raise ValueError(f"--{name} {value}: a positive number is needed")
    for name in ("extra", "seed"):
        if (value := getattr(chosen, name)) is not None and value < 0:
            raise ValueError(f"--{name} {value}: a number that is not negative is needed")
    seed = secrets.randbelow(10**6) if chosen.seed is None else chosen.seed
    options = {name: getattr(chosen, name) for name in ("extra", "seconds", "limit", "jobs")}
    grade(chosen.folder, chosen.out, exercises, seed=seed, say=lambda line: print(line, flush=True), **options)
    print(f"{chosen.out}: written; --seed {seed} draws the same cases again")
    return 0


def _add_doctor(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    words.add_parser("doctor", help="what is usable here", description=_doctor.__doc__).set_defaults(does=_doctor)


def _doctor(chosen: argparse.Namespace) -> int:
    """Try what the notebooks need, and what they can use; the exit status is 0 if they can run."""
    from parlab.world.doctor import findings, table

    found = findings()
    print(table(found))
    return int(any(finding.needed and not finding.works for finding in found))


def _add_run(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("run", help="run a rank program", description=_run.__doc__)
    word.add_argument("program", help="module:function, whose only parameter is the rank's comm")
    word.add_argument("--ranks", type=int, required=True)
    word.add_argument("--engine", default="threads", help="threads, mpi or nccl")
    word.add_argument("--collectives", default="ours", help="ours, or on mpi native")
    word.add_argument("--trace", type=Path, help="write the timeline, the measured one if there is one, for Perfetto")
    word.set_defaults(does=_run)


def _run(chosen: argparse.Namespace) -> int:
    """Run module:function on ranks; print what it printed, and the timelines."""
    from parlab.world import run

    module, _, name = chosen.program.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError(f"program={chosen.program!r}: module:function is needed")
    sys.path.insert(0, "")  # modules of this folder too, as python -m has it
    try:
        program = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"program={chosen.program!r}: {error}; module:function is needed") from error
    done = run(program, chosen.ranks, engine=chosen.engine, collectives=chosen.collectives)
    timelines = [done.timeline, *([done.wallclock] if done.wallclock else [])]
    print(*timelines, sep="\n")
    if chosen.trace:
        timelines[-1].save_chrome_trace(chosen.trace)
    return 0


def _add_train(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("train", help="train a small model on a mesh", description=_train.__doc__)
    _add_place(word)
    word.add_argument("--folder", type=Path, help="where checkpoints go; else there are none")
    word.add_argument("--resume", action="store_true", help="go on from the checkpoint in --folder, on any mesh")
    word.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    word.add_argument("--steps", type=int, help="how many of this run; else all")
    word.set_defaults(does=_train)


def _add_trace(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("trace", help="one training step as a timeline", description=_trace.__doc__)
    word.add_argument("file", type=Path, help="a Chrome trace, to be opened at ui.perfetto.dev")
    _add_place(word)
    word.set_defaults(does=_trace)


def _add_place(word: argparse.ArgumentParser) -> None:
    word.add_argument("--mesh", default="", help="dp=2,pp=2,cp=1,tp=2; what is not named is 1")
    word.add_argument(
        "--schedule", default="one_f_one_b", help="of the pipeline: gpipe, zb_h1, interleaved_one_f_one_b, ..."
    )
    word.add_argument("--microbatches", type=int, help="else two for each of the pipeline's ranks")
    word.add_argument("--chunks", type=int, default=2, help="a rank, of schedules that have several")
    word.add_argument("--zero", type=int, default=1, help="0, 1, 2 or 3")
    word.add_argument("--attention", default="ring", help="over cp: ring, ulysses or allgather")
    word.add_argument("--sequence-parallel", action="store_true", help="divide the tokens between tp's regions")
    word.add_argument("--recompute", default="none", help="none or full")
    word.add_argument("--float16", action="store_true", help="train in float16, with a loss scale")
    word.add_argument("--config", type=Path, help="what to train, as TOML; else a model of 100 thousand weights")


def _place(chosen: argparse.Namespace) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes of the mesh, and the trainer's options."""
    from parlab.pocket import schedule_of

    mesh = {}
    for item in filter(None, chosen.mesh.split(",")):
        axis, _, size = item.partition("=")
        if axis not in ("dp", "pp", "cp", "tp") or not size.isdecimal():
            raise ValueError(f"--mesh {chosen.mesh}: axes and sizes are needed, as in dp=2,tp=2")
        if axis in mesh:
            raise ValueError(f"--mesh {chosen.mesh}: {axis} is there twice; give it one size")
        mesh[axis] = int(size)
    options = {name: getattr(chosen, name) for name in ("zero", "attention", "sequence_parallel", "recompute")}
    if chosen.float16:
        options["dtype"] = "float16"
    options["schedule"] = schedule_of(chosen.schedule, mesh.get("pp", 1), chosen.microbatches, chosen.chunks)
    return mesh, options


def _train(chosen: argparse.Namespace) -> int:
    """Train a small Llama, cut along any axes; the losses are those of one rank, whatever the mesh."""
    from parlab.pocket import Settings, train

    if chosen.resume and (chosen.folder is None or chosen.config is not None):
        raise ValueError("--resume needs --folder, which also says what is trained: leave --config out")
    settings = Settings.of(chosen.folder) if chosen.resume else Settings.read(chosen.config)
    live = sys.stdout.isatty()

    def tell(step: int, loss: float, rate: float, left: float) -> None:
        if live or step == 1 or step % 25 == 0 or step == settings.steps:
            line = f"step {step:4}/{settings.steps}  loss {loss:.4f}  {rate:8.0f} tokens/s  {left:4.0f} s left"
            print(f"\r{line}" if live else line, end="" if live else "\n", flush=True)

    mesh, options = _place(chosen)
    losses = train(
        settings,
        mesh,
        folder=chosen.folder,
        resume=chosen.resume,
        every=chosen.every,
        stop_after=chosen.steps,
        tell=tell,
        **options,
    ).results[0]
    least = settings.entropy
    unseen = "which no model can pass on text that it has not seen"
    floor = "" if least is None else f"; the entropy of the text's source, {unseen}, is {least:.4f}"
    mean = sum(losses[-25:]) / len(losses[-25:])
    print(f"{chr(10) if live else ''}mean loss of the last {len(losses[-25:])} steps {mean:.4f}{floor}")
    return 0


def _trace(chosen: argparse.Namespace) -> int:
    """Run one training step on a mesh, and write its simulated timeline for Perfetto."""
    from parlab.pocket import Settings, train

    mesh, options = _place(chosen)
    run = train(Settings.read(chosen.config), mesh, stop_after=1, **options)
    run.timeline.save_chrome_trace(chosen.file)
    print(f"{chosen.file}: written; open it at ui.perfetto.dev")
    return 0


def _add_plan(words: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    word = words.add_parser("plan", help="choose a layout for a model on a cluster", description=_plan.__doc__)
    word.add_argument("--model", required=True, help="llama-405b or 405b, gpt-175b or 175b, ...")
    word.add_argument("--cluster", default="dgx_h100", help="dgx_h100, dgx_a100 or classroom")
    word.add_argument("--gpus", type=int, required=True, help="all of them are used")
    word.add_argument("--batch", type=int, required=True, help="sequences of a step, of all replicas together")
    word.add_argument("--sequence", type=int, required=True, help="tokens of each")
    word.add_argument("--memory", type=float, help="GiB a device; else the device's")
    word.add_argument("--offload", action="store_true", help="also layouts whose optimizer is on the host")
    word.add_argument("--top", type=int, default=5, help="how many are listed")
    word.add_argument("--json", action="store_true", help="print the same as JSON")
    word.set_defaults(does=_plan)


def _plan(chosen: argparse.Namespace) -> int:
    """Estimate every layout that is possible; print the best, what their time and memory go to, why the others lose."""
    from parlab.plan import MODELS, search
    from parlab.world.cluster import CLUSTERS

    names = [kind + chosen.model.lower() for kind in ("", "llama-", "gpt-")]
    model = next((name for name in names if name in MODELS), chosen.model)
    one_of("model", model, tuple(MODELS))
    one_of("cluster", chosen.cluster, tuple(CLUSTERS))
    whole("top", chosen.top, 1)
    memory = None
    if chosen.memory is not None:
        positive("memory", chosen.memory)
        memory = chosen.memory * 2**30
    asked = {"batch": chosen.batch, "sequence": chosen.sequence, "memory": memory, "offload": chosen.offload}
    plans = search(MODELS[model], CLUSTERS[chosen.cluster], chosen.gpus, **asked)
    print((_as_json if chosen.json else _as_text)(plans, list(islice(plans, chosen.top))))
    return 0


def _as_text(plans: Plans, shown: Sequence[Estimate]) -> str:
    """A table of the fastest, the bills of the first, and its neighbours."""
    from parlab.plan import why
    from parlab.world.units import format_bytes

    best = plans.best
    lines = [f"{len(plans.layouts)} layouts are possible, {len(plans)} fit in {format_bytes(plans.memory)}"]
    for e in shown:
        lines.append(f"{e.total_seconds:10.3f} s  MFU {e.mfu:.1%}  {format_bytes(e.total_bytes):>9}  {e.layout}")
    lines.append("Time of the first, by kind")
    lines += [f"{x:10.3f} s  {x / best.total_seconds:6.1%}  {kind}" for kind, x in best.seconds.items() if x]
    lines.append("Memory of its fullest rank, by kind")
    lines += [f"{format_bytes(x):>12}  {x / best.total_bytes:6.1%}  {kind}" for kind, x in best.bytes.items() if x]
    return "\n".join([*lines, "One knob turned", str(why(plans))])


def _as_json(plans: Plans, shown: Sequence[Estimate]) -> str:
    """The same, for programs: seconds, and bytes."""
    from parlab.plan import why

    entries = [{"layout": vars(e.layout), "seconds": e.seconds, "bytes": e.bytes, "mfu": e.mfu} for e in shown]
    losers = [
        {"knob": n.knob, "value": n.value, "layout": vars(n.found.layout), "change": n.change, "binds": n.binds}
        | {"bytes": n.found.total_bytes}
        for n in why(plans)
    ]
    limit = plans.memory if math.isfinite(plans.memory) else None  # JSON has no number without end
    found = {"possible": len(plans.layouts), "fit": len(plans), "memory": limit, "best": entries, "why": losers}
    return json.dumps(found, indent=2)


if __name__ == "__main__":
    sys.exit(main())
