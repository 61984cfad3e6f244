"""The planner's figures show the planner's numbers, and all of their text can be read."""

import re
from dataclasses import replace

import numpy as np
import pytest

from parlab import views
from parlab.plan import LLAMA_3, LLAMA_8B, LLAMA_405B, Layout, Validation, Walk, estimate, search, validation
from parlab.views.plan.bills import MEMORY, TIME
from parlab.views.plan.predicted_and_measured import COLORS
from parlab.views.plan.two_runs import meta_run
from parlab.world import DGX_H100
from parlab.world.units import format_bytes
from tests.views.drawn import artists, boxes, check_text, title
from tests.views.filmed import check_film, marks

ASKED = {"batch": 64, "sequence": 8192}
PLANS = search(LLAMA_8B, DGX_H100, 16, **ASKED)
WITHOUT_GROUPS = {"recompute": ["none", "full"], "software": LLAMA_3.but(sends_by_group=False)}
META = Layout(dp=128, pp=16, tp=8, chunks=8, zero=2, schedule="looped_bfs", sequence_parallel=True)
SHORTER = META.but(dp=256, pp=8, chunks=16)


def test_predicted_and_measured_draws_every_rows_error():
    table = validation()
    figure = views.predicted_and_measured(table)
    for family in table.errors:
        (points,) = artists(figure, family)
        rows = [row for row in table if row.family == family]
        assert points.get_xdata() == pytest.approx([100 * row.error for row in rows])
        assert points.get_color() == COLORS[rows[0].kind]
        (bar,) = artists(figure, f"mean of {family}")
        mean = 100 * table.errors[family][0]
        both = [-mean * any(row.error < 0 for row in rows), mean * any(row.error > 0 for row in rows)]
        assert list(bar.get_xdata()) == pytest.approx(both)
    assert len({COLORS[row.kind] for row in table}) == 3
    assert str(table) in repr(figure)
    check_text(figure)


def test_a_forgotten_term_is_the_end_of_its_bar_in_a_frame_and_the_rest_is_what_was_promised():
    """Llama 3's layout waits 0.08 s for dp; a planner that forgets dp chooses one that waits 3.69."""
    plans = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1, zero=[1, 2], **WITHOUT_GROUPS)
    chosen = {}
    for kind in ("dp", "tp", "bubble"):
        blind = replace(plans, grid=replace(plans.grid, seconds=plans.grid.seconds | {kind: 0.0})).best
        chosen[kind] = estimate(layout=blind.layout, **plans.asked)
        assert chosen[kind].total_seconds - chosen[kind].seconds[kind] == pytest.approx(blind.total_seconds)
        assert chosen[kind].total_seconds > plans.best.total_seconds
    figure = views.forgotten(chosen)
    assert title(figure) == "Without dp a planner promises 6.5 s, and its layout takes 10.2 s"
    promised, missing = boxes(figure, "promised"), boxes(figure, "forgotten")
    for (kind, e), (_, end, *_), (start, total, *_) in zip(chosen.items(), promised, missing, strict=True):
        assert end == start == pytest.approx(e.total_seconds - e.seconds[kind])
        assert total == pytest.approx(e.total_seconds)
    assert [f"{e.total_seconds:.2f}" for e in chosen.values()] == ["10.19", "7.23", "8.61"]
    assert round(plans.best.seconds["dp"], 2) == 0.08
    check_text(figure)
    errors = {kind: validation(without=kind).errors["Narayanan 2021, table 1"][0] for kind in chosen}
    figure = views.forgotten(chosen, best=plans.best, errors=errors)
    (line,) = artists(figure, "best")
    assert line.get_xdata()[0] == plans.best.total_seconds
    assert [text.get_text() for text in figure.texts if re.fullmatch(r"\d\.\d%", text.get_text())] == [
        "4.5%",
        "7.7%",
        "7.1%",
    ]
    check_text(figure)


# ---- a search by hand, filmed


def a_walk():
    walk = Walk(PLANS, Layout(dp=16))
    return walk.turn(pp=2).turn(chunks=2).turn(zero=3)


