"""G of stage 0, plain data parallelism: every rank gets all sums, and gradients are all-reduced in buckets.

A bucket is a compromise. A small one is sent early, while the backward pass still computes. A large one pays the
latency of its messages once for many gradients.

Invariant: each gradient is in exactly one bucket of a step; before and after each step all ranks have the same
weights and moments, to the bit.

Source: Li et al. 2020, "PyTorch distributed: experiences on accelerating data parallel training", section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.arrays import Array, namespace, nbytes
from parlab.world import Request
from parlab.zero.gradients import GRADIENTS
from parlab.zero.shards import FlatLayout


class Bucket(NamedTuple):
    """Gradients of some blocks, one after the other, under way in one all-reduce."""

    blocks: list[str]
    gradients: Array  # flat, of all its blocks
    request: Request


class BucketedGradients:
    """This rank's gradients of all n weights of a block, until their bucket is sent; then the bucket.

    Args:
        layouts: of the blocks. Those in a bucket must share one group: if there are several, `bucket_bytes` is 1.
        dtype: of the gradients.
        bucket_bytes: a bucket is sent when its gradients are at least so many bytes.
    """

    def __init__(self, layouts: Mapping[str, FlatLayout], dtype: Any, bucket_bytes: int) -> None:
        self.layouts, self.dtype, self.bucket_bytes = layouts, dtype, bucket_bytes
        self.free()

    def free(self) -> None:
        """Forget the gradients."""
        self.own: dict[str, Array] = {}  # [n] by block, not in a bucket yet
        self.waiting: list[str] = []  # blocks that are complete, and not in a bucket yet
        self.buckets: list[Bucket] = []

    def add(self, block: str, gradients: Mapping[str, Array], complete: bool) -> None:
        """Add one microbatch. The last one, `complete`, may fill a bucket, which is then sent."""
        flat = self.layouts[block].pack(gradients, self.dtype)  # [n]
        if block in self.own:
            self.own[block] += flat
        else:
            self.own[block] = flat
            self.layouts[block].group.hold(GRADIENTS, flat)
        del flat  # else this block's copy stays in memory when its bucket is sent
        if complete:
            self.waiting.append(block)
            if sum(nbytes(self.own[name]) for name in self.waiting) >= self.bucket_bytes:
                self._send()

    def _send(self) -> None:
        group = self.layouts[self.waiting[0]].group
        of_blocks = [self.own.pop(block) for block in self.waiting]
        gradients = namespace(*of_blocks).concat(of_blocks)  # flat, of all blocks in the bucket
        del of_blocks
        group.hold(GRADIENTS, gradients)
        self.buckets.append(Bucket(self.waiting, gradients, group.iall_reduce(gradients)))
        self.waiting = []

    def reduced(self) -> dict[str, Array]:
        """The sums over ranks, `[n]` by block, in the order of the buckets."""
        if self.waiting:
            self._send()
        sums = {}
        for bucket in self.buckets:
            bucket.gradients[...] = bucket.request.wait()
            start = 0
            for block in bucket.blocks:
                stop = start + self.layouts[block].size
                sums[block] = bucket.gradients[start:stop]
                start = stop
        return sums
