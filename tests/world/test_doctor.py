"""What the doctor tries in this process; the command that shows it is tested in `tests/test_cli.py`."""

from __future__ import annotations

from parlab.world import doctor


def test_4_ranks_add_up_to_4_and_a_product_is_right():
    assert doctor._threads() == "4 ranks add up to 4"
    assert doctor._blas()
