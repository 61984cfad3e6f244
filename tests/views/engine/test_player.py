"""A film is SVG whose parts come, go and move at the run's times."""

import re

import pytest

from parlab.views.engine.player import Film, box, letter, word
from tests.views.drawn import check_refused
from tests.views.filmed import check_film, marks


def a_film(times=(0, 1_000_000, 4_000_000)):
    film = Film("Two steps", times, 60, moving=8, resting=0.5)
    for time in times[:-1]:
        film.tell(time, "it moves & waits <")
    return film


def test_the_clock_rests_half_a_second_at_each_stop_and_passes_in_proportion_between_them():
    film = a_film()
    assert [film.second(time) for time in film.times] == [0, 0.5 + 2, 1 + 8]
    assert [film.second(time, leaves=True) for time in film.times] == [0.5, 1 + 2, 1.5 + 8]
    assert film.second(2_500_000) == film.second(2_500_000, leaves=True) == 1 + 5
    assert [film.share(time) for time in (0, 1_000_000, 2_500_000)] == [0, 0.25, 0.625]


def test_a_message_leaves_when_the_clock_goes_on_and_arrives_when_it_stops():
    film = a_film()
    film.move(letter(0, 0, 40, 20, "x"), 0, 1_000_000, by=(300, 10))
    assert marks(film, "go") == [({"a": 0.5, "b": 2.5, "x": 300, "y": 10}, ["x"])]
    check_film(film)


def test_a_message_that_passes_a_stop_stands_while_the_clock_stands():
    film = a_film()
    film.move(letter(0, 0, 40, 20), 0, 4_000_000, by=(300, 0))
    assert marks(film, "go") == []
    assert marks(film, "go flow") == [({"a": 0.5, "b": 9, "x": 300, "y": 0, "f": 0, "g": 1}, [])]


def test_a_message_that_takes_no_time_travels_while_the_clock_stands():
    film = a_film()
    film.move(letter(0, 0, 40, 20), 1_000_000, 1_000_000, by=(0, 30), bow=(12, 0))
    film.move(letter(0, 0, 40, 20), 4_000_000, 4_000_000, by=(0, 30))
    first, last = marks(film, "go")
    assert first[0] == {"a": 2.5, "b": 3, "x": 0, "y": 30, "v": 12}
    assert (last[0]["a"], last[0]["b"]) == (9, 9.5)


def test_what_slides_is_at_its_last_place_without_our_css_and_travels_only_where_its_place_changes():
    film = a_film()
    film.slide(box(90, 0, 30, 20, "#0072B2", 7), [30, 90, 90])
    film.slide(box(90, 0, 30, 20, "#0072B2", 8), [90, 90, 90])
    assert '<g class="slide" style="--x:-60*(1 - clamp(0,(var(--t) - 0.5)/2,1))"><rect x="90"' in film.html
    assert film.html.count("slide") == 2  # once in the style: 8 stands still
    assert marks(film, "see")  # the lines; nothing hides what slides
    with pytest.raises(ValueError, match="shorter"):
        film.slide("", [1, 2])


def test_a_thing_is_seen_from_when_the_clock_comes_until_it_goes_on():
    film = a_film()
    film.draw(box(0, 0, 30, 20, "#0072B2", 7), 1_000_000)
    film.draw(box(0, 0, 30, 20, "#E69F00", 8), 0, 1_000_000)
    film.draw(word(0, 0, 9))
    seen = [mark for mark in marks(film, "see") if mark[1] in (["7"], ["8"], ["9"])]
    assert seen == [({"a": 2.5}, ["7"]), ({"a": 0, "b": 3}, ["8"])]
    assert 'fill="#0072B2"/><text x="15" y="10" class="light">7<' in film.html  # paper on blue, ink on orange
    assert 'fill="#E69F00"/><text x="15" y="10" class="dark">8<' in film.html


def test_each_step_has_its_line_its_button_and_its_place_in_the_story():
    film = a_film()
    check_film(film)
    assert repr(film) == "Two steps\n0 s: it moves & waits <\n1.00 µs: it moves & waits <"
    lines = [mark for mark in marks(film, "see") if "it moves" in mark[1][0]]
    assert lines == [({"b": 3}, ["1 of 2: it moves & waits <"]), ({"a": 3}, ["2 of 2: it moves & waits <"])]
    assert film.html.count('type="radio"') == 3
    assert "--s0:0;--s1:2.5;--s2:9;" in film.html


def test_the_clock_names_the_stops_that_have_room():
    film = Film("Crowded", [0, 1_000_000, 1_010_000, 3_900_000, 4_000_000], 60)
    named = [time for time in ("0 s", "1.00 µs", "1.01 µs", "3.90 µs", "4.00 µs") if f">{time}<" in film.html]
    assert named == ["0 s", "1.00 µs", "4.00 µs"]


