"""Five levels of memory that a block keeps for its backward, when its sequence is spread over ranks.

    level      keeps                                    computes again
    none       all arrays of its cache                  nothing
    low        all but those made without a product     both norms and SwiGLU
    medium     its input, and attention's out and lse   all but attention
    high       its input                                all: attention sends its messages again
    extreme    its input, on the host                   the same; the input travels to the host and back

Under context parallelism a forward that runs again sends its messages again. So between "keep all" and "keep the input
alone" stands a level, medium, that computes all products again, but keeps the result of attention.

`level_bytes` is the memory on paper; `checkpointed` has the block.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; to keep attention's output and lse: Li et al.
2023, "DistFlashAttn", section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable

from parlab.arguments import one_of, whole
from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_kept_bytes
from parlab.sequence.layouts import checked_sequence

MEMORY_LEVELS: dict[str, Callable[[str], bool]] = {  # whether a level keeps an array, by its place in the block's cache
    "none": lambda place: True,
    "low": lambda place: place not in ("attention.x", "mlp.x", "mlp.hidden"),
    "medium": lambda place: place in ("attention_norm.x", "attention.merged", "attention.lse"),
    "high": lambda place: place == "attention_norm.x",
    "extreme": lambda place: False,
}


def level_bytes(config: LlamaConfig, B: int, S: int, size: int, level: str, itemsize: int = 4) -> int:
    """Bytes that one block keeps on each rank from its forward to its backward, with S/P tokens a rank.

    In a step of L blocks the peak is the peak of level none less L − 1 times the saving of one block: the block whose
    backward runs has computed all of its cache again.

    >>> config = LlamaConfig(vocab_size=8, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
    ...                      num_attention_heads=4)
    >>> [level_bytes(config, 1, 64, 4, level) for level in MEMORY_LEVELS]
    [57728, 41344, 8448, 4096, 0]
    """
    whole("B", B, least=1)
    whole("S", S)
    whole("size", size)
    whole("itemsize", itemsize, least=1)
    one_of("level", level, tuple(MEMORY_LEVELS))
    checked_sequence(S, size)
    keeps, bytes_of = MEMORY_LEVELS[level], block_kept_bytes(config, B, S // size, itemsize)
    return sum(nbytes for place, nbytes in bytes_of.items() if keeps(place))
