"""Bytes that ranks held in steps that ran: a panel a schedule, a group of bars an m."""

import numpy as np
import pytest

from parlab import views
from parlab.nn.config import LlamaConfig
from parlab.nn.llama import Llama
from parlab.pipeline import gpipe, one_f_one_b, step_of_ranks
from tests.views.drawn import boxes, check_refused, check_text

CONFIG = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4)
MODEL, TOKENS = Llama.random(CONFIG, seed=1, dtype="float64"), np.random.default_rng(2).integers(8, size=(16, 8))


def run(schedule):
    return step_of_ranks(schedule, MODEL, TOKENS, TOKENS)


def test_1f1bs_fullest_rank_falls_to_a_quarter_from_m_4_to_16_and_gpipes_stays():
    figure = views.bytes_held({"GPipe": gpipe, "1F1B": one_f_one_b}, p=4, across=(4, 16), run=run)
    said = "From m = 4 to 16 the fullest rank's bytes stay equal in GPipe, and fall to 24 % in 1F1B"
    assert repr(figure).splitlines()[0] == said
    assert [line.split()[2] for line in repr(figure).splitlines()[2:]] == ["43", "16", "43", "16"]  # 3 / (m + 3)
    held = [run(one_f_one_b(4, m)).timeline.peak_bytes(2) for m in (4, 16)]
    assert [high for *_, high in boxes(figure, "1F1B 2")] == held
    check_text(figure)
    grown = views.bytes_held({"1F1B": one_f_one_b}, p=4, across=(16, 4), run=run)
    assert repr(grown).splitlines()[0].endswith("grow to 410 % in 1F1B")


@pytest.mark.parametrize(
    ("makers", "p", "across"), [({}, 4, (4,)), ({"1F1B": one_f_one_b}, 5, (5,)), ({"1F1B": one_f_one_b}, 4, ())]
)
def test_no_schedule_more_ranks_than_4_or_no_m_are_refused(makers, p, across):
    check_refused(lambda: views.bytes_held(makers, p, across, run), "makers=", "one or two schedules, 1 to 4 ranks")
