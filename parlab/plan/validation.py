"""The planner beside published measurements: what it predicts, what was measured, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from parlab.plan.case import MIXED, Case
from parlab.plan.estimate import estimate
from parlab.plan.hardware import A100, H100, Hardware
from parlab.plan.layout import Layout
from parlab.plan.memory import kept_of_layer
from parlab.plan.models import GPT_1T, GPT_22B, GPT_175B, GPT_530B, LLAMA_7B, LLAMA_405B, GPTConfig
from parlab.plan.work import Machine, layer
from parlab.world import DGX_A100, DGX_H100

# Megatron of 2021 waits for all of its traffic; the papers that follow hide some of it
A100_2021 = replace(A100, hides=frozenset())


class Row(NamedTuple):
    """One published number. `unit` is of both; the error is relative."""

    family: str
    name: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Validation:
    """All rows; iterates over them, and prints as a table, each family followed by its mean and greatest error."""

    rows: list[Row]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def errors(self) -> dict[str, tuple[float, float]]:
        """Mean and greatest size of the error, by family."""
        families = dict.fromkeys(row.family for row in self.rows)
        sizes = {name: [abs(row.error) for row in self.rows if row.family == name] for name in families}
        return {name: (float(np.mean(found)), max(found)) for name, found in sizes.items()}

    def __str__(self) -> str:
        lines = []
        for family, (mean, worst) in self.errors.items():
            lines.append(family)
            lines += [
                f"  {row.name:34} {row.predicted:10.4g} {row.measured:10.4g} {row.unit:12} {row.error:+7.1%}"
                for row in self.rows
                if row.family == family
            ]
            lines.append(f"  {'mean, greatest':34} {mean:44.1%} {worst:7.1%}")
        return "\n".join(lines)


def validation(hardware: Hardware | None = None) -> Validation:
    """Every published row, predicted.

    Args:
        hardware: instead of the A100's fractions, to see what other ones would give.

    >>> mean, worst = validation().errors["Korthikanti 2022, table 5"]
    >>> f"{mean:.1%}, {worst:.1%}"
    '2.4%, 4.9%'
    """
    a100 = hardware or A100
    old = replace(a100, hides=A100_2021.hides)
    return Validation(
        [*_korthikanti(a100), *_layer_times(a100), *_activations(), *_megatron(old), *_llama_3(), *_zero()]
    )


def _korthikanti(hardware: Hardware) -> Iterator[Row]:
    """Korthikanti et al. 2022, table 5: t 8, no data parallelism, 2048 tokens."""
    for name, config, p, batch, b, v, full, selective in (
        ("22B", GPT_22B, 1, 4, 4, 1, 1.42, 1.10),
        ("175B", GPT_175B, 8, 64, 1, 3, 18.13, 13.75),
        ("530B", GPT_530B, 35, 280, 1, 3, 49.05, 37.83),
        ("1T", GPT_1T, 64, 512, 1, 1, 94.42, 71.49),
    ):
        layout = Layout(pp=p, tp=8, chunks=v, microbatch=b, recompute="full")
        for text, measured in (("full recomputation", full), ("selective, sequence parallel", selective)):
            found = estimate(config, DGX_A100, layout, batch=batch, sequence=2048, hardware=hardware)
            yield Row("Korthikanti 2022, table 5", f"{name} {text}", "s", found.total_seconds, measured)
            layout = layout.but(recompute="selective", sequence_parallel=True)


def _layer_times(hardware: Hardware) -> Iterator[Row]:
    """Its table 4: one layer of 22B, b 4, t 8."""
    for cut, recompute, forward, backward in (
        (False, "none", 7.7, 11.9),
        (True, "none", 7.2, 11.8),
        (False, "full", 7.7, 19.5),
        (False, "selective", 7.7, 13.2),
        (True, "selective", 7.2, 13.1),
    ):
        layout = Layout(tp=8, microbatch=4, recompute=recompute, sequence_parallel=cut)
        sides = layer(Machine(DGX_A100, hardware), Case(GPT_22B, layout, 4, 2048, MIXED, 2))
        name = "sequence parallel, " * cut + f"recompute {recompute}"
        for side, kinds, measured in zip(("forward", "backward"), sides, (forward, backward), strict=True):
            predicted = 1e3 * float(np.sum(sum(kinds.values())))
            yield Row("Korthikanti 2022, table 4", f"{name}, {side}", "ms", predicted, measured)


def _activations() -> Iterator[Row]:
    """Its table 2, 34 sbh and 5 as²b: bytes that a layer keeps."""
    for name, config, b in (("22B", GPT_22B, 4), ("175B", GPT_175B, 1), ("530B", GPT_530B, 1), ("1T", GPT_1T, 1)):
        s, h, a, t = 2048, config.hidden_size, config.num_attention_heads, 8
        for cut, recompute, published in (
            (False, "none", s * b * h * (10 + 24 / t) + 5 * a * s * s * b / t),
            (True, "none", 34 * s * b * h / t + 5 * a * s * s * b / t),
            (False, "selective", s * b * h * (10 + 24 / t)),
            (True, "selective", 34 * s * b * h / t),
            (False, "full", 2 * s * b * h),
        ):
            case = Case(config, Layout(tp=t, microbatch=b, sequence_parallel=cut), b, s, MIXED, 2)
            predicted = kept_of_layer(case, np.array(recompute)).item() / 1e6
            text = f"{name} " + "sequence parallel, " * cut + f"recompute {recompute}"
            yield Row("Korthikanti 2022, table 2", text, "MB", predicted, published / 1e6)


def _megatron(hardware: Hardware) -> Iterator[Row]:
    """Narayanan et al. 2021, table 1; FLOPs as its equation 3 counts them, with full recomputation."""
    for heads, E, L, t, p, ranks, batch, measured, b, v in (
        (24, 2304, 24, 1, 1, 32, 512, 137, 16, 1),
        (32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
        (32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
        (48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1),
        (64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1),
        (80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3),
        (96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2),
        (128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2),
        (128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
        (160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1),
    ):
        config = GPTConfig(51200, E, L, heads)
        layout = Layout(ranks // (t * p), p, 1, t, chunks=v, microbatch=b, zero=0, recompute="full")
        found = estimate(config, DGX_A100, layout, batch=batch, sequence=2048, hardware=hardware)
        flops = 96 * batch * 2048 * L * E**2 * (1 + 2048 / (6 * E) + 51200 / (16 * L * E))
        predicted = flops / found.total_seconds / ranks / 1e12
        name = f"{config.num_parameters / 1e9:.1f}B on {ranks}"
        yield Row("Narayanan 2021, table 1", name, "TFLOP/s", predicted, measured)


def _llama_3() -> Iterator[Row]:
    """Dubey et al. 2024, table 4."""
    llama = Layout(pp=16, tp=8, chunks=8, zero=2, schedule="looped_bfs", sequence_parallel=True)
    for d, c, batch, sequence, measured in (
        (64, 1, 2048, 8192, 430),
        (128, 1, 2048, 8192, 400),
        (8, 16, 128, 131072, 380),
    ):
        found = estimate(LLAMA_405B, DGX_H100, llama.but(dp=d, cp=c), batch=batch, sequence=sequence, hardware=H100)
        predicted = found.mfu * 989
        yield Row("Llama 3, table 4", f"405B, d {d}, c {c}, {sequence} tokens", "TFLOP/s", predicted, measured)


def _zero() -> Iterator[Row]:
    """Rajbhandari et al. 2020, table 1: state of 7.5 billion parameters, scaled from a 7B model's estimate."""
    scale = 7.5e9 / LLAMA_7B.num_parameters / 1e9
    published = {4: (52.5, 41.3, 30), 64: (31.4, 16.6, 1.88), 1024: (30.1, 15.1, 0.12)}
    for ranks, gigabytes in published.items():
        for stage, measured in zip((1, 2, 3), gigabytes, strict=True):
            found = estimate(LLAMA_7B, DGX_A100, Layout(dp=ranks, zero=stage), batch=ranks, sequence=2048).bytes
            predicted = scale * (found["weights"] + found["gradients"] + found["optimizer"])
            digits = len(f"{measured}".partition(".")[2])  # as printed
            yield Row("ZeRO, table 1", f"N {ranks}, stage {stage}", "GB", round(predicted + 1e-9, digits), measured)
