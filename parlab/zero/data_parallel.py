"""Plain data parallelism, the baseline: every rank holds everything, and gradients are all-reduced in buckets.

A bucket is a compromise. A small one is sent early, while the backward pass still computes. A large one pays the
latency of its messages once for many gradients.

Invariant: each gradient is in exactly one bucket of a step; before and after it all ranks have the same weights and
moments, to the bit.

Source: Li et al. 2020, "PyTorch distributed: experiences on accelerating data parallel training", section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arguments import whole
from parlab.arrays import Array, namespace, nbytes
from parlab.nn.optimizer import AdamW
from parlab.world import Comm, Request
from parlab.zero.accounting import GRADIENTS
from parlab.zero.replica import Replica
from parlab.zero.shards import FlatLayout


class Bucket(NamedTuple):
    """Gradients of some blocks, one after the other, under way in one all-reduce."""

    blocks: list[str]
    gradients: Array  # [n]
    request: Request


class DataParallel(Replica):
    """One replica, whose state every rank has whole; see `Replica` for how to use it.

    Args:
        comm, params, optimizer: as for `Replica`.
        bucket_bytes: a bucket is sent when its gradients are at least so many bytes.
        of_replica: further arguments of `Replica`: blocks, microbatches, dtype, loss_scale, max_norm, model_parallel.

    Raises:
        ValueError: an argument that cannot be used.
        MismatchError: weights or an optimizer that are not the same on every rank.

    >>> import numpy as np
    >>> from parlab import run
    >>> def program(comm, w):
    ...     replica = DataParallel(comm, {"w": w}, AdamW(lr=0.5, weight_decay=0.0))
    ...     replica.add_gradients("w", {"w": np.full(3, 1.0 + comm.rank)})
    ...     replica.step()
    ...     return replica.full_weights()["w"]
    >>> run(program, 2, np.ones(3)).results[1].round(6)
    array([0.5, 0.5, 0.5])
    """

    def __init__(
        self,
        comm: Comm,
        params: dict[str, Array],
        optimizer: AdamW,
        *,
        bucket_bytes: int = 25 * 2**20,
        **of_replica: Any,
    ) -> None:
        whole("bucket_bytes", bucket_bytes, least=1)
        super().__init__(comm, params, optimizer, **of_replica)
        self.bucket_bytes, self.group = bucket_bytes, comm
        for block in self.block_names:
            arrays = self._arrays(block)
            layout = FlatLayout(arrays, [sum(x.size for x in arrays.values())], rank=0)
            del arrays
            self._take_over(block, layout)
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        self._gradients: dict[str, Array] = {}  # [n] by block, this rank's
        self._waiting: list[str] = []  # blocks that are complete, and not in a bucket yet
        self._buckets: list[Bucket] = []

    def _start_gathers(self, block: str) -> None:
        """Start nothing: every rank has all weights."""

    def _add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        flat = self._blocks[block].layout.pack(gradients, self.dtype)  # [n]
        if block in self._gradients:
            self._gradients[block] += flat
        else:
            self._gradients[block] = flat
            self.comm.hold(GRADIENTS, flat)
        del flat  # else this block's copy stays in memory when its bucket is sent
        if complete:
            self._waiting.append(block)
            if sum(nbytes(self._gradients[name]) for name in self._waiting) >= self.bucket_bytes:
                self._send_bucket()

    def _send_bucket(self) -> None:
        of_blocks = [self._gradients.pop(block) for block in self._waiting]
        gradients = namespace(*of_blocks).concat(of_blocks)  # [n], of all blocks in the bucket
        del of_blocks
        self.comm.hold(GRADIENTS, gradients)
        first = self._waiting[0]  # its group is that of the whole bucket: a cut replica has one block in each
        request = self._group_of(first).iall_reduce(gradients)
        self._buckets.append(Bucket(self._waiting, gradients, request))
        self._waiting = []

    def _step(self, lr: float | None) -> float | None:
        if self._waiting:
            self._send_bucket()
        gradients: dict[str, Array] = {}  # [n] by block
        for bucket in self._buckets:
            bucket.gradients[...] = bucket.request.wait()
            start = 0
            for block in bucket.blocks:
                gradients[block] = bucket.gradients[start : start + self._blocks[block].layout.size]
                start += self._blocks[block].layout.size
        factor = self._decide([gradients[block] for block in self.block_names], comm=None)
        if factor is not None:
            for block, gradient in gradients.items():
                new = self._blocks[block].state.update(self.optimizer, gradient, factor, self.steps, lr)  # [n]
                self._blocks[block].weights.put(new)
        self._forget_gradients()
        return factor
