"""NumPy or CuPy: the few things that the Python array API standard leaves open.

Everything else finds its library from its inputs with `namespace`, so the same strategy runs on NumPy, on CuPy and on
array-api-strict (which the tests use to keep us inside the standard).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
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


def on_host(x: Array) -> bool:
    """Whether `x` lies in host memory, where an operation is done when it returns. The one place that makes the choice.

    There a loop over pieces that stay in a core's cache is fastest, and looking at a number is free. On a device each
    launch costs more than a small piece, so there is one large operation instead; and looking at a number waits for all
    that was launched, so that nothing looks but what asks for `to_host` or `to_numpy`.
    """
    return isinstance(x.device, str)  # NumPy's "cpu"; in the other libraries a device is an object


def here() -> Callable[[], None]:
    """What brings another thread where this one is: to its GPU and stream, which CuPy keeps for each thread apart.

    On one stream all operations run in the order of their launches, so a message's copy is made before it is read.
    """
    cupy = sys.modules.get("cupy")  # whoever has arrays on a GPU has imported it
    if cupy is None or not cupy.cuda.is_available():
        return lambda: None
    device, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()

    def follow() -> None:
        device.use()
        stream.use()

    return follow


def asarray(values: Any, xp: Any, dtype: Any = None, device: Any = None) -> Array:
    """`values`, drawn or loaded by NumPy, as an array of the library `xp`, so every backend starts from the same."""
    return xp.asarray(np.asarray(values), dtype=dtype, device=device)


def to_numpy(x: Array) -> np.ndarray:
    """`x` in host memory; NumPy arrays are returned as they are. From a device this waits for all that was launched."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if array_api_compat.is_cupy_array(x):
        return x.get()
    return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)


def to_host(x: Array) -> Any:
    """The number in `x`, or the list of its numbers, as Python has them: one wait for the device, and to be seen.

    >>> to_host(np.asarray(0.5)), to_host(np.asarray([1, 2]))
    (0.5, [1, 2])
    """
    return to_numpy(x).tolist()


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
    if type(x) is not np.ndarray:
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
        every = xp.reshape(xp.arange(x.shape[0], dtype=rows.dtype, device=x.device), (-1,) + (1,) * (x.ndim - 1))
        for i in range(rows.shape[0]):
            x += xp.where(every == rows[i], values[i, ...][None, ...], 0)
    return x


def from_bfloat16(data: bytes, shape: Sequence[int]) -> np.ndarray:
    """float32 of the same values: a bfloat16 is the first half of a float32's bits, and NumPy does not know it."""
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
