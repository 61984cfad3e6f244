"""M, the optimizer's state of the n_r weights of a block that this rank owns: on the device, or behind a bus.

Invariant: the master is this rank's shard of the weights, and at least float32. Where the model computes in the
master's precision there is no second copy: the master is the shard of W itself, and `update` changes both.

Source: Ren et al. 2021, "ZeRO-Offload: democratizing billion-scale model training", section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parlab.arguments import instance, positive, whole
from parlab.arrays import Array, itemsize, namespace
from parlab.nn.optimizer import AdamW
from parlab.world import Comm, Link

OPTIMIZER, OFFLOADED = "optimizer", "optimizer, offloaded"  # names of memory: of the device, and elsewhere


@dataclass(frozen=True)
class Offload:
    """The memory that holds and updates the optimizer's state when the device is too small.

    Only gradients go there and only weights come back: 4 bytes a parameter in mixed precision. To fetch the state
    itself would move 24.

    Args:
        link: between a rank's device and this memory.
        memory_bandwidth: bytes a second that it reads and writes, for one rank.

    Raises:
        ValueError: no `Link`, or a bandwidth that is not positive.
    """

    link: Link
    memory_bandwidth: float

    def __post_init__(self) -> None:
        instance("link", self.link, Link)
        positive("memory_bandwidth", self.memory_bandwidth)

    def seconds(self, gradient: int, state: int) -> float:
        """The duration of an update: the gradient goes there, the state is read and written, the weights come back.

        Args:
            gradient: bytes of the gradient's shard as it travels; the weights' shard is as long.
            state: bytes that the update reads and writes.

        Raises:
            ValueError: a negative number of bytes.
        """
        whole("gradient", gradient, 0)
        whole("state", state, 0)
        return 2 * self.link.picoseconds(gradient) / 1e12 + state / self.memory_bandwidth


class OptimizerShard:
    """Master weights and two moments, `[n_r]` each, of the shard that this rank updates.

    Args:
        comm: whose memory and time it takes.
        weights: `[n_r]`: the shard in the precision of the masters. It becomes the master, and is changed in place.
        dtype: of the weights that the model computes with. If the masters have it too, `weights` is part of the model,
            and counted there.
        offload: where the state lives, if not on the device.
    """

    def __init__(self, comm: Comm, weights: Array, dtype: Any, offload: Offload | None) -> None:
        xp = namespace(weights)
        self.comm, self.dtype, self.offload = comm, dtype, offload
        self.master = weights
        self.mean, self.square = xp.zeros_like(weights), xp.zeros_like(weights)
        self.mixed = weights.dtype != dtype
        owned = (self.master, self.mean, self.square) if self.mixed else (self.mean, self.square)
        comm.hold(OPTIMIZER if offload is None else OFFLOADED, *owned)

    def update(self, optimizer: AdamW, gradient: Array, factor: float, step: int, lr: float | None) -> Array:
        """Return the new weights `[n_r]` in the model's precision, from the summed gradient times `factor`."""
        xp = namespace(self.master)
        if self.master.size > 0:  # a rank may own nothing of a small block
            with self.comm.compute("AdamW", **self._cost()):
                gradient = xp.astype(gradient, self.master.dtype, copy=False) * factor  # [n_r]
                optimizer.update(self.master, gradient, self.mean, self.square, step=step, lr=lr)
        return self.weights()

    def weights(self) -> Array:
        """The masters `[n_r]` in the model's precision."""
        return namespace(self.master).astype(self.master, self.dtype, copy=False)

    def _cost(self) -> dict[str, float]:
        """The bytes, or with offload the seconds: read the gradient, read and write the state, write the weights."""
        wide, narrow = itemsize(self.master.dtype), itemsize(self.dtype)
        state = (2 * 3 * wide + 2 * narrow if self.mixed else 2 * 3 * wide + wide) * self.master.size
        if self.offload is None:
            return {"bytes": state}
        return {"seconds": self.offload.seconds(gradient=narrow * self.master.size, state=state)}
