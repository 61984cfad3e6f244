"""The actions of a rank in a pipeline: forwards, backwards, and pairs of them.

The notation is PyTorch's (torch.distributed.pipelining): `2F0` is the forward of microbatch 0 on stage 2. Papers differ
in one letter: in Zero Bubble "B" is the backward for the input alone; here, as in PyTorch and DualPipe, it is the whole
backward, of which I and W are the two halves. In the code of this room F, B, I and W are also called forward, full,
half (the one for which a neighbour waits) and weight.
"""

from __future__ import annotations

from typing import NamedTuple

KINDS = {"F": "forward", "B": "full backward", "I": "backward for the input", "W": "backward for the weights"}


class Action(NamedTuple):
    """One computation of a rank.

    Args:
        kind: `F` forward, `B` full backward, `I` backward for the input, `W` backward for the weights.
        stage: the part of the model, from 0.
        microbatch: the part of the batch, from 0.

    >>> str(Action("F", stage=2, microbatch=0))
    '2F0'
    """

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Pair(NamedTuple):
    """A forward and a full backward, of different microbatches, that overlap on one rank.

    Source: DualPipe (DeepSeek-V3 technical report, section 3.2.1).

    >>> str(Pair(Action("F", 0, 7), Action("B", 7, 3)))
    '(0F7;7B3)OVERLAP_F_B'
    """

    F: Action
    B: Action

    def __str__(self) -> str:
        return f"({self.F};{self.B})OVERLAP_F_B"


Slot = Action | Pair | None  # a cell of a schedule; None is an idle slot
