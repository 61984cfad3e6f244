"""The planner's predictions beside published numbers, and what each of them can show."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, NamedTuple

from parlab.arguments import instance, one_of
from parlab.nn import GPTConfig
from parlab.nn.published import MODELS
from parlab.plan.case import Case
from parlab.plan.estimate import Estimate, estimate
from parlab.plan.layer import all_kinds, layer_seconds
from parlab.plan.layout import Layout
from parlab.plan.machine import Hardware, Machine, hardware_of
from parlab.plan.memory import kept_of_layer
from parlab.plan.software import PROGRAMS, Software
from parlab.world.cluster import CLUSTERS
from parlab.zero import MIXED, StateBytes

WORK = ("products", "attention", "elementwise", "recomputation", "optimizer")
TERMS = (*WORK, "tp", "cp", "pp", "dp", "imbalance", "bubble")  # of the seconds of a step


class Row(NamedTuple):
    """One published number and its prediction, both in `unit`.

    `kind` says what it can show. fitted: constants were chosen on it. formula: its paper evaluated a formula, and
    nothing was measured. unseen: it was measured, and no constant was chosen on it.
    """

    family: str
    kind: str
    name: str
    unit: str
    predicted: float
    published: float

    @property
    def error(self) -> float:
        """The relative error: predicted over published, less 1."""
        return self.predicted / self.published - 1


class Validation(list[Row]):
    """All rows. It prints as a table, with the mean and the greatest error below each family.

    Attributes:
        habits: of each family, the software and the values that differ from its usual ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.habits: dict[str, str] = {}

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
            title = f"{family} ({rows[0].kind}; {self.habits[family]})"
            lines += [title, *table, f"  {'mean, greatest':34} {mean:44.1%} {worst:7.1%}"]
        return "\n".join(lines)


def validation(hardware: Hardware | None = None, without: str | None = None) -> Validation:
    """Predict every published row of `published.toml`, which names their sources.

    Args:
        hardware: instead of the A100's fractions, to see the predictions of others.
        without: a kind of seconds of a step that is forgotten, such as "dp". The rows of one layer and of memory stay.

    Raises:
        ValueError: no Hardware, or no kind of seconds.

    >>> mean, worst = validation().errors["Korthikanti 2022, table 5"]
    >>> f"{mean:.1%}, {worst:.1%}"
    '1.8%, 3.2%'
    """
    if hardware is not None:
        instance("hardware", hardware, Hardware)
    if without is not None:
        one_of("without", without, TERMS)
    rows = Validation()
    for family in tomllib.loads((files("parlab.plan") / "published.toml").read_text(encoding="utf-8"))["family"]:
        for values in family["rows"]:
            of = family["every"] | dict(zip(family["columns"], values, strict=True))
            predicted = _predicted(family["quantity"], of, hardware if of["cluster"] == "dgx_a100" else None, without)
            row = Row(family["name"], family["kind"], of["name"], family["unit"], predicted, of["published"])
            rows.append(row)
        rows.habits[family["name"]] = _habits(family["every"])
    return rows


def _habits(every: dict[str, Any]) -> str:
    """The software of a family, and the values that differ from its usual ones."""
    changed = {name: every[name] for name in vars(Software()) if name in every}
    words = {name: ", ".join(x) or "nothing" if isinstance(x, list) else x for name, x in changed.items()}
    said = [f"{name} {x}" for name, x in words.items()]
    if "state" in every:
        said.append("state " + ", ".join(map(str, every["state"])))
    return ", ".join([every["software"], *said])


def _predicted(quantity: str, of: dict[str, Any], hardware: Hardware | None, without: str | None) -> float:
    """One row's prediction.

    `quantity`: step: its seconds; layer: milliseconds of one pass of one layer; kept: MB that one layer keeps; state:
    GB of the model's state; rank: GiB of the fullest rank; pace: TFLOP/s a GPU.
    """
    config = MODELS[of["model"]] if isinstance(of["model"], str) else GPTConfig(*of["model"])
    cluster, batch, sequence = CLUSTERS[of["cluster"]], of["batch"], of["sequence"]
    hardware = hardware or hardware_of(cluster)
    software = PROGRAMS[of["software"]]
    software = software.but(**{name: of[name] for name in vars(software) if name in of})
    layout = Layout(**{name: of[name] for name in vars(Layout()) if name in of})
    case = Case(config, layout, batch, sequence, software=software)
    if quantity == "kept":
        return kept_of_layer(case, case.layout.recompute).item() / 1e6
    if quantity == "layer":
        return 1e3 * getattr(all_kinds(layer_seconds(Machine(cluster, hardware), case)), of["side"]).item()
    asked = {"batch": batch, "sequence": sequence, "hardware": hardware, "software": software}
    found = estimate(config, cluster, layout, state=StateBytes(*of.get("state", MIXED)), **asked)
    seconds = found.total_seconds - (found.seconds[without] if without else 0.0)
    if quantity == "step":
        return seconds
    if quantity == "rank":
        return found.total_bytes / 2**30
    if quantity == "state":  # scaled to the 7.5 billion parameters of the paper, and rounded as printed there
        state = 7.5 / config.num_parameters * sum(found.bytes[kind] for kind in ("weights", "gradients", "optimizer"))
        return round(state + 1e-9, len(f"{of['published']}".partition(".")[2]))
    head = 2 * batch * sequence * case.model.hidden_size * case.model.vocab_size
    return _computed_flops(found, head) / seconds / layout.ranks / 1e12


def _computed_flops(found: Estimate, head: float) -> float:
    """FLOPs of a step with its recomputation, but for the head's, whose forward, of `head` FLOPs, is not run again."""
    again = found.flops / 3 - head if found.layout.recompute == "full" else 0
    return found.flops + again
