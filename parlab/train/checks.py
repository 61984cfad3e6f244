"""What is refused before any work: the axis, its value, and the nearest that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.arguments import amount, flag, one_of, whole
from parlab.arrays import is_array, namespace, to_numpy
from parlab.nn.config import LlamaConfig
from parlab.nn.embedding import checked_range
from parlab.nn.llama import Llama
from parlab.pipeline import Schedule, validate
from parlab.sequence.layouts import LAYOUTS, checked_documents
from parlab.tensor.shards import check_sizes
from parlab.train.mesh import Mesh
from parlab.zero import Offload

ATTENTIONS = ("ring", "ulysses", "allgather")
RECOMPUTE = ("none", "full")
REDUCE = ("accumulate", "each")


def check_model(mesh: Any, model: Any) -> None:
    """Refuse what is no mesh or no serial model, or a model that tensor parallelism cannot cut so.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(mesh, Mesh):
        raise ValueError(f"mesh={mesh!r:.60}: a Mesh is needed")
    if not isinstance(model, Llama):
        raise ValueError(f"model={model!r:.60}: a serial Llama is needed, the same on every rank")
    _check_axis("tp", mesh.tp.size, lambda tp: check_sizes(model.config, tp))


def check_schedule(schedule: Any, pp: int, config: LlamaConfig) -> None:
    """Refuse a schedule that cannot run, or not on this mesh with this model.

    Raises:
        ValueError: so it is.
    """
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule={schedule!r:.60}: a Schedule of parlab.pipeline is needed")
    if schedule.num_ranks != pp:
        raise ValueError(f"pp={pp}: schedule has {schedule.num_ranks} ranks, use pp={schedule.num_ranks}")
    if schedule.num_stages > config.num_hidden_layers:
        most = config.num_hidden_layers * pp // schedule.num_stages
        hint = f"use a schedule with pp={most}" if most else "use fewer chunks"
        raise ValueError(
            f"pp={pp}: schedule has {schedule.num_stages} stages, and num_hidden_layers is "
            f"{config.num_hidden_layers}: {hint}"
        )
    validate(schedule)


def check_options(
    mesh: Mesh,
    config: LlamaConfig,
    zero: Any,
    attention: Any,
    layout: Any,
    sequence: Any,
    recompute: Any,
    reduce: Any,
    offload: Any,
) -> None:
    """Refuse a choice that there is not, and choices that exclude each other.

    Raises:
        ValueError: so it is.
    """
    if whole("zero", zero, 0) > 3:
        raise ValueError(f"zero={zero}: the stages are 0, 1, 2 and 3")
    one_of("attention", attention, ATTENTIONS)
    one_of("layout", layout, LAYOUTS)
    flag("sequence_parallel", sequence)
    one_of("recompute", recompute, RECOMPUTE)
    if reduce is not None:
        one_of("reduce", reduce, REDUCE)
    if reduce == "each" and zero < 2:
        raise ValueError(f"reduce='each' at zero={zero}: its gradients are whole, and reduced once; use zero=2 or 3")
    if offload is not None and (zero == 0 or not isinstance(offload, Offload)):
        raise ValueError(f"offload={offload!r:.60} at zero={zero}: an Offload is needed, and zero=1, 2 or 3")
    if attention == "ulysses":
        if layout != "contiguous":
            raise ValueError(f"layout={layout!r}: attention='ulysses' takes contiguous shards; leave it out")
        heads = config.num_attention_heads // mesh.tp.size
        if mesh.cp.size > heads:
            raise ValueError(
                f"cp={mesh.cp.size}: attention='ulysses' deals out heads, and tp={mesh.tp.size} leaves {heads}; "
                f"use cp={heads}"
            )


def check_batch(
    mesh: Mesh, vocab_size: int, tokens: Any, targets: Any, lr: Any, microbatches: int, layout: str, sequence: bool
) -> None:
    """Refuse a batch that the mesh cannot cut, or that holds what is no token.

    Raises:
        ValueError: so it is.
    """
    for name, x in (("tokens", tokens), ("targets", targets)):
        if not is_array(x) or x.ndim != 2 or x.size == 0 or not namespace(x).isdtype(x.dtype, "integral"):
            raise ValueError(f"{name}={x!r:.60}: an array [batch, sequence] of whole numbers is needed")
        checked_range(name, to_numpy(x), vocab_size)  # from a device too: nothing has been launched yet
    if tuple(tokens.shape) != tuple(targets.shape):
        raise ValueError(f"targets have shape {tuple(targets.shape)}, tokens {tuple(tokens.shape)}: give one to each")
    if lr is not None:
        amount("lr", lr)
    B, S = tokens.shape
    dp, cp, tp = mesh.dp.size, mesh.cp.size, mesh.tp.size

    def rows(dp: int) -> None:
        if B % (dp * microbatches):
            raise ValueError(
                f"{B} rows do not divide among {dp} replicas of {microbatches} microbatches: "
                f"use a multiple of {dp * microbatches}"
            )

    def places(tp: int) -> None:
        if sequence and S // cp % tp:
            raise ValueError(
                f"sequence length {S // cp} (of {S}, cp={cp}) does not divide among {tp} ranks: "
                f"use a multiple of {tp}, or sequence_parallel=False"
            )

    _check_axis("dp", dp, rows)
    if cp > 1:
        _check_axis("cp", cp, lambda cp: checked_documents(None, S, cp, layout))
    _check_axis("tp", tp, places)


def _check_axis(axis: str, size: int, check: Callable[[int], object]) -> None:
    """`check(size)`, whose refusal then names the axis, and the nearest sizes that pass."""

    def passes(other: int) -> bool:
        try:
            check(other)
        except ValueError:
            return False
        return True

    try:
        check(size)
    except ValueError as error:
        below = next((other for other in range(size - 1, 0, -1) if passes(other)), None)
        above = next((other for other in range(size + 1, 4 * size) if passes(other)), None)
        near = " or ".join(f"{axis}={other}" for other in (below, above) if other is not None)
        raise ValueError(f"{axis}={size}: {error}" + (f"; here {near} works" if near else "")) from None
