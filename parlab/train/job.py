"""The job of a trainer: what is trained, on which ranks, and how. Nothing in it changes from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from parlab import sequence
from parlab.arrays import Array, asarray, namespace
from parlab.nn.config import FINAL_NORM, LlamaConfig
from parlab.nn.cross_entropy import number_of_targets
from parlab.nn.llama import Llama
from parlab.pipeline import Schedule
from parlab.train.mesh import Mesh
from parlab.world import Comm


class TrainSettings(NamedTuple):
    """How a `Trainer` trains: its options by their names. Those that go to ZeRO alone are its `precision`."""

    zero: int
    attention: str
    layout: str
    sequence_parallel: bool
    recompute: str
    reduce: str | None
    auxiliary: float
    bias_rate: float


@dataclass
class TrainJob:
    """The arguments of a trainer, checked, and the sizes that follow from them."""

    mesh: Mesh
    config: LlamaConfig
    schedule: Schedule
    layers: Sequence[range]  # of each pipeline stage
    settings: TrainSettings
    xp: Any  # the array library, and the device, of the model's weights
    device: Any

    @classmethod
    def of(
        cls, mesh: Mesh, model: Llama, schedule: Schedule, layers: Sequence[range], settings: TrainSettings
    ) -> TrainJob:
        """The job of training this model."""
        norm = model.weights[FINAL_NORM]
        return cls(mesh, model.config, schedule, layers, settings, namespace(norm), norm.device)

    @property
    def groups_of_tokens(self) -> list[Comm]:
        """The groups whose all-reduces, one after the other, make a sum over this rank's tokens one over all tokens."""
        return [self.mesh.data, *([self.mesh.tp] if self.settings.sequence_parallel else [])]

    def positions(self, length: int) -> Array:
        """The positions of this rank's tokens in the whole sequence: `[S/cp]`."""
        cp, layout = self.mesh.cp, self.settings.layout
        here = range(length) if cp.size == 1 else sequence.positions(length * cp.size, cp.size, layout)[cp.rank]
        return asarray(here, self.xp, device=self.device)

    def activation(self, tokens: Array, dtype: Any) -> Array:
        """An array like the one that a pipeline stage passes to the next for tokens `[b, S/cp]`: `[b, s, E]`."""
        b, s = tokens.shape
        if self.settings.sequence_parallel:
            s //= self.mesh.tp.size
        return self.xp.empty((b, s, self.config.hidden_size), dtype=dtype, device=self.device)

    def target_tokens_a_rank(self, targets: Array) -> float:
        """The number of target tokens that a rank has on average, T/N, from the whole batch's targets.

        A rank divides the losses of its own target tokens by it. The mean over ranks, which ZeRO takes last, is then
        the sum of all losses / T: the mean over tokens. A mean of the ranks' own means would count each token of a rank
        with few targets more than the others. Every rank has the whole batch, and counts T without a message.
        """
        return number_of_targets(targets) / self.mesh.data.size
