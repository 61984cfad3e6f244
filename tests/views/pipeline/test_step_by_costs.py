"""A step by several costs: the headline, the lanes on one clock, and controls that change the picture."""

from parlab import views
from parlab.pipeline import Costs, one_f_one_b, zb_h1
from tests.views.drawn import title

SCHEDULES = {"1F1B": one_f_one_b(2, 2), "ZB-H1": zb_h1(2, 2)}
WAYS = [[2, 2], [3, 1]]


def told(layers):
    return Costs(forward=layers, backward_input=layers, backward_weight=layers)


def with_a_head(layers):
    return told([layers[0], layers[1] + 2])


COSTS = {"as told": told, "as seen": with_a_head}


def test_1f1b_p2_m2_of_2_layers_takes_18_s_as_told_and_30_with_a_head_of_2():
    # told: 3 · (F + B) = 3 · 6; seen: a forward of 2, twice 4 + 8 on the last stage, a backward of 4
    figure = views.step_by_costs(SCHEDULES, COSTS, schedule="1F1B", layers=[2, 2])
    assert title(figure) == "1F1B, layers 2 2: as told 18.0 s, as seen 30.0 s"
    assert "as told: 18.0 s" in repr(figure)
    assert "as seen: 30.0 s" in repr(figure)
