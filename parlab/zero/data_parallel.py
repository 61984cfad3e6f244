"""Plain data parallelism, the baseline: every rank holds everything, and gradients are all-reduced in buckets.

A bucket is a compromise: a small one can leave early, while the backward still computes what comes before it; a large
one pays the latency of its messages once for many gradients.

Source: Li et al. 2020, "PyTorch distributed: experiences on accelerating data parallel training", section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace, nbytes
from parlab.nn.optimizer import AdamW
from parlab.world import Comm, Request
from parlab.zero.accounting import GRADIENTS
from parlab.zero.arguments import (
    Params,
    at_least,
    check_block,
    check_complete,
    check_gradients,
    check_numbers,
    checked_blocks,
    dtypes,
)
from parlab.zero.precision import LossScale, StepGuard, StepResult
from parlab.zero.replica import Replica
from parlab.zero.shards import Layout
from parlab.zero.state import OptimizerShard
from parlab.zero.weights import WholeWeights


class Block(NamedTuple):
    """A block's state, all of it whole."""

    layout: Layout
    weights: WholeWeights
    state: OptimizerShard


class Bucket(NamedTuple):
    """Gradients of some blocks, one after the other, on their way to become everybody's sum."""

    blocks: list[str]
    gradients: Array  # [n]
    request: Request


class DataParallel(Replica):
    """One replica, whose state every rank has whole; see `Replica` for how to use it.

    Args:
        comm, params, optimizer, blocks, dtype, loss_scale, max_norm, microbatches: as for `Zero`.
        bucket_bytes: a bucket leaves when the gradients in it are at least so many bytes.

    Raises:
        ValueError: an argument that is not as said.

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
        params: Params,
        optimizer: AdamW,
        *,
        blocks: Mapping[str, Sequence[str]] | None = None,
        bucket_bytes: int = 25 * 2**20,
        dtype: str | None = None,
        loss_scale: LossScale | None = None,
        max_norm: float | None = None,
        microbatches: int = 1,
    ) -> None:
        members = checked_blocks(params, blocks)
        check_numbers(optimizer, max_norm, microbatches)
        at_least("bucket_bytes", bucket_bytes, 1)
        work, wide = dtypes(members, dtype)
        self.comm, self.optimizer = comm, optimizer
        self.bucket_bytes, self.microbatches, self.dtype = bucket_bytes, microbatches, work
        self.given_in_blocks = all(of_block.home is not params for of_block in members.values())
        self.guard = StepGuard.of(comm.size * microbatches, max_norm, loss_scale, work)
        self._blocks: dict[Any, Block] = {}
        for block, of_block in members.items():
            arrays = of_block.arrays
            layout = Layout(arrays, [sum(x.size for x in arrays.values())], rank=0)
            weights = WholeWeights(comm, layout, of_block.home, work)
            master = weights.whole if work == wide else layout.pack(arrays, wide)
            self._blocks[block] = Block(layout, weights, OptimizerShard(comm, master, work, offload=None))
            del arrays, master
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        self._gradients: dict[str, Array] = {}  # [n] by block, this rank's
        self._added = dict.fromkeys(self._blocks, 0)
        self._waiting: list[str] = []  # blocks that are complete, and not in a bucket yet
        self._buckets: list[Bucket] = []

    @property
    def block_names(self) -> Iterable[str]:
        """In the order of the forward pass."""
        return self._blocks

    @contextmanager
    def weights(self, block: str) -> Iterator[dict[str, Array]]:
        """A block's weights by name. See `Replica.weights`."""
        check_block(block, self._blocks)
        yield self._blocks[block].weights.open()

    def add_gradients(self, block: str, gradients: Mapping[str, Array]) -> None:
        """The gradients of a block's weights from one microbatch. See `Replica.add_gradients`."""
        check_block(block, self._blocks)
        layout = self._blocks[block].layout
        check_gradients(block, gradients, layout.shapes, self._added[block], self.microbatches)
        flat = layout.pack(gradients, self.dtype)  # [n]
        if block in self._gradients:
            self._gradients[block] += flat
        else:
            self._gradients[block] = flat
            self.comm.hold(GRADIENTS, flat)
        self._added[block] += 1
        if self._added[block] == self.microbatches:
            self._waiting.append(block)
            if sum(nbytes(self._gradients[name]) for name in self._waiting) >= self.bucket_bytes:
                self._send_bucket()

    def _send_bucket(self) -> None:
        parts = [self._gradients.pop(block) for block in self._waiting]
        gradients = namespace(*parts).concat(parts)  # [n], of all blocks in the bucket
        del parts
        self.comm.hold(GRADIENTS, gradients)
        self._buckets.append(Bucket(self._waiting, gradients, self.comm.iall_reduce(gradients)))
        self._waiting = []

    def step(self, lr: float | None = None) -> StepResult:
        """Update every weight, on every rank alike. See `Replica.step`."""
        check_complete(self._added, self.microbatches)
        if self._waiting:
            self._send_bucket()
        for bucket in self._buckets:
            bucket.gradients[...] = bucket.request.wait()
        factor = self.guard.factor([bucket.gradients for bucket in self._buckets], comm=None)
        if factor is not None:
            for bucket in self._buckets:
                self._update(bucket, factor, lr)
        self._forget_gradients()
        return self.guard.result(factor)

    def _update(self, bucket: Bucket, factor: float, lr: float | None) -> None:
        start = 0
        for block in bucket.blocks:
            layout, weights, state = self._blocks[block]
            gradient = bucket.gradients[start : start + layout.size]  # [n]
            weights.whole[...] = state.update(self.optimizer, gradient, factor, self.steps, lr)
            start += layout.size
