"""One rank's lanes: every message and computation is in one, and what is hidden is counted as by hand."""

import numpy as np
import pytest

from parlab import Cluster, labs, run, views
from parlab.views.world import timeline
from parlab.views.world.lanes_of import joined
from tests.views.drawn import artists, boxes, title

TICKS = Cluster.uniform(0, 1e9)  # a byte a nanosecond


def half_hidden(comm):
    """1000 ns of messages, of which 400 pass while the rank computes."""
    requests = [comm.isend(np.zeros(125), comm.right), comm.irecv(comm.left, like=np.zeros(125))]
    comm.compute("work", seconds=400e-9)
    for request in requests:
        request.wait()


def test_400_of_1000_ns_behind_computing_are_40_percent():
    figure = views.lanes_of(run(half_hidden, 2, cluster=TICKS))
    assert title(figure) == "Rank 0: computing hides 40 % of its communication"
    assert "1.00 µs, communicates for 1.00 µs, 400 ns of them behind computing" in repr(figure)
    assert [box[:2] for box in boxes(figure, "computes")] == [(0, 400_000)]
    assert [box[:2] for box in boxes(figure, "sends")] == [box[:2] for box in boxes(figure, "receives")] == [(0, 10**6)]


def test_an_empty_piece_of_one_collective_does_not_shift_the_boxes_of_the_next():
    def twice(comm):
        comm.all_gather(np.zeros(125 if comm.rank < 3 else 0), counts=[125, 125, 125, 0])
        comm.all_gather(np.zeros(125))

    received = [t for t in run(twice, 4, cluster=TICKS).timeline.transfers if t.dst == 0]
    assert [t.nbytes for t in received] == [0, 1000, 1000, 1000, 1000, 1000]  # pieces 3, 2, 1, twice
    first, second = received[:3], received[3:]
    assert first[-1].end == second[0].start
    assert [(box.start, box.end) for box in joined(received)] == [
        (first[1].start, first[-1].end),
        (second[0].start, second[-1].end),
    ]


def waiting(comm, uses, gather, work, x):
    for block in uses:
        x = work(block, gather(block).wait(), x)


@pytest.mark.parametrize("rank", [0, 3])
def test_gathered_ahead_5_of_6_gathers_are_hidden_and_both_runs_have_one_clock(rank):
    """A gather lasts 768 ns, and the computation beside it 800."""
    runs = labs.three_blocks(waiting, labs.gathered_ahead)
    figure = views.lanes_of(runs, rank)
    assert title(figure) == f"Rank {rank}: computing hides 0 % (waiting), 83 % (prefetch) of its communication"
    assert {axes.get_xlim() for axes in figure.axes} == {(0, runs["waiting"].makespan)}
    for artist, done in zip(artists(figure, "computes"), runs.values(), strict=True):
        spans = {(s.start, s.end) for s in done.computes if s.rank == rank and s.end > s.start}
        assert {(path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in artist.get_paths()} == spans


def test_a_rank_that_sends_nothing_hides_nothing():
    assert "hides nothing of" in title(views.lanes_of(run(lambda comm: comm.compute("work", seconds=1), 1)))


def test_a_box_without_room_for_its_name_says_the_gradient_that_it_makes(monkeypatch):
    """Lesson 05 shows a sum of dx that hides beside dW, and its reader looks for dW."""
    texts = []
    monkeypatch.setattr(timeline.marks, "boxes", lambda *drawn: texts.extend(drawn[6] if len(drawn) > 6 else []))

    def backward(comm):
        for name in ("mlp", "mlp, backward for the input", "mlp, backward for the weights"):
            comm.compute(name, seconds=1)

    views.lanes_of(run(backward, 1))
    assert texts == [["mlp"], ["mlp, backward for the input", "dx"], ["mlp, backward for the weights", "dW"]]
