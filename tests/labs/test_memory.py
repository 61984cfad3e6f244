"""The bytes that an answer's variables hold: each buffer once, wherever it can be reached from."""

import math

import numpy as np
import pytest

from parlab.labs.memory import bytes_held


class Buffer:
    def __init__(self, array):
        self.array = array


def closure(array):
    return lambda: array


def generator(array):
    yield array


X = np.zeros(100)  # 800 bytes


@pytest.mark.parametrize(
    ("root", "nbytes"),
    [
        (X, 800),
        (X[:3], 800),  # a view holds all of it
        (X.reshape(10, 10).T[2:5], 800),
        ([X, {"x": X[5:]}, (X,)], 800),
        ({"a": np.zeros(2), "b": [np.zeros(3)]}, 40),
        (Buffer(np.zeros(4)), 32),
        (closure(np.zeros(5)), 40),
        (generator(np.zeros(6)), 48),
        ({np.float64(1): 3, "text": "x" * 1000}, 0),
        (math, 0),
        (np, 0),
        (Buffer, 0),
    ],
)
def test_the_bytes_behind_a_variable(root, nbytes):
    assert bytes_held(root) == nbytes


def test_of_a_circle_each_array_counts_once():
    circle = [np.zeros(7)]
    circle.append(circle)
    assert bytes_held(circle) == 56


def test_only_dtypes_of_the_kind_count():
    assert bytes_held([np.zeros(3, "int64"), np.zeros(2)], kind="f") == 16
