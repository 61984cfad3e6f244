"""The parity check catches the usual mistakes in each way to attend across ranks: each is made here on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sequence.methods import METHODS, method_error
from tests.sequence.mutation import mutated

DOCUMENTS = {"documents": [0, 2, 9, 16]}
NODES = {"ulysses": 4, "ranks_per_node": 2, "layout": "zigzag"}
ZIGZAG = {"layout": "zigzag", "documents": [0, 8, 16]}
CASES: dict[str, list[dict[str, Any]]] = {  # on 4 ranks, 16 tokens, 6 query heads, 3 K/V heads
    "ring": [DOCUMENTS, DOCUMENTS | {"layout": "striped"}, ZIGZAG],
    "ulysses": [{}, DOCUMENTS, {"ranks_per_node": 2}],
    "allgather": [{}, DOCUMENTS, {"kv_heads": 2}, {"ranks_per_node": 2}],
    "usp": [{"ulysses": 2}, {"ulysses": 2, "layout": "zigzag"}, {"ulysses": 4}, NODES],
    "double_ring": [{"ranks_per_node": 2}],
    "tree": [{}],
    "window": [{"window": window} for window in (2, 5, 7, 16)],
}

MUTANTS = {
    "a document's edge off by one": (
        "ring",
        "sequence.tiles",
        "for edge in (start, stop)))\n    if",
        "for edge in (start, stop + 1)))\n    if",
    ),
    "a document's edge off by one, striped": (
        "ring",
        "sequence.tiles",
        "(edge - rank + size - 1)",
        "(edge - rank + size)",
    ),
    "packed K/V stop one rank short": ("ring", "sequence.tiles", "max(hop for hop", "max(hop - 1 for hop"),
    "packed dK/dV do not come home": (
        "ring",
        "sequence.homeward",
        "total = arrived(self.home, None) or self.stayed",
        "total = (arrived(self.home, None) and self.form) or self.stayed",
    ),
    "K/V not gathered where a single document needs them": (
        "allgather",
        "sequence.tiles",
        "bool(tiles(rank, source, size, length, deal))",
        "len(tiles(rank, source, size, length, deal)) > 1",
    ),
    "window one key short": ("window", "sequence.window", "CAUSAL, window)", "CAUSAL, window - 1)"),
    "window of neighbours shifted": ("window", "sequence.window", "ahead + tail, window", "ahead + tail - 1, window"),
    "first queries of a window only": (
        "window",
        "sequence.window",
        "min(length, window - 1 - ahead)",
        "min(length, tail - 1)",
    ),
    "a neighbour's tail from its front": (
        "window",
        "sequence.window",
        "k[:, :, -tail:, :], v[:, :, -tail:, :]",
        "k[:, :, :tail, :], v[:, :, :tail, :]",
    ),
    "far edge of a window off by one": ("window", "nn.tiles", "xp.tril(never, k=-1)", "xp.tril(never, k=0)"),
    "dK/dV of a window stay away": (
        "window",
        "sequence.window",
        "add_to(mine, comm.recv",
        "(lambda *x: None)(mine, comm.recv",
    ),
    "a head group sent to the wrong rank": (
        "ulysses",
        "sequence.heads",
        "gives = [_of_shard(arrays, [h[rank] for",
        "gives = [_of_shard(arrays, [h[rank - 1] for",
    ),
    "heads come home to the wrong place": (
        "ulysses",
        "sequence.heads",
        "targets = [_of_shard(made, [h[rank] for",
        "targets = [_of_shard(made, [h[rank - 1] for",
    ),
    "dK/dV of repeated heads not summed": (
        "ulysses",
        "sequence.heads",
        "add_to(targets[src], pieces)",
        "[x.__setitem__(..., y) for x, y in zip(targets[src], pieces)]",
    ),
    "query heads read the first K/V head": ("usp", "sequence.heads", "slice(number, number + 1)", "slice(0, 1)"),
    "shards joined in the wrong order": (
        "ulysses",
        "sequence.heads",
        "where[chunk]) for",
        "where[-1 - chunk]) for",
    ),
    "late zigzag chunks joined as early ones": (
        "usp",
        "sequence.heads",
        "dealt = positions(chunks * size, size, layout)",
        "dealt = [[rank, size + rank][:chunks] for rank in range(size)]",
    ),
    "the ring forgets the other groups": (
        "usp",
        "sequence.usp",
        "tiles(ring.rank, source, ",
        "tiles(ring.rank, ring.rank, ",
    ),
    "groups taken for rings": (
        "usp",
        "sequence.exchange",
        "comm.split(comm.rank // inside), comm.split(comm.rank % inside)",
        "comm.split(comm.rank % (comm.size // inside)), comm.split(comm.rank // (comm.size // inside))",
    ),
    "dK/dV of the gathered K/V not summed": (
        "allgather",
        "sequence.allgather",
        "add_to(mine, share)",
        "add_to(mine, share) if _ == self.comm.rank else None",
    ),
    "the next heads read the last K/V heads": (
        "allgather",
        "sequence.allgather",
        "slice(g * H // G,",
        "slice(0 * H // G,",
    ),
    "tiles of the wrong source": (
        "allgather",
        "sequence.allgather",
        "tiles(comm.rank, source, ",
        "tiles(comm.rank, (source - 1) % comm.size, ",
    ),
    "two levels gather the K/V of another node": (
        "allgather",
        "sequence.two_levels",
        "[own_place[node] for node in range(nodes)]",
        "[own_place[(node + 1) % nodes] for node in range(nodes)]",
    ),
    "dK/dV not summed inside a node": ("allgather", "sequence.two_levels", "add_to_each(sums, column)", "pass"),
    "dK/dV not summed between nodes": (
        "allgather",
        "sequence.two_levels",
        "            add_to(mine, share)",
        "            add_to(mine, share) if _ == self.between.rank else None",
    ),
    "heads of a rank counted from the first of all": (
        "ulysses",
        "sequence.two_levels",
        "shifted(share.keys, -heads.keys.start)",
        "share.keys",
    ),
    "a node's last K/V head not sent": (
        "ulysses",
        "sequence.two_levels",
        "slice(first.keys.start, last.keys.stop)",
        "slice(first.keys.start, last.keys.start)",
    ),
    "tokens of a place joined by place": (
        "usp",
        "sequence.two_levels",
        "tokens[node * ranks_per_node + place]",
        "tokens[place * len(shards) + node]",
    ),
    "sums of the second turn forgotten": (
        "double_ring",
        "sequence.double_ring",
        "crosses_beside and share:",
        "crosses_beside and turn > 1:",
    ),
    "node forgotten in the double ring": ("double_ring", "sequence.double_ring", "home * inside + local", "local"),
    "tree merges without rescaling": ("tree", "nn.attention", "out * xp.exp(lse - finite)[..., None]", "out"),
    "tree takes what comes": ("tree", "sequence.tree", "_put(ours, combine(*ours, *came))", "_put(ours, came)"),
    "dq of the tree not summed": ("tree", "sequence.tree", "lambda a, b: (a + b,)", "lambda a, b: (a,)"),
    "queries of the tree begin at the first token": (
        "tree",
        "sequence.tree",
        "Tile(slice(first, rows), slice(0, keys), CAUSAL)",
        "Tile(slice(0, rows), slice(0, keys), CAUSAL)",
    ),
    "halves of the tree exchanged": (
        "tree",
        "sequence.tree",
        "theirs = _rows(parts, level.mine, length), _rows(parts, level.other",
        "theirs = _rows(parts, level.other, length), _rows(parts, level.mine",
    ),
    "rows of another rank": (
        "tree",
        "sequence.tree",
        "for x in _rows(parts, range(comm.rank, comm.rank + 1), length)]",
        "for x in _rows(parts, range(comm.size - 1 - comm.rank, comm.size - comm.rank), length)]",
    ),
}


def errors(method: str, names: dict[str, Any]) -> list[float]:
    """The relative error in each case, causal and not; what raises is as wrong as can be."""
    pair = names[f"{method}_attention"], names[f"{method}_attention_backward"]
    found = []
    for how in CASES[method]:
        for causal in (True, False) if method != "window" else (True,):
            try:
                found.append(method_error(pair, 4, (1, 6, 3, 16, 2), causal=causal, **how))
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
