"""The parity check catches the mistakes that people make in ring attention: each is made here on purpose."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import product
from types import ModuleType

import pytest

import parlab.nn.attention
import parlab.sequence.ring
import parlab.sequence.schedule
from parlab.sequence import LAYOUTS
from tests.sequence.rings import ring_error

ATTENTION, RING, SCHEDULE = parlab.nn.attention, parlab.sequence.ring, parlab.sequence.schedule

MUTANTS = {
    "ring shifted by one": (SCHEDULE, "kv_source=(rank - step - 1)", "kv_source=(rank - step - 2)"),
    "ring turned the other way": (SCHEDULE, "RingStep(step, right, left,", "RingStep(step, left, right,"),
    "merge without rescaling": (ATTENTION, "out * xp.exp(lse - finite)[..., None]", "out"),
    "merge forgets lse": (ATTENTION, "return out, merged", "return out, lse"),
    "mask off by one, diagonal out": (ATTENTION, "CAUSAL = 0", "CAUSAL = -1"),
    "mask off by one, one key more": (ATTENTION, "CAUSAL = 0", "CAUSAL = 1"),
    "striped diagonal always in": (SCHEDULE, "CAUSAL if earlier else STRICT", "CAUSAL"),
    "striped diagonal never in": (SCHEDULE, "CAUSAL if earlier else STRICT", "STRICT"),
    "zigzag halves exchanged": (SCHEDULE, "slice(0, half)) if earlier", "slice(half, length)) if earlier"),
    "zigzag masked as contiguous": (SCHEDULE, 'layout == "zigzag"', "False"),
    "hidden block attended": (SCHEDULE, "if earlier else None", ""),
    "dK/dV one hop short": (
        RING,
        "        dk, dv = _arrived(returning)  # the extra hop",
        "        _arrived(returning)  #",
    ),
    "dK/dV start anew at each rank": (RING, "dk, dv = _arrived(returning)  # the shares", "_arrived(returning)  #"),
    "last block forgotten": (RING, "for hop in (*ring.steps, None):", "for hop in ring.steps:"),
    "scale forgotten in dq": (ATTENTION, "        dq[b, h, ...] *= scale\n", ""),
    "scale forgotten in the backward's scores": (
        ATTENTION,
        "_widen(q[b, h, ...]) * scale, _widen",
        "_widen(q[b, h, ...]), _widen",
    ),
    "delta added, not subtracted": (ATTENTION, "_append(douts, -delta", "_append(douts, delta"),
    "gradients of shared heads overwritten": (ATTENTION, "dv[b, g, columns, :] +=", "dv[b, g, columns, :] ="),
}


def copy_of(module: ModuleType, old: str = "", new: str = "", **names: object) -> ModuleType:
    """A second copy of `module`, with `old` replaced by `new` and these names exchanged in it."""
    source = inspect.getsource(module)
    assert old in source, f"the mutant is stale: {old!r} is no longer there"
    copied = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), copied.__dict__)
    vars(copied).update(names)
    return copied


def mutated_ring(module: ModuleType, old: str, new: str) -> ModuleType:
    """`parlab.sequence.ring`, with the mutation, wherever it is made, in everything that it uses."""
    attention = copy_of(ATTENTION, *((old, new) if module is ATTENTION else ()))
    constants = {"CAUSAL": attention.CAUSAL, "STRICT": attention.STRICT}
    schedule = copy_of(SCHEDULE, *((old, new) if module is SCHEDULE else ()), **constants)
    ring = copy_of(RING, *((old, new) if module is RING else ()))
    for source in (attention, schedule):
        vars(ring).update({name: x for name, x in vars(source).items() if name in vars(ring)})
    return ring


def errors(ring: ModuleType, sizes: tuple[int, ...]) -> Iterator[float]:
    """The relative error in each layout, causal and not."""
    pair = {"forward": ring.ring_attention, "backward": ring.ring_attention_backward}
    for size, causal, layout in product(sizes, (True, False), LAYOUTS):
        yield ring_error(size, layout, causal, **pair)


def test_the_copy_without_a_mutation_passes():
    assert max(errors(mutated_ring(RING, "", ""), sizes=(1, 3, 4))) <= 1e-12


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name):
    assert any(error > 1e-3 for error in errors(mutated_ring(*MUTANTS[name]), sizes=(3,)))


def test_contiguous_positions_used_for_zigzag_are_caught():
    assert ring_error(4, "zigzag", True, dealt="contiguous") > 1e-3
    assert ring_error(4, "contiguous", True, dealt="zigzag") > 1e-3