def seen_at(film, stop):
    """The words that stand on the film when its clock comes to a stop, without those that always do."""
    now = film.second(stop)
    return [
        word for span, words in marks(film, "see") if span.get("a", -1) <= now < span.get("b", np.inf) for word in words
    ]


def test_the_film_of_a_walk_has_a_stop_for_each_of_4_layouts_and_says_the_move_that_led_to_it():
    walk = a_walk()
    film = views.film(walk, marks={"the best": PLANS.best})
    check_film(film)
    assert len(film.times) == len(film.lines) == 4
    assert film.headline == f"3 moves: from {walk[0].total_seconds:.2f} to {walk[-1].total_seconds:.2f} s a step"
    moves = ["start", "1: dp 8, pp 2", "2: chunks 2", "3: zero 3"]
    for line, move, found in zip(film.lines, moves, walk, strict=True):
        fits = "fits" if walk.fits(found) else "does not fit"
        assert line.startswith(f"{move}: {found.total_seconds:.2f} s, {format_bytes(found.total_bytes)}, {fits}")
    assert len(film.html.encode()) < 40_000
    assert ">the best<" in film.html


@pytest.mark.parametrize("stop", range(4))
def test_at_each_stop_the_bills_the_fields_and_the_caption_are_of_one_layout(stop):
    walk = a_walk()
    film = views.film(walk)
    words = seen_at(film, stop)
    total = f"{walk[stop].total_seconds:.2f} s"
    assert [word for word in words if re.fullmatch(r"\d+\.\d\d s", word)] == [total]
    caption = " ".join(word for word in words if "fit" in word or word in film.lines[stop])
    assert total in caption
    assert not any(f"{other.total_seconds:.2f} s, " in caption for other in walk if other is not walk[stop])
    assert f"pp {walk[stop].layout.pp}" in words
    assert f"ZeRO-{walk[stop].layout.zero}" in words


def ends_at(film, stop):
    """Where each sliding part of the bills ends at a stop: its end at the last stop, and the way that is left."""
    now, found = film.second(stop), []
    for mark in re.findall(r'<svg x="[^>]*>(.*?)</svg>', film.html):
        (x, wide), ways = re.search(r'x="([-\d.]+)"[^>]* width="([\d.]+)"', mark).groups(), 0.0
        for by, leaves, takes in re.findall(r"([-\d.]+)\*\(1 - clamp\(0,\(var\(--t\) - ([\d.]+)\)/([\d.]+),1", mark):
            ways += float(by) * (1 - np.clip((now - float(leaves)) / float(takes), 0, 1))
        found.append((re.search(r'fill="(#\w+)"', mark)[1], float(x) + float(wide) + ways))
    return found


@pytest.mark.parametrize("stop", range(4))
def test_at_each_stop_a_bill_of_the_film_ends_where_its_kinds_add_up(stop):
    """The longest step, and the larger of the largest rank and of the device, fill the bar of 554 units."""
    walk = a_walk()
    longest, largest = max(e.total_seconds for e in walk), max(walk.plans.memory, *(e.total_bytes for e in walk))
    time = [(color, 78 + 554 / longest * end) for color, end in _sums(walk[stop].seconds, TIME)]
    held = [(color, 78 + 554 / largest * end) for color, end in _sums(walk[stop].bytes, MEMORY)]
    drawn = ends_at(views.film(walk), stop)
    assert len(drawn) > 6
    near = [[end for other, end in [*time, *held] if other == color and abs(end - at) < 0.3] for color, at in drawn]
    assert all(near)


def _sums(parts, colors):
    ends = np.cumsum([parts[kind] for kind in colors])
    return zip(colors.values(), ends, strict=True)


def test_the_film_names_each_kind_that_is_a_unit_wide_at_some_stop_and_no_other():
    walk = a_walk()
    html = views.film(walk).html
    longest, largest = max(e.total_seconds for e in walk), max(walk.plans.memory, *(e.total_bytes for e in walk))
    seconds = [kind for kind in walk[0].seconds if max(e.seconds[kind] for e in walk) * 554 / longest >= 1]
    held = [kind for kind in walk[0].bytes if max(e.bytes[kind] for e in walk) * 554 / largest >= 1]
    named = re.findall(r'class="key"[^>]*/><text[^>]*>(?:<[^>]*>)?([a-z]+)<', html)
    assert sorted(named) == sorted(seconds + held)


