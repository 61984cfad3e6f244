"""The clock of a hundred programs is the one that was stored before the house was rebuilt."""

import json

import pytest

from parlab.world import Timeline
from tests.digest import ROOMS, STORED, clock


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_messages_computes_and_waits_of_each_program_are_the_stored_ones_to_the_picosecond(room):
    stored = json.loads(STORED.read_text())
    found = {name: clock(done if isinstance(done, Timeline) else done.timeline) for name, done in room()}
    assert found == {name: stored[name] for name in found}
    assert len(stored) == 119
