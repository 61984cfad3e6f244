"""Does training even out the load of ranks? The fullest rank of a small Mixtral before and after, over 120 seeds."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from matplotlib.collections import LineCollection

from parlab.arguments import checked, flag
from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.views.drawing import theme
from parlab.views.drawing.picture import Picture, line_legend, plot, scale
from parlab.world import Comm, run

RANKS, EXPERTS, STEPS, LAST = 4, 8, 60, 10
SEEDS = range(41, 161)  # of the weights
RATE = 0.05  # γ
STORED = "seeds.json"
FULLER, EMPTIER, BIASED = "#D55E00", "#56B4E9", "#0072B2"


class Load(NamedTuple):
    """Rows of the fullest rank over the mean, means over ten batches; and the mean loss of the last ten steps."""

    before: float  # of the untrained weights, on the last ten batches
    after: float  # before each of the last nine steps, and after the last one
    loss: float


def trained(seed: int, rate: float) -> Load:
    """Train the small Mixtral of lesson 10 for 60 steps.

    It runs on one rank, whose numbers are those of four: rank r of four has the experts 2r and 2r + 1.
    """
    source = MarkovSource()
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "initializer_range": 0.3}
    config = MixtralConfig(vocab_size=source.vocab_size, **sizes, **experts)  # type: ignore[arg-type]
    batches = [source.batch(step, batch_size=8, length=32, xp=np) for step in range(STEPS)]

    def program(comm: Comm) -> Load:
        model = Mixtral.random(config, seed=seed, dtype="float64", xp=np)
        trainer = Trainer(Mesh(comm), model, AdamW(lr=1e-2), bias_rate=rate)

        def fullest(step: int) -> float:
            loads = np.reshape(trainer.rows_to_experts(batches[step][0])[0], (RANKS, -1)).sum(axis=1)
            return float(loads.max() / loads.mean())

        late = range(STEPS - LAST, STEPS)
        before = [fullest(step) for step in late]
        after, losses = [], []
        for step in range(STEPS):
            after += [fullest(step)] if step in late[1:] else []
            losses.append(trainer.step(*batches[step]).loss)
        after.append(fullest(late[-1]))
        return Load(*(round(float(np.mean(numbers)), 4) for numbers in (before, after, losses[-LAST:])))

    return run(program, 1).results[0]


@cache
def stored() -> dict[int, tuple[Load, Load]]:
    """By seed `trained` without a bias and with one: `python -m parlab.views.experts.seeds` writes them."""
    loads = json.loads((files("parlab.views.experts") / STORED).read_text(encoding="utf-8"))
    return {seed: (Load(*plain), Load(*biased)) for seed, (plain, biased) in zip(SEEDS, loads, strict=True)}


def grows_fuller() -> float:
    """The share of the seeds, in per cent, in which training makes the fullest rank fuller."""
    return 100 * float(np.mean([plain.after > plain.before for plain, _ in stored().values()]))


@checked({"bias": flag})
def load_of_seeds(*, bias: bool = False) -> Picture:
    """Draw the fullest rank before and after 60 steps of training, a line for each of 120 seeds of the weights.

    Args:
        bias: draw also how full it is after a training with a bias of γ = 0.05.
    """
    loads = sorted(stored().values())  # by the load before
    before, after = (np.array([getattr(plain, when) for plain, _ in loads]) for when in ("before", "after"))
    biased = np.array([with_bias.after for _, with_bias in loads])
    fuller = after > before
    lines = [f"Training makes the fullest rank fuller in {fuller.sum()} of {len(loads)} seeds: {grows_fuller():.0f} %"]
    shown = {"before": before, "after 60 steps": after} | ({"after 60 steps with a bias": biased} if bias else {})
    if bias:
        lines = [f"A bias holds the fullest rank at {biased.max():.2f} × mean or less in all {len(loads)} seeds"]
    lines += [f"{name}: {of.min():.2f} to {of.max():.2f}, {of.mean():.2f} on average" for name, of in shown.items()]
    changed = [with_bias.loss - plain.loss for plain, with_bias in loads]
    lines += [f"a bias changes the loss by {min(changed):+.3f} to {max(changed):+.3f}"] if bias else []
    figure, axes = plot(lines, 3.4, lines[0], top=0.85, bottom=0.45)
    x = np.arange(len(loads))
    ways = np.stack([np.column_stack([x, before]), np.column_stack([x, after])], axis=1)
    colors = [FULLER if more else EMPTIER for more in fuller]
    axes.add_collection(LineCollection(list(ways), colors=colors, linewidths=1.2, gid="ways"), autolim=False)
    ends = {"linestyle": "", "marker": "o", "markersize": 4.5}
    axes.plot(x, before, gid="before", **(ends | {"color": theme.INK, "markersize": 2.5}))
    entries = [("before", ends | {"color": theme.INK, "markersize": 2.5})]
    for name, color, chosen in (("fuller after 60 steps", FULLER, fuller), ("less full", EMPTIER, ~fuller)):
        axes.plot(x[chosen], after[chosen], color=color, gid=name, **ends)
        entries.append((name, ends | {"color": color}))
    if bias:
        axes.plot(x, biased, color=BIASED, gid="biased", **(ends | {"marker": "D", "markersize": 3.5}))
        entries.append(("trained with a bias", ends | {"color": BIASED, "marker": "D", "markersize": 3.5}))
    below = f"{len(loads)} seeds of the weights, by their fullest rank before"
    scale(axes.xaxis, below, ends=(-2, len(loads) + 1), ticks=())
    scale(axes.yaxis, "fullest rank, × mean", ends=(0.9, 1.05 * float(max(before.max(), after.max()))), grid=True)
    line_legend(figure, entries)
    return figure


if __name__ == "__main__":
    rows = [json.dumps([trained(seed, 0.0), trained(seed, RATE)]) for seed in SEEDS]
    with open(str(files("parlab.views.experts") / STORED), "w", encoding="utf-8") as file:
        file.write("[" + ",\n".join(rows) + "]\n")
