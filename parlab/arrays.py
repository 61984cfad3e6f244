"""NumPy or CuPy: the few things that the Python array API standard leaves open.

Everything else finds its library from its inputs with `namespace`, so the same strategy runs on NumPy, on CuPy and on
array-api-strict (which the tests use to keep us inside the standard).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

Array = Any  # the standard defines no common type; every backend has its own

is_array = array_api_compat.is_array_api_obj


def namespace(*arrays: Array) -> Any:
    """The array library that all of `arrays` belong to.

    Raises:
        TypeError: they belong to several libraries, or to none.
    """
    for x in arrays:
        if type(x) is not np.ndarray:
            return array_api_compat.array_namespace(*arrays)
    return array_api_compat.numpy  # seven times faster than asking, and strategies ask in their inner loops


def default_namespace() -> Any:
    """The array library that a learner gets: CuPy where a GPU answers, NumPy elsewhere.

    The environment variable `PARLAB_ARRAYS=numpy|cupy` overrules.

    Raises:
        ValueError: `PARLAB_ARRAYS` names another library.
        RuntimeError: `PARLAB_ARRAYS=cupy`, and CuPy or its GPU is missing.
    """
    wanted = os.environ.get("PARLAB_ARRAYS", "")
    if wanted not in ("", "numpy", "cupy"):
        raise ValueError(f"PARLAB_ARRAYS={wanted!r}: set it to numpy or cupy, or leave it unset")
    if wanted != "numpy" and _gpu_answers():
        return importlib.import_module("array_api_compat.cupy")
    if wanted == "cupy":
        raise RuntimeError(
            "PARLAB_ARRAYS=cupy, but no GPU answers: install the extra cuda12 or cuda13 on a machine with an NVIDIA "
            "GPU, or unset PARLAB_ARRAYS to work on NumPy"
        )
    return importlib.import_module("array_api_compat.numpy")


def _gpu_answers() -> bool:
    if importlib.util.find_spec("cupy") is None:
        return False
    cupy = importlib.import_module("cupy")
    return bool(cupy.cuda.is_available())


def asarray(values: Any, xp: Any, dtype: Any = None) -> Array:
    """`values`, drawn or loaded by NumPy, as an array of the library `xp`, so every backend starts from the same."""
    return xp.asarray(np.asarray(values), dtype=dtype)


def to_numpy(x: Array) -> np.ndarray:
    """`x` in host memory; NumPy arrays are returned as they are."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if array_api_compat.is_cupy_array(x):
        return x.get()
    return np.asarray(x)


def nbytes(x: Array) -> int:
    """Bytes of the elements of `x` (array-api-strict has no `nbytes`)."""
    if isinstance(x, np.ndarray) or hasattr(x, "nbytes"):
        return int(x.nbytes)
    return int(x.size) * itemsize(x.dtype)


def itemsize(dtype: Any) -> int:
    """Bytes of one element (array-api-strict's dtypes have no `itemsize`)."""
    return int(np.dtype(getattr(dtype, "_np_dtype", dtype)).itemsize)


def exp_(x: Array) -> Array:
    """`exp(x)`, written into `x` where the library can do so. Use the returned array."""
    xp = namespace(x)
    if array_api_compat.is_numpy_array(x) or array_api_compat.is_cupy_array(x):
        return xp.exp(x, out=x)
    return xp.exp(x)


def owning_buffer(x: Array) -> Any:
    """The object whose death frees the memory under `x`: `x` itself, or the array that it is a view of."""
    x = getattr(x, "_array", x)  # array-api-strict wraps a NumPy array
    while (base := getattr(x, "base", None)) is not None and hasattr(base, "dtype"):
        x = base
    return x


def generator(*seed: int) -> np.random.Generator:
    """NumPy's generator for `seed`, one or several numbers: what it draws is moved with `asarray`."""
    return np.random.default_rng(seed)


def add_at(x: Array, rows: Array, values: Array) -> Array:
    """`x[rows] += values`, row by row, so that a row named twice is added to twice: `[N, ...]`, `[n]`, `[n, ...]`."""
    xp = namespace(x)
    if hasattr(xp, "add") and hasattr(xp.add, "at"):  # NumPy and CuPy; the standard has nothing like it
        xp.add.at(x, rows, values)
    else:
        for i in range(rows.shape[0]):
            x[int(rows[i]), ...] += values[i, ...]
    return x


def from_bfloat16(data: bytes, shape: Sequence[int]) -> np.ndarray:
    """float32 of the same values: a bfloat16 is the first half of a float32's bits, and NumPy does not know it."""
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
