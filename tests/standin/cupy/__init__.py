"""CuPy for machines without a GPU: NumPy inside, and refused outside whatever CuPy refuses.

An array here meets no NumPy array, becomes none unless asked (`get`, `asnumpy`), and is no index; what NumPy returns as
a number is an array of no axes. `numpy.exp(x)` and the like find their way here. What CuPy has not is not here. On the
path, this package is what `import cupy` finds: see `tests/test_gpu_lessons.py`.

Source: CuPy 14's documentation, "Differences between CuPy and NumPy".
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy

from cupy._ndarray import Covered, ndarray

MISSING = {
    *("block", "emath", "errstate", "frompyfunc", "geomspace", "histogram_bin_edges", "insert", "ma", "matrix"),
    *("memmap", "nanpercentile", "nanquantile", "ndenumerate", "nditer", "random", "spacing", "unstack", "vecdot"),
}


class _Device:
    def __init__(self, number: Any = None):
        self.id = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Device)

    def __hash__(self) -> int:
        return 0

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def use(self) -> None:
        """See `cupy.cuda.Device.use`."""

    synchronize = use


def _submodule(name: str, **names: Any) -> Any:
    made = ModuleType(f"cupy.{name}")
    vars(made).update(names)
    sys.modules[f"cupy.{name}"] = made
    return made


def _functions(module: ModuleType) -> dict[str, Any]:
    """What a module of NumPy has, covered."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {
        name: Covered(value) if callable(value) and not isinstance(value, type) else value
        for name, value in public.items()
        if not (isinstance(value, ModuleType) or name in MISSING)
    }


globals().update({name: value for name, value in _functions(numpy).items() if name not in globals()})
linalg, fft = (_submodule(part.__name__[6:], **_functions(part)) for part in (numpy.linalg, numpy.fft))
cuda = _submodule(
    "cuda",
    Device=_Device,
    device=_submodule("cuda.device", Device=_Device),
    is_available=lambda: True,
    get_current_stream=lambda: SimpleNamespace(use=lambda: None, synchronize=lambda: None),
    runtime=SimpleNamespace(getDeviceCount=lambda: 1),
)


def array(values: Any, dtype: Any = None, copy: bool = True, **_: Any) -> ndarray:
    """See `cupy.array`: the way from NumPy."""
    inner = values._array if isinstance(values, ndarray) else values
    if isinstance(inner, list | tuple):
        inner = [x._array if isinstance(x, ndarray) else x for x in inner]
    return ndarray(numpy.array(inner, dtype=dtype, copy=copy))


def asarray(values: Any, dtype: Any = None, **_: Any) -> ndarray:
    """See `cupy.asarray`: the way from NumPy."""
    if isinstance(values, ndarray) and dtype in (None, values.dtype):
        return values
    return array(values, dtype)


def asnumpy(x: ndarray) -> numpy.ndarray:
    """See `cupy.asnumpy`: the way back."""
    return x.get()


__all__ = [name for name in globals() if not name.startswith("_")]
