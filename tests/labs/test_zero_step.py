"""The passes of lesson 06, counted in runs: 2, 2, k + 1 and 3k (Rajbhandari et al. 2020, section 7)."""

import pytest

from parlab import labs
from parlab.zero import zero_1


@pytest.mark.parametrize("microbatches", [1, 4])
def test_stages_0_to_3_send_2_2_k_plus_1_and_3k_passes(microbatches):
    counted = [labs.passes(stage, microbatches) for stage in range(4)]
    assert counted == [2, 2, microbatches + 1, 3 * microbatches]


def test_the_step_takes_options_of_zero_and_refuses_another_stage():
    kept = labs.zero_step(3, keep_after_forward=True).timeline
    assert 3 * kept.bytes_sent(0) == pytest.approx(2 * labs.zero_step(3).timeline.bytes_sent(0), rel=0.01)
    with pytest.raises(ValueError, match="stage=4"):
        labs.zero_step(4)


def test_beside_the_replicated_step_the_one_with_owners_spends_a_quarter_of_its_1024_ns_of_adam():
    """20 operations on each of 1024 or 256 weights, at 20 billion a second; the messages take as long in both."""
    both = labs.one_update(zero_1)
    assert list(both) == ["replicated", "with owners"]
    slow, fast = (done.timeline.makespan for done in both.values())
    assert slow - fast == pytest.approx(1e3 * (1024 - 256), abs=1)


def test_of_six_gathers_ahead_only_the_first_is_waited_for():
    """A gather sends 3 times 400 numbers of 8 bytes at 12.5 GB/s: 768 ns."""

    def waiting(comm, uses, gather, work, x):
        for block in uses:
            x = work(block, gather(block).wait(), x)

    both = labs.three_blocks(waiting, labs.gathered_ahead)
    assert {name: shown.makespan for name, shown in both.items()} == {
        "waiting": pytest.approx(6 * (768000 + 800000), abs=10),
        "prefetch": pytest.approx(768000 + 6 * 800000, abs=10),
    }


def test_a_gather_has_the_number_of_its_block_though_two_are_under_way_at_once():
    def two_at_a_time(comm, uses, gather, work, x):
        for one, other in zip(uses[::2], uses[1::2], strict=True):
            requests = gather(one), gather(other)
            for block, request in zip((one, other), requests, strict=True):
                x = work(block, request.wait(), x)
        return x

    shown = labs.three_blocks(two_at_a_time, labs.gathered_ahead)["waiting"]
    sent = [t.name for t in sorted(shown.transfers, key=lambda t: t.end) if t.src == 3]
    assert sorted(sent) == sorted(f"gather {block}" for block in (0, 1, 2) for _ in range(2 * 3))
    assert set(sent[:6]) == {"gather 0", "gather 1"}
    assert set(sent[6:12]) == {"gather 2"}
