"""The bytes that a step sends, by strategy: counted, and in closed form."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

from parlab import arrays
from parlab.arguments import instance, whole
from parlab.nn.config import EMBEDDING, FINAL_NORM, HEAD
from parlab.nn.mixtral import MixtralConfig
from parlab.sequence import AttentionShape
from parlab.tensor import block_collectives, model_collectives, traffic
from parlab.train.attention import METHODS
from parlab.train.parts import Parts
from parlab.train.trainer import Trainer
from parlab.world import Link, Timeline, Transfer
from parlab.world.collectives import recursive_doubling_all_reduce_cost

STRATEGIES = {"data": "dp", "edp": "dp", "model": "norm"}  # of the groups that are not named after their strategy
NUMBER = 8  # bytes of a loss, or of a sum of squares


def strategy_of(transfer: Transfer) -> str:
    """The strategy by the message's group: tp, cp, pp, ep or dp; norm: the sum of squares, over all ranks."""
    instance("transfer", transfer, Transfer)
    group, named, _ = transfer.name.partition(": ")
    return STRATEGIES.get(group, group) if named else "norm"


def bytes_by_strategy(timeline: Timeline) -> dict[str, int]:
    """The bytes that all ranks sent to others, by strategy.

    dp: weights and gradients over dp × cp (an expert's over edp), and the loss. ep: tokens to their experts and back,
    if there are experts. norm: the sum of squares, for clipping and skipping.
    """
    instance("timeline", timeline, Timeline)
    found = Counter(dict.fromkeys(("dp", "pp", "cp", "tp", "norm"), 0))
    for transfer in timeline.transfers:
        if transfer.src != transfer.dst:
            found[strategy_of(transfer)] += transfer.nbytes
    return dict(found)


def step_bytes(trainer: Trainer, B: int, S: int) -> dict[str, int]:
    """The closed form of what `bytes_by_strategy` counts in one step on a batch `[B, S]`.

    All ranks together; collectives are rings, and shards may be uneven.

    Raises:
        ValueError: a mixture of experts, whose bytes depend on the router's choices.
    """
    instance("trainer", trainer, Trainer)
    whole("B", B, 1)
    whole("S", S, 1)
    parts = trainer.parts
    if isinstance(parts.config, MixtralConfig):
        raise ValueError("trainer: a mixture of experts sends as its router chooses; count with bytes_by_strategy()")
    mesh, m = parts.mesh.sizes, parts.schedule.num_microbatches
    b, s = B // (mesh["dp"] * m), S // mesh["cp"]
    return {
        "dp": _zero_bytes(parts),
        "pp": _pipeline_bytes(parts, b, s),
        "cp": _attention_bytes(parts, b, S),
        "tp": _tensor_bytes(parts, b, s),
        "norm": _norm_bytes(parts),
    }


def _zero_bytes(parts: Parts) -> int:
    """Of Ψ elements on N = dp · cp ranks, each reduce-scatter and each all-gather sends (N − 1)Ψ, in a ring or in two
    levels. And the loss is all-reduced.
    """
    N = parts.mesh.data.size
    losses = 2 * math.prod(parts.mesh.sizes.values()) // N  # an all-reduce of one number in each group of N
    return (N - 1) * (_zero_elements(parts) * _itemsize(parts) + losses * NUMBER)


def _zero_elements(parts: Parts) -> int:
    """The elements of all gathers and reductions of a step.

    Zero 0, 1 and 2 gather once, zero 3 before each F and each backward: 2m times, but for the last blocks that are
    kept. Gradients are reduced once; at zero 2 and 3, unless they are accumulated, m times.
    """
    config, m = parts.config, parts.schedule.num_microbatches
    reduced = gathered = 0  # elements, on all ranks of pp and tp
    for name, elements in _elements(parts).items():
        holders = len(parts.ranks_of_weight[name])
        ends = 2 if config.tie_word_embeddings and name == EMBEDDING else 1  # a tied table is embedding and head
        each_microbatch = parts.settings.zero >= 2 and parts.settings.reduce != "accumulate"
        if each_microbatch and holders == 1:
            reduced += elements * ends * m
        else:  # a weight that several ranks of pp hold is summed there first
            reduced += elements * holders
        gathered += elements * (2 * ends * m if parts.settings.zero == 3 else holders)
    if parts.settings.keep_last_block:
        gathered -= sum(_not_gathered_again(parts, rank) for rank in range(parts.mesh.sizes["pp"]))
    return reduced + gathered


