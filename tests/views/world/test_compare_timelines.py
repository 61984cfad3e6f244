"""Timelines below each other have one clock."""

import numpy as np

from parlab import Cluster, run, views
from tests.views.drawn import artists, lanes, texts
from tests.views.sequence.ring_runs import rings


def test_each_panel_shows_its_runs_computes_and_waits_and_all_have_one_clock():
    done = rings()
    figure = views.compare_timelines(done)
    assert {axes.get_xlim() for axes in figure.axes} == {(0, done["full"].timeline.makespan)}
    for panel, one in zip(figure.axes, done.values(), strict=True):
        bars = sorted((s.rank, s.start, s.end) for s in one.timeline.computes if s.end > s.start)
        assert lanes(panel, "computes") == bars
    (waits,) = artists(figure, "waits")  # of the contiguous run alone: the others never wait
    assert waits.axes is figure.axes[1]
    waited = done["causal"].timeline.waits
    assert set(lanes(figure, "waits")) == {(w.rank, w.start, w.came) for w in waited if w.came > w.start}


def test_contiguous_8_ranks_of_8_tokens_compute_for_65_121_of_the_time_and_zigzag_for_all_of_it():
    words = [text for text, _ in texts(views.compare_timelines(rings()))]
    (causal,) = (text for text in words if text.startswith("causal: 62.0 ns, "))
    assert "54 % computing, " in causal  # (8·8 + 1)/(15·8 + 1) = 65/121
    assert "zigzag: 33.3 ns, 100 % computing" in words


def test_of_three_sends_to_one_port_the_second_waits_1_transfer_and_the_third_2():
    """9 µs each. Rank 0 receives all the time; the others: 0 + 1 + 2 transfers in the queue, and 3 under way."""
    links = Cluster.uniform(latency=1e-6, bandwidth=1.024e9)
    done = run(lambda comm, x: comm.gather(x[None]), 4, np.ones(1024), cluster=links)
    figure = views.compare_timelines({"gather": done}, queues=True)
    assert set(lanes(figure, "ports")) == {(2, 0, 9_000_000), (3, 0, 18_000_000)}
    said = "gather: 27.0 µs, 25 % waiting for a port, 50 % waiting for a transfer, 25 % done"
    assert repr(figure).splitlines()[0] == said
    together = views.compare_timelines({"gather": done})
    assert repr(together).splitlines()[0] == "gather: 27.0 µs, 75 % waiting for a transfer, 25 % done"
    assert not artists(together, "ports")
