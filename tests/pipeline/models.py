"""A small model with a two-part backward, the schedules that it runs under, and schedules that are spoilt."""

import math
from collections import deque
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from parlab import arrays
from parlab.nn.config import LlamaConfig
from parlab.nn.stage import Stage
from parlab.pipeline import (
    Action,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    naive,
    one_f_one_b,
    run_schedule,
    simulate,
    zb_h1,
    zb_h2,
)
from parlab.pipeline.costs import change_of_kept
from parlab.pipeline.dependencies import action_table, input_from
from parlab.pipeline.steps import receives
from parlab.world import Cluster, run
from tests.nn.parity import relative_error

DATA = Path(__file__).parent.parent / "data"
SECOND = 10**12  # picoseconds
ALL = [
    naive(2, 4),
    gpipe(4, 4),
    one_f_one_b(2, 4),
    one_f_one_b(4, 4),
    interleaved_one_f_one_b(2, 4, 2),
    zb_h1(4, 4),
    zb_h2(2, 4),
    one_f_one_b(1, 4),
    looped_bfs(2, 4, 2),
    interleaved_one_f_one_b(2, 3, 4),
    one_f_one_b(8, 8),
    zb_h1(8, 9),
    zb_h2(5, 10),
    Schedule.from_csv(DATA / "pytorch_zb1p_2rank.csv"),
    Schedule.from_csv(DATA / "pytorch_dualpipev_4rank_10mb.csv"),
]

TO_SPOIL = [
    gpipe(2, 3),
    one_f_one_b(3, 4),
    looped_bfs(2, 3, 2),
    interleaved_one_f_one_b(2, 4, 2),
    zb_h1(3, 4),
    zb_h2(2, 4),
]


class TanhStage(Stage):
    """y = tanh(x W): a stage whose backward has two parts. The last one's loss is the mean of (y − target)²/2."""

    def __init__(self, weights, name):
        self.weights, self.name, self.weight_names = weights, name, (name,)

    def forward(self, x, target=None):
        xp = arrays.namespace(x)
        y = xp.tanh(x @ self.weights[self.name])
        slope = 1 - y**2
        if target is None:
            return y, (x, slope, None)
        return xp.mean((y - target) ** 2) / 2, (x, slope, y - target)

    def backward_input(self, dy, cache):
        x, slope, error = cache
        if error is not None:
            dy = error * (dy / error.size)
        dz = dy * slope
        return dz @ self.weights[self.name].T, (x, dz)

    def backward_weight(self, pending):
        x, dz = pending
        return {self.name: x.T @ dz}


def tanh_model(stages, microbatches, xp=np, rows=3, width=5):
    rng = np.random.default_rng(stages)
    weights = {f"w{i}": xp.asarray(rng.normal(size=(width, width))) for i in range(stages)}
    batch, targets = (xp.asarray(rng.normal(size=(microbatches * rows, width))) for _ in range(2))
    parts = [slice(i * rows, (i + 1) * rows) for i in range(microbatches)]
    model = [TanhStage(weights, f"w{i}") for i in range(stages)]
    return model, batch, targets, [batch[p, :] for p in parts], [targets[p, :] for p in parts]


def serial(model, x, target):
    """Loss and gradients of the whole batch at once."""
    caches, gradients = [], {}
    for stage in model[:-1]:
        x, cache = stage.forward(x)
        caches.append(cache)
    loss, cache = model[-1].forward(x, target)
    dy = 1.0
    for stage, of_stage in zip(reversed(model), reversed([*caches, cache]), strict=True):
        dy, pending = stage.backward_input(dy, of_stage)
        gradients |= stage.backward_weight(pending)
    return float(loss), gradients


def together(results):
    """The loss and all gradients, from the ranks' parts."""
    losses = [loss for loss, _ in results if loss is not None]
    names = [name for _, gradients in results for name in gradients]
    assert len(losses) == 1
    assert len(names) == len(set(names))
    return losses[0], dict(chain.from_iterable(gradients.items() for _, gradients in results))


