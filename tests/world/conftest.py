"""What the tests of the world share: both array libraries, and a look at the threads after every test."""

from __future__ import annotations

import os
import threading

import pytest

from tests.libraries import EACH_LIBRARY
from tests.standin import greenlets


@pytest.fixture(params=EACH_LIBRARY)
def xp(request):
    return request.param


@pytest.fixture(autouse=True)
def no_thread_left_behind():
    before = set(threading.enumerate())
    yield
    after = set(threading.enumerate()) - before
    for thread in after:
        thread.join(10)  # seconds, for one that is about to end
    assert not [thread for thread in after if thread.is_alive()]


if os.environ.get("PARLAB_STRANDS") == "greenlets":  # see tests/test_strands.py
    greenlets.install()
