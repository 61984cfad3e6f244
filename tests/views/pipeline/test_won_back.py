"""The work that a pipeline of 16 GPUs wins back, and the bytes that its first and its last one hold."""

import tomllib
from importlib.resources import files

import pytest

from parlab import views
from parlab.labs import LLAMA_TFLOPS, PIPELINE_GUESSES, kept_of_405b, sixteen_stages
from parlab.nn.formulas import add_flops, block_flops
from parlab.nn.published import LLAMA_405B
from parlab.pipeline import Costs, one_f_one_b
from parlab.views.engine import theme
from tests.views.drawn import boxes

PUBLISHED = (1, 0.99, 0.72)  # F, I, W of a stage of 16: Qi et al. 2024, table 9


def llama(m=32, transfer=0.006):
    return sixteen_stages(one_f_one_b, Costs(*PUBLISHED, transfer=transfer), m)


def test_of_16_gpus_with_llamas_messages_1f1b_wins_10_8_zb_h1_13_1_and_8_chunks_14_9_of_which_two_ways_fit_80_gb():
    ran = llama()
    figure = views.won_back(ran, *kept_of_405b(), base=15e9, room=80e9)
    rows = [line[16:].split() for line in repr(figure).splitlines()[2:7]]
    assert [row[0] for row in rows] == ["1.0", "10.9", "10.8", "13.1", "14.9"]
    whole = {  # microbatches on the first and the last rank
        "one at a time": [1, 1],
        "GPipe": [32, 32],
        "1F1B": [16, 1],
        "8 chunks": [16 + 15 / 8, 16 - 15 / 8],
    }
    for (_, _, _, _, first, _, last, _), name in zip(rows, ran, strict=True):
        if name in whole:
            assert [first, last] == [f"{15 + 2.856 * number:.0f}" for number in whole[name]]
    assert float(rows[3][6]) == pytest.approx(15 + 16 * 4.26, abs=1.5)  # on ZB-H1's last rank 16 W's wait
    red = sorted(text.get_text() for text in figure.texts if text.get_color() == theme.ALARM)
    assert red == ["106 GB", "106 GB", "83 GB", "red: more than the 80 GB of a GPU"]
    work = 32 * sum(PUBLISHED)
    for row, one in enumerate(ran.values()):
        squares = boxes(figure, f"work of row {row}")
        assert sum(right - left for left, right, *_ in squares) == pytest.approx(0.84 * 16 * work / one.makespan)


def test_from_32_to_16_microbatches_430_tflops_become_402_with_8_chunks_326_with_1f1b_and_400_as_published():
    works = [{name: 1 - one.bubble_fraction() for name, one in llama(m).items()} for m in (32, 16)]
    found = {name: round(430 * works[1][name] / works[0][name]) for name in ("8 chunks", "1F1B")}
    assert found == {"8 chunks": 402, "1F1B": 326}
    assert PIPELINE_GUESSES["TFLOP/s"][0] == found["1F1B"]
    published = tomllib.loads((files("parlab.plan") / "published.toml").read_text(encoding="utf-8"))["family"]
    (rows,) = (family["rows"] for family in published if family["name"] == "Llama 3, table 4")
    assert [row[1:3] for row in rows[:2]] == [[430, 64], [400, 128]]  # TFLOP/s a GPU, pipelines
    assert list(LLAMA_TFLOPS.items()) == [(64 * 128, 430), (128 * 128, 400)]


def test_a_message_of_llamas_takes_0_006_of_f():
    message = 8192 * 16384 * 2 / 8 / 50e9  # bytes of a GPU's share, at 400 Gbit/s
    layer = add_flops(*block_flops(LLAMA_405B, 1, 8192).values()).forward  # 8 layers over 8 GPUs
    for rate in (430e12, 500e12):  # of a GPU that works
        assert message / (layer / rate) == pytest.approx(0.006, abs=0.001)
