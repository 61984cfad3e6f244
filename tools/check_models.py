"""Train the right mesh and the six bugs of lesson 07 on 40 models: `python -m tools.check_models`, half an hour.

It writes what `parlab.labs.many_models` reads: how far each check is off, in float64, float32 and bf16.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any
from unittest.mock import patch

import numpy as np

from parlab.labs import silent_bugs
from parlab.labs.checked_models import ARITHMETICS, MODELS, STORED, ManyModels, checked
from parlab.labs.silent_bugs import BUGS, NONE, PRICES, Suspect
from parlab.nn import Llama
from parlab.nn.linear import as_rows, linear, linear_backward_input
from parlab.world.collectives.common import combiner


def to_bf16(x: Any) -> Any:
    """The nearest numbers with 8 significant bits, halves to even; other dtypes than float32 stay."""
    if x.dtype != np.float32:
        return x
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@contextmanager
def rounded(arithmetic: str) -> Iterator[None]:
    """Suspects whose models are float32; for bf16, weights, operands, products and sums of messages are rounded.

    In float64 they are as they were.
    """
    to = to_bf16 if arithmetic == "bf16" else np.asarray
    dtype = "float64" if arithmetic == "float64" else "float32"
    true_model = silent_bugs._model

    @cache
    def model(seed: int) -> Llama:
        start = true_model(seed)
        return Llama(start.config, {name: to(x.astype(dtype)) for name, x in start.weights.items()})

    def linear_rounded(x: Any, weight: Any) -> Any:
        y, kept = linear(x, weight)
        return to(y), kept

    def backward_input_rounded(dy: Any, kept: Any, weight: Any) -> Any:
        dx, pending = linear_backward_input(dy, kept, weight)
        return to(dx), pending

    def combiner_rounded(op: Any, x: Any) -> Any:
        combine = combiner(op, x)
        return lambda a, b: to(combine(a, b))

    rounding = {linear: linear_rounded, linear_backward_input: backward_input_rounded, combiner: combiner_rounded}
    changed: dict[tuple[Any, str], Any] = {(silent_bugs, "_model"): model}
    changed[sys.modules["parlab.nn.linear"], "as_rows"] = lambda x: to(as_rows(x))  # the operands
    for module in [module for name, module in sys.modules.items() if name.startswith("parlab.")]:
        for old, new in rounding.items():
            if vars(module).get(old.__name__) is old:
                changed[module, old.__name__] = new
    patches = [patch.object(module, name, new) for (module, name), new in changed.items()]
    for cached in (silent_bugs._serial, silent_bugs._trained):
        cached.cache_clear()
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
        for cached in (silent_bugs._serial, silent_bugs._trained):
            cached.cache_clear()


def by_check(bug: str) -> dict[str, list[float]]:
    """How far each check is off on each model, in the arithmetic of now."""
    found = [checked(bug, seed)[0] for seed in range(MODELS)]
    return {check: [of_model[check] for of_model in found] for check in PRICES}


if __name__ == "__main__":
    differences = {}
    for arithmetic in ARITHMETICS:
        with rounded(arithmetic):
            differences[arithmetic] = {bug: by_check(bug) for bug in (NONE, *BUGS)}
    ends = {bug: [checked(bug, seed)[1] for seed in range(MODELS)] for bug in BUGS}
    losses = {bug: Suspect(bug).losses["eight ranks"] for bug in (NONE, *BUGS)}
    found = ManyModels(differences, ends, {"one rank": Suspect(NONE).losses["one rank"]} | losses)
    with open(str(files("parlab.labs") / STORED), "w", encoding="utf-8") as file:
        file.write(json.dumps(found._asdict()).replace("], ", "],\n ") + "\n")
