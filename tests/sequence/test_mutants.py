"""The parity check catches the mistakes that people make in ring attention: each is made here on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from parlab.sequence import LAYOUTS
from parlab.world import DeadlockError
from tests.sequence.mutation import mutated
from tests.sequence.rings import ring_error

MUTANTS = {
    "ring shifted by one": (
        "sequence.ring",
        "source, last = (comm.rank - step)",
        "source, last = (comm.rank - step - 1)",
    ),
    "ring turned the other way": (
        "sequence.ring",
        "comm.right, label=label)\n            arriving = comm.irecv(comm.left",
        "comm.left, label=label)\n            arriving = comm.irecv(comm.right",
    ),
    "merge without rescaling": ("nn.attention", "out * xp.exp(lse - finite)[..., None]", "out"),
    "merge forgets lse": ("nn.attention", "return out, merged", "return out, lse"),
    "mask off by one, diagonal out": ("nn.attention", "CAUSAL = 0", "CAUSAL = -1"),
    "mask off by one, one key more": ("nn.attention", "CAUSAL = 0", "CAUSAL = 1"),
    "striped diagonal always in": ("sequence.tiles", "CAUSAL if source <= rank else STRICT", "CAUSAL"),
    "striped diagonal never in": ("sequence.tiles", "CAUSAL if source <= rank else STRICT", "STRICT"),
    "zigzag halves exchanged": (
        "sequence.tiles",
        "slice(keys.start, keys.start + half)",
        "slice(keys.start + half, keys.stop)",
    ),
    "zigzag masked as contiguous": ("sequence.tiles", 'layout == "zigzag":  # earlier', "False:  #"),
    "hidden tile attended": ("sequence.tiles", "if source < rank else None", ""),
    "dK/dV one share short": (
        "sequence.homeward",
        "            add_to(total, share)",
        "            add_to(total[:1], share[:1])",
    ),
    "dK/dV start anew at each rank": (
        "sequence.homeward",
        "            add_to(total, share)",
        "            total = share",
    ),
    "the last K/V forgotten": (
        "sequence.ring",
        "range(comm.size):\n        source",
        "range(comm.size - 1):\n        source",
    ),
    "scale forgotten in dq": ("nn.attention", "        keys = keys * scale\n", ""),
    "scale forgotten in the backward's scores": (
        "nn.attention",
        "widened(q[b, g, h, ...]) * scale, widened",
        "widened(q[b, g, h, ...]), widened",
    ),
    "delta added, not subtracted": ("nn.attention", "_append(douts, -delta", "_append(douts, delta"),
    "gradients of shared heads overwritten": (
        "nn.attention",
        "namespace(x).sum(x, axis=-3, keepdims=True)",
        "x[..., -1:, :, :]",
    ),
}


def errors(names: dict[str, Any], sizes: tuple[int, ...]) -> Iterator[float]:
    """The relative error in each layout, causal and not; a ring that stands still is as wrong as can be."""
    pair = {"forward": names["ring_attention"], "backward": names["ring_attention_backward"]}
    for size, causal, layout in product(sizes, (True, False), LAYOUTS):
        try:
            yield ring_error(size, layout, causal, **pair)
        except DeadlockError:
            yield float("inf")


def test_the_copy_without_a_mutation_passes():
    assert max(errors(mutated(), sizes=(1, 3, 4))) <= 1e-12


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    assert any(error > 1e-3 for error in errors(mutated(*MUTANTS[name]), sizes=(3,)))


def test_contiguous_positions_used_for_zigzag_are_caught():
    assert ring_error(4, "zigzag", True, dealt="contiguous") > 1e-3
    assert ring_error(4, "contiguous", True, dealt="zigzag") > 1e-3
