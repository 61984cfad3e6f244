"""What is refused before any work: the axis, its value, and the nearest that works."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from parlab.arguments import amount, flag, one_of, whole
from parlab.arrays import is_array, namespace, to_numpy
from parlab.nn.embedding import checked_range
from parlab.nn.llama import Llama
from parlab.pipeline import Schedule, validate
from parlab.sequence.layouts import LAYOUTS, checked_documents
from parlab.tensor.shards import check_sizes
from parlab.train.mesh import Mesh
from parlab.zero import Offload
from parlab.zero.arguments import check_alike, sums_of

CHOICES = {"attention": ("ring", "ulysses", "allgather"), "layout": LAYOUTS, "recompute": ("none", "full")}


def check_model(mesh: Any, model: Any, optimizer: Any) -> None:
    """Refuse what is no mesh or no serial model, or a model that tensor parallelism cannot cut so, or that
    differs from rank to rank.
    """
    _need(isinstance(mesh, Mesh), "mesh={!r:.60}: a Mesh is needed", mesh)
    _need(isinstance(model, Llama), "model={!r:.60}: a serial Llama is needed, the same on every rank", model)
    _check_axis("tp", mesh.tp.size, lambda tp: check_sizes(model.config, tp))
    told = model.config, optimizer, sums_of(model.weights.values())
    check_alike(mesh.comm, told, "model or optimizer differs from rank to rank: give every rank the same")


def check_options(trainer: Any) -> None:
    """Refuse a schedule that cannot run here, a choice that there is not, and choices that exclude each other."""
    schedule, zero, (_, pp, cp, tp) = trainer.schedule, trainer.zero, trainer.mesh.sizes.values()
    _need(isinstance(schedule, Schedule), "schedule={!r:.60}: a Schedule of parlab.pipeline is needed", schedule)
    ranks, stages, layers = schedule.num_ranks, schedule.num_stages, trainer.config.num_hidden_layers
    _need(ranks == pp, f"pp={pp}: schedule has {ranks} ranks, use pp={ranks}")
    shorter, thinner = layers * pp // stages, layers // pp
    fits = [f"pp={shorter}"] * (shorter > 0) + [f"at most {thinner} chunks a rank"] * (thinner > 0)
    hint = f"use a schedule with {' or '.join(fits) or f'pp={layers} and 1 chunk a rank'}"
    _need(stages <= layers, f"pp={pp}: schedule has {stages} stages, and num_hidden_layers is {layers}: {hint}")
    validate(schedule)
    _need(whole("zero", zero, 0) <= 3, f"zero={zero}: the stages are 0, 1, 2 and 3")
    for name, choices in CHOICES.items():
        one_of(name, getattr(trainer, name), choices)
    flag("sequence_parallel", trainer.sequence_parallel)
    reduce, offload = trainer.reduce, trainer.offload
    if reduce is not None:
        one_of("reduce", reduce, ("accumulate", "each"))
    if reduce == "each" and zero < 2:
        raise ValueError(f"reduce='each' at zero={zero}: its gradients are whole, and reduced once; use zero=2 or 3")
    usable = offload is None or (zero > 0 and isinstance(offload, Offload))
    _need(usable, "offload={!r:.60} at zero={}: an Offload is needed, and zero=1, 2 or 3", offload, zero)
    if trainer.attention == "ulysses":
        if trainer.layout != "contiguous":
            raise ValueError(f"layout={trainer.layout!r}: attention='ulysses' takes contiguous shards; leave it out")
        if cp > (heads := trainer.config.num_attention_heads // tp):
            left = f"tp={tp} leaves {heads}; use cp={heads}"
            raise ValueError(f"cp={cp}: attention='ulysses' deals out heads, and {left}")


def check_batch(trainer: Any, tokens: Any, targets: Any, lr: Any) -> None:
    """Refuse a batch that the mesh cannot cut, that holds what is no token, or of which ranks have different ones."""
    contents = []  # from a device too: nothing has been launched yet
    for name, x in (("tokens", tokens), ("targets", targets)):
        usable = is_array(x) and x.ndim == 2 and x.size and namespace(x).isdtype(x.dtype, "integral")
        _need(usable, "{}={!r:.60}: an array [batch, sequence] of whole numbers is needed", name, x)
        contents.append(to_numpy(x))
        checked_range(name, contents[-1], trainer.config.vocab_size)
    B, S = shape = tuple(tokens.shape)
    of_targets = tuple(targets.shape)
    _need(of_targets == shape, f"targets have shape {of_targets}, tokens {shape}: give one to each")
    if lr is not None:
        amount("lr", lr)
    m, (dp, pp, cp, tp) = trainer.schedule.num_microbatches, trainer.mesh.sizes.values()

    def rows(dp: int) -> None:
        if B % (dp * m) == 0:
            return
        said = f"{B} rows do not divide among {dp} replicas of {m} microbatches: use a multiple of {dp * m}"
        fits = [n for n in range(pp, B // dp + 1) if B % (dp * n) == 0]
        near = [*[n for n in fits if n < m][-1:], *[n for n in fits if n > m][:1]]
        hint = f", or a schedule of {' or '.join(map(str, near))} microbatches" if near else ""
        raise ValueError(said + hint)

    def places(tp: int) -> None:
        said = f"sequence length {S // cp} (of {S}, cp={cp}) does not divide among {tp} ranks"
        _need(S // cp % tp == 0, f"{said}: use a multiple of {tp}, or sequence_parallel=False")

    _check_axis("dp", dp, rows)
    if cp > 1:
        _check_axis("cp", cp, lambda cp: checked_documents(None, S, cp, trainer.layout))
    if trainer.sequence_parallel:
        _check_axis("tp", tp, places)
    if not trainer.samples:  # the first batch; no message is needed, and later no rank waits here for the others
        otherwise = "tokens and targets differ from rank to rank: give every rank the whole batch"
        check_alike(trainer.mesh.comm, [zlib.crc32(x.tobytes()) for x in contents], otherwise)


def _need(holds: Any, otherwise: str, *shown: Any) -> None:
    """Refuse, with `shown` in the braces: not before, because to show an array looks at it."""
    if not holds:
        raise ValueError(otherwise.format(*shown))


def _check_axis(axis: str, size: int, check: Callable[[int], object]) -> None:
    """`check(size)`, whose refusal then names the axis, and the nearest sizes that pass."""

    def refusal(other: int) -> str | None:
        try:
            check(other)
        except ValueError as error:
            return str(error)
        return None

    if said := refusal(size):
        sizes = (range(size - 1, 0, -1), range(size + 1, 4 * size))
        nearest = [next((f"{axis}={other}" for other in some if not refusal(other)), "") for some in sizes]
        near = " or ".join(filter(None, nearest))
        raise ValueError(f"{axis}={size}: {said}" + (f"; here {near} works" if near else ""))
