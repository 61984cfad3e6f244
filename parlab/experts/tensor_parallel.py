"""Experts cut by tensor parallelism: each of t ranks has some columns of gate and up, and the same rows of down.

    dispatch         each of the t ranks receives the rows of its own tokens
    all_gather       the rows of all t ranks                     (tokens are multiplied by t)
    experts          a partial sum of each answer, from M/t columns
    reduce_scatter   the sums, each back to the rank whose row it was
    combine

Source: Megatron-LM's ETP (megatron/core/transformer/moe/README.md); NVIDIA 2026, arXiv 2603.07685, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.arrays import Array, namespace, to_host
from parlab.experts.all_to_all import by_expert, by_source
from parlab.experts.layer import ExpertParallel, own_weights
from parlab.world import Comm


class TensorParallelExperts(ExpertParallel):
    """`ExpertParallel` whose experts are cut over the ranks of `etp`.

    Args:
        comm: the expert-parallel group: ranks with the same columns of different experts.
        etp: the ranks with other columns of the same experts. Each has tokens of its own.
        weights, and the rest: as for `ExpertParallel`; an expert's weights are this rank's columns.

    The gradients of this rank's columns hold the tokens of all ranks of both groups.
    """

    def __init__(self, comm: Comm, etp: Comm, *args: Any, **options: Any) -> None:
        self.etp = etp
        super().__init__(comm, *args, **options)

    @classmethod
    def cut_from_full(
        cls, comm: Comm, etp: Comm, weights: Mapping[str, Array], prefix: str, num_experts: int, k: int, **options: Any
    ) -> TensorParallelExperts:
        """From the weights of all experts, whole.

        Raises:
            ValueError: the experts, or their columns, do not divide among the ranks.
        """
        own = own_weights(weights, prefix, num_experts, comm.rank, comm.size)
        cut = {name: columns_of(name, x, prefix, etp.rank, etp.size) for name, x in own.items()}
        return cls(comm, etp, cut, prefix, num_experts, k, **options)

    def apply_experts(self, rows: Array, counts: Sequence[int]) -> tuple[Array, list[Any]]:
        """`[Σ counts, E]`, by expert -> the same."""
        table = self.counts_of_all(rows, counts)
        everyone, loads = self.gathered(rows, table)
        partial, caches = super().apply_experts(everyone, loads)
        return self.scattered(partial, table), [(table, loads), *caches]

    def apply_experts_backward(
        self, drows: Array, counts: Sequence[int], caches: Sequence[Any]
    ) -> tuple[Array, list[Any]]:
        """The conjugate: gradients are gathered, and the shares of dx scattered."""
        (table, loads), *of_experts = caches
        everyone, _ = self.gathered(drows, table)
        partial, pending = super().apply_experts_backward(everyone, loads, of_experts)
        return self.scattered(partial, table), pending

    def counts_of_all(self, rows: Array, counts: Sequence[int]) -> list[list[int]]:
        """`[t][m]`: the rows that each rank of `etp` has for each expert."""
        xp = namespace(rows)
        own = xp.asarray(list(counts), dtype=xp.int64, device=rows.device)
        return to_host(xp.reshape(self.etp.all_gather(own), (self.etp.size, len(counts))))

    def gathered(self, rows: Array, table: list[list[int]]) -> tuple[Array, list[int]]:
        """The rows of all ranks of `etp`, by expert, and how many each expert has."""
        everyone = self.etp.all_gather(rows, counts=[sum(of_rank) for of_rank in table])
        return by_expert(everyone, table), [sum(of_expert) for of_expert in zip(*table, strict=True)]

    def scattered(self, partial: Array, table: list[list[int]]) -> Array:
        """The sums over `etp`, of this rank's rows."""
        return self.etp.reduce_scatter(by_source(partial, table), counts=[sum(of_rank) for of_rank in table])


def columns_of(name: str, x: Array, prefix: str, rank: int, size: int) -> Array:
    """The part of an expert's weight that rank `rank` of `size` keeps; other weights are kept whole."""
    if not name.startswith(f"{prefix}.experts."):
        return x
    axis = 0 if name.endswith(".w2.weight") else 1
    if x.shape[axis] % size:
        raise ValueError(f"{name}: {x.shape[axis]} columns do not divide among {size} ranks")
    width = x.shape[axis] // size
    part = slice(rank * width, (rank + 1) * width)
    return namespace(x).asarray(x[part, :] if axis == 0 else x[:, part], copy=True)
