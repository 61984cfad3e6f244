"""The coordinator of a group: when a collective begins, and the numbers of splits."""

from __future__ import annotations

from parlab.world.engines.tasks import Arrival
from parlab.world.processes.coordinator import Coordinator, Enters

BARRIER, SPLIT = Arrival("barrier", "barrier()"), Arrival("split", "split", (None, 0))


def test_a_collective_begins_with_its_last_member_and_all_hear_how_the_first_two_calls_differ():
    coordinator, members = Coordinator(2, 4), (2, 0, 3)
    other = Arrival("gather", "gather(float64[1])")
    assert coordinator.add(Enters(("half", 0), members, 3, other)) is None
    assert coordinator.add(Enters(("half", 1), members, 2, BARRIER)) is None  # one of the next collective comes earlier
    assert coordinator.add(Enters(("half", 0), members, 0, BARRIER)) is None
    begins = coordinator.add(Enters(("half", 0), members, 2, BARRIER))
    assert (begins.key, begins.arrivals, begins.split_id) == (("half", 0), {2: BARRIER, 0: BARRIER, 3: other}, 0)
    assert "rank 2 calls barrier(), rank 3 calls gather(float64[1])" in begins.error
    assert list(coordinator.entering) == [("half", 1)]


def test_9_splits_at_3_coordinators_have_9_numbers_and_none_is_the_worlds_0():
    numbers = set()
    for rank in range(3):
        coordinator = Coordinator(rank, 3)
        for split in range(3):
            assert coordinator.add(Enters((f"of {rank}", 2 * split), (rank,), rank, BARRIER)).split_id == 0
            numbers.add(coordinator.add(Enters((f"of {rank}", 2 * split + 1), (rank,), rank, SPLIT)).split_id)
    assert len(numbers) == 9
    assert 0 not in numbers
