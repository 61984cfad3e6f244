"""The planner's predictions beside published numbers, and what each of them can show.

Invariant: each row is predicted by the bills that `estimate` adds up, from what was published about its run; all rows
of a device have the same constants. Each quantity has a function of its own: `QUANTITIES`.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, NamedTuple

from parlab.arguments import one_of
from parlab.nn import GPTConfig
from parlab.nn.published import MODELS
from parlab.plan.case import Case
from parlab.plan.estimate import Estimate, evaluate
from parlab.plan.layer import all_kinds, layer_seconds
from parlab.plan.layout import Layout
from parlab.plan.machine import Machine
from parlab.plan.memory import kept_of_layer
from parlab.plan.software import PROGRAMS, Software
from parlab.world.cluster import CLUSTERS
from parlab.zero import MIXED, StateBytes

WORK = ("products", "attention", "elementwise", "recomputation", "optimizer")
TERMS = (*WORK, "tp", "cp", "pp", "dp", "imbalance", "bubble")  # of the seconds of a step


class Row(NamedTuple):
    """One published number of a `family`, and its prediction, both in `unit`.

    `kind` says what it can show. fitted: constants were chosen on it. formula: its paper evaluated a formula, and
    nothing was measured. unseen: it was measured, and no constant was chosen on it. `habits`: the family's software,
    and the values that differ from its usual ones.
    """

    family: str
    kind: str
    name: str
    unit: str
    predicted: float
    published: float
    habits: str

    @property
    def error(self) -> float:
        """The relative error: predicted over published, less 1."""
        return self.predicted / self.published - 1


class Validation(list[Row]):
    """All rows. It prints as a table, with the mean and the greatest error below each family."""

    @property
    def errors(self) -> dict[str, tuple[float, float]]:
        """The mean and the greatest absolute error of each family."""
        families: dict[str, list[float]] = {}
        for row in self:
            families.setdefault(row.family, []).append(abs(row.error))
        return {name: (sum(of) / len(of), max(of)) for name, of in families.items()}

    def __str__(self) -> str:
        lines = []
        for family, (mean, worst) in self.errors.items():
            rows = [row for row in self if row.family == family]
            table = [f"  {x.name:34} {x.predicted:10.4g} {x.published:10.4g} {x.unit:12} {x.error:+7.1%}" for x in rows]
            title = f"{family} ({rows[0].kind}; {rows[0].habits})"
            lines += [title, *table, f"  {'mean, greatest':34} {mean:44.1%} {worst:7.1%}"]
        return "\n".join(lines)


def validation(without: str | None = None) -> Validation:
    """Predict every published row of `published.toml`, which names their sources.

    Args:
        without: a kind of seconds of a step that is forgotten, such as "dp". The rows of one layer and of memory stay.

    Raises:
        ValueError: no kind of seconds.

    >>> mean, worst = validation().errors["Korthikanti 2022, table 5"]
    >>> f"{mean:.1%}, {worst:.1%}"
    '1.8%, 3.2%'
    """
    if without is not None:
        one_of("without", without, TERMS)
    rows = Validation()
    for family in tomllib.loads((files("parlab.plan") / "published.toml").read_text(encoding="utf-8"))["family"]:
        habits = _habits(family["every"])
        for values in family["rows"]:
            row = family["every"] | dict(zip(family["columns"], values, strict=True))
            run = _Run(row, without)
            predicted = QUANTITIES[family["quantity"]](run)
            said = family["name"], family["kind"], row["name"], family["unit"]
            rows.append(Row(*said, predicted, row["published"], habits))
    return rows


def _habits(every: dict[str, Any]) -> str:
    """The software of a family, and the values that differ from its usual ones."""
    said = [every["software"]]
    for name in (*vars(Software()), "state"):
        if name in every:
            values = every[name] if isinstance(every[name], list) else [every[name]]
            said.append(f"{name} {', '.join(map(str, values)) or 'nothing'}")
    return ", ".join(said)


class _Run:
    """A published run, as the bills read it.

    Attributes:
        row: the values of its row, and those of its family.
        machine, case: what the bills read.
        without: the kind of seconds that is forgotten, or None.
    """

    def __init__(self, row: dict[str, Any], without: str | None) -> None:
        self.row, self.without = row, without
        config = MODELS[row["model"]] if isinstance(row["model"], str) else GPTConfig(*row["model"])
        software = PROGRAMS[row["software"]]
        software = software.but(**{name: row[name] for name in vars(software) if name in row})
        state = StateBytes(*row.get("state", MIXED))
        self.machine = Machine(CLUSTERS[row["cluster"]])
        layout = Layout(**{name: row[name] for name in vars(Layout()) if name in row})
        self.case = Case(config, layout, row["batch"], row["sequence"], state, software=software)

    def estimate(self) -> Estimate:
        """Its estimate."""
        return evaluate(self.case, self.machine)[0]

    def seconds(self, found: Estimate) -> float:
        """Seconds of a step, without the kind that is forgotten."""
        return found.total_seconds - (found.seconds[self.without] if self.without else 0.0)


def _step(run: _Run) -> float:
    """Seconds of a step."""
    return run.seconds(run.estimate())


def _pace(run: _Run) -> float:
    """TFLOP/s of a GPU, with the FLOPs that are computed again: of all but the head."""
    found, model = run.estimate(), run.case.model
    head = 2 * run.row["batch"] * run.row["sequence"] * model.hidden_size * model.vocab_size  # forward
    again = found.flops / 3 - head if found.layout.recompute == "full" else 0
    return (found.flops + again) / run.seconds(found) / found.layout.ranks / 1e12


def _layer(run: _Run) -> float:
    """Milliseconds of a layer's forward or backward."""
    return 1e3 * getattr(all_kinds(layer_seconds(run.machine, run.case)), run.row["side"]).item()


def _kept(run: _Run) -> float:
    """MB that a layer keeps of a microbatch."""
    return kept_of_layer(run.case, run.case.layout.recompute).item() / 1e6


def _state(run: _Run) -> float:
    """GB of a rank's state, of a model with the 7.5 billion parameters of the paper, rounded as it is printed there."""
    found, billions = run.estimate(), 7.5
    nbytes = sum(found.bytes[kind] for kind in ("weights", "gradients", "optimizer"))
    state = billions / run.case.config.num_parameters * nbytes
    decimals = len(f"{run.row['published']}".partition(".")[2])
    return round(state + 1e-9, decimals)  # a half goes up, as in the paper


def _rank(run: _Run) -> float:
    """GiB of the fullest rank."""
    return run.estimate().total_bytes / 2**30


QUANTITIES = {"step": _step, "pace": _pace, "layer": _layer, "kept": _kept, "state": _state, "rank": _rank}
