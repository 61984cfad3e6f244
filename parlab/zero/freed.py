"""The stand-in for a weight that is not there now: freed by stage 3, or not gathered yet after a step."""

from __future__ import annotations

from typing import Any


class Freed:
    """Stands in the model for a weight that is not gathered; an error says so when a program computes with it.

    Args:
        name: of the weight.
        block: that it belongs to.
        why: the state of the weight, for the error.
    """

    def __init__(self, name: str, block: Any, why: str = "is sharded, and not gathered now") -> None:
        self.text = f"{name} {why}: use it inside `with zero.weights({block!r}):`"

    def __getattr__(self, attribute: str) -> Any:
        raise RuntimeError(vars(self).get("text", "a weight that is not gathered cannot be copied"))
