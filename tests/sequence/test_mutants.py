"""The parity check catches the usual mistakes in each way to attend across ranks: each is made here on purpose."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from parlab.sequence import LAYOUTS
from tests.sequence.methods import METHODS, method_error, pair
from tests.sequence.mutation import mutated

DOCUMENTS = {"documents": [0, 2, 9, 16]}
NODES = {"ulysses": 4, "ranks_per_node": 2, "layout": "zigzag"}
ZIGZAG = {"layout": "zigzag", "documents": [0, 8, 16]}
CASES: dict[str, list[dict[str, Any]]] = {  # on 4 ranks, 16 tokens, 6 query heads, 3 K/V heads
    "ring": [*({"layout": layout} for layout in LAYOUTS), DOCUMENTS, DOCUMENTS | {"layout": "striped"}, ZIGZAG],
    "ulysses": [{}, DOCUMENTS, {"ranks_per_node": 2}],
    "allgather": [{}, DOCUMENTS, {"ranks_per_node": 2}],
    "usp": [{"ulysses": 2}, {"ulysses": 2, "layout": "zigzag"}, {"ulysses": 4}, NODES],
    "double_ring": [{"ranks_per_node": 2}],
    "tree": [{}],
    "window": [{"window": window} for window in (2, 5, 7, 16)],
}

MUTANTS = {
    "ring shifted by one": (
        "ring",
        "sequence.ring",
        "source = (comm.rank - step)",
        "source = (comm.rank - step - 1)",
    ),
    "ring turned the other way": (
        "ring",
        "sequence.ring",
        "comm.right, label=label)\n            arriving = comm.irecv(comm.left",
        "comm.left, label=label)\n            arriving = comm.irecv(comm.right",
    ),
    "merge without rescaling": ("ring", "nn.attention", "out * xp.exp(lse - finite)[..., None]", "out"),
    "mask off by one, diagonal out": ("ring", "nn.attention", "CAUSAL = 0", "CAUSAL = -1"),
    "striped diagonal always in": ("ring", "sequence.tiles", "CAUSAL if source <= rank else STRICT", "CAUSAL"),
    "hidden tile attended": ("ring", "sequence.tiles", "if source < rank else None", ""),
    "dK/dV start anew at each rank": (
        "ring",
        "sequence.homeward",
        "            add_to(came, share)",
        "            came = share",
    ),
    "the last K/V forgotten": (
        "ring",
        "sequence.ring",
        "range(comm.size):\n        source",
        "range(comm.size - 1):\n        source",
    ),
    "scale forgotten in dq": ("ring", "nn.attention", "        keys = keys * scale\n", ""),
    "delta added, not subtracted": ("ring", "nn.attention", "_append(douts, -delta", "_append(douts, delta"),
    "gradients of shared heads overwritten": (
        "ring",
        "nn.attention",
        "namespace(x).sum(x, axis=-3, keepdims=True)",
        "x[..., -1:, :, :]",
    ),
    "a document's edge off by one": (
        "ring",
        "sequence.tiles",
        "mask.length, (start, stop)",
        "mask.length, (start, stop + 1)",
    ),
    "packed K/V stop one rank short": (
        "ring",
        "sequence.tiles",
        "max((rank - source) % mask.size for",
        "max((rank - source) % mask.size - 1 for",
    ),
    "packed dK/dV do not come home": (
        "ring",
        "sequence.homeward",
        "else home.wait()",
        "else (home.wait() and self.like)",
    ),
    "window one key short": ("window", "sequence.window", "CAUSAL, window)", "CAUSAL, window - 1)"),
    "window of neighbours shifted": ("window", "sequence.window", "ahead + tail, window", "ahead + tail - 1, window"),
    "dK/dV of a window stay away": (
        "window",
        "sequence.window",
        "add_to(mine, comm.recv",
        "(lambda *x: None)(mine, comm.recv",
    ),
    "a head group sent to the wrong rank": (
        "ulysses",
        "sequence.ulysses",
        "comm.sendrecv(gives[dst], dst, src, takes[src], label=label)\n        put",
        "comm.sendrecv(gives[dst - 1], dst, src, takes[src], label=label)\n        put",
    ),
    "dK/dV of repeated heads not summed": (
        "ulysses",
        "sequence.ulysses",
        "add_to(takes[src], came)",
        "put(takes[src], came)",
    ),
    "shards joined in the wrong order": (
        "ulysses",
        "sequence.heads",
        "cut_whole[number] for",
        "cut_whole[-1 - number] for",
    ),
    "the ring forgets the other groups": (
        "usp",
        "sequence.usp",
        "tiles_between(ring.rank, source, mask)",
        "tiles_between(ring.rank, ring.rank, mask)",
    ),
    "groups taken for rings": (
        "usp",
        "world.groups",
        "node, place = divmod(comm.rank, ranks_per_node)",
        "place, node = divmod(comm.rank, comm.size // ranks_per_node)",
    ),
    "dK/dV of the gathered K/V not summed": (
        "allgather",
        "sequence.allgather",
        "add_to(total, comm.sendrecv",
        "(lambda *x: None)(total, comm.sendrecv",
    ),
    "two levels gather the K/V of another node": (
        "allgather",
        "sequence.allgather",
        "[of_our_place[node] for node in nodes]",
        "[of_our_place[(node + 1) % 2] for node in nodes]",
    ),
    "dK/dV not summed inside a node": ("allgather", "sequence.allgather", "add_to(sums[node], came[node])", "pass"),
    "a node's last K/V head not sent": (
        "ulysses",
        "sequence.two_levels",
        "slice(first.kv_heads.start, last.kv_heads.stop)",
        "slice(first.kv_heads.start, last.kv_heads.start)",
    ),
    "tokens of a place joined by place": (
        "usp",
        "sequence.two_levels",
        "chunks[place::ranks_per_node]",
        "chunks[place * 2 : place * 2 + 2]",
    ),
    "node forgotten in the double ring": (
        "double_ring",
        "sequence.double_ring",
        "source_node * per_node + place",
        "place",
    ),
    "packed dK/dV go home from the wrong rank": (
        "ring",
        "sequence.homeward",
        "(rank + step) % comm.size",
        "(rank - step) % comm.size",
    ),
    "dq of the tree not summed": ("tree", "sequence.tree", "lambda a, b: (a + b,)", "lambda a, b: (a,)"),
    "queries of the tree begin at the first token": (
        "tree",
        "sequence.tree",
        "Tile(slice(first, queries), slice(0, keys), CAUSAL)",
        "Tile(slice(0, queries), slice(0, keys), CAUSAL)",
    ),
}


def errors(method: str, names: dict[str, Any]) -> list[float]:
    """The relative error in each case, causal and not; what raises is as wrong as can be."""
    functions = names[f"{method}_attention"], names[f"{method}_attention_backward"]
    found = []
    for how in CASES[method]:
        for causal in (True, False) if method != "window" else (True,):
            try:
                found.append(method_error(functions, 4, (1, 6, 3, 16, 2), causal=causal, **how))
            except Exception:
                found.append(float("inf"))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_the_copy_without_a_mutation_passes(method):
    assert max(errors(method, mutated())) <= 1e-12


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    method, *mutation = MUTANTS[name]
    assert max(errors(method, mutated(*mutation))) > 1e-3


def test_contiguous_positions_used_for_zigzag_are_caught():
    functions = [partial(function, layout="zigzag") for function in pair("ring")]
    assert method_error(functions, 4, (1, 2, 1, 8, 3), causal=True) > 1e-3  # the shards are contiguous
