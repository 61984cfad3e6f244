"""The film of a schedule: microbatches travel between lanes, and fill slots until their backward."""

import re

from parlab import views
from parlab.pipeline import Action, Costs, Schedule, gpipe, one_f_one_b, simulate, zb_h1, zb_v
from parlab.views.pipeline.panels import PALEST, color_of
from parlab.views.pipeline.schedule_film import LANE
from tests.views.filmed import check_film, marks


def test_1f1b_p4_m8_is_below_60_kB_and_tells_its_33_units():
    film = views.film(one_f_one_b(4, 8))
    check_film(film)
    assert film.headline == "1F1B, 4 ranks, 8 microbatches: makespan 33 units, 27.3 % of it idle"
    assert film.lines[0] == "0: rank 0 F0 starts; kept 1, 0, 0, 0"
    assert film.lines[3] == "3: rank 0 F3, rank 1 F2, rank 2 F1, rank 3 F0 start; kept 4, 3, 2, 1"
    assert film.lines[9] == "10: rank 0 B0, rank 1 F3 in the place of 0, rank 3 B2 start; kept 4, 3, 2, 1"
    assert film.lines[-1] == "31: rank 0 B7 starts; kept 1, 0, 0, 0"


def test_each_microbatch_travels_3_lanes_down_and_3_up():
    for shown in (simulate(one_f_one_b(4, 8)), simulate(one_f_one_b(4, 8), Costs(transfer=0.5))):
        film = views.film(shown)
        moves = marks(film, "go") + marks(film, "go flow")
        assert sorted(numbers["y"] for numbers, _ in moves) == [-LANE] * 24 + [LANE] * 24
        assert sorted(words[0] for _, words in moves) == sorted(
            str(microbatch) for microbatch in range(8) for _ in "123456"
        )
        assert all(numbers["b"] - numbers["a"] > 0.19 for numbers, _ in moves)


def kept(film):
    """Microbatch and place of what stands in the slots, with the seconds of its coming and going."""
    return [mark for mark in marks(film, "see") if len(mark[1]) == 1 and mark[1][0].isdigit()]


def test_a_slot_is_filled_from_the_forward_until_the_backward_has_ended():
    film = views.film(gpipe(2, 3))  # rank 0: F at 0, 1, 2; B from 7 on, 2 each; rank 1: B of microbatch 0 from 4 to 6
    first, second = (mark[0] for mark in kept(film) if mark[1] == ["0"])
    assert (first["a"], first["b"]) == (film.second(0, leaves=True), film.second(8, leaves=True))
    assert (second["a"], second["b"]) == (film.second(1, leaves=True), film.second(6, leaves=True))


def test_a_slot_is_filled_when_the_input_has_come_and_the_one_before_has_gone():
    film = views.film(one_f_one_b(4, 8))
    flies = [numbers for numbers, words in marks(film, "go") if words == ["0"]]
    comes = [numbers["a"] for numbers, _ in kept(film)]
    assert min(one["b"] for one in flies) == film.second(1, leaves=True)  # F0's output, from rank 0 to 1
    assert film.second(1) not in comes
    gone, come = (next(numbers for numbers, words in kept(film) if words == [name]) for name in "04")  # on rank 0
    assert gone["b"] == come["a"] == film.second(12, leaves=True)


def test_of_more_times_than_stops_are_asked_for_those_nearest_to_the_next_share_one():
    film = views.film(zb_v(4, 1), costs=Costs(0.5, 0.5, 0.5), stops=10)
    check_film(film)
    assert film.times == [*range(10)]
    assert film.lines[0] == "0: rank 0 0F0, rank 1 1F0 start; kept 1, 1, 0, 0"
    assert film.lines[-1] == "8: rank 0 0I0 0W0, rank 1 1W0 start; kept 1, 0, 0, 0"  # as the picture shows at its end


def test_stops_of_ones_own_are_told_in_ones_own_words():
    film = views.film(zb_h1(2, 2), stops={0: "it begins", 3: "and goes on"})
    check_film(film)
    assert film.times == [0, 3, simulate(zb_h1(2, 2)).makespan]
    assert film.lines == ["0: it begins", "3: and goes on"]


def test_where_the_stops_are_told_a_stop_shows_the_free_slot_and_the_last_one_only_free_ones():
    film = views.film(one_f_one_b(4, 6), phases=True)  # rank 0: B0 ends at 12, and F4 takes its slot
    gone, come = (next(numbers for numbers, words in kept(film) if words == [name]) for name in "04")
    assert (gone["b"], come["a"]) == (film.second(12), film.second(12, leaves=True))
    assert gone["b"] < come["a"]
    assert max(numbers["b"] for numbers, _ in kept(film)) == film.second(27)
    cut = views.film(zb_h1(2, 2), stops={0: "it begins", 3: "and goes on"})
    assert max(numbers["b"] for numbers, _ in kept(cut)) == cut.second(cut.times[-1])