def test_beside_a_sum_stands_the_part_that_the_move_took_away_as_long_as_it_was():
    walk = a_walk()
    film = views.film(walk)
    each = 554 / max(e.total_seconds for e in walk)
    shrunk = max(walk[1].seconds, key=lambda kind: walk[1].seconds[kind] - walk[2].seconds[kind])
    less = walk[1].seconds[shrunk] - walk[2].seconds[shrunk]
    assert film.lines[2].endswith(f"; {shrunk} −{less:.2f} s")
    assert f"{shrunk} −{less:.2f} s" in seen_at(film, 2)
    gone = re.findall(r'class="gone"[^>]* width="([\d.]+)"', film.html)
    assert len(gone) == 3
    assert f"{less * each:.1f}" in gone


def test_a_field_and_the_caption_change_before_the_bills_move():
    film = views.film(a_walk())
    leaves = film.second(0, leaves=True)
    seen = [
        word
        for span, words in marks(film, "see")
        if span.get("a", -1) <= leaves + 0.02 < span.get("b", np.inf)
        for word in words
    ]
    assert "pp 2" in seen
    assert "pp 1" not in seen
    assert [word for word in seen if "fit" in word] == [film.lines[1].removeprefix("1: ")]


@pytest.mark.parametrize("number", [1, 13])
def test_a_walk_of_1_or_of_13_layouts_is_not_filmed(number):
    walk = Walk(PLANS, Layout(dp=16))
    for _ in range(number - 1):
        walk.turn()
    with pytest.raises(ValueError, match=f"a walk of {number} layouts; 2 to 12 can be filmed"):
        views.film(walk)


# ---- a limit that grows, filmed


def test_the_film_of_405b_stops_where_llama_3s_layout_and_then_half_the_pipeline_take_over():
    plans = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1, **WITHOUT_GROUPS)
    film = views.film(plans, marks={"Llama 3": estimate(layout=META, **plans.asked)})
    held = [estimate(layout=layout, **plans.asked).total_bytes / 2**30 for layout in (META, SHORTER)]
    assert film.times[1:3] == held
    assert [f"{stop:.1f}" for stop in film.times] == ["60.0", "71.0", "77.0", "88.8", "92.0"]
    assert film.lines[1] == "71.0: 6.61 s, 0.64 s less; tp −1.29 s"
    assert film.lines[2] == "77.0: 6.25 s, 0.35 s less; bubble −0.35 s"
    assert film.headline == "As memory grows from 60 to 92 GiB, the best step falls from 7.24 to 6.08 s"
    assert ">Llama 3<" in film.html


def test_a_layout_becomes_blue_when_the_limit_comes_to_its_bytes():
    film = views.film(PLANS, least=20, most=75)
    check_film(film)
    blue = re.findall(r'--a:([\d.]+)"><circle cx="([\d.]+)" cy="[\d.]+" r="3.5" fill="#', film.html)
    pale = re.findall(r'<circle cx="[\d.]+" cy="[\d.]+" r="3.5" fill="currentColor"', film.html)
    assert len(blue) == len(pale) > 20
    left, right = film.x(20), film.x(75)
    gib = [20 + 55 * (float(x) - left) / (right - left) for _, x in blue]
    late = [float(second) - film.second(at) for (second, _), at in zip(blue, gib, strict=True)]
    rests = [min(abs(at - stop) for stop in film.times) < 0.02 for at in gib]  # where the clock stands for 1.5 s
    assert not any(abs(seconds) > 0.03 for seconds, rest in zip(late, rests, strict=True) if not rest)
    assert max(map(abs, late)) < 1.6


