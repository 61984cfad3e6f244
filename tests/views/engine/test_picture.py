"""Stored pictures: small files in which no colour is off."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from parlab import views
from parlab.pipeline import zb_h1
from parlab.views.engine.picture import pixels, plot, png_of, scale


def test_a_stored_picture_has_a_palette_is_half_as_large_and_no_channel_is_off_by_more_than_8():
    drawn = pixels(views.schedule(zb_h1(4, 8)), 1.5)
    quick, stored, plain = png_of(drawn, 1), png_of(drawn, 6), BytesIO()
    Image.fromarray(drawn[:, :, :3]).save(plain, "png", compress_level=6)
    assert len(stored) < len(plain.getvalue()) / 2
    for written in (quick, stored):
        shown = np.asarray(Image.open(BytesIO(written)).convert("RGB"), dtype=int)
        assert np.abs(shown - drawn[:, :, :3]).max() <= 8
    assert stored == png_of(drawn, 6)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (lambda axes: scale(axes, "ranks"), "axis=.*: must be axes.xaxis or axes.yaxis"),
        (lambda axes: scale(axes.xaxis, ends=(0, 8), log=2), r"ends=\(0, 8\): a logarithmic axis has ends above 0"),
        (lambda axes: scale(axes.xaxis, ticks=[1, 2, 3], says=["a", "b"]), "says=.*: 3 ticks need as many names"),
    ],
)
def test_a_scale_that_cannot_be_drawn_is_refused(refused, said):
    with pytest.raises(ValueError, match=said):
        refused(plot("", 2.0)[1])
