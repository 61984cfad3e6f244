"""Timelines below each other have one clock."""

from parlab import views
from tests.views.attention.ring_runs import rings
from tests.views.drawn import artists, boxes, texts


def test_each_panel_shows_its_runs_computes_and_waits_and_all_have_one_clock():
    done = rings()
    figure = views.compare_timelines(done)
    assert {axes.get_xlim() for axes in figure.axes} == {(0, done["full"].timeline.makespan)}
    panels = zip(artists(figure, "computes"), done.values(), strict=True)
    for drawn, one in panels:
        corners = [path.vertices for path in drawn.get_paths()]
        bars = sorted((round(float(v[:, 1].mean())), v[:, 0].min(), v[:, 0].max()) for v in corners)
        assert bars == sorted((s.rank, s.start, s.end) for s in one.timeline.computes if s.end > s.start)
    (waits,) = artists(figure, "waits")  # of the contiguous run alone: the others never wait
    assert waits.axes is figure.axes[1]
    shown = {(round((low + high) / 2), left, right) for left, right, low, high in boxes(figure, "waits")}
    waited = done["causal"].timeline.waits
    assert shown == {(w.rank, w.start, w.came) for w in waited if w.came > w.start}


def test_contiguous_8_ranks_of_8_tokens_compute_for_65_121_of_the_time_and_zigzag_for_all_of_it():
    words = [text for text, _ in texts(views.compare_timelines(rings()))]
    (causal,) = (text for text in words if text.startswith("causal: 62.0 ns, "))
    assert "54 % computing, " in causal  # (8·8 + 1)/(15·8 + 1) = 65/121
    assert "zigzag: 33.3 ns, 100 % computing" in words
