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

from parlab.sequence import heads, ring, tree, window

PATTERNS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "ring": (ring.ring_attention, ring.ring_attention_backward),
    "tree": (tree.tree_attention, tree.tree_attention_backward),
    "point_to_point": (window.window_attention, window.window_attention_backward),
    "all_to_all": (heads.ulysses_attention, heads.ulysses_attention_backward),
    "hierarchical": (ring.double_ring_attention, ring.double_ring_attention_backward),
}
