"""The memory that a tensor-parallel block keeps for its backward, on paper."""

from __future__ import annotations

from parlab.nn.config import LlamaConfig
from parlab.nn.formulas import block_kept_bytes
from parlab.tensor.arguments import check_on_paper
from parlab.tensor.slices import check_divides, check_sizes, kv_shared_by


def llama_kept_by_place(
    config: LlamaConfig, B: int, S: int, size: int, itemsize: int, *, sequence_parallel: bool = False
) -> dict[str, int]:
    """Bytes that a rank keeps of one Llama block for its backward, item by item; the common rotary tables apart.

    Norms, and the inputs of norms and of column layers, are whole on every rank, or S/t tokens of them with sequence
    parallelism; the rest is heads and columns. Where G < t each key/value head is kept by all its owners.

    >>> config = LlamaConfig(vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
    ...                      num_attention_heads=8)
    >>> [sum(llama_kept_by_place(config, 1, 8, t, 2, sequence_parallel=True).values()) for t in (1, 2, 4)]
    [14656, 7328, 3664]
    """
    check_on_paper(config, sequence_parallel, B=B, S=S, size=size, itemsize=itemsize)
    check_sizes(config, size)
    if sequence_parallel:
        check_divides("sequence length", S, size)
    shared_by = kv_shared_by(config.num_key_value_heads, size)
    kept = {}
    for place, nbytes in block_kept_bytes(config, B, S, itemsize).items():
        if "norm" in place or place.endswith(".x"):
            kept[place] = nbytes // size if sequence_parallel else nbytes
        else:
            kept[place] = nbytes * (shared_by if place in ("attention.k", "attention.v") else 1) // size
    return kept
