"""Two ways to a smaller bubble beside each other: the numbers are those of the simulated schedules."""

import pytest
from matplotlib.colors import to_hex

from parlab import views
from parlab.pipeline import gpipe
from parlab.views.pipeline.panels import color_of
from tests.views.drawn import artists, boxes, texts

UNIT = {"weight": 1, "transfer": 0}  # as long as F and I, and free messages


def rows(figure):
    """Makespan, idle, kept and messages of 1F1B, the chunks and ZB-H1, as the text says them."""
    return [line[10:].split() for line in repr(figure).splitlines()[2:]]


def test_p4_m8_idle_9_4_5_3_kept_4_5_5_4_messages_48_112_48():
    # (p − 1)(F + I + W), half of it, (p − 1)(F + I − W); p, p + (p − 1)/2, p; 2m(p − 1), 2m(2p − 1), 2m(p − 1)
    figure = views.bubble_prices(**UNIT)
    assert rows(figure) == [["33", "9", "4", "48"], ["28.5", "4.5", "5.5", "112"], ["27", "3", "4", "48"]]
    assert repr(figure).startswith("Idle on each rank: ZB-H1 3 units, 2 chunks 4.5, 1F1B 9\n")


def test_a_bar_is_as_long_as_its_number():
    figure = views.bubble_prices(**UNIT)
    assert [end for _, end, *_ in boxes(figure, "kept on the fullest rank")] == [4, 5.5, 4]
    assert [end for _, end, *_ in boxes(figure, "messages")] == [48, 112, 48]
    assert [end for _, end, *_ in boxes(figure, "units idle on each rank")] == [9, 4.5, 3]


@pytest.mark.parametrize("chunks", [2, 4])
def test_later_chunks_have_the_full_colour_and_a_band_that_is_the_thicker_the_later(chunks):
    figure = views.bubble_prices(chunks=chunks)
    colors = {to_hex(color) for artist in artists(figure, "actions") for color in artist.get_facecolor()}
    assert colors == {color_of(kind).lower() for kind in "FBIW"}
    heights = [high - low for _, _, low, high in boxes(figure, "bands")]
    assert len(heights) == 4 * 8 * 2 * (chunks - 1)  # F and B of each microbatch in all chunks but a rank's first
    assert len({round(height, 3) for height in heights}) == chunks - 1
    assert f"band: a later one of the rank's {chunks} chunks" in [text for text, _ in texts(figure)]


def test_the_first_schedule_is_the_one_that_is_given():
    assert rows(views.bubble_prices(first=gpipe, **UNIT))[0] == ["33", "9", "8", "48"]
