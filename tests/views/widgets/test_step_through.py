"""Films play what ran: 10 frames a second, each drawn once, with a line a step."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from parlab import run, views
from parlab.sequence import RingSchedule, unmasked_pairs
from parlab.views.attention.masks import _frame as ring_frame
from parlab.views.drawing.png_film import Film, moments_of, steps_of
from parlab.views.widgets.step_through import Player
from tests.views.drawn import boxes, check_refused, check_text

SOURCES = {
    "ring attention": lambda: RingSchedule(0, 4),
    "any run": lambda: run(exchange, 2),
}


def exchange(comm):
    comm.sendrecv(np.ones(100), comm.right, comm.left)
    comm.compute("work", seconds=1e-6)


def pixels(file):
    return np.array(Image.open(BytesIO(file)))


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_step_has_a_line_and_another_picture(source):
    player = views.step_through(source())
    assert player.play.interval == 100
    assert player.play.max == player.slider.max == len(player.film.frames) - 1
    assert sorted({number for number, _ in player.film.frames}) == list(range(len(player.film.lines)))
    seen = set()
    for number in range(len(player.film.lines)):
        player.go(number)
        assert player.step == number
        seen.add(player.picture.value)
    assert len(seen) == len(player.film.lines)
    assert repr(player).splitlines()[1:] == player.film.lines


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_film_begins_and_ends_differently_and_is_the_same_each_time(source):
    player, again = views.step_through(source()), views.step_through(source())
    assert player.picture.value == again.picture.value
    first = player.picture.value
    player.slider.value = player.slider.max
    assert player.picture.value != first


def test_a_picture_is_drawn_once_however_often_it_is_shown():
    drawn = []
    film = Film("", ["start", "step"], steps_of(2), lambda place: drawn.append(place) or b"")
    player = Player(film)
    for _ in range(3):
        for value in range(player.slider.max + 1):
            player.slider.value = value
    assert len(drawn) == len(set(drawn)) == 7  # the start, and six of one step


def test_buttons_go_a_step_back_and_forth_and_stay_within_the_film():
    player = views.step_through(SOURCES["ring attention"]())
    player.back.click()
    assert player.step == 0
    player.forward.click()
    player.forward.click()
    assert player.step == 2
    player.back.click()
    assert player.step == 1
    for _ in range(9):
        player.forward.click()
    assert player.step == len(player.film.lines) - 1


def test_buttons_lead_from_within_the_first_and_the_last_step_to_the_ends_of_the_film():
    player = views.step_through(run(exchange, 2))
    player.slider.value = 2
    player.back.click()
    assert player.slider.value == 0
    player.slider.value = player.slider.max - 2
    player.forward.click()
    player.forward.click()
    assert player.slider.value == player.slider.max


def test_a_step_pauses_a_film_that_plays():
    player = views.step_through(run(exchange, 2))
    for button in (player.back, player.forward):
        player.play.playing = True
        button.click()
        assert not player.play.playing


def test_moments_divide_each_span_of_a_clock_and_end_with_it():
    assert moments_of([0, 4], 6) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (1, 4.5), (1, 5), (1, 5.5), (1, 6)]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
def test_after_the_last_hop_the_masks_are_ring_masks_and_the_load_is_complete(layout):
    figure = ring_frame("", 3.0, 4, layout, 32, True)
    (image,) = figure.axes[0].get_images()
    (expected,) = views.ring_masks(32, 4, layout).axes[0].get_images()
    assert np.array_equal(image.get_array(), expected.get_array())
    assert [round(box[1]) for box in boxes(figure, "load")] == unmasked_pairs(32, 4, layout)
    check_text(figure)


def test_between_two_hops_each_k_and_v_is_on_its_way_to_the_right():
    lanes = sorted((box[2] + box[3]) / 2 for box in boxes(ring_frame("", 0.5, 4, "zigzag", 32, True), "K/V"))
    assert lanes == pytest.approx([-0.5, 0.5, 1.5, 2.5, 3.5])


def test_what_is_to_come_is_pale_and_what_was_is_as_in_the_figure():
    shown = run(exchange, 2).timeline
    film, figure = views.step_through(shown).film, views.timeline(shown)
    now, whole = pixels(film.png(shown.makespan / 2)), pixels(film.png(shown.makespan))
    axes = figure.axes[0]
    left, low, right, high = axes.get_window_extent().extents.round().astype(int)
    middle = round(axes.transData.transform((shown.makespan / 2, 0))[0])
    rows = slice(len(now) - high, len(now) - low)
    assert np.array_equal(now[rows, left : middle - 1], whole[rows, left : middle - 1])
    assert now[rows, middle + 1 : right].min() > whole[rows, middle + 1 : right - 2].min()


def test_an_unknown_source_and_a_ring_that_does_not_divide_are_refused():
    check_refused(lambda: views.step_through("ring"), "source='ring'", "a run, or a RingSchedule")
    check_refused(lambda: views.step_through(RingSchedule(0, 4), S=30, layout="zigzag"), "30", "8")
    check_refused(lambda: views.step_through(RingSchedule(0, 2), S=2048), "S=2048", "1024")
