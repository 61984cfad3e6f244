"""A step by strategy: the pictures' colours and numbers are those of the groups that sent."""

import pytest

from parlab import Cluster, arrays, run, views
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.train import Mesh, Trainer
from parlab.views.mesh.steps import B, S, step_on
from parlab.views.mesh.strategies import BACKWARD, FORWARD, STEP, STRATEGIES
from parlab.zero import accounting
from tests.views.drawn import check_text, title

CLUSTER = Cluster.uniform(latency=1e-6, bandwidth=1e10, flops=1e11)
CONFIG = LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
TOKENS = arrays.generator(0).integers(9, size=(4, 9))


@pytest.fixture(scope="module")
def step():
    def program(comm):
        trainer = Trainer(Mesh(comm, dp=2, tp=2), Llama.random(CONFIG), AdamW())
        trainer.step(TOKENS[:, :-1], TOKENS[:, 1:])

    return run(program, 4, cluster=CLUSTER)


def colors(axes, gid):
    (boxes,) = [drawn for drawn in axes.collections if drawn.get_gid() == gid]
    return {tuple(round(255 * part) for part in color[:3]) for color in boxes.get_facecolor()}


def rgb(name):
    return tuple(int(STRATEGIES[name].color[start : start + 2], 16) for start in (1, 3, 5))


def test_messages_have_the_colour_of_their_group_and_the_text_counts_them(step):
    figure = views.step_by_strategy(step)
    (axes,) = figure.axes
    for gid in ("sends", "receives"):
        assert {rgb("dp"), rgb("tp")} <= colors(axes, gid)
        assert not {rgb("pp"), rgb("cp")} & colors(axes, gid)
    busy, all_of_it = step.timeline.format(step.timeline.busy(0)), step.timeline.format(step.timeline.makespan)
    assert title(figure) == f"Of {all_of_it} rank 0 computes {busy}: the rest is messages, and waiting"
    assert "sent by all: dp " in figure.text_shown
    assert "tp " in figure.text_shown
    written = {text.get_text() for text in figure.texts}
    assert {"tp: layers", "dp: weights, gradients"} <= written
    assert "cp: K/V" not in written


def test_forward_backward_and_optimizer_have_colours_of_their_own(step):
    figure = views.step_by_strategy(step)
    (axes,) = figure.axes
    wanted = {tuple(int(kind.color[at : at + 2], 16) for at in (1, 3, 5)) for kind in (FORWARD, BACKWARD, STEP)}
    assert colors(axes, "computes") == wanted
    assert {"forward", "backward", "AdamW"} <= {text.get_text() for text in figure.texts}
    check_text(figure)


def test_ranks_that_are_not_there_and_what_is_no_run_are_refused(step):
    with pytest.raises(ValueError, match=r"ranks=\[4\]: choose some of 0 to 3"):
        views.step_by_strategy(step, ranks=[4])
    with pytest.raises(ValueError, match="run='step': must be what run"):
        views.step_by_strategy("step")


def test_the_sliders_numbers_are_counted_and_equal_the_closed_forms():
    for axes, schedule, zero in (
        ((8, 1, 1, 1), "one_f_one_b", 3),
        ((2, 2, 1, 2), "zb_h1", 1),
        ((1, 2, 4, 1), "gpipe", 0),
    ):
        step = step_on(axes, 4 if axes[0] < 8 else 2, schedule, zero)
        assert step.sent == step.formula
        assert sum(step.sent.values()) > 0
        figure = views.mesh(axes, schedule, zero, 4 if axes[0] < 8 else 2)
        assert f"{1e3 * step.seconds:.3g} ms a step" in figure.text_shown


@pytest.mark.parametrize("zero", range(4))
def test_the_words_of_each_stage_are_on_the_canvas_and_free_of_each_other(zero):
    check_text(views.mesh((1, 8, 1, 1), "gpipe", zero, 16))


def test_the_fullest_rank_holds_a_normed_input_of_each_half_of_its_8_layers_at_the_peak():
    held = step_on((1, 1, 1, 8), 1, "one_f_one_b", 1).held
    assert held[accounting.ACTIVATIONS] >= 8 * 2 * B * S * 64 * 4  # layers, halves, tokens, numbers, bytes


def test_meshes_that_are_not_of_8_ranks_and_unknown_schedules_are_refused():
    with pytest.raises(ValueError, match=r"axes=\(2, 2, 2, 2\): .* whose product is 8"):
        views.mesh((2, 2, 2, 2))
    with pytest.raises(ValueError, match=r"microbatches=4: a replica of \(8, 1, 1, 1\) can cut its rows into 1, 2"):
        views.mesh((8, 1, 1, 1), microbatches=4)
    with pytest.raises(ValueError, match="schedule='best': use one of gpipe"):
        views.mesh(schedule="best")


def test_a_slider_redraws_and_its_picture_says_its_numbers():
    explorer = views.explore_mesh()
    before = explorer.picture.value
    explorer.controls["zero"].value = 3
    assert explorer.picture.value != before
    assert "held by the fullest rank" in repr(explorer)
