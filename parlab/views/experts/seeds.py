"""Does training even out the load of ranks? The fullest rank of a small Mixtral, over 120 seeds of its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.views.engine import marks, theme
from parlab.views.engine.picture import Picture, plot, scale
from parlab.world import Comm, run

RANKS, EXPERTS, STEPS, LAST = 4, 8, 60, 10
SEEDS = range(41, 161)  # of the weights
RATE = 0.05  # γ
STORED = "seeds.json"
PLAIN, BIASED = "#D55E00", "#0072B2"


class Load(NamedTuple):
    """Rows of the fullest rank over the mean, means over ten batches; and the mean loss of the last ten steps."""

    before: float  # of the untrained weights, on the last ten batches
    after: float  # before each of the last nine steps, and after the last one
    loss: float


def trained(seed: int, rate: float = 0.0, prepare: Callable[[Trainer], None] = lambda trainer: None) -> Load:
    """Train the small Mixtral of lesson 10 for 60 steps.

    It runs on one rank, whose numbers are those of four: rank r of four has the experts 2r and 2r + 1.

    Args:
        seed: of the weights.
        rate: γ of the bias; 0: none.
        prepare: is called with the trainer before the first step.
    """
    source = MarkovSource()
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    config = MixtralConfig(vocab_size=source.vocab_size, **sizes, **experts)  # type: ignore[arg-type]
    batches = [source.batch(step, batch_size=8, length=32, xp=np) for step in range(STEPS)]

    def program(comm: Comm) -> Load:
        model = Mixtral.random(config, seed=seed, dtype="float64", xp=np)
        trainer = Trainer(Mesh(comm), model, AdamW(lr=1e-2), bias_rate=rate)
        prepare(trainer)

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


def load_of_seeds() -> Picture:
    """Draw how full the fullest rank is in each of 120 trainings, a dot a training: before, after 60 steps, and after
    60 steps with a bias of γ = 0.05; a line is the mean of a column.
    """
    loads = list(stored().values())
    columns = {
        "before": (theme.INK, [plain.before for plain, _ in loads]),
        "after 60 steps": (PLAIN, [plain.after for plain, _ in loads]),
        "after 60 steps with a bias": (BIASED, [biased.after for _, biased in loads]),
    }
    _, after, biased = (float(np.mean(of)) for _, of in columns.values())
    lines = [f"Training leaves the fullest rank at {after:.2f} × the mean, and a bias holds it at {biased:.2f}"]
    lines += [
        f"{name}: {min(of):.2f} to {max(of):.2f}, {np.mean(of):.2f} on average" for name, (_, of) in columns.items()
    ]
    changed = [with_bias.loss - plain.loss for plain, with_bias in loads]
    lines += [f"a bias changes the loss by {min(changed):+.3f} to {max(changed):+.3f}"]
    figure, axes = plot(lines, 3.4, lines[0], top=0.6, bottom=0.55)
    side_by_side = np.linspace(-0.3, 0.3, len(loads))  # the seeds, in their order
    for place, (name, (color, of)) in enumerate(columns.items()):
        dots = {"linestyle": "", "marker": "o", "markersize": 3.5, "color": color, "alpha": 0.55}
        axes.plot(place + side_by_side, of, gid=name, **dots)
        axes.plot([place - 0.36, place + 0.36], [np.mean(of)] * 2, color=color, linewidth=2.4)
        marks.word(axes, place + 0.38, float(np.mean(of)), f"{np.mean(of):.2f}", theme.TEXT)
    axes.axhline(1.0, color=theme.INK, linestyle="dashed", linewidth=1.2)
    top = 1.05 * max(max(of) for _, of in columns.values())
    scale(axes.xaxis, "(dashed: all ranks equally full)", ends=(-0.5, 2.6), ticks=range(3), says=list(columns))
    scale(axes.yaxis, "fullest rank, × mean", ends=(0.9, top), grid=True)
    return figure


if __name__ == "__main__":
    rows = [json.dumps([trained(seed), trained(seed, RATE)]) for seed in SEEDS]
    with open(str(files("parlab.views.experts") / STORED), "w", encoding="utf-8") as file:
        file.write("[" + ",\n".join(rows) + "]\n")
