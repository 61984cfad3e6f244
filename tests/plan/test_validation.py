"""The error beside published measurements, and that each term earns its place."""

from __future__ import annotations

import pytest

from parlab.plan import MEGATRON, Estimate, GPTConfig, Layout, estimate, validation
from parlab.world import DGX_A100

TABLE_5, TABLE_4, TABLE_2 = (f"Korthikanti 2022, table {number}" for number in (5, 4, 2))
TABLE_1 = "Narayanan 2021, table 1"


def test_korthikantis_8_rows_within_3_percent_mean_and_6_at_most():
    mean, worst = validation().errors[TABLE_5]
    assert mean <= 0.03
    assert worst <= 0.06


def test_megatrons_10_rows_within_4_percent_mean_and_8_at_most():
    mean, worst = validation().errors[TABLE_1]
    assert mean <= 0.04
    assert worst <= 0.08


def test_flops_of_megatrons_rows_are_its_equation_3():
    B, S, V, E, L = 512, 2048, 51200, 2304, 24
    flops = 96 * B * S * L * E**2 * (1 + S / (6 * E) + V / (16 * L * E))
    layout, software = Layout(dp=32, microbatch=16, zero=0, recompute="full"), MEGATRON.but(hides=(), gradient=2)
    found = estimate(GPTConfig(V, E, L, 24), DGX_A100, layout, batch=B, sequence=S, software=software)
    (row,) = (row for row in validation() if row.name == "1.7B on 32")
    assert row.predicted * 1e12 * 32 * found.total_seconds == pytest.approx(flops, rel=1e-12)


def test_10_layer_times_within_5_percent_activations_within_1_and_zeros_table_exact():
    errors = validation().errors
    assert errors[TABLE_4][1] <= 0.05
    assert errors[TABLE_2][1] <= 0.01
    assert errors["ZeRO, table 1"] == (0, 0)


def test_the_table_has_8_10_20_10_3_and_9_rows_and_prints_each():
    table = validation()
    families = [row.family for row in table]
    assert [families.count(name) for name in dict.fromkeys(families)] == [8, 10, 20, 10, 3, 9]
    assert len(str(table).splitlines()) == 60 + 2 * 6


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *((kind, TABLE_5) for kind in ("products", "attention", "elementwise", "recomputation", "tp")),
        *((kind, TABLE_5) for kind in ("bubble", "optimizer")),
        ("dp", TABLE_1),
        ("bubble", TABLE_1),
    ],
)
def test_leaving_a_term_out_makes_the_error_worse(kind, family, monkeypatch):
    before = validation().errors[family][0]
    left = property(lambda self: sum(x for name, x in self.seconds.items() if name != kind))
    monkeypatch.setattr(Estimate, "total_seconds", left)
    assert validation().errors[family][0] > before
