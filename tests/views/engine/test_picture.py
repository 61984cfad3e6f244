"""Stored pictures: small files in which no colour is off."""

from io import BytesIO

import numpy as np
from PIL import Image

from parlab import views
from parlab.pipeline import zb_h1
from parlab.views.engine.picture import pixels, png_of


def test_a_stored_picture_has_a_palette_is_half_as_large_and_no_channel_is_off_by_more_than_8():
    drawn = pixels(views.schedule(zb_h1(4, 8)), 1.5)
    stored, plain = png_of(drawn, 6), BytesIO()
    Image.fromarray(drawn[:, :, :3]).save(plain, "png", compress_level=6)
    assert len(stored) < len(plain.getvalue()) / 2
    shown = np.asarray(Image.open(BytesIO(stored)).convert("RGB"))
    assert np.abs(shown.astype(int) - drawn[:, :, :3]).max() <= 8
    assert stored == png_of(drawn, 6)
