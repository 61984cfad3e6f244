"""Ranks that wait for each other go on when what they wait for has happened."""

from parlab.pipeline import Action, Schedule
from parlab.pipeline.stuck import until_stuck
from parlab.pipeline.times import EventLoop


def test_two_ranks_that_wait_for_one_event_both_go_on_and_one_that_waits_for_another_does_not():
    loop, log = EventLoop(), []

    def waits(name, event):
        yield event
        log.append(name)

    def makes():
        loop.happened("made")
        log.append("maker")
        yield from ()

    loop.run([makes(), waits("first", "made"), waits("second", "made"), waits("third", "never")])
    assert sorted(log) == ["first", "maker", "second"]
    assert list(loop.waiting) == ["never"]


def test_a_rank_that_needs_an_i_or_a_b_goes_on_with_whichever_ends_first():
    first = [Action("F", 0, 0), Action("B", 0, 0), Action("F", 0, 1)]
    second = [Action("F", 1, 0), Action("B", 1, 0), Action("F", 1, 1), Action("I", 1, 0)]  # its I needs 0F1 to come
    done, stops = until_stuck(Schedule([first, second]))
    assert [str(*step.actions) for step in done] == ["0F0", "0B0", "0F1", "1F0", "1B0", "1F1", "1I0"]
    assert not stops
