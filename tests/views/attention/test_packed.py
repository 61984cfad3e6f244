"""Packed documents, loads, cuts and memory levels: each figure shows the numbers of the functions that it is about."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from parlab import views
from parlab.nn import LlamaConfig
from parlab.plan import GPT_22B, LLAMA_405B
from parlab.sequence import (
    MEMORY_LEVELS,
    Chunk,
    causal_work,
    lab_attention,
    level_bytes,
    level_flops,
    loads_of,
    split_by_attention,
    split_equal,
    weight_cut,
)
from parlab.views.drawing import theme
from tests.views.drawn import artists, boxes, check_text, title

DOCUMENTS = [0, 8, 40, 64]
CONFIG = LlamaConfig(vocab_size=8, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4)


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
    check_text(figure)


def test_the_kv_of_contiguous_documents_make_4_of_12_hops_and_zigzags_all_12():
    assert title(views.packed_ring([0, 6, 38, 64], 4)).startswith("K/V make 4 of 12 hops")
    assert title(views.packed_ring(DOCUMENTS, 4, "zigzag")) == (
        "K/V make 12 of 12 hops, the slowest rank has 1 × the mean work"
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: views.packed_ring([0, 2048], 4), r"documents\[-1\]=2048: must be a whole number from 1 to 1024"),
        (lambda: views.packed_ring([], 4), r"documents=\[\]: a list of whole numbers"),
        (lambda: views.packed_ring([0, 64], 99), "size=99"),
        (lambda: views.packed_ring([0, 6, 64], 4, "zigzag"), "two for each of 4 ranks"),
        (lambda: views.work_loads({}), "give one way or more"),
        (lambda: views.work_loads({"a": [1], "b": [1, 2]}), "the same number of ranks"),
        (lambda: views.work_loads([1, 2]), r"loads=\[1, 2\]: must be {name: the work of each rank}"),
        (lambda: views.work_loads({"a": 1}), "loads={'a': 1}: must be {name: the work of each rank}"),
        (lambda: views.work_loads({"a": [0, 0]}), r"loads\['a'\]=\[0, 0\]: must have some work"),
        (lambda: views.work_loads({"a": [1, np.inf]}), r"loads\['a'\]\[1\]=inf: must be a number, .* finite"),
        (lambda: views.memory_levels(CONFIG, 8, 0), "size=0: must be a whole number"),
        (lambda: views.memory_levels(GPT_22B, 8, 2), "config=GPTConfig.*: must be a LlamaConfig"),
        (lambda: views.attention_cuts(lab_attention(), {}), "two are compared"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_bars_are_the_loads_and_the_slowest_rank_has_1_87_times_the_mean_in_8_equal_chunks():
    work = causal_work(4096)
    halves = [Chunk(i, min(i, 15 - i), 256 * i, 256 * (i + 1)) for i in range(16)]  # rank r: the r-th from either end
    ways = {"equal": split_equal(4096, 512, ranks=8), "head and tail": halves}
    loads = {name: loads_of(chunks, work, 8) for name, chunks in ways.items()}
    figure = views.work_loads(loads)
    assert [right for _, right, *_ in boxes(figure, "work")] == [*loads["equal"], *loads["head and tail"]]
    assert title(figure) == "The slowest rank: equal 1.87 × the mean, head and tail 1 ×"
    check_text(figure)


def test_the_cuts_stand_where_the_chunks_end_and_the_title_is_the_weight_cut():
    lab = lab_attention()
    equal, chosen = split_equal(475, 119, ranks=4), split_by_attention(lab.weights, 4)
    figure = views.attention_cuts(lab, {"equal": equal, "attention": chosen}, cut=1)
    for name, chunks in (("equal", equal), ("attention", chosen)):
        lines = artists(figure, f"cut {name}")
        assert [line.get_xdata()[0] for line in lines] == [chunk.stop for chunk in chunks][:-1]
    ratio = weight_cut(lab.weights, equal) / weight_cut(lab.weights, chosen)
    assert title(figure).endswith(f"{ratio:.2f} × less")
    assert ratio > 1.25
    check_text(figure)
    for cut in (-1, 3, 4):
        with pytest.raises(ValueError, match=f"cut={cut}: there are the cuts 0 to 2"):
            views.attention_cuts(lab, {"equal": equal, "attention": chosen}, cut=cut)


def test_a_stored_picture_has_128_colours_and_still_every_cell_of_the_map_is_gray():
    lab = lab_attention()
    splits = {"equal": split_equal(475, 119, ranks=4), "attention": split_by_attention(lab.weights, 4)}
    figure = views.attention_cuts(lab, splits)
    stored = Image.open(BytesIO(figure._repr_png_()[0]))
    assert len(stored.getcolors()) <= 128
    drawn = np.asarray(stored.convert("RGB")).astype(int)
    (axes,) = (axes for axes in figure.get_axes() if axes.images)
    left, right, bottom, top = axes.images[0].get_extent()
    middles = [(x + 0.5, y + 0.5) for x in range(int(left), int(right)) for y in range(int(top), int(bottom))]
    sharpness = drawn.shape[1] / (figure.get_figwidth() * theme.DPI)
    columns, rows = (sharpness * axes.transData.transform(middles)).astype(int).T
    cells = drawn[drawn.shape[0] - 1 - rows, columns]  # [18 · 18, RGB]
    assert len(cells) == 324
    assert np.ptp(cells, axis=1).max() <= 4
    assert len({*cells[:, 0]}) > 8  # it is the map, not the paper


def test_a_long_title_of_the_staircases_is_not_cut():
    check_text(views.memory_levels(LLAMA_405B, 2**20, 16))


def test_the_staircases_are_the_closed_forms_of_bytes_and_flops():
    figure = views.memory_levels(CONFIG, 64, 4, itemsize=4)
    kept = [right for _, right, *_ in boxes(figure, "bytes that a block keeps")]
    assert kept == [level_bytes(CONFIG, 1, 64, 4, level) for level in MEMORY_LEVELS]
    again = [right for _, right, *_ in boxes(figure, "work made again, of a forward")]
    flops = [level_flops(CONFIG, 1, 64, 4, level)[0] for level in MEMORY_LEVELS]
    assert again == pytest.approx([x / flops[-1] for x in flops])
    check_text(figure)
