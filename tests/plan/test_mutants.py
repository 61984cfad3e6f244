"""The usual mistakes of a planner, each made here on purpose: a named check sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from parlab.pipeline import costs
from parlab.plan import LLAMA_8B, LLAMA_405B, Hardware, Layout, estimate, layout, search, seconds
from parlab.tensor.costs import llama_kept_by_place
from parlab.world import CLASSROOM, DGX_H100
from tests.pipeline import test_costs
from tests.plan import test_counts, test_validation
from tests.sequence.mutation import copy_of

PLAN = {module.__name__.rpartition(".")[2]: module for module in (layout, seconds, costs)}
USERS = {name: __import__(f"parlab.plan.{name}", fromlist=["x"]) for name in ("estimate", "search", "validation")}


def in_flight() -> None:
    found = estimate(LLAMA_8B, CLASSROOM, Layout(pp=4), batch=8, sequence=4096).bytes["activations"]
    assert found == 4 * 8 * sum(llama_kept_by_place(LLAMA_8B, 1, 4096, 1, 2).values())


def clock() -> None:
    test_counts.test_a_tensor_parallel_step_takes_the_seconds_of_the_clock(2, CLASSROOM)


def state() -> None:
    found = estimate(LLAMA_8B, CLASSROOM, Layout(dp=2, cp=2), batch=2, sequence=4096).bytes
    assert found["optimizer"] == pytest.approx(12 * LLAMA_8B.num_parameters / 4)


def kept() -> None:
    test_counts.test_kept_bytes_of_a_layer_equal_the_counted_ones(2, True)


def layer_times() -> None:
    test_validation.test_10_layer_times_within_5_percent_activations_within_1_and_zeros_table_exact()


def makespan() -> None:
    for heavier in (True, False):
        test_costs.test_closed_form_of_the_step_equals_simulate_on_300_random_pipelines_with_an_uneven_last_stage(
            "1f1b", heavier
        )


def transfers() -> None:
    test_costs.test_makespan_with_transfers_that_are_waited_for_is_the_simulated_one("1f1b", 4, 8, 2)


def fits() -> None:
    best = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1).best
    assert best.total_bytes <= 80e9
    assert (best.layout.tp, best.layout.pp) == (8, 16)


def batch() -> None:
    with pytest.raises(ValueError, match="batch 16 must be a multiple"):
        estimate(LLAMA_8B, CLASSROOM, Layout(dp=3), batch=16, sequence=4096)


MUTANTS: dict[str, tuple[str, str, str, Callable[[], None]]] = {
    "in flight 1": ("costs", "xp.minimum(m * v, ", "xp.minimum(1, ", in_flight),
    "in flight m": ("costs", "xp.minimum(m * v, ", "xp.maximum(m * v, ", in_flight),
    "head forgotten": ("seconds", 'Pass(logits, 2 * logits)', 'Pass(0.0, 0.0)', clock),
    "loss forgotten": ("seconds", "turn, 0) + sums", "turn, 0)", clock),
    "ZeRO over d instead of d·c": ("layout", "self.d * self.c  #", "self.d  #", state),
    "norms off sequence parallelism": ("seconds", "22 * E / case.between", "22 * E", layer_times),
    "norms kept whole under sequence parallelism": ("estimate", "whole / case.between", "whole", kept),
    "all-gathers of dY hidden": ("seconds", "case.sequence_parallel, 2 * turn, 0) +", "True, 0, 0) +", layer_times),
    "mean stage for slowest": ("costs", "xp.maximum(m * end + before, quick)", "mean + before", makespan),
    "v ignored": ("costs", "rest = (v - 1) * chunk.both", "rest = 0 * v", makespan),
    "bubble of p instead of p − 1": ("costs", "(p - 2) * chunk.both  #", "(p - 1) * chunk.both  #", makespan),
    "no transfer waited for": ("costs", "way = 2 * (", "way = 0 * (", transfers),
    "d that does not divide the batch": ("layout", "B % (d * b) != 0", "B % (d * b) < 0", batch),
    "GB for GiB": ("search", "self.bytes <= self.memory", "self.bytes <= self.memory * 1.073741824", fits),
    "memory ignored": ("search", "self.bytes <= self.memory", "self.bytes > 0", fits),
}  # fmt: skip


def use(copied: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all that use the module; its classes that do not calculate, and the devices, are the original's."""
    original = USERS.get(name) or PLAN[name]
    kept = {attribute: value for attribute, value in vars(original).items() if isinstance(value, type | Hardware)}
    vars(copied).update({attribute: kept[attribute] for attribute in kept.keys() - {"Case", "Plans"}})
    for user in (*USERS.values(), *PLAN.values(), test_counts, test_costs):
        for attribute, value in vars(copied).items():
            if getattr(value, "__module__", "") == original.__name__ and hasattr(user, attribute):
                monkeypatch.setattr(user, attribute, value)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name, monkeypatch):
    module, old, new, check = MUTANTS[name]
    check()
    use(copy_of(USERS.get(module) or PLAN[module], old, new), module, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()
