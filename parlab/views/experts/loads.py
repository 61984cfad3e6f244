"""The load of the fullest rank while a small Mixtral trains, without a bias of the router and with one."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, panel, scale, sheet
from parlab.views.widgets.explorer import Explorer
from parlab.views.widgets.explorer import steps as slider
from parlab.world import Comm, run

RANKS, EXPERTS, STEPS = 4, 8, 60
RATES = (0.0, 0.002, 0.01, 0.05, 0.2)  # γ, by which a step raises or lowers a bias
SEEDS = (1, 2, 3, 4, 5)  # of the weights
LAST = 10  # steps, whose mean is said
STORED = "loads.json"
BIASED, PLAIN = "#0072B2", "#D55E00"
LEFT, RIGHT, GAP = 0.8, 0.1, 0.3  # of the five panels, in inches


def fullest_over_steps(seed: int, rate: float) -> list[float]:
    """Train for 60 steps on 4 ranks; the rows of the fullest rank over the mean, before each step and after the last.

    Layer, batches and sizes are those of lesson 10: 61 numbers. Each belongs to the batch that comes next, and the last
    one to the last batch again.
    """
    source = MarkovSource()
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "initializer_range": 0.3}
    config = MixtralConfig(vocab_size=source.vocab_size, **sizes, **experts)  # type: ignore[arg-type]

    def program(comm: Comm) -> list[float]:
        model = Mixtral.random(config, seed=seed, dtype="float64", xp=np)
        trainer = Trainer(Mesh(comm, dp=RANKS, ep=RANKS), model, AdamW(lr=1e-2), bias_rate=rate)
        found = []
        for step in range(STEPS):
            tokens, targets = source.batch(step, batch_size=8, length=32, xp=np)
            found.append(_fullest(trainer, tokens))
            trainer.step(tokens, targets)
        return [*found, _fullest(trainer, tokens)]

    return [round(load, 3) for load in run(program, RANKS).results[0]]


def _fullest(trainer: Trainer, tokens: Any) -> float:
    table = trainer.rows_to_experts(tokens)[0]
    loads = np.reshape(table, (RANKS, RANKS, EXPERTS // RANKS)).sum(axis=(0, 2))
    return float(loads.max() / loads.mean())


@cache
def stored() -> dict[float, dict[int, list[float]]]:
    """`fullest_over_steps` by rate and seed, computed before: `python -m parlab.views.experts.loads` writes them."""
    text = (files("parlab.views.experts") / STORED).read_text(encoding="utf-8")
    return {rate: dict(zip(SEEDS, loads, strict=True)) for rate, loads in zip(RATES, json.loads(text), strict=True)}


def load_over_steps(rate: float = 0.05) -> Picture:
    """Draw the load of the fullest rank over 60 steps, for five seeds of the weights: without a bias, and with one.

    `explore_bias` shows this.

    Args:
        rate: γ, by which each step raises or lowers the bias of an expert: 0, 0.002, 0.01, 0.05 or 0.2.

    Raises:
        ValueError: another rate.
    """
    if rate not in RATES:
        raise ValueError(f"rate={rate!r:.60}: stored are {', '.join(f'{known:g}' for known in RATES)}")
    with_bias, without = stored()[rate], stored()[0.0]
    ends = {seed: float(np.mean(loads[-LAST:])) for seed, loads in with_bias.items()}
    before = float(np.mean([loads[-LAST:] for loads in without.values()]))
    after = float(np.mean(list(ends.values())))
    instead = f", {before:.2f} without" if rate else ", no bias"
    over = f"({len(SEEDS)} seeds, {LAST} batches)"
    headline = f"γ = {rate:g}: fullest rank ends at {after:.2f} × mean on average{instead} {over}"
    lines = [
        headline,
        *(f"seed {seed}: {load:.2f} times the mean in the last {LAST} steps" for seed, load in ends.items()),
    ]
    figure = sheet(lines, 3.2, headline)
    wide = (theme.WIDTH - LEFT - RIGHT) / len(SEEDS) - GAP
    drawn = [("without a bias", without, PLAIN)] + ([("with it", with_bias, BIASED)] if rate else [])
    for number, seed in enumerate(SEEDS):
        axes = panel(figure, LEFT + number * (wide + GAP), 0.95, wide, 1.65)
        for name, of_seed, color in drawn:
            axes.plot(range(STEPS + 1), of_seed[seed], color=color, linewidth=1.6, gid=f"{name}, seed {seed}")
        scale(axes.xaxis, f"steps, seed {seed}", ends=(0, STEPS), ticks=(0, 30, 60))
        scale(axes.yaxis, "" if number else "fullest, × mean", ends=(0.9, 2.8), ticks=(1, 2), grid=True)
    line_legend(figure, [(name, {"color": color, "linewidth": 1.6}) for name, _, color in drawn])
    return figure


def explore_bias() -> Explorer:
    """A slider for `load_over_steps`: the rate of the bias."""
    return Explorer(
        "explore_bias", {"rate": slider("γ", [(f"{rate:g}", rate) for rate in RATES], 0.05)}, load_over_steps
    )


if __name__ == "__main__":
    rows = [json.dumps([fullest_over_steps(seed, rate) for seed in SEEDS]) for rate in RATES]
    with open(str(files("parlab.views.experts") / STORED), "w", encoding="utf-8") as file:
        file.write("[" + ",\n".join(rows) + "]\n")