def _not_gathered_again(parts: Parts, rank: int) -> int:
    """The elements that a rank of the pipeline need not gather, because it keeps its last block from F to B or W."""
    schedule, elements = parts.schedule, _elements(parts)
    last = max(stage for stage in range(schedule.num_stages) if rank in schedule.holders(stage))
    names = _last_block(parts, rank)
    shared = len(parts.ranks_of_weight[names[0]]) > 1  # its gradients reach ZeRO after all microbatches
    saved, here = 0, False
    for kind, stage, _ in schedule.actions[rank]:
        if stage == last:
            if here and kind != "W":
                saved += 1
            here = shared or kind in ("F", "I")
    return saved * sum(elements[name] for name in names)


def _last_block(parts: Parts, rank: int) -> list[str]:
    """The weights of the last block of a rank of the pipeline, as `zero_blocks` in parts.py orders them."""
    own = [name for name, ranks in parts.ranks_of_weight.items() if rank in ranks]
    for name in (HEAD, FINAL_NORM):
        if name in own:
            return [name]
    layers = [int(name.split(".")[2]) for name in own if name.startswith("model.layers.")]
    return [name for name in own if name.startswith(f"model.layers.{max(layers)}.")]


def _pipeline_bytes(parts: Parts, b: int, s: int) -> int:
    """Each hop of an activation and of its gradient; then what several ranks hold, and the loss, are summed."""
    mesh, schedule = parts.mesh.sizes, parts.schedule
    hops = sum(
        schedule.rank_of(stage, microbatch) != schedule.rank_of(after, microbatch)
        for microbatch in range(schedule.num_microbatches)
        for stage, after in pairwise(range(schedule.num_stages))
    )
    activation = b * s * parts.config.hidden_size * _itemsize(parts)
    if parts.settings.sequence_parallel:
        activation //= mesh["tp"]
    losses = 2 * (mesh["pp"] - 1) * NUMBER
    summed = sum(2 * (len(parts.ranks_of_weight[name]) - 1) * elements for name, elements in _elements(parts).items())
    of_replica = mesh["tp"] * (2 * hops * activation + losses) + summed * _itemsize(parts)
    return mesh["dp"] * mesh["cp"] * of_replica


def _attention_bytes(parts: Parts, b: int, S: int) -> int:
    """Attention forward and backward in each layer; recomputation runs the forward twice."""
    config, mesh, m = parts.config, parts.mesh.sizes, parts.schedule.num_microbatches
    cp, tp = mesh["cp"], mesh["tp"]
    if cp == 1:
        return 0
    heads, groups = config.num_attention_heads // tp, max(1, config.num_key_value_heads // tp)
    shape = AttentionShape(S, heads, groups, config.head_dim, _itemsize(parts), b)
    _, _, cost = METHODS[parts.settings.attention]
    if parts.settings.attention != "ulysses":  # the bytes of ulysses depend neither on the mask nor on the layout
        cost = partial(cost, causal=True, layout=parts.settings.layout)
    forward, backward = (
        sum(cost(shape, cp, rank, backward=is_backward).nbytes for rank in range(cp)) for is_backward in (False, True)
    )
    if parts.settings.recompute == "full":
        forward *= 2
    return mesh["dp"] * tp * m * config.num_hidden_layers * (forward + backward)


def _tensor_bytes(parts: Parts, b: int, s: int) -> int:
    """The collectives of the model forward and backward; recomputation repeats those of the blocks' forward."""
    config, mesh, m = parts.config, parts.mesh.sizes, parts.schedule.num_microbatches
    sizes: Any = config, b, s, mesh["tp"], _itemsize(parts)
    how: Any = {"sequence_parallel": parts.settings.sequence_parallel}
    calls = model_collectives(*sizes, **how) + model_collectives(*sizes, backward=True, **how)
    if parts.settings.recompute == "full":
        calls += block_collectives(*sizes, **how) * config.num_hidden_layers
    return mesh["dp"] * mesh["cp"] * m * sum(traffic(calls, mesh["tp"]).nbytes)


def _norm_bytes(parts: Parts) -> int:
    """One all-reduce of the sum of squares: over the whole mesh, or at zero 0 over each replica."""
    ranks = math.prod(parts.mesh.sizes.values())
    together = parts.mesh.model.size if parts.settings.zero == 0 else ranks
    return ranks // together * sum(recursive_doubling_all_reduce_cost(together, 1, NUMBER, Link(0, 1)).nbytes)


def _elements(parts: Parts) -> dict[str, int]:
    """The elements of each weight on all ranks of tp together: a replicated weight counts once a rank that owns it."""
    return {
        name: math.prod(shape) * parts.model.slices[name].shared_by
        for name, shape in parts.config.weight_shapes.items()
    }


def _itemsize(parts: Parts) -> int:
    return arrays.itemsize(parts.replica.dtype)
