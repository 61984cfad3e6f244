"""What a step sends, by strategy: the closed forms, and the count that they are held against."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import Any

from parlab import arrays
from parlab.arguments import checked, instance
from parlab.nn.config import EMBEDDING
from parlab.sequence import AttentionShape
from parlab.tensor import block_collectives, model_collectives, traffic
from parlab.train.arguments import RULES
from parlab.train.attention import METHODS
from parlab.train.trainer import Trainer
from parlab.world import Link, Timeline, Transfer
from parlab.world.collectives import recursive_doubling_all_reduce_cost

NAMES = {"data": "dp", "model": "norm"}  # groups that are not named after what they are for
NUMBER = 8  # bytes of a loss, or of a sum of squares


def strategy_of(transfer: Transfer) -> str:
    """tp, cp, pp or dp, by the group in which the message is sent; norm: the one number of all ranks."""
    instance("transfer", transfer, Transfer)
    group, named, _ = transfer.name.partition(": ")
    return NAMES.get(group, group) if named else "norm"


@checked(RULES)
def bytes_by_strategy(timeline: Timeline) -> dict[str, int]:
    """Bytes that all ranks sent to others, counted by the group that they sent them in.

    `dp` is ZeRO's, among dp × cp, and the loss; `norm` the one number that decides about clipping and skipping.
    """
    found = Counter(dict.fromkeys(("dp", "pp", "cp", "tp", "norm"), 0))
    for transfer in timeline.transfers:
        if transfer.src != transfer.dst:
            found[strategy_of(transfer)] += transfer.nbytes
    return dict(found)


@checked(RULES)
def step_bytes(trainer: Trainer, B: int, S: int) -> dict[str, int]:
    """What `bytes_by_strategy` counts in one step on a batch `[B, S]`, in closed form: rings, and of any uneven cut.

    dp: of Ψ elements in N = dp · cp ranks, (N − 1)Ψ for each reduce-scatter and each all-gather, one of each; zero 3
    gathers 2m times, for each F and each backward, and zero 2 and 3 reduce m times unless they accumulate.
    """
    instance("trainer", trainer, Trainer)
    config, schedule, (dp, pp, cp, tp) = trainer.config, trainer.schedule, trainer.mesh.sizes.values()
    m, itemsize = schedule.num_microbatches, arrays.itemsize(trainer.replica.dtype)
    recomputed, sequence_parallel = trainer.recompute == "full", trainer.sequence_parallel
    b, s = B // (dp * m), S // cp

    weights = shared = 0  # elements, on all ranks of pp and tp
    for name, shape in config.weight_shapes.items():
        elements = math.prod(shape) * trainer.model.pieces[name].owners
        held = len(trainer.holders[name])
        uses = m * (2 if config.tie_word_embeddings and name == EMBEDDING else 1)  # each forward, and backward
        at_once = trainer.zero > 1 and trainer.reduce != "accumulate" and held == 1
        weights += elements * ((uses if at_once else held) + (2 * uses if trainer.zero == 3 else held))
        shared += elements * 2 * (held - 1)

    crossings = sum(
        schedule.rank_of(stage, microbatch) != schedule.rank_of(after, microbatch)
        for microbatch in range(m)
        for stage, after in pairwise(range(schedule.num_stages))
    )
    passed = b * s * config.hidden_size // (tp if sequence_parallel else 1) * itemsize

    sizes: Any = config, b, s, tp, itemsize
    how: Any = {"sequence_parallel": sequence_parallel}
    calls = [call for back in (False, True) for call in model_collectives(*sizes, backward=back, **how)]
    calls += block_collectives(*sizes, **how) * (config.num_hidden_layers if recomputed else 0)

    heads = config.num_attention_heads // tp, max(1, config.num_key_value_heads // tp)
    of_rank, cost = AttentionShape(S, *heads, config.head_dim, itemsize, b), METHODS[trainer.attention][2]
    if trainer.attention != "ulysses":  # whose rows are all whole, whatever is masked
        cost = partial(cost, causal=True, layout=trainer.layout)
    passes = [False, True, False] if recomputed else [False, True]
    attention = sum(cost(of_rank, cp, rank, backward=back).nbytes for rank in range(cp) for back in passes)
    parts = pp * tp if trainer.zero == 0 else dp * pp * cp * tp  # that have one norm together
    norm = recursive_doubling_all_reduce_cost(parts, 1, NUMBER, Link(0, 1))
    return {
        "dp": (dp * cp - 1) * (weights * itemsize + pp * tp * 2 * NUMBER),
        "pp": dp * cp * (tp * (2 * crossings * passed + 2 * (pp - 1) * NUMBER) + shared * itemsize),
        "cp": dp * tp * m * config.num_hidden_layers * attention if cp > 1 else 0,
        "tp": dp * cp * m * sum(traffic(calls, tp).nbytes),
        "norm": dp * pp * cp * tp // parts * sum(norm.nbytes),
    }
