"""The few things that the array API standard leaves open, on NumPy and on array-api-strict."""

from __future__ import annotations

import importlib
import sys
import threading
import time
import types

import array_api_compat.numpy
import array_api_strict
import numpy as np
import pytest

from parlab import arrays, run
from tests.libraries import EACH_LIBRARY


@pytest.fixture(params=EACH_LIBRARY)
def xp(request):
    return request.param


def test_namespace_is_the_library_of_the_arrays_and_mixing_two_is_refused():
    assert arrays.namespace(np.ones(1), np.ones(2)) is array_api_compat.numpy
    assert arrays.namespace(array_api_strict.ones(1)) is array_api_strict
    for mixed in ([np.ones(1), array_api_strict.ones(1)], [array_api_strict.ones(1), np.ones(1)]):
        with pytest.raises(TypeError, match="Multiple namespaces"):
            arrays.namespace(*mixed)
    for no_array in ("text", [1.0], None):
        with pytest.raises(TypeError):
            arrays.namespace(no_array)


def test_is_array_knows_arrays_from_lists_and_numbers(xp):
    assert arrays.is_array(xp.ones(2))
    assert not any(map(arrays.is_array, ([1.0], 1.0, "x", None)))


def gpu(monkeypatch, is_available):
    """Pretend that CuPy is installed; whether a GPU answers, `is_available` says."""
    cupy = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=is_available))
    real_find, real_import = importlib.util.find_spec, importlib.import_module
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "cupy" else real_find(name))
    known = {"cupy": cupy, "array_api_compat.cupy": "the library cupy"}
    monkeypatch.setattr(importlib, "import_module", lambda name: known[name] if name in known else real_import(name))


@pytest.mark.parametrize(
    ("wanted", "answers", "expected"),
    [
        ("", False, "numpy"),
        ("", True, "cupy"),
        ("numpy", True, "numpy"),
        ("numpy", False, "numpy"),
        ("cupy", True, "cupy"),
    ],
)
def test_the_default_library_is_cupy_where_a_gpu_answers_unless_parlab_arrays_overrules(
    monkeypatch, wanted, answers, expected
):
    gpu(monkeypatch, lambda: answers)
    monkeypatch.setenv("PARLAB_ARRAYS", wanted)
    default = arrays.default_namespace()
    assert default == "the library cupy" if expected == "cupy" else default is array_api_compat.numpy


def test_asking_for_cupy_without_a_gpu_is_a_clear_error(monkeypatch):
    gpu(monkeypatch, lambda: False)
    monkeypatch.setenv("PARLAB_ARRAYS", "cupy")
    with pytest.raises(RuntimeError, match="PARLAB_ARRAYS=cupy, but no GPU answers: install the extra cuda12"):
        arrays.default_namespace()


def test_4_ranks_that_ask_first_at_once_all_find_the_gpu(monkeypatch):
    answer = None

    def is_available():  # as CuPy's: while the first rank asks the driver, the others are told what is not known yet
        nonlocal answer
        if answer is None:
            answer = False
            time.sleep(0.05)
            answer = True
        return answer

    gpu(monkeypatch, is_available)
    monkeypatch.delenv("PARLAB_ARRAYS", raising=False)
    found = []
    ranks = [threading.Thread(target=lambda: found.append(arrays.default_namespace())) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert found == ["the library cupy"] * 4


def test_cupy_that_is_not_installed_is_no_gpu(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("PARLAB_ARRAYS", raising=False)
    assert arrays.default_namespace() is array_api_compat.numpy


@pytest.mark.parametrize("wanted", ["torch", "NumPy", " "])
def test_another_value_of_parlab_arrays_is_refused_with_the_right_ones(monkeypatch, wanted):
    monkeypatch.setenv("PARLAB_ARRAYS", wanted)
    with pytest.raises(ValueError, match=f"PARLAB_ARRAYS='{wanted}': set it to numpy or cupy, or leave it unset"):
        arrays.default_namespace()


def test_asarray_and_to_numpy_are_each_others_inverse(xp):
    drawn = arrays.generator(3).standard_normal((2, 3))
    moved = arrays.asarray(drawn, xp, xp.float32)
    assert type(moved) is type(xp.ones(1))
    assert moved.dtype == xp.float32
    np.testing.assert_array_equal(arrays.to_numpy(moved), drawn.astype(np.float32), strict=True)


def test_to_numpy_returns_numpy_arrays_as_they_are():
    x = np.ones(2)
    assert arrays.to_numpy(x) is x
    assert type(arrays.to_numpy(np.float64(2))) is np.ndarray


def test_to_numpy_fetches_from_a_gpu_with_get(monkeypatch):
    on_gpu = types.SimpleNamespace(get=lambda: "fetched")
    monkeypatch.setattr(arrays.array_api_compat, "is_cupy_array", lambda x: x is on_gpu)
    assert arrays.to_numpy(on_gpu) == "fetched"


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bool", 1), ("int8", 1), ("uint16", 2), ("float32", 4), ("float64", 8), ("complex64", 8), ("complex128", 16)],
)
def test_bytes_of_6_elements_are_6_times_the_item_size(xp, dtype, size):
    dtype = getattr(xp, dtype)
    assert arrays.itemsize(dtype) == size
    assert arrays.nbytes(xp.zeros((2, 3), dtype=dtype)) == 6 * size
    assert arrays.nbytes(xp.zeros((0, 3), dtype=dtype)) == 0
    assert arrays.nbytes(xp.zeros((), dtype=dtype)) == size


def test_exp_in_place_overwrites_where_the_library_can_and_is_right_where_it_cannot(xp):
    x = xp.asarray([0.0, 1.0, -2.0])
    expected = np.exp(arrays.to_numpy(x))
    result = arrays.exp_(x)
    np.testing.assert_allclose(arrays.to_numpy(result), expected, rtol=1e-15)
    assert (result is x) == (xp is not array_api_strict)


def test_memory_that_no_array_owns_belongs_to_the_array_over_it():
    over_bytes = np.frombuffer(bytes(16), dtype=np.float64)
    assert arrays.owning_buffer(over_bytes) is over_bytes
    assert arrays.owning_buffer(over_bytes[:1]) is over_bytes


def test_from_bfloat16_gives_the_float32_with_the_same_leading_bits():
    values = np.array([1.0, -2.5, 0.0, 3.140625, np.inf], dtype=np.float32)
    data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    np.testing.assert_array_equal(arrays.from_bfloat16(data, (5, 1)), values.reshape(5, 1), strict=True)


def test_numbers_on_the_host_are_pythons_own(xp):
    assert arrays.to_host(xp.asarray([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    number = arrays.to_host(xp.asarray(0.5, dtype=xp.float32))
    assert (type(number), number) == (float, 0.5)
    assert type(arrays.to_host(xp.asarray(True))) is bool


@pytest.mark.parametrize("available", [True, False])
def test_every_rank_works_on_the_gpu_and_stream_of_its_caller(available, monkeypatch):
    used: list[tuple[str, str]] = []

    def usable(name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(use=lambda: used.append((name, threading.current_thread().name)))

    cuda = types.SimpleNamespace(
        is_available=lambda: available, Device=lambda: usable("GPU 1"), get_current_stream=lambda: usable("stream 7")
    )
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    run(lambda comm: comm.iall_reduce(np.ones(1)).wait(), 2)
    threads = {name for _, name in used}
    assert threads >= {"rank 0", "rank 1"} if available else not threads
    assert used.count(("GPU 1", "rank 0")) == used.count(("stream 7", "rank 0"))
