"""What the tests of the serial model share: each array library."""

from __future__ import annotations

import pytest

from tests.libraries import EACH_LIBRARY


@pytest.fixture(params=EACH_LIBRARY)
def xp(request):
    return request.param
