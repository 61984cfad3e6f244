"""The array libraries that every strategy is tested on: NumPy, array-api-strict, and CuPy where a GPU answers."""

from __future__ import annotations

import importlib
from typing import Any

import array_api_strict
import numpy as np
import pytest

import parlab.arrays

GPU = parlab.arrays._gpu_answers()
CUPY = importlib.import_module("array_api_compat.cupy") if GPU else None
needs_gpu = pytest.mark.skipif(not GPU, reason="no GPU answers")

LIBRARIES: list[Any] = [np, array_api_strict, CUPY] if GPU else [np, array_api_strict]  # to draw from
EACH_LIBRARY = [  # to parametrize with
    pytest.param(np, id="numpy"),
    pytest.param(array_api_strict, id="strict"),
    pytest.param(CUPY, id="cupy", marks=needs_gpu),
]
