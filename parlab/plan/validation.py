"""The planner's predictions beside published measurements."""

from __future__ import annotations

import tomllib
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

from parlab.arguments import checked, instance, optional
from parlab.nn import GPTConfig
from parlab.nn.published import MODELS
from parlab.plan.estimate import estimate, kept_of_layer
from parlab.plan.layout import Case, Layout
from parlab.plan.machine import Hardware, Machine, hardware_of
from parlab.plan.seconds import layer_seconds, total
from parlab.plan.software import PROGRAMS
from parlab.world.cluster import CLUSTERS


class Row(NamedTuple):
    """One published number and its prediction, both in `unit`."""

    family: str
    name: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The relative error: predicted over measured, less 1."""
        return self.predicted / self.measured - 1


class Validation(list[Row]):
    """All rows. It prints as a table, with the mean and the greatest error below each family."""

    @property
    def errors(self) -> dict[str, tuple[float, float]]:
        """The mean and the greatest absolute error of each family."""
        sizes = {row.family: [abs(x.error) for x in self if x.family == row.family] for row in self}
        return {family: (sum(of) / len(of), max(of)) for family, of in sizes.items()}

    def __str__(self) -> str:
        lines = []
        for family, (mean, worst) in self.errors.items():
            rows = [row for row in self if row.family == family]
            table = [f"  {x.name:34} {x.predicted:10.4g} {x.measured:10.4g} {x.unit:12} {x.error:+7.1%}" for x in rows]
            lines += [family, *table, f"  {'mean, greatest':34} {mean:44.1%} {worst:7.1%}"]
        return "\n".join(lines)


@checked({"hardware": optional(partial(instance, kind=Hardware))})
def validation(hardware: Hardware | None = None) -> Validation:
    """Predict every published row of `published.toml`, which names their sources.

    Args:
        hardware: instead of the A100's fractions, to see the predictions of others.

    Raises:
        ValueError: no Hardware.

    >>> mean, worst = validation().errors["Korthikanti 2022, table 5"]
    >>> f"{mean:.1%}, {worst:.1%}"
    '1.8%, 3.2%'
    """
    found = Validation()
    for family in tomllib.loads((files("parlab.plan") / "published.toml").read_text(encoding="utf-8"))["family"]:
        for values in family["rows"]:
            of = family["every"] | dict(zip(family["columns"], values, strict=True))
            predicted = _predicted(family["unit"], of, hardware if of["cluster"] == "dgx_a100" else None)
            found.append(Row(family["name"], of["name"], family["unit"], predicted, of["measured"]))
    return found


def _predicted(unit: str, of: dict[str, Any], hardware: Hardware | None) -> float:
    """One row's prediction, by its unit.

    s: seconds of a step; ms: one pass of one layer; MB: bytes that one layer keeps; GB: the model's state; else TFLOP/s
    a GPU.
    """
    config = MODELS[of["model"]] if isinstance(of["model"], str) else GPTConfig(*of["model"])
    cluster, batch, sequence = CLUSTERS[of["cluster"]], of["batch"], of["sequence"]
    hardware = hardware or hardware_of(cluster)
    software = PROGRAMS[of["software"]]
    software = software.but(**{name: of[name] for name in vars(software) if name in of})
    layout = Layout(**{name: of[name] for name in vars(Layout()) if name in of})
    case = Case(config, layout, batch, sequence, software=software)
    if unit == "MB":
        return kept_of_layer(case, case.recompute).item() / 1e6
    if unit == "ms":
        return 1e3 * getattr(total(layer_seconds(Machine(cluster, hardware), case)), of["side"]).item()
    found = estimate(config, cluster, layout, batch=batch, sequence=sequence, hardware=hardware, software=software)
    if unit == "s":
        return found.total_seconds
    if unit == "GB":  # scaled to the 7.5 billion parameters of the paper, and rounded as printed there
        state = 7.5 / config.num_parameters * sum(found.bytes[kind] for kind in ("weights", "gradients", "optimizer"))
        return round(state + 1e-9, len(f"{of['measured']}".partition(".")[2]))
    again = found.flops / 3 - 2 * batch * sequence * case.E * case.V  # the head is not made again
    flops = found.flops + (again if layout.recompute == "full" else 0)
    return flops / found.total_seconds / layout.ranks / 1e12
