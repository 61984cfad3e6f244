"""The checks of the trainer's arguments."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

from parlab.arguments import amount, flag, one_of, whole
from parlab.arrays import Array, is_array, namespace, to_numpy
from parlab.nn.config import LlamaConfig
from parlab.nn.cross_entropy import check_any_target, checked_targets
from parlab.nn.embedding import checked_range
from parlab.nn.llama import Llama
from parlab.nn.mixtral import MixtralConfig
from parlab.pipeline import Schedule, validate
from parlab.sequence.layouts import LAYOUTS, checked_sequence
from parlab.tensor.slices import check_sizes
from parlab.train.attention import METHODS
from parlab.train.job import TrainJob, TrainSettings
from parlab.train.mesh import Mesh
from parlab.world.units import several
from parlab.zero.arguments import check_alike, sums_of


def check_folder(folder: Any) -> None:
    """Refuse a value that is no path, an empty path, and the path of a file. The folder need not exist yet."""
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ValueError(f"folder={folder!r:.60}: must be the path of a folder")
    if Path(folder).is_file():
        raise ValueError(f"folder={str(folder)!r}: it is a file; use a folder")


def is_integral(x: Array) -> bool:
    """Whether an array holds whole numbers."""
    return bool(namespace(x).isdtype(x.dtype, "integral"))


def check_each_setting(settings: TrainSettings) -> None:
    """Refuse a value that a setting cannot have."""
    if whole("zero", settings.zero, 0) > 3:
        raise ValueError(f"zero={settings.zero}: the stages are 0, 1, 2 and 3")
    one_of("attention", settings.attention, tuple(METHODS))
    one_of("layout", settings.layout, LAYOUTS)
    flag("sequence_parallel", settings.sequence_parallel)
    one_of("recompute", settings.recompute, ("none", "full"))
    if settings.reduce is not None:
        one_of("reduce", settings.reduce, ("accumulate", "each"))
    amount("auxiliary", settings.auxiliary)
    amount("bias_rate", settings.bias_rate)


def check_model(mesh: Mesh, model: Llama, optimizer: Any) -> None:
    """Refuse a model that tensor parallelism cannot cut, or that differs from rank to rank."""
    config, tp, ep = model.config, mesh.tp.size, mesh.ep.size
    if isinstance(config, MixtralConfig):
        if config.num_local_experts % ep:
            raise ValueError(f"ep={ep}: num_local_experts {config.num_local_experts} do not divide among {ep} ranks")
    elif ep > 1:
        raise ValueError(f"ep={ep}: the model has no experts; use ep=1, or a Mixtral")
    try:
        check_sizes(config, tp)
    except ValueError as error:
        heads, columns = config.num_attention_heads, config.intermediate_size
        raise ValueError(f"tp={tp}: {error}; or a tp that divides {heads} heads and {columns} columns") from None
    told = config, optimizer, sums_of(model.weights.values())
    check_alike(mesh.comm, told, "model or optimizer differs from rank to rank: give every rank the same")


def check_schedule(mesh: Mesh, config: LlamaConfig, schedule: Schedule) -> None:
    """Refuse a schedule that this mesh cannot run, or of more stages than the model has layers."""
    pp, ranks, stages, layers = mesh.pp.size, schedule.num_ranks, schedule.num_stages, config.num_hidden_layers
    if ranks != pp:
        raise ValueError(f"pp={pp}: schedule has {several(ranks, 'rank')}, use pp={ranks}")
    if stages > layers:
        raise ValueError(
            f"pp={pp}: schedule has {stages} stages, and num_hidden_layers is {layers}: "
            f"use at most {layers} stages, with fewer ranks or fewer chunks a rank"
        )
    validate(schedule)


def check_settings_together(mesh: Mesh, config: LlamaConfig, settings: TrainSettings) -> None:
    """Refuse settings that exclude each other, or that the mesh or the model does."""
    zero, cp, tp = settings.zero, mesh.cp.size, mesh.tp.size
    if settings.reduce == "each" and zero < 2:
        raise ValueError(f"reduce='each' at zero={zero}: its gradients are whole, and reduced once; use zero=2 or 3")
    for name, value in (("auxiliary", settings.auxiliary), ("bias_rate", settings.bias_rate)):
        if value and not isinstance(config, MixtralConfig):
            raise ValueError(f"{name}={value}: the model has no experts to balance; leave it out, or use a Mixtral")
    if settings.attention == "ulysses":
        if settings.layout != "contiguous":
            raise ValueError(f"layout={settings.layout!r}: attention='ulysses' takes contiguous shards; leave it out")
        if cp > (heads := config.num_attention_heads // tp):
            left = f"tp={tp} leaves {heads}; use cp={heads}"
            raise ValueError(f"cp={cp}: attention='ulysses' deals out heads, and {left}")


def check_batch(tokens: Array, targets: Array, job: TrainJob, *, first: bool) -> None:
    """Refuse a batch that is none, that the mesh cannot cut, or that has no targets.

    `first`: the first batch is refused, too, if it is not the same on every rank. That needs no message, and later no
    rank waits here for the others.
    """
    mesh, config, settings = job.mesh, job.config, job.settings
    for name, x in (("tokens", tokens), ("targets", targets)):
        if not is_array(x) or x.ndim != 2 or not x.size or not is_integral(x):
            raise ValueError(f"{name}={x!r:.60}: an array [batch, sequence] of whole numbers is needed")
    contents = [to_numpy(tokens), to_numpy(targets)]  # from a device too: nothing has been launched yet
    checked_range("tokens", contents[0], config.vocab_size)
    checked_targets(contents[1], config.vocab_size)
    B, S = shape = tuple(tokens.shape)
    of_targets = tuple(targets.shape)
    if of_targets != shape:
        raise ValueError(f"targets have shape {of_targets}, tokens {shape}: give one to each")
    check_any_target(contents[1])
    m, (dp, _, cp, tp) = job.schedule.num_microbatches, mesh.sizes.values()
    if B % (dp * m):
        fewer = "" if B % dp else f", or a number of microbatches that divides {B // dp}"
        raise ValueError(
            f"dp={dp}: {B} rows do not divide among {dp} replicas of {m} microbatches: "
            f"use a multiple of {dp * m}{fewer}"
        )
    if cp > 1:
        try:
            checked_sequence(S, cp, settings.layout)
        except ValueError as error:
            raise ValueError(f"cp={cp}: {error}") from None
    if settings.sequence_parallel and S // cp % tp:
        said = f"sequence length {S // cp} (of {S}, cp={cp}) does not divide among {tp} ranks"
        raise ValueError(f"tp={tp}: {said}: use a multiple of {tp}, or sequence_parallel=False")
    if first:
        otherwise = "tokens and targets differ from rank to rank: give every rank the whole batch"
        check_alike(mesh.comm, [zlib.crc32(x.tobytes()) for x in contents], otherwise)
