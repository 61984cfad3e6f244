"""Usual mistakes in the schedules of the frontier and in their yardstick, each made on purpose and seen."""

import inspect
from types import ModuleType

import pytest

from parlab.pipeline import (
    Costs,
    lower_bound,
    simulate,
    validate,
    zb_v,
)
from parlab.pipeline.search import bounds, exact, timetable, v_shaped


def mutant(module: ModuleType, old: str, new: str) -> ModuleType:
    """A second copy of `module` with `old` replaced by `new`."""
    source = inspect.getsource(module)
    assert old in source, f"the mutant is stale: {old!r} is no longer there"
    copied = ModuleType(module.__name__)
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), copied.__dict__)
    return copied


FREES_LATER = "behind = self._advance(action, first), CHANGES_AFTER[action.kind]"
FREES_AT_ONCE = "behind = self._advance(action, first), 0"
BLOCKS = {
    "V-Half's second offset shifted": (v_shaped, "3 * p - 2 - r", "3 * p + 1 - r"),
    "V-Half without its gap for even p": (v_shaped, "shift = 3 if", "shift = 6 if"),
    "one chunk more than the peak": (timetable, "of_rank[s] >= peak", "of_rank[s] > peak"),
    "a W frees before it ends": (timetable, FREES_LATER, FREES_AT_ONCE),
    "I's wait behind W's at the end": (timetable, "        self.let_go()\n", ""),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_mutant_of_a_block_misses_its_peak_or_its_bubble_or_cannot_run(name, monkeypatch):
    module, old, new = BLOCKS[name]
    for key in ("Timetable", "_v_half_block"):
        if hasattr(changed := mutant(module, old, new), key):
            monkeypatch.setattr(v_shaped, key, getattr(changed, key))
    with pytest.raises((AssertionError, ValueError, KeyError)):  # a KeyError: two actions in one unit
        blocks_are_as_published()


def blocks_are_as_published():
    for p, m, span in ((4, 8, 53), (8, 32, 209)):
        schedule = v_shaped.v_half(p, m)
        validate(schedule, memory_limit=p + 2)
        assert simulate(schedule).makespan <= span
        assert max(simulate(schedule).peak_activations) == p + 2
    assert simulate(v_shaped.v_min(6, 12)).makespan <= 89


def test_the_blocks_without_a_mutation_pass():
    blocks_are_as_published()


def test_mutant_zb_v_with_one_forward_more_before_its_turn_keeps_more_than_2p():
    late = mutant(v_shaped, "do(2 * (p - r) - 1,", "do(2 * (p - r),").zb_v(4, 8)
    with pytest.raises(ValueError, match="keeps 9 activations"):
        validate(late, memory_limit=8)
    validate(zb_v(4, 8), memory_limit=8)


CASES = [
    (p, m, Costs([3, 1, 2][:p], [2, 4, 1][:p], [1, 1, 3][:p], 2), limit)
    for p in (1, 2, 3)
    for m in (1, 2, 4)
    for limit in (None, 1, 2)
]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("halves = max(0, k + 1 -", "halves = min(k, 1 + k + 1 -"),
        ("(k + 1) * forward[s] + k * half[s]", "(k + 1) * (forward[s] + half[s])"),
        ("ahead = half[s - 1] + i_tail[s - 1] + back[s]", "ahead = half[s - 1] + i_tail[s - 1] + 2 * back[s]"),
        ("forward[s + 1] + f_tail[s + 1] + hop[s]", "forward[s + 1] + f_tail[s + 1] + hop[s] + half[s]"),
    ],
)
def test_mutant_of_the_bound_is_above_the_best_possible_somewhere(old, new):
    changed = mutant(bounds, old, new)
    best = [simulate(exact.best_schedule(*case), case[2]).makespan for case in CASES]
    assert any(changed.lower_bound(*case) > span for case, span in zip(CASES, best, strict=True))
    assert all(lower_bound(*case) <= span for case, span in zip(CASES, best, strict=True))