def off_serial(results, model, batch, target):
    """How far loss and gradients of all ranks are from the serial ones, relative to these: the most."""
    (loss, gradients), (expected_loss, expected) = together(results), serial(model, batch, target)
    assert gradients.keys() == expected.keys()
    return max(
        abs(loss - expected_loss) / expected_loss,
        *(relative_error(gradients[name], expected[name]) for name in expected),
    )


def run_and_simulated(schedule, costs):
    """The schedule run on a small model without port limits, and simulated; the model, its batch and its targets."""
    model, batch, target, inputs, targets = tanh_model(schedule.num_stages, schedule.num_microbatches)
    cluster = Cluster.uniform(latency=costs.transfer, bandwidth=math.inf, ports=None)
    arguments = (schedule.num_ranks, schedule, model, inputs, targets)
    done = run(run_schedule, *arguments, costs=costs, cluster=cluster)
    return done, simulate(schedule, costs), (model, batch, target)


def peak_but_for_sent(timeline, rank):
    """The most bytes held at once, without what is under way to other ranks."""
    return max(accumulate(nbytes for _, nbytes, name in timeline._held[rank] if name != "sent"))


def simulated_bytes(shown, rank, activation, pending, message):
    """What a rank holds after each change: chunks as `kept_bytes` counts them, and messages of so many bytes, each from
    when its receive is posted, or from when it is made on the same rank, until it is used; the part of it that is kept
    then belongs to the chunks."""
    last = shown.schedule.num_stages - 1
    home = {action: r for r, row in enumerate(shown.schedule.actions) for action in row}
    posted = deque(receives(action_table(shown.schedule), rank, shown.costs.pair is not None))
    changes = []
    for number, step in enumerate(shown.steps(rank)):
        while posted and posted[0].after == number:
            posted.popleft()
            changes.append(message)
        for kind, s, i in step.actions:
            came = input_from(Action(kind, s, i), last)
            changes.append(change_of_kept(kind, activation[s], pending[s]) - (message if came else 0))
        for kind, s, i in step.actions:
            used_by = (Action("F", s + 1, i),) if kind == "F" else (Action("B", s - 1, i), Action("I", s - 1, i))
            if kind != "W" and any(home.get(action) == rank for action in used_by):
                changes.append(message)
    return list(accumulate(changes))


def name_of(value):
    return value.name if isinstance(value, Schedule) else None


CONFIG = LlamaConfig(
    vocab_size=13,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
)

# Zero Bubble (Qi et al., 2024): the inputs of its Table 9
INPUTS = {  # p, m, v, F, I, W, c in ms
    "1.5B p8 m24": (8, 24, 3, 18.522, 18.086, 9.337, 0.601),
    "1.5B p8 m64": (8, 64, 3, 18.546, 18.097, 9.321, 0.762),
    "6.2B p8 m32": (8, 32, 4, 29.802, 29.428, 19.530, 0.577),
    "14.6B p16 m48": (16, 48, 3, 11.347, 11.248, 8.132, 0.377),
}


def spoil(seed: int) -> Schedule:
    """A valid schedule with two actions of a rank swapped, or one dropped, repeated or renumbered."""
    rng = np.random.default_rng(seed)
    rows = [list(row) for row in TO_SPOIL[rng.integers(len(TO_SPOIL))].actions]
    row = rows[rng.integers(len(rows))]
    at, other = (int(i) for i in rng.choice(len(row), 2, replace=False))
    kind, stage, microbatch = row[at]
    match rng.choice(["swap", "swap neighbours", "drop", "repeat", "renumber"]):
        case "swap":
            row[at], row[other] = row[other], row[at]
        case "swap neighbours":
            at = min(at, len(row) - 2)
            row[at], row[at + 1] = row[at + 1], row[at]
        case "drop":
            row.pop(at)
        case "repeat":
            row.insert(other, row[at])
        case "renumber":
            row[at] = Action(kind, stage, (microbatch + int(rng.integers(1, 3))) % 5)
    return Schedule(rows)
