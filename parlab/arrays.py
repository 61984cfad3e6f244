"""NumPy or CuPy: the few functions that the Python array API standard lacks.

All other code gets its library from its inputs with `namespace`. So the same strategy runs on NumPy, on CuPy, and on
array-api-strict, with which the tests make sure that we stay within the standard.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

if np.intp(0).nbytes < np.int64(0).nbytes:  # in a browser, NumPy's `take` refuses indices of 64 bits

    def _take(x: np.ndarray, indices: np.ndarray, /, *, axis: int | None = None) -> np.ndarray:
        return np.take(x, np.asarray(indices, dtype=np.intp), axis=axis)

    array_api_compat.numpy.take = _take  # type: ignore[attr-defined]

Array = Any  # the standard defines no common type; every backend has its own

is_array = array_api_compat.is_array_api_obj

_ASKED = threading.Lock()


def namespace(*arrays: Array) -> Any:
    """The array library that all of `arrays` belong to.

    Raises:
        TypeError: they belong to several libraries, or to none.
    """
    for x in arrays:
        if type(x) is not np.ndarray:
            return array_api_compat.array_namespace(*arrays)
    return array_api_compat.numpy  # seven times faster than array_namespace, and inner loops call this


def default_namespace() -> Any:
    """The array library for new arrays: CuPy if there is a usable GPU, else NumPy.

    The environment variable `PARLAB_ARRAYS=numpy|cupy` overrides it.

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
    with _ASKED:  # until its first answer is there, CuPy says False to the other ranks
        return bool(cupy.cuda.is_available())


def on_host(x: Array) -> bool:
    """Whether `x` is in host memory. All code that differs between host and device asks this function.

    On the host a loop over pieces that fit into a core's cache is fastest, and reading a number costs nothing. On a
    device each launch costs more than the work on a small piece, so one large operation is better. To read a number
    there waits for all launched work, so only `to_host` and `to_numpy` do it.
    """
    return isinstance(x.device, str)  # NumPy's "cpu"; in the other libraries a device is an object


def here() -> Callable[[], None]:
    """A function that gives another thread this thread's GPU and stream, which CuPy stores for each thread.

    On one stream all operations run in the order of their launches, so a message is copied before it is read.
    """
    cupy = sys.modules.get("cupy")  # a program with arrays on a GPU has imported it
    if cupy is None or not cupy.cuda.is_available():
        return lambda: None
    device, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()

    def follow() -> None:
        device.use()
        stream.use()

    return follow


def asarray(values: Any, xp: Any, dtype: Any = None, device: Any = None) -> Array:
    """`values` from NumPy as an array of the library `xp`, so that every library starts from the same numbers."""
    return xp.asarray(np.asarray(values), dtype=dtype, device=device)


def to_numpy(x: Array) -> np.ndarray:
    """`x` in host memory. A NumPy array is returned as it is. From a device this waits for all launched work."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x)
    if array_api_compat.is_cupy_array(x):
        return x.get()
    return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)


def to_host(x: Array) -> Any:
    """The number in `x`, or the list of its numbers, as Python numbers. On a device this waits once.

    >>> to_host(np.asarray(0.5)), to_host(np.asarray([1, 2]))
    (0.5, [1, 2])
    """
    return to_numpy(x).tolist()


def nbytes(x: Array) -> int:
    """The bytes of the elements of `x`, also in array-api-strict, which has no `nbytes`."""
    if isinstance(x, np.ndarray) or hasattr(x, "nbytes"):
        return int(x.nbytes)
    return int(x.size) * itemsize(x.dtype)


def itemsize(dtype: Any) -> int:
    """The bytes of one element, also in array-api-strict, whose dtypes have no `itemsize`."""
    return int(np.dtype(getattr(dtype, "_np_dtype", dtype)).itemsize)


def exp_(x: Array) -> Array:
    """`exp(x)`, written into `x` if the library can do so. Use the returned array."""
    xp = namespace(x)
    if array_api_compat.is_numpy_array(x) or array_api_compat.is_cupy_array(x):
        return xp.exp(x, out=x)
    return xp.exp(x)


def owning_buffer(x: Array) -> Any:
    """The object that owns the memory of `x`: `x` itself, or the array of which it is a view."""
    if type(x) is not np.ndarray:
        x = getattr(x, "_array", x)  # array-api-strict wraps a NumPy array
    while (base := getattr(x, "base", None)) is not None and hasattr(base, "dtype"):
        x = base
    return x


def generator(*seed: int) -> np.random.Generator:
    """NumPy's generator for `seed`, one or several numbers. Move what it draws with `asarray`."""
    return np.random.default_rng(seed)


def add_at(x: Array, rows: Array, values: Array) -> Array:
    """`x[rows] += values`, where a row that is named twice gets both: `[N, ...]`, `[n]`, `[n, ...]`."""
    xp = namespace(x)
    if hasattr(xp, "add") and hasattr(xp.add, "at"):  # NumPy and CuPy; the standard has nothing like it
        xp.add.at(x, rows, values)
    else:
        every = xp.reshape(xp.arange(x.shape[0], dtype=rows.dtype, device=x.device), (-1,) + (1,) * (x.ndim - 1))
        for i in range(rows.shape[0]):
            x += xp.where(every == rows[i], values[i, ...][None, ...], 0)
    return x


def from_bfloat16(data: bytes, shape: Sequence[int]) -> np.ndarray:
    """float32 of the same values. NumPy has no bfloat16, whose bits are the first half of a float32's."""
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
