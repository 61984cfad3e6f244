"""The bytes that a rank held, counted: the model's state, without activations and without messages on their way."""

from __future__ import annotations

from parlab.arguments import instance
from parlab.world import Timeline

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"  # the model's state
OFFLOADED = "optimizer, offloaded"  # the same, but not on the device
GATHERED, LEAVING = "gathered weights", "gradients on their way"  # the blocks in use
ACTIVATIONS = "activations"


def state_bytes_held(timeline: Timeline, rank: int) -> dict[str, int]:
    """Bytes of weights, gradients and optimizer state that `rank` held, each at its peak.

    Weights and optimizer state are held all the time. So the sum of the three was held when the last gradient had come;
    it is the number of `model_state_bytes`.

    Raises:
        ValueError: there is no such rank, or no timeline.
    """
    instance("timeline", timeline, Timeline)
    held = timeline.held_by_name(rank)
    return {
        name: max((total for _, total in held.get(name, [])), default=0) for name in (WEIGHTS, GRADIENTS, OPTIMIZER)
    }
