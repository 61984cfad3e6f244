"""What a step sends, by strategy: the closed forms, and the count that they are held against."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from parlab import arrays
from parlab.nn.config import EMBEDDING
from parlab.sequence import AttentionShape
from parlab.tensor import block_collectives, model_collectives, traffic
from parlab.train.parts import METHODS, how_dealt
from parlab.train.trainer import Trainer
from parlab.world import Timeline

NAMES = {"data": "dp", "model": "norm"}  # groups that are not named after what they are for
NUMBER = 8  # bytes of a loss, or of a sum of squares


def bytes_by_strategy(timeline: Timeline) -> dict[str, int]:
    """Bytes that all ranks sent to others, counted by the group that they sent them in.

    `dp` is ZeRO's, among dp × cp, and the loss; `norm` the one number that decides about clipping and skipping.
    """
    found = Counter(dict.fromkeys(("dp", "pp", "cp", "tp", "norm"), 0))
    for transfer in timeline.transfers:
        group, named, _ = transfer.name.partition(": ")
        if transfer.src != transfer.dst:
            found[NAMES.get(group, group) if named else "norm"] += transfer.nbytes
    return dict(found)


def step_bytes(trainer: Trainer, B: int, S: int) -> dict[str, int]:
    """What `bytes_by_strategy` counts in one step on a batch `[B, S]`, in closed form; all rings, of any uneven cut.

    dp: of Ψ elements in N = dp · cp ranks, (N − 1)Ψ for each reduce-scatter and each all-gather, one of each; zero 3
    gathers 2m times, for each F and each backward, and zero 2 and 3 reduce m times unless they accumulate.
    """
    config, schedule, sizes = trainer.config, trainer.schedule, trainer.mesh.sizes
    dp, pp, cp, tp = sizes.values()
    m, itemsize = schedule.num_microbatches, arrays.itemsize(trainer.replica.dtype)
    recomputed = trainer.recompute == "full"
    b, s = B // (dp * m), S // cp

    weights = shared = 0  # elements, on all ranks of pp and tp
    for name, shape in config.weight_shapes.items():
        elements = shape[0] * (shape[1] if len(shape) == 2 else 1) * trainer.model.pieces[name].owners
        held = len(trainer.holders[name])
        tied = config.tie_word_embeddings and name == EMBEDDING
        once = trainer.zero < 2 or trainer.accumulate or held > 1
        reduced = held if once else m * (2 if tied else 1)
        gathered = held if trainer.zero < 3 else 2 * m * (2 if tied else 1)
        weights += elements * (reduced + gathered)
        shared += elements * 2 * (held - 1)

    crossings = sum(
        schedule.rank_of(stage, microbatch) != schedule.rank_of(after, microbatch)
        for microbatch in range(m)
        for stage, after in pairwise(range(schedule.num_stages))
    )
    passed = b * s * config.hidden_size // (tp if trainer.sequence_parallel else 1) * itemsize

    options = {"sequence_parallel": trainer.sequence_parallel}
    calls = [
        call
        for back in (False, True)
        for call in model_collectives(config, b, s, tp, itemsize, backward=back, **options)
    ]
    if recomputed:
        calls += block_collectives(config, b, s, tp, itemsize, **options) * config.num_hidden_layers

    heads = config.num_attention_heads // tp, max(1, config.num_key_value_heads // tp)
    shape_of_rank = AttentionShape(S, *heads, config.head_dim, itemsize, b)
    cost, how = METHODS[trainer.attention][2], how_dealt(trainer.attention, trainer.layout)
    how = {} if trainer.attention == "ulysses" else how  # all of its rows are whole, whatever is masked
    attention = sum(
        cost(shape_of_rank, cp, rank, **how, backward=back).nbytes
        for rank in range(cp)
        for back in ([False, True, False] if recomputed else [False, True])
    )
    return {
        "dp": (dp * cp - 1) * (weights * itemsize + pp * tp * 2 * NUMBER),
        "pp": dp * cp * (tp * (2 * crossings * passed + 2 * (pp - 1) * NUMBER) + shared * itemsize),
        "cp": dp * tp * m * config.num_hidden_layers * attention if cp > 1 else 0,
        "tp": dp * cp * m * sum(traffic(calls, tp).nbytes),
        "norm": 2 * NUMBER * ((dp * cp) * (pp * tp - 1) if trainer.zero == 0 else dp * pp * cp * tp - 1),
    }
