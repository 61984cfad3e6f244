"""The kept arrays of a block have their bytes; the widget's numbers are the closed forms; wrong gradients are red."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from parlab import views
from parlab.nn.llama import LlamaConfig
from parlab.plan import LLAMA_405B
from parlab.tensor import block_time, llama_kept_by_place
from parlab.views.engine import theme
from parlab.world import DGX_H100
from tests.views.drawn import artists, boxes, texts

CONFIG = LlamaConfig(
    vocab_size=32, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=8,
    num_key_value_heads=2,
)  # fmt: skip


def colors(figure, name):
    (collection,) = artists(figure, name)
    return [to_hex(color).upper() for color in collection.get_facecolors()]


# wrong_gradients

RIGHT = {"a": np.ones(3), "b": np.full(3, 2.0)}


def test_a_gradient_twice_too_large_is_wrong_by_100_percent_and_red():
    figure = views.wrong_gradients({"a": np.ones(3) * (1 + 1e-15), "b": np.full(3, 4.0)}, RIGHT)
    assert repr(figure) == "1 of 2 gradients are wrong\na  right, ≤ 1e-12\nb  WRONG by 100% of its largest entry"
    assert [color == theme.ALARM for color in colors(figure, "row 0")] == [True, False]  # the backward comes to b first
    assert [said for said, _ in texts(figure)][:5] == ["→", "b", "100%", "a", "right"]


def test_gradients_stand_in_the_order_of_the_backward_a_row_for_each_layer_and_nine_in_a_row():
    names = ["embed", *(f"layers.{layer}.mlp.a_{n}.weight" for layer in (0, 1) for n in range(10)), "head"]
    right = {name: np.ones(1) for name in names}
    figure = views.wrong_gradients(right | {"layers.1.mlp.a_0.weight": np.full(1, np.nan)}, right)
    said = [text for text, _ in texts(figure)]
    assert [said.count(f"layer {layer} →") for layer in (0, 1)] == [2, 2]
    assert [len(colors(figure, f"row {row}")) for row in range(6)] == [1, 9, 1, 9, 1, 1]
    drawn = [text for text in said if text.startswith(("a_", "head", "embed"))]
    assert drawn == ["head", *2 * [f"a_{n}" for n in range(9, -1, -1)], "embed"]
    assert said.count("right") == 21
    assert said.count("wrong") == 1


def test_a_long_name_is_written_in_lines_that_fit_into_its_box():
    right = {"model.layers.0.post_attention_layernorm.weight": np.ones(1)}
    figure = views.wrong_gradients(right, right)
    written, ((left, box_right, _, _),) = dict(texts(figure)), boxes(figure, "row 0")
    name = written["post_\nattention_\nlayernorm"]
    assert left * figure.dpi < name.x0 < name.x1 < box_right * figure.dpi


def test_all_right_and_not_a_number_are_said():
    assert repr(views.wrong_gradients(RIGHT, RIGHT)).startswith("all 2 gradients are right")
    assert "WRONG" in repr(views.wrong_gradients(RIGHT | {"a": np.full(3, np.nan)}, RIGHT))


def test_a_gradient_that_should_be_0_is_right_if_it_is_and_else_wrong_without_a_ratio():
    zeros = RIGHT | {"b": np.zeros(3)}
    assert repr(views.wrong_gradients(zeros, zeros)).startswith("all 2 gradients are right")
    assert repr(views.wrong_gradients(RIGHT, zeros)).endswith("\nb  WRONG: it should be 0")


# kept_arrays


@pytest.mark.parametrize(("size", "tokens"), [(2, 8), (4, 64), (8, 64)])
def test_the_area_of_each_array_is_its_bytes_and_with_sequence_parallelism_the_whole_ones_are_a_t_th_as_high(
    size, tokens
):
    figure, per_byte = views.kept_arrays(CONFIG, size, tokens), set()
    for way, cut in (("before", False), ("after", True)):
        kept = llama_kept_by_place(CONFIG, 1, tokens, size, 2, sequence_parallel=cut)
        for part, names in (("attention", "qx"), ("mlp", ("gate", "up", "hidden", "x"))):
            for name in names:
                ((left, right, low, high),) = boxes(figure, f"{way} {part}.{name}")
                per_byte.add(round((right - left) * (high - low) / kept[f"{part}.{name}"], 9))
    assert len(per_byte) == 1
    for place in ("attention_norm.x", "attention.x", "mlp_norm.x", "mlp.x"):
        ((*_, low, high),), ((*_, top, bottom),) = (boxes(figure, f"{way} {place}") for way in ("before", "after"))
        assert (bottom - top) * size == pytest.approx(high - low)
        assert colors(figure, f"before {place}") == ["#BBBBBB"]
        assert colors(figure, f"after {place}") == [theme.rank_color(0)]


def test_between_the_arrays_stand_two_operators_with_and_two_without_sequence_parallelism():
    said = [text for text, _ in texts(views.kept_arrays(CONFIG, 2, 8))]
    assert [said.count(name) for name in ("copy", "reduce", "gather", "scatter")] == [2] * 4
    for forward, backward in (("nothing", "all-reduce"), ("all-gather", "reduce-scatter")):
        there, back = ([said.count(f"{way} {sent}") for way in "→←"] for sent in (forward, backward))
        assert there == back == [2, 2]  # in front of the columns, and the other way round behind the rows
    assert said.count("← all-gather again") == 2  # of the columns' input, for their gradient


# the step time


def rows(figure):
    """The columns of the text, by t: computing, sending, its latency, both and the efficiency, times in ms."""
    units = {"s": 1e3, "ms": 1, "µs": 1e-3}
    found = {}
    for line in repr(figure).splitlines()[3:]:
        t, *times, share = line.split()
        found[int(t)] = [float(n) * units[unit] for n, unit in zip(times[::2], times[1::2], strict=True)], share
    return found


def test_405b_on_nodes_of_8_takes_least_time_with_32_and_sends_by_all_cards_of_a_node():
    """65 % of 989 TFLOP/s. 4 all-reduces of 256 MiB send 2 (t - 1)/t of it at 450 GB/s, or at 8 cards' 400."""
    found, n = rows(views.tensor()), 8192 * 16384 * 2
    for t, bandwidth, latency in ((8, 450e9, 3.4e-6), (16, 400e9, 9.6e-6), (32, 400e9, 9.6e-6)):
        sending = 4 * (2 * n * (t - 1) / t / bandwidth + 2 * (t - 1) * latency)
        assert found[t][0][1] == pytest.approx(1e3 * sending, rel=0.03)  # and gradients of shared key/value heads
        assert found[t][0][0] == pytest.approx(found[1][0][0] / t, rel=0.08)  # k and v of a shared head are made twice
    assert min(found, key=lambda t: found[t][0][3]) == 32
    assert [found[t][1] for t in (8, 16, 32)] == ["88%", "71%", "50%"]
    assert repr(views.tensor()).splitlines()[:2] == [
        "Llama 3 405B: t = 32 takes the least time, and is 50% efficient",
        "8192 tokens, H100s in nodes of 8",
    ]


