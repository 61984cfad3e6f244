"""The error beside published measurements, and that each term earns its place."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest

from parlab.plan import A100, LLAMA_405B, MEGATRON, TORCHTITAN, Estimate, GPTConfig, Layout, estimate, validation
from parlab.world import DGX_A100, DGX_H100
from parlab.zero import StateBytes

TABLE_5, TABLE_4, TABLE_2 = (f"Korthikanti 2022, table {number}" for number in (5, 4, 2))
TABLE_1 = "Narayanan 2021, table 1"


def test_flops_of_megatrons_rows_are_its_equation_3():
    B, S, V, E, L = 512, 2048, 51200, 2304, 24
    flops = 96 * B * S * L * E**2 * (1 + S / (6 * E) + V / (16 * L * E))
    layout, software = Layout(dp=32, microbatch=16, zero=0, recompute="full"), MEGATRON.but(hides=(), gradient=2)
    found = estimate(GPTConfig(V, E, L, 24), DGX_A100, layout, batch=B, sequence=S, software=software)
    (row,) = (row for row in validation() if row.name == "1.7B on 32")
    assert row.predicted * 1e12 * 32 * found.total_seconds == pytest.approx(flops, rel=1e-12)


def test_the_table_has_8_10_20_10_3_9_5_and_4_rows_and_prints_each():
    table = validation()
    families = [row.family for row in table]
    assert [families.count(name) for name in dict.fromkeys(families)] == [8, 10, 20, 10, 3, 9, 5, 4]
    assert len(str(table).splitlines()) == 69 + 2 * 8


def test_21_rows_are_fitted_29_are_formulas_and_19_are_unseen():
    table = validation()
    kinds = [row.kind for row in table]
    assert {kind: kinds.count(kind) for kind in kinds} == {"fitted": 21, "formula": 29, "unseen": 19}
    of = {row.family: row.kind for row in table}
    unseen = [name for name, kind in of.items() if kind == "unseen"]
    assert unseen == [TABLE_1, "torchtitan, memory", "torchtitan, table 6 (pp 8)"]
    assert [name for name, kind in of.items() if kind == "formula"] == [TABLE_2, "ZeRO, table 1"]
    errors = {kind: [abs(row.error) for row in table if row.kind == kind] for kind in ("formula", "fitted")}
    assert max(errors["formula"]) < 1e-3
    assert sum(errors["fitted"]) / 21 < 0.012
    assert max(errors["fitted"]) < 0.033
    near = [abs(row.error) for row in table if row.family in unseen[:2]]
    assert sum(near) / len(near) < 0.05
    assert max(near) < 0.10


def test_each_family_says_its_software_and_what_differs():
    lines = str(validation()).splitlines()
    assert "Narayanan 2021, table 1 (unseen; megatron, hides nothing, gradient 2)" in lines
    assert "Llama 3, table 4 (fitted; llama_3)" in lines
    assert "Korthikanti 2022, table 5 (fitted; megatron)" in lines


def test_korthikantis_tables_come_out_at_1_8_and_0_6_megatrons_at_3_4_and_llama_3s_at_1_6_percent():
    errors = validation().errors
    found = {name: (round(100 * mean, 1), round(100 * most, 1)) for name, (mean, most) in errors.items()}
    assert found[TABLE_5] == (1.8, 3.2)
    assert found[TABLE_4] == (0.6, 1.3)
    assert found[TABLE_1] == (3.4, 6.8)
    assert found["Llama 3, table 4"] == (1.6, 1.8)


def test_infiniband_at_half_or_at_nine_tenths_changes_megatrons_mean_error_by_less_than_2_in_a_thousand(monkeypatch):
    """So 0.6 was not chosen on these rows, whatever else it is: they are unseen."""
    means = []
    for inter in (0.5, 0.6, 0.7, 0.8, 0.9):
        monkeypatch.setattr("parlab.plan.machine.A100", replace(A100, inter=inter))
        means.append(validation().errors[TABLE_1][0])
    assert 0 < max(means) - min(means) < 0.002


def test_a_constant_is_published_or_says_that_it_was_fitted_and_on_which_rows():
    text = (files("parlab.plan") / "hardware.toml").read_text(encoding="utf-8")
    numbers = [line for line in text.splitlines() if "=" in line.partition("#")[0] and not line.startswith("source")]
    bare = [line for line in numbers if not line.partition("#")[2].strip()]
    assert bare == []
    assert sum("Fitted" in line for line in numbers) == 4


@pytest.mark.parametrize(
    ("dp", "cp", "microbatch", "sequence", "published"),
    [
        (8, 1, 4, 8192, 82.5),  # table 5
        (8, 1, 1, 32768, 75.3),
        (4, 2, 1, 65536, 75.9),
        (2, 4, 1, 131072, 77.1),
        (1, 8, 1, 262144, 84.9),
    ],
)
def test_torchtitans_405b_with_a_pipeline_measured_1_1_to_1_3_times_its_plan(dp, cp, microbatch, sequence, published):
    """Its tables 5 and 6: microbatches are not printed; by default they are as many as stages, 8.

    By 1F1B its gradients are summed whole and its weights stay gathered (PyTorch, pipelining/stage.py): ZeRO-1. The
    sums are in float32 (PyTorch, fsdp/_fully_shard/_fsdp_param.py, to_accumulated_grad_if_needed).
    """
    layout = Layout(dp=dp, pp=8, cp=cp, tp=8, microbatch=microbatch, sequence_parallel=True, recompute="full")
    asked = {"batch": 8 * dp * microbatch, "sequence": sequence, "software": TORCHTITAN, "state": StateBytes(2, 4, 12)}
    planned = estimate(LLAMA_405B, DGX_H100, layout, **asked).total_bytes / 2**30
    assert 1.1 <= published / planned <= 1.3
    if microbatch > 1:
        return
    (row,) = [
        row for row in validation() if row.family == "torchtitan, table 6 (pp 8)" and f"{sequence} tok" in row.name
    ]
    assert (row.published, row.predicted) == (published, planned)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *((kind, TABLE_5) for kind in ("products", "attention", "elementwise", "recomputation", "tp")),
        *((kind, TABLE_5) for kind in ("bubble", "optimizer")),
        ("dp", TABLE_1),
        ("bubble", TABLE_1),
    ],
)
def test_leaving_a_term_out_makes_the_error_worse(kind, family):
    assert validation(without=kind).errors[family][0] > validation().errors[family][0]


@pytest.mark.parametrize(("kind", "mean"), [("dp", 4.5), ("pp", 4.3), ("tp", 7.7), ("bubble", 7.1)])
def test_megatrons_unseen_rows_hardly_miss_dp_and_pp(kind, mean, monkeypatch):
    """Their mean error is 3.4 % with all terms. Memory and single layers stay as they are."""
    told = validation(without=kind)
    assert round(100 * told.errors[TABLE_1][0], 1) == mean
    for family in (TABLE_4, TABLE_2, "torchtitan, memory"):
        assert told.errors[family] == validation().errors[family]
    left = property(lambda self: sum(x for name, x in self.seconds.items() if name != kind))
    monkeypatch.setattr(Estimate, "total_seconds", left)
    assert validation().errors[TABLE_1][0] == pytest.approx(told.errors[TABLE_1][0])