def test_the_clock_names_other_times_if_they_are_given_and_always_the_last_stop():
    film = Film("Round", [0, 3_000_000, 7_000_000], 60, ticks=[0, 2_000_000, 8_000_000])
    named = [time for time in range(9) if f">{time}.00 µs<" in film.html or f">{time} s<" in film.html]
    assert named == [0, 2, 7]


def test_no_animation_on_paper_or_for_a_reader_who_wants_less_motion():
    css = a_film().html
    moving = css.index("@media screen and (prefers-reduced-motion:no-preference)")
    assert css.index("animation:film-0") > moving
    assert css.index("animation:film-0") == css.rindex("animation:film-0")


def test_a_film_above_60_kB_is_refused_by_name():
    film = a_film()
    for _ in range(600):
        film.move(letter(0, 0, 40, 20, "x"), 0, 1_000_000, by=(300, 10))
    check_refused(film._repr_html_, "Two steps", "60 are the most")


@pytest.mark.parametrize("times", [[], [0], [0, 0], [3, 1]])
def test_stops_must_ascend(times):
    check_refused(lambda: Film("No film", times, 60), f"times={times}", "two")


def test_a_line_that_has_no_place_is_refused():
    film = Film("Two steps", [0, 1_000_000, 4_000_000], 60)
    check_refused(lambda: film.tell(0, "word " * 40), "line=", "200 letters")
    check_refused(lambda: film.tell(4_000_000, "too late"), "time=4000000", "last")
    check_refused(lambda: film.tell(7, "never"), "time=7", "a stop")
    film.tell(0, "first")
    check_refused(lambda: film.tell(0, "again"), "time=0", "without a line yet")
    check_refused(film.finished, "Two steps", "no line for [1000000]")


@pytest.mark.parametrize(("start", "end"), [(1_000_000, 0), (0, 5_000_000)])
def test_what_travels_back_in_time_or_beyond_the_end_is_refused(start, end):
    check_refused(lambda: a_film().move(letter(0, 0, 40, 20), start, end, by=(9, 9)), f"start={start}", f"end={end}")


@pytest.mark.parametrize("mark", ['<line x1="0" x2="9">', "<line x1=0 />", "<text>a & b</text>"])
def test_svg_that_is_not_well_formed_is_refused(mark):
    check_refused(lambda: a_film().draw(mark), f"mark={mark!r}", "well-formed")
    check_refused(lambda: a_film().draw(mark, 0), f"mark={mark!r}", "well-formed")


def test_what_goes_before_it_comes_is_refused():
    check_refused(lambda: a_film().draw(word(0, 0, "x"), 1_000_000, 0), "start=1000000", "end=0")


def test_a_narration_changes_between_stops_and_its_last_line_waits_until_the_clock_goes_on():
    film = Film("Two steps", (0, 1_000_000, 4_000_000), 60, moving=8, resting=0.5)
    told = ((0, "both work"), (500_000, "one waits"), (1_000_000, "both wait"), (4_000_000, "both work again"))
    film.narrate(told)
    check_film(film)
    assert film.lines == ["0 s: both work", "500 ns: one waits", "1.00 µs: both wait", "4.00 µs: both work again"]
    seen = [(numbers.get("a"), numbers.get("b"), words) for numbers, words in marks(film, "see")]
    assert [times for *times, _ in seen] == [[None, 1.5], [1.5, 2.5], [2.5, 9.5], [9.5, None]]
    assert [words for *_, words in seen] == [[line] for _, line in told]
    assert film.second(500_000) == 1.5
    assert (film.second(1_000_000), film.second(4_000_000, leaves=True)) == (2.5, 9.5)


def test_a_narration_that_does_not_ascend_from_the_start_is_refused():
    for told in ([], [(1, "late")], [(0, "one"), (0, "two")], [(0, "one"), (9, "two"), (7, "three")]):
        check_refused(lambda told=told: a_film().narrate(told), "told=", "ascend from the film's start, 0")
    check_refused(lambda: a_film().narrate([(0, "word " * 40)]), "line=", "200 letters")


def test_what_slides_behind_a_window_is_an_inner_drawing_of_the_same_units():
    """It is 40 units to the left at the first stop, and nothing of it is seen outside the window."""
    film = Film("a bar grows", [0, 1], 50)
    film.slide(box(10, 5, 100, 20, "#0072B2"), [70, 110], window=(10, 5, 200, 20))
    (inner,) = re.findall(r"<svg x=.*?</svg>", film.html)
    assert 'viewBox="10 5 200 20"' in inner
    assert 'style="width:200px;height:20px"' in inner
    assert "--x:-40*(1 - clamp(" in inner
    assert inner.count("<rect") == 1
