"""Does training even out the load of ranks? The fullest rank of a small Mixtral, over 120 seeds of its weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from parlab.nn import AdamW, MarkovSource, Mixtral, MixtralConfig
from parlab.train import Mesh, Trainer
from parlab.world import Comm, run

RANKS, EXPERTS, STEPS, LAST = 4, 8, 60, 10
SEEDS = range(41, 161)  # of the weights
RATE = 0.05  # γ
STORED = "seeds.json"


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
            loads = np.reshape(rows_to_experts(trainer, batches[step][0])[0], (RANKS, -1)).sum(axis=1)
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


def rows_to_experts(trainer: Trainer, tokens: Any) -> list[list[list[int]]]:
    """The rows that each rank of ep sends to each expert for a batch, `[P][N]` of each layer. No weight changes.

    Every rank calls it. A bias does not count these rows.

    Args:
        trainer: of a Mixtral, on dp and ep alone, with zero 0, 1 or 2.
        tokens: `[B, S]`, the whole batch.
    """
    dp, llama = trainer.parts.job.mesh.dp, trainer.parts.model.llama
    rows = tokens.shape[0] // dp.size
    hidden, _ = llama.embedding.forward(tokens[dp.rank * rows : (dp.rank + 1) * rows, :])
    tables = []
    for block in llama.blocks:
        hidden, cache = block.forward(hidden)
        tables.append(cache["mlp"].mix.plan.counts)  # the plan of the dispatch has the counts of all ranks
    return tables


@cache
def loads_of_seeds() -> dict[int, tuple[Load, Load]]:
    """By seed `trained` without a bias and with one: `python -m parlab.labs.seeds` writes them."""
    loads = json.loads((files("parlab.labs") / STORED).read_text(encoding="utf-8"))
    return {seed: (Load(*plain), Load(*biased)) for seed, (plain, biased) in zip(SEEDS, loads, strict=True)}


if __name__ == "__main__":
    rows = [json.dumps([trained(seed), trained(seed, RATE)]) for seed in SEEDS]
    with open(str(files("parlab.labs") / STORED), "w", encoding="utf-8") as file:
        file.write("[" + ",\n".join(rows) + "]\n")
