"""The stand-in for a weight that stage 3 has freed."""

from __future__ import annotations

from typing import Any


class Freed:
    """Stands in the model for a weight that is not gathered; an error says so when a program computes with it."""

    def __init__(self, name: str, block: Any) -> None:
        self.text = f"{name} is sharded, and not gathered now: use it inside `with zero.weights({block!r}):`"

    def __getattr__(self, attribute: str) -> Any:
        raise RuntimeError(vars(self).get("text", "a weight that is not gathered cannot be copied"))
