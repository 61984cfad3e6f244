"""Patterns of communication, by name: each computes exact attention, or says for which window it does.

| name | who talks to whom | how |
|---|---|---|
| ring | the neighbours, P − 1 times | ring attention |
| tree | halves of the group, halves of those, ... | tree attention |
| point_to_point | the nearest ranks on the left, once | a sliding window's attention, and no other: `window=` |
| all_to_all | each with each | Ulysses |
| hierarchical | a ring in the node, one between nodes | the double ring: `ranks_per_node=` |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parlab.sequence.heads import ulysses_attention, ulysses_attention_backward
from parlab.sequence.ring import (
    double_ring_attention,
    double_ring_attention_backward,
    ring_attention,
    ring_attention_backward,
)
from parlab.sequence.tree import tree_attention, tree_attention_backward
from parlab.sequence.window import window_attention, window_attention_backward

PATTERNS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "ring": (ring_attention, ring_attention_backward),
    "tree": (tree_attention, tree_attention_backward),
    "point_to_point": (window_attention, window_attention_backward),
    "all_to_all": (ulysses_attention, ulysses_attention_backward),
    "hierarchical": (double_ring_attention, double_ring_attention_backward),
}
