"""The block's drawing shows who owns what; the widget's numbers are the closed forms; wrong gradients are red."""

import numpy as np
import pytest

from parlab import views
from parlab.nn.llama import LlamaConfig
from parlab.tensor import pieces
from parlab.views.drawing import theme
from tests.views.drawn import artists, boxes, texts

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=8,
    num_key_value_heads=2,
)  # fmt: skip


def colors(figure, name):
    (collection,) = artists(figure, name)
    return [tuple(round(255 * channel) for channel in color[:3]) for color in collection.get_facecolors()]


def rgb(rank):
    code = theme.rank_color(rank)
    return tuple(int(code[start : start + 2], 16) for start in (1, 3, 5))


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("name", "part"), [("q", "self_attn"), ("k", "self_attn"), ("o", "self_attn"), ("down", "mlp")]
)
def test_each_slice_is_drawn_where_its_owner_has_it_in_that_ranks_colour(size, name, part):
    figure = views.sharded_block(CONFIG, size)
    drawn = boxes(figure, f"matrix {name}")
    assert colors(figure, f"matrix {name}") == [rgb(rank) for rank in range(size)]
    full = f"model.layers.0.{part}.{name}_proj.weight"
    shape = CONFIG.weight_shapes[full]
    left, right = min(box[0] for box in drawn), max(box[1] for box in drawn)
    low, high = min(box[2] for box in drawn), max(box[3] for box in drawn)
    for rank, box in enumerate(drawn):
        axis, start, stop, owners = pieces(CONFIG, rank, size)[full]
        along = (box[0] - left, box[1] - left) if axis == 1 else (high - box[3], high - box[2])
        side = right - left if axis == 1 else high - low
        assert np.allclose(np.array(along) / side, [start / shape[axis], stop / shape[axis]])
        assert np.isclose((box[1] - box[0]) * (box[3] - box[2]), (stop - start) / shape[axis] / owners * side**2)


def test_tokens_are_cut_among_ranks_only_with_sequence_parallelism():
    assert len(boxes(views.sharded_block(CONFIG, 4), "mlp x")) == 1
    assert len(boxes(views.sharded_block(CONFIG, 4, sequence_parallel=True), "mlp x")) == 4


def test_the_text_gives_local_shapes_and_counts_2_and_2_all_reduces():
    text = repr(views.sharded_block(CONFIG, 2))
    assert "q_proj        64 × 64        64 × 32  along its columns" in text
    assert "o_proj        64 × 64        32 × 64  along its rows" in text
    assert "forward: all_reduce (attention: y), all_reduce (mlp: y)" in text
    assert "backward: all_reduce (mlp: dx), all_reduce (attention: dx)" in text
    assert "each slice on 4 ranks" in repr(views.sharded_block(CONFIG, 8))


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("size", [1, 8])
def test_no_two_words_of_the_block_overlap(size, sequence_parallel):
    words = texts(views.sharded_block(CONFIG, size, sequence_parallel=sequence_parallel))
    for i, (one, box) in enumerate(words):
        for other, over in words[i + 1 :]:
            assert not box.padded(-1).overlaps(over.padded(-1)), (one, other)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="num_attention_heads 8 do not divide among 3"):
        views.sharded_block(CONFIG, 3)


# wrong_gradients

RIGHT = {"a": np.ones(3), "b": np.full(3, 2.0)}


def test_a_gradient_twice_too_large_is_wrong_by_100_percent_and_red():
    figure = views.wrong_gradients({"a": np.ones(3) * (1 + 1e-15), "b": np.full(3, 4.0)}, RIGHT)
    assert repr(figure) == "1 of 2 arrays are wrong\na  right, ≤ 1e-12\nb  WRONG by 100% of its largest entry"
    alarm = tuple(int(theme.ALARM[start : start + 2], 16) for start in (1, 3, 5))
    assert [color == alarm for color in colors(figure, "errors")] == [False, True]


def test_all_right_and_not_a_number_are_said():
    assert repr(views.wrong_gradients(RIGHT, RIGHT)).startswith("all 2 arrays are right")
    assert "WRONG" in repr(views.wrong_gradients(RIGHT | {"a": np.full(3, np.nan)}, RIGHT))


@pytest.mark.parametrize(
    ("found", "message"), [({"a": np.ones(3)}, "found lacks b"), (RIGHT | {"b": np.ones(2)}, r"has shape \(2,\)")]
)
def test_gradients_that_cannot_be_compared_are_refused(found, message):
    with pytest.raises(ValueError, match=message):
        views.wrong_gradients(found, RIGHT)


# kept_activations

KEPT = {"whole": {1: 64, 2: 40}, "cut": {1: 64, 2: 32}}


def test_kept_bytes_are_dots_on_lines_and_their_numbers_are_in_the_text():
    figure = views.kept_activations(KEPT, KEPT)
    assert repr(figure).startswith("Kept by one rank of one block: counted = closed form everywhere\n")
    assert "whole          64          40" in repr(figure)
    for way, at in KEPT.items():
        for kind in ("formula", "counted"):
            (line,) = artists(figure, f"{kind} {way}")
            assert list(zip(*line.get_data(), strict=True)) == list(at.items())


def test_a_count_that_is_not_the_closed_form_is_said():
    assert "NOT the closed form" in repr(views.kept_activations(KEPT, KEPT | {"cut": {1: 64, 2: 33}}))
    with pytest.raises(ValueError, match="the same ways of keeping"):
        views.kept_activations(KEPT, {"whole": {1: 64}})


# the widget


def test_all_corners_of_the_sliders_draw():
    controls = views.explore_tensor().controls
    ends = {name: (control.options[0][1], control.options[-1][1]) for name, control in controls.items()}
    for corner in range(2**5):
        values = {name: ends[name][corner >> i & 1] for i, name in enumerate(("t", "H", "G", "E", "S"))}
        assert repr(views.tensor(**values, sequence_parallel=bool(corner & 1))).startswith(f"t = {values['t']}, ")


def test_the_table_of_the_default_has_128_mib_sent_at_t_2_and_half_the_compute():
    """4 all-reduces of 1 · 4096 · 4096 · 2 bytes = 32 MiB, each sending 2 · 1/2 of it."""
    rows = repr(views.tensor()).splitlines()
    assert rows[3].split() == ["2", "9.36", "ms", "475", "µs", "128", "MiB", "336", "MiB"]
