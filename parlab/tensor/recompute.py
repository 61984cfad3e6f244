"""Keep a block's input alone in the forward pass, and run its whole forward again in the backward pass.

That is a third more work, and the forward's messages once more. (*Selective* recomputation drops only the S × S weights
of attention. Attention by tiles keeps none.)

Invariant: y, dx and the gradients are the stage's own, to the bit; of the forward only the input is kept.

Source: Chen et al. 2016, "Training deep nets with sublinear memory cost"; Korthikanti et al. 2022, section 5.
"""

from __future__ import annotations

from typing import Any

from parlab.arrays import Array
from parlab.nn.stage import Gradients, Stage


class Recompute(Stage):
    """A stage that keeps its input alone; its forward is run again."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.weights, self.weight_names = stage, stage.weights, stage.weight_names

    def forward(self, x: Array) -> tuple[Array, dict[str, Array]]:
        """`(y, cache)`."""
        return self.stage.forward(x)[0], {"x": x}

    def backward_input(self, dy: Array, cache: dict[str, Array]) -> tuple[Array, Any]:
        """`(dx, pending)`, after the forward again."""
        return self.stage.backward_input(dy, self.stage.forward(cache["x"])[1])

    def backward_weight(self, pending: Any) -> Gradients:
        """The stage's gradients."""
        return self.stage.backward_weight(pending)

    def backward(self, dy: Array, cache: dict[str, Array]) -> tuple[Array, Gradients]:
        """The stage's own, after the forward again."""
        return self.stage.backward(dy, self.stage.forward(cache["x"])[1])