@pytest.mark.parametrize("products", [0.4, 0.5, 0.65, 0.79, 1.0])
@pytest.mark.parametrize("S", [2048, 4096, 8192])
def test_405b_on_nodes_of_8_is_fastest_with_32_at_any_pace_but_with_16_for_2048_tokens_at_the_peak(products, S):
    machine = DGX_H100.reaching(products)

    def takes(t):
        passes = (
            block_time(LLAMA_405B, 1, S, t, 2, machine, backward=back, algorithm="rings") for back in (False, True)
        )
        return sum(map(sum, passes))

    assert min((1, 2, 4, 8, 16, 32), key=takes) == (16 if (S, products) == (2048, 1.0) else 32)


def test_where_nvlink_joins_64_gpus_405b_is_76_58_and_37_percent_efficient_on_16_32_and_64():
    found = rows(views.tensor(ranks_per_node=64))
    assert [found[t][1] for t in (8, 16, 32, 64)] == ["88%", "76%", "58%", "37%"]


def test_8b_on_1024_tokens_is_fastest_at_8_where_nvlink_joins_64_and_31_hops_twice_make_32_slower_than_1():
    """Four rings of 2 (t - 1) hops of 3.4 µs, NVLink's latency in NCCL's model, and of 1024 · 4096 numbers of 16 bits;
    and two more of the ranks that share one of 8 key/value heads, of 4096 · 128 numbers."""

    def ring(t, numbers):
        return 2 * (t - 1) * (3.4e-3 + 2 * numbers / t / 450e6)  # ms

    found = rows(views.tensor("Llama 3 8B", 1024, 64))
    assert list(found) == [1, 2, 4, 8, 16, 32]  # 32 heads
    for t, (times, _) in found.items():
        sending = 4 * ring(t, 1024 * 4096) + 2 * ring(max(1, t // 8), 4096 * 128)
        assert times[1] == pytest.approx(sending, rel=0.005)
    assert min(found, key=lambda t: found[t][0][3]) == 8


@pytest.mark.parametrize("node", [8, 16, 32, 64])
def test_each_t_has_a_bar_and_all_add_computing_and_sending(node):
    figure = views.tensor(ranks_per_node=node)
    stacked = computing, sent, latency = [boxes(figure, name) for name in ("computing", "bytes", "latency")]
    assert {len(boxes_of) for boxes_of in stacked} == {7 if node == 64 else 6}
    for below, above in ((computing, sent), (sent, latency)):
        assert [low[3] for low in below] == [high[2] for high in above]
        assert [low[:2] for low in below] == [high[:2] for high in above]
    found = rows(figure)
    for bars, column in ((computing, 0), (latency, 2)):  # t times the milliseconds that the text says
        said = [1e9 * t * times[column] for t, (times, _) in found.items()]
        assert [high - low for *_, low, high in bars] == pytest.approx(said, rel=0.01, abs=1)
    assert len(artists(figure, "edge")) == (node < 32)


def test_the_widget_starts_with_the_model_and_the_64_gpus_that_it_is_told():
    """Lesson 05 asks about 405B on nodes of 8 above it; what it shows first must not say it."""
    explorer = views.explore_tensor("Llama 3 8B", 64)
    assert len(explorer.controls) == 3
    assert repr(explorer) == f"explore_tensor: {views.tensor('Llama 3 8B', ranks_per_node=64)!r}"