def test_a_layout_that_is_less_than_1_percent_faster_does_not_take_over():
    plans = search(LLAMA_405B, DGX_H100, 16384, batch=2048, sequence=8192, cp=1, **WITHOUT_GROUPS)
    flips = [found.total_bytes / 2**30 for found in plans.flips(60 * 2**30, 92 * 2**30)]
    assert round(flips[2], 1) == 76.2
    assert flips[2] not in views.film(plans).times


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"least": 80, "most": 70}, "must be two amounts of GiB, the smaller one first"),
        ({"least": 0}, "must be two amounts of GiB"),
        ({"least": 0.5}, "least=0.5: nothing fits in so little; the leanest needs"),
    ],
)
def test_a_limit_that_shrinks_or_holds_nothing_is_not_filmed(asked, text):
    with pytest.raises(ValueError, match=text):
        views.film(PLANS, **asked)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: views.forgotten({}), "must be estimates by the forgotten kind"),
        (lambda: views.forgotten({"rest": PLANS.best}), "'rest' is no kind of seconds"),
        (lambda: views.forgotten({"dp": PLANS.best}, best=6.6), "best=6.6"),
        (lambda: views.forgotten({"dp": PLANS.best}, errors={"tp": 0.1}), "must have the kinds of chosen, dp"),
        (lambda: views.layout(tp=0), "tp=0"),
        (lambda: views.layout(recompute="some"), "recompute='some'"),
        (lambda: views.predicted_and_measured(3), "table=3"),
        (lambda: views.predicted_and_measured(Validation()), "table=.*with a row or more"),
    ],
)
def test_bad_input_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


# ---- a layout of one's own


def test_a_layout_of_ones_own_stands_below_llama_3s_on_axes_that_never_change():
    figures = [views.layout(), views.layout(tp=8, pp=16, chunks=8), views.layout(tp=8, pp=4)]
    assert len({axes.get_xlim() for figure in figures for axes in figure.axes[:2]}) == 2
    for figure, how in zip(figures, ({"tp": 16}, {"chunks": 8}, {"pp": 4}), strict=True):
        own = META.but(**{"chunks": 1, "zero": 1, "schedule": "1f1b"} | how)
        found = estimate(LLAMA_405B, DGX_H100, own.but(dp=16384 // own.pp // own.tp), batch=2048, sequence=8192)
        _, (left, right, *_) = boxes(figure, "products")
        assert right - left == pytest.approx(found.seconds["products"])
        fits = found.total_bytes <= 80e9
        said = (
            f"{found.total_seconds:.2f} s and {format_bytes(found.total_bytes)}: {'fits' if fits else 'does not fit'}"
        )
        assert title(figure).startswith(said)
        assert len(artists(figure, "over")) == (not fits)
        cut = [f"{found.total_seconds:.1f} s ▸"] * (found.total_seconds > 12)  # the axis ends there
        assert [words.get_text() for words in artists(figure, "cut")] == cut
        own = [words.get_text() for words in artists(figure, "sum") if words.get_position()[1] == 1]
        assert own[not cut :] == [format_bytes(found.total_bytes)]
        check_text(figure)


def test_half_the_pipeline_fits_if_a_layer_or_swiglu_is_computed_again_and_is_3_or_5_percent_faster():
    half = {"tp": 8, "pp": 8, "chunks": 16, "zero": 2}
    said = ", {} % faster than Llama 3's layout"
    assert title(views.layout(**half)) == "6.23 s and 77.0 GiB: does not fit" + said.format(5)
    assert title(views.layout(**half, recompute_layers=1)) == "6.36 s and 73.7 GiB: fits" + said.format(3)
    figure = views.layout(**half, recompute="mlp.hidden")
    assert title(figure) == "6.24 s and 64.1 GiB: fits" + said.format(5)
    (goal,) = artists(figure, "goal")
    assert goal.get_xdata()[0] == meta_run(16384).total_seconds
    check_text(figure)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"tp": 4}, "dp is 256: a replica has 8 microbatches for 16 pipeline stages."),
        ({"tp": 8, "pp": 32, "chunks": 8}, "32 stages · 8 chunks: the model has 126 layers."),
        ({"tp": 3}, "tp 3 · pp 16 does not divide 16384 GPUs"),
    ],
)
def test_for_a_layout_that_is_not_possible_the_reason_stands_there(asked, reason):
    figure = views.layout(**asked)
    assert title(figure) == "This layout is not possible"
    assert f"your layout: {reason}" in [text.get_text() for text in figure.texts]
    check_text(figure)