def test_a_rank_has_as_many_outlines_as_its_peak():
    for schedule, peaks in ((one_f_one_b(4, 8), 4 + 3 + 2 + 1), (gpipe(4, 8), 4 * 8)):
        assert views.film(schedule).html.count('class="wait"') == peaks


def test_after_the_backward_for_the_input_a_slot_is_paler_until_w():
    film = views.film(zb_h1(2, 2))
    check_film(film)
    assert len(kept(film)) == 2 * 2 * 2
    assert 'fill="#F7D488"' in film.html


def test_on_a_v_the_slot_of_the_later_stage_is_as_pale_as_its_bars():
    film = views.film(zb_v(3, 1), costs=Costs(0.5, 0.5, 0.5))
    shades = re.findall(r'<rect x="(\d+)[^>]*fill="(#\w+)"/>', film.html)
    for kind in "FI":
        bars, slots = ({color for x, color in shades if low <= int(x) < high} for low, high in ((70, 470), (500, 632)))
        for white in (0, PALEST):
            assert color_of(kind, white) in bars & slots


def test_an_arrow_shows_what_makes_room_of_1f1b_4_ranks_8_microbatches_from_the_second_group_on():
    film = views.film(one_f_one_b(4, 8))
    arrows = [numbers for numbers, words in marks(film, "see") if not words and "a" in numbers]
    assert film.html.count("m4 -4l4 4") == 4 + 5 + 6 + 7  # rank r's forwards after its first 4 - r
    assert (
        "12: rank 0 F4 in the place of 0, rank 2 B2, rank 3 F3 in the place of 2 start; kept 4, 3, 2, 1" in film.lines
    )
    assert film.second(12) in [numbers["a"] for numbers in arrows]
    tips = re.findall(r'd="M[\d.]+ [\d.]+H([\d.]+)V', film.html)
    assert sorted(set(map(float, tips))) == [510, 532, 554, 576]  # the middles of the four slots
    assert views.film(gpipe(2, 3)).html.count("m4 -4l4 4") == 0


def test_of_two_free_slots_the_first_is_taken_and_one_that_was_freed_before_has_no_arrow():
    film = views.film(
        Schedule([[Action(kind, 0, microbatch) for kind, microbatch in zip("FFBBFB", (0, 1, 0, 1, 2, 2), strict=True)]])
    )
    assert film.html.count("m4 -4l4 4") == 0
    places = re.findall(r'<rect x="(\d+)" [^>]*/><text[^>]*>(\d)<', film.html)
    assert {(int(x), number) for x, number in places if int(x) >= 500} == {(500, "0"), (522, "1"), (500, "2")}


def test_1f1b_p4_m6_has_4_phases_and_an_arrow_stays_until_the_next_action():
    film = views.film(one_f_one_b(4, 6), phases=True)
    check_film(film)
    assert film.times == [0, 4, 12, 16, 27]
    assert film.lines[0] == "0: rank 0 does 4 forwards, and keeps as many activations"
    assert film.lines[2].startswith("12: in turn: each forward goes into the place")
    arrows = [numbers for numbers, words in marks(film, "see") if not words and "a" in numbers and "b" in numbers]
    assert {(film.second(12), film.second(13, leaves=True)), (film.second(15), film.second(16, leaves=True))} <= {
        (numbers["a"], numbers["b"]) for numbers in arrows
    }


def test_gpipe_p4_m4_waits_for_the_last_forward_at_7_and_its_first_gradient_at_13():
    film = views.film(gpipe(4, 4), phases=True)
    check_film(film)
    assert film.times == [0, 4, 7, 13, 21]
    assert film.lines[2] == "7: rank 3 has done all forwards: a first gradient comes up"
    assert views.film(gpipe(1, 3), phases=True).times == [0, 3, 9]


def test_zb_h1_p3_m3_puts_off_all_ws_of_the_last_rank_until_its_last_i_at_8():
    film = views.film(zb_h1(3, 3), phases=True)
    check_film(film)
    assert film.lines == [
        "0: rank 2 waits for its first forward",
        "2: rank 2 does no W yet: each I goes up at once, and its W waits",
        "8: no I is left on rank 2: its W's come where it would only wait",
    ]
    assert views.film(zb_h1(4, 8), phases=True).times == [0, 3, 11, 23, 27]  # F0 I0 ... F3 I3, then W0, F4, ...


def test_a_last_rank_of_full_backwards_is_told_by_rank_0():
    halves = [Action(kind, 0, 0) for kind in "FIW"]
    mixed = Schedule([halves, [Action("F", 1, 0), Action("B", 1, 0)]])
    assert views.film(mixed, phases=True).lines[0] == "0: rank 0 does 1 forward, and keeps its activations"
