"""The usual mistakes of splitting, each made on purpose, and each caught by what a test of this folder asks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from parlab import per_rank, run
from parlab.sequence import causal_work, imbalance, loads_of, packed_work, sequence_statistics
from tests.sequence import test_memory as memory_tests
from tests.sequence.mutation import copy_of
from tests.sequence.splitting.maps import blocks, weight_cut
from tests.sequence.splitting.tilings import flaws

DOCUMENTS = [0, 32, 160, 192, 512]


def equal_chunks(module: ModuleType) -> bool:
    return flaws(module.split_equal(2800, 1000, 100), 2800, 1, 1000, 100) == []


def memory_chunks(module: ModuleType) -> bool:
    chunks = module.split_by_memory(40, [16, 8, 24], 1)
    return flaws(chunks, 40, 3) == [] and all(c.length <= (16, 8, 24)[c.rank] for c in chunks)


def planted(module: ModuleType) -> bool:
    chunks = module.split_by_attention(blocks([20, 44], leak=0.02), 2)
    return [chunk.stop for chunk in chunks] == [20, 64]


def no_slivers(module: ModuleType) -> bool:
    return min(chunk.length for chunk in module.split_by_attention(blocks([240]), 4)) >= 40


def within_the_limit(module: ModuleType) -> bool:
    return flaws(module.split_by_attention(blocks([4, 8]), 2, 8, 3), 12, 2, 8, 3) == []


def crossing(module: ModuleType) -> bool:
    weights = blocks([6, 6], causal=False)
    found = module.analyse_attention(weights).heads[0].crossing
    return all(abs(found[b] - weight_cut(weights, [b, 12])) < 1e-12 for b in range(13))


def syntax(module: ModuleType) -> bool:
    heads = module.analyse_attention(blocks([4] * 8), range(4, 33, 4)).heads
    near = np.tril(np.ones((32, 32))) - np.tril(np.ones((32, 32)), k=-3)
    local = module.analyse_attention((near / near.sum(axis=-1, keepdims=True))[None], range(4, 33, 4)).heads
    return heads[0].kind == "syntactic" and local[0].kind == "local"


def causal_balance(module: ModuleType) -> bool:
    return imbalance(module.split_by_work(module.causal_work(512), 8), causal_work(512), 8) <= 1.05


def packed_balance(module: ModuleType) -> bool:
    whole = loads_of(module.longest_first(DOCUMENTS, 2), packed_work(DOCUMENTS), 2)
    dealt = imbalance(module.per_document(DOCUMENTS, 8), packed_work(DOCUMENTS), 8)
    split = imbalance(module.split_by_work(module.packed_work(DOCUMENTS), 4), packed_work(DOCUMENTS), 4)
    return max(whole) == 320 * 321 // 2 and dealt == 1 and split <= 1.05


def text_chunks(module: ModuleType) -> bool:
    text = "Über Öl. Dr. Aas lit it. Every word counts here. End."
    chunks = module.split_by_text(text, 1, 16)
    cut = [text.encode()[c.start : c.stop].decode() for c in chunks]
    return flaws(chunks, len(text.encode()), 1, 16) == [] and cut[:2] == ["Über Öl. ", "Dr. Aas lit it. "]


def kept(module: ModuleType) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_tests, "CheckpointedBlock", module.CheckpointedBlock)
        memory_tests.run_at.cache_clear()
        try:
            for level in ("low", "medium", "high"):
                memory_tests.test_outputs_and_gradients_are_those_of_level_none_to_the_bit(level)
                memory_tests.test_bytes_kept_between_forward_and_backward_are_l_times_those_of_a_block_on_paper(level)
                memory_tests.test_flops_made_again_are_those_on_paper(level, "zigzag")
        finally:
            memory_tests.run_at.cache_clear()
    return True


def mean_gradients(module: ModuleType) -> bool:
    shares = per_rank([{"b": np.full(2, rank), "a": np.full(3, 10.0 * rank)} for rank in (1.0, 3.0)])
    means = run(module.synchronise_gradients, 2, shares).results[0]
    return means["a"].tolist() == [20, 20, 20] and means["b"].tolist() == [2, 2]


def traffic(module: ModuleType) -> bool:
    def program(comm):
        comm.compute("attend", seconds=1e-6)
        comm.sendrecv(np.ones(8), comm.right, comm.left)
        comm.compute("attend", seconds=1e-6)
        comm.all_reduce(np.ones(8))

    done = run(program, 2)
    found, right = module.sequence_statistics(done), sequence_statistics(done)
    times = found.attention_time == right.attention_time and right.attention_time[0] == 1_006_400  # 1 µs and 64 B
    return times and (found.attention_bytes, found.gradient_bytes, found.reuse) == ([64, 64], [64, 64], 0.5)


Mutant = tuple[str, str, str, Callable[[ModuleType], bool]]
MUTANTS: dict[str, Mutant] = {
    "overlap counted twice": (
        "sequence.splitting.chunks",
        "rank, start - before",
        "rank, start - 2 * before",
        equal_chunks,
    ),
    "overlap taken off twice": (
        "sequence.splitting.chunks",
        "self.length - self.overlap_before",
        "self.length - 2 * self.overlap_before",
        equal_chunks,
    ),
    "steps of the whole limit": (
        "sequence.splitting.chunks",
        "limit, length, limit - overlap",
        "limit, length, limit",
        equal_chunks,
    ),
    "overlap after forgotten": ("sequence.splitting.chunks", "[*shared[1:], 0]", "[0 for _ in shared]", equal_chunks),
    "budgets ignored": (
        "sequence.splitting.chunks",
        "accumulate(fits)",
        "accumulate([sum(fits) / len(fits)] * len(fits))",
        memory_chunks,
    ),
    "length instead of weight": ("sequence.splitting.analysis", "crossing / 2 *", "(length / S) *", planted),
    "inside taken off once": ("sequence.splitting.analysis", "- 2 * inside", "- inside", planted),
    "short chunks cost nothing": ("sequence.splitting.analysis", "SHORT = 1.5", "SHORT = 0", no_slivers),
    "limit without the overlap": (
        "sequence.splitting.analysis",
        "xp.clip(start - overlap, 0)",
        "start",
        within_the_limit,
    ),
    "last choice first": ("sequence.splitting.analysis", "reversed(choices)", "choices", no_slivers),
    "only what queries before a boundary look at": (
        "sequence.splitting.analysis",
        "crossings(weights)[:, 0, :]",
        "crossings(xp.tril(weights))[:, 0, :]",
        crossing,
    ),
    "share without what distance explains": (
        "sequence.splitting.analysis",
        "(found - expected) / (1 - expected)",
        "found",
        syntax,
    ),
    "sentences off by one": ("sequence.splitting.analysis", "sum(end <= token", "sum(end < token", syntax),
    "balance by tokens, causal": (
        "sequence.splitting.balance",
        "return packed_work([0, S])",
        "return [1] * S",
        causal_balance,
    ),
    "balance by tokens, packed": ("sequence.splitting.balance", "token - start + 1 for", "1 for", packed_balance),
    "documents as one": ("sequence.splitting.balance", "token - start + 1 for", "token + 1 for", packed_balance),
    "documents as they come": (
        "sequence.splitting.balance",
        "key=lambda piece: piece[0] - piece[1]",
        "key=lambda piece: piece[1]",
        packed_balance,
    ),
    "two heads, no tail": ("sequence.splitting.balance", "min(part, parts - 1 - part)", "part", packed_balance),
    "characters for bytes": ("sequence.splitting.text", "len(text.encode())", "len(text)", text_chunks),
    "abbreviations end sentences": ("sequence.splitting.text", 'rf"{NO_ABBREVIATION}[', 'rf"[', text_chunks),
    "nothing dropped": (
        "sequence.memory",
        '"high": x,',
        '"high": (cache, x),',
        kept,
    ),
    "medium attends again": ("sequence.memory", "        block.attention = attention\n", "", kept),
    "low without its normed input": ("sequence.memory", "x=attention_x", 'x=kept["attention_norm"].x', kept),
    "sum instead of mean": (
        "sequence.statistics",
        "for x in alike])) / comm.size",
        "for x in alike]))",
        mean_gradients,
    ),
    "leaves in another order": (
        "sequence.statistics",
        "for x in alike:",
        "for x in reversed(alike):",
        mean_gradients,
    ),
    "gradients counted as attention": (
        "sequence.statistics",
        'GRADIENTS = "all_reduce"',
        'GRADIENTS = "gradients"',
        traffic,
    ),
    "overlapping times added": ("sequence.statistics", "max(t.start, last)", "t.start", traffic),
    "arrivals forgotten": ("sequence.statistics", "if t.dst == rank]", "if t.dst < 0]", traffic),
}


CHECKS = {check.__name__: (module, check) for module, _, _, check in MUTANTS.values()}


@pytest.mark.parametrize("name", CHECKS)
def test_the_copy_without_a_mutation_passes(name):
    module, check = CHECKS[name]
    assert check(copy_of(module))


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    module, old, new, check = MUTANTS[name]
    try:
        passes = check(copy_of(module, old, new))
    except (AssertionError, AttributeError, ValueError, IndexError, TypeError):
        passes = False
    assert not passes
