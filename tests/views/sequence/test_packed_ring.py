"""Packed documents: the picture shows the pairs that the mask allows, and the hops of the keys and values."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from parlab import views
from parlab.views.engine import theme

DOCUMENTS = [0, 8, 40, 64]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
def test_a_pixel_is_coloured_where_a_query_sees_an_earlier_key_of_its_document(layout):
    figure = views.packed_ring(DOCUMENTS, 4, layout)
    (image,) = figure.axes[0].get_images()
    pixels = np.asarray(image.get_array())
    lengths = [8, 32, 24]
    assert (pixels != 1).any(axis=2).sum() == sum(n * (n + 1) // 2 for n in lengths)
    for rank in range(4):  # a token sees itself
        own = np.arange(16 * rank, 16 * rank + 16)
        assert (pixels[own, own] == to_rgb(theme.rank_color(rank))).all()
