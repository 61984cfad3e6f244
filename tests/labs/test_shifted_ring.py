"""Lesson 01's ring shifted by one: the bug that no error shows makes the loss worse with each seed, not with one."""

from pathlib import Path

import nbformat
import numpy as np
import pytest

from parlab import per_rank, run

LESSON = Path(__file__).parents[2] / "notebooks" / "01_collectives.ipynb"


def cell(beginning):
    (found,) = [c.source for c in nbformat.read(LESSON, as_version=4).cells if c.source.startswith(beginning)]
    return found


def test_a_shifted_ring_ends_at_3_8_to_10_6_times_the_loss_with_ten_seeds():
    names = {
        "np": np,
        "xp": np,
        "run": run,
        "per_rank": per_rank,
        "reduce_scatter": lambda comm, x: comm.reduce_scatter(x),
    }
    exec(cell("def ring_all_gather").partition("\n\n\n")[0], names)
    exec(cell("def shifted_all_gather"), names)
    ratios = []
    for seed in range(10):
        source = cell("def fit").replace("default_rng(0)", f"default_rng({seed})").partition("views.")[0]
        exec(source, names)
        ratios.append(names["losses"]["shifted"][-1] / names["losses"]["right"][-1])
    assert (min(ratios), max(ratios)) == (pytest.approx(3.8, abs=0.05), pytest.approx(10.6, abs=0.05))
