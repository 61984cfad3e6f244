"""A step by strategy: the pictures' colours and numbers are those of the groups that sent."""

from dataclasses import replace
from itertools import pairwise

import pytest

from parlab import Cluster, arrays, run, views
from parlab.nn import AdamW, Llama, LlamaConfig
from parlab.train import Mesh, Trainer, bytes_by_strategy, strategy_of
from parlab.views.mesh.steps import B, S, detailed, step_on
from parlab.views.mesh.strategies import BACKWARD, FORWARD, STEP, STRATEGIES
from parlab.world.units import format_bytes
from parlab.zero import accounting
from tests.views.drawn import artists, boxes, check_text, title

CLUSTER = Cluster.uniform(latency=1e-6, bandwidth=1e10, flops=1e11)
CONFIG = LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
TOKENS = arrays.generator(0).integers(9, size=(4, 9))


@pytest.fixture(scope="module")
def step():
    def program(comm):
        trainer = Trainer(Mesh(comm, dp=2, tp=2), Llama.random(CONFIG), AdamW())
        trainer.step(TOKENS[:, :-1], TOKENS[:, 1:])

    return run(program, 4, cluster=CLUSTER)


def step_of(axes, microbatches, schedule, zero):
    """The stored step, where one is stored: that it is what runs is a claim of test_steps.py."""
    stored = (schedule, zero) == ("one_f_one_b", 1)
    return detailed()[axes, microbatches] if stored else step_on(axes, microbatches, schedule, zero)


def colors(axes, gid):
    found = [drawn for drawn in axes.collections if drawn.get_gid() == gid]
    return {tuple(round(255 * part) for part in color[:3]) for boxes in found for color in boxes.get_facecolor()}


def rgb(color):
    return tuple(int(color[start : start + 2], 16) for start in (1, 3, 5))


@pytest.mark.parametrize("rank", [0, 2])
def test_each_strategy_has_a_row_with_the_messages_that_the_rank_sends_or_receives(step, rank):
    figure = views.step_by_strategy(step, rank=rank)
    (axes,) = figure.axes
    for strategy in ("dp", "tp"):
        own = [t for t in step.timeline.transfers if rank in (t.src, t.dst) and strategy_of(t) == strategy]
        own = [t for t in own if t.end > t.start and t.src != t.dst]
        drawn = sorted((start, end) for start, end, *_ in boxes(figure, strategy))
        assert all(end < start for (_, end), (start, _) in pairwise(drawn))  # a pause between any two
        assert {start for start, _ in drawn} <= {t.start for t in own}
        assert {end for _, end in drawn} <= {t.end for t in own}
        assert all(any(start <= t.start and t.end <= end for start, end in drawn) for t in own)
        assert 1 < len(drawn) < len(own) / 2
        assert colors(axes, strategy) == {rgb(STRATEGIES[strategy].color)}
    assert not boxes(figure, "pp")
    timeline = step.timeline
    busy, all_of_it = timeline.format(timeline.busy(rank)), timeline.format(timeline.makespan)
    assert title(figure) == f"Of {all_of_it} rank {rank} computes {busy}: the rest is messages, and waiting"
    assert "sent by all: dp " in figure.text_shown
    counted = bytes_by_strategy(timeline)
    written = {text.get_text() for text in figure.texts}
    assert {format_bytes(counted[strategy]) for strategy in ("dp", "tp")} <= written
    check_text(figure)


def test_a_pipelines_sums_are_named_a_tied_table_before_adamw_and_the_loss_after_it(step):
    def program(comm, config):
        trainer = Trainer(Mesh(comm, dp=2, pp=2), Llama.random(config), AdamW())
        trainer.step(TOKENS[:, :-1], TOKENS[:, 1:])

    for tied, words in ((True, {" table ", "loss "}), (False, {"loss "})):
        done = run(program, 4, replace(CONFIG, tie_word_embeddings=tied), cluster=CLUSTER)
        figure = views.step_by_strategy(done)
        (axes,) = figure.axes
        named = {text.get_text(): text for text in axes.texts if text.get_text() in (" table ", "loss ")}
        assert set(named) == words
        sums = [t for t in done.timeline.transfers if t.name == "pp: all_reduce" and 0 in (t.src, t.dst)]
        assert named["loss "].get_position()[0] in {t.start for t in sums}
        assert all(text.get_position()[1] == 1 for text in named.values())  # the row of pp
        check_text(figure)
    assert not {" table ", "loss "} & {text.get_text() for text in views.step_by_strategy(step).axes[0].texts}


def test_forward_backward_and_optimizer_have_colours_of_their_own(step):
    figure = views.step_by_strategy(step)
    (axes,) = figure.axes
    assert colors(axes, "computes") == {rgb(kind.color) for kind in (FORWARD, BACKWARD, STEP)}
    assert {"forward", "backward", "AdamW"} <= {text.get_text() for text in figure.texts}


def test_a_rank_that_is_not_there_and_what_is_no_run_are_refused(step):
    with pytest.raises(ValueError, match=r"rank=4: the ranks of this group are 0 to 3"):
        views.step_by_strategy(step, rank=4)
    with pytest.raises(ValueError, match="run='step': must be what run"):
        views.step_by_strategy("step")


def test_the_sliders_numbers_are_counted_and_equal_the_closed_forms():
    for axes, schedule, zero in (
        ((8, 1, 1, 1), "one_f_one_b", 3),
        ((2, 2, 1, 2), "zb_h1", 1),
        ((1, 2, 4, 1), "gpipe", 0),
    ):
        step = step_of(axes, 4 if axes[0] < 8 else 2, schedule, zero)
        assert step.sent == step.formula
        assert sum(step.sent.values()) > 0
        figure = views.mesh(axes, schedule, zero, 4 if axes[0] < 8 else 2)
        assert f"{1e3 * step.seconds:.3g} ms a step" in figure.text_shown


@pytest.mark.parametrize("zero", range(4))
def test_the_words_of_each_stage_are_on_the_canvas_and_free_of_each_other(zero):
    check_text(views.mesh((1, 8, 1, 1), "gpipe", zero, 16))


def test_the_fullest_rank_holds_a_normed_input_of_each_half_of_its_8_layers_at_the_peak():
    held = detailed()[(1, 1, 1, 8), 1].held
    assert held[accounting.ACTIVATIONS] >= 8 * 2 * B * S * 64 * 4  # layers, halves, tokens, numbers, bytes


def test_meshes_that_are_not_of_8_ranks_and_unknown_schedules_are_refused():
    with pytest.raises(ValueError, match=r"axes=\(2, 2, 2, 2\): .* whose product is 8"):
        views.mesh((2, 2, 2, 2))
    with pytest.raises(ValueError, match=r"microbatches=4: a replica of \(8, 1, 1, 1\) can cut its rows into 1, 2"):
        views.mesh((8, 1, 1, 1), microbatches=4)
    with pytest.raises(ValueError, match="schedule='best': use one of gpipe"):
        views.mesh(schedule="best")
    for asked in ("x", 3):
        with pytest.raises(ValueError, match=f"asked={asked!r}: "):
            views.mesh(asked=asked)


@pytest.mark.parametrize(
    ("axes", "microbatches", "than"), [((1, 1, 1, 8), 1, "more than"), ((1, 1, 1, 8), 8, "less than")]
)
def test_the_headline_and_a_dashed_line_compare_with_the_3_90_gib_of_pp_8(axes, microbatches, than):
    figure = views.mesh(axes, "one_f_one_b", 1, microbatches)
    held, beside = (detailed()[choice].held for choice in ((axes, microbatches), ((1, 8, 1, 1), 16)))
    assert (sum(held.values()) > sum(beside.values())) == (than == "more than")
    assert title(figure).endswith(f"{format_bytes(sum(held.values()))} held, {than} by pp 8, 16 microbatches")
    assert f"{microbatches} microbatch{'es' if microbatches > 1 else ''}" in {text.get_text() for text in figure.texts}
    (line,) = artists(figure, "beside")
    assert set(line.get_xdata()) == {sum(beside.values())}


def test_the_mesh_that_is_compared_with_holds_as_much_as_itself():
    assert "held, as much as by pp 8, 16 microbatches" in title(views.mesh((1, 8, 1, 1), "one_f_one_b", 1, 16))


SETTINGS = [
    ((1, 2, 2, 2), "one_f_one_b", 1, 4),
    ((8, 1, 1, 1), "one_f_one_b", 1, 1),  # of the sliders' it holds most
    ((1, 1, 8, 1), "one_f_one_b", 3, 8),  # it sends most
    ((1, 8, 1, 1), "zb_h1", 0, 16),
]


def test_the_axes_are_the_same_at_all_settings_and_hold_all_that_is_drawn():
    figures = [views.mesh(*setting) for setting in SETTINGS]
    ends = {tuple(tuple(axes.get_xlim()) for axes in figure.axes) for figure in figures}
    ((sent, held),) = ends
    for figure, setting in zip(figures, SETTINGS, strict=True):
        axes, schedule, zero, microbatches = setting
        step = step_of(axes, microbatches, schedule, zero)
        assert sum(step.held.values()) < held[1]
        for name, nbytes in step.sent.items():
            dots = [x for dot in artists(figure, f"sent {name}") for x in dot.get_xdata()]
            assert dots == ([nbytes] if nbytes and name != "norm" else [])
            assert all(sent[0] < x < sent[1] for x in dots)
        check_text(figure)


def test_a_step_that_holds_more_than_any_of_the_sliders_has_a_longer_axis():
    ends = [
        views.mesh(axes, microbatches=m).axes[1].get_xlim()[1] for axes, m in (((8, 1, 1, 1), 1), ((1, 8, 1, 1), 16))
    ]
    assert ends[0] == ends[1]
    assert max(sum(step.held.values()) for step in detailed().values()) < ends[0]
    figure = views.mesh((8, 1, 1, 1), zero=0, microbatches=2)
    assert ends[0] < sum(step_of((8, 1, 1, 1), 2, "one_f_one_b", 0).held.values()) < figure.axes[1].get_xlim()[1]


def test_the_row_of_zero_is_named_by_both_axes_that_it_sums_over():
    figure = views.mesh((1, 2, 4, 1), "one_f_one_b", 1, 4)
    assert "dp × cp sends" in figure.text_shown
    assert detailed()[(1, 2, 4, 1), 4].sent["dp"] > 0  # though dp is 1
    assert STRATEGIES["dp"].name == "dp × cp: ZeRO"


@pytest.mark.parametrize(
    ("axes", "asked", "said"),
    [
        ((8, 1, 1, 1), 16, "2 microbatches, not 16: a replica has 2 rows"),
        ((1, 8, 1, 1), 2, "8 microbatches, not 2: the pipeline has 8 stages"),
        ((1, 1, 1, 8), 16, "16 microbatches"),
        ((1, 8, 1, 1), 16, "16 microbatches"),
    ],
)
def test_the_picture_says_when_it_shows_another_number_of_microbatches_than_the_slider(axes, asked, said):
    explorer = views.explore_mesh()
    explorer.controls["axes"].value = axes
    explorer.controls["microbatches"].value = asked
    (line,) = [
        text.get_text()
        for text in explorer.figure.texts
        if "microbatch" in text.get_text() and "held" not in text.get_text()
    ]
    assert line.startswith(said)
    check_text(explorer.figure)


def test_a_slider_redraws_and_its_picture_says_its_numbers():
    explorer = views.explore_mesh()
    before = explorer.picture.value
    explorer.controls["microbatches"].value = 16
    assert explorer.picture.value != before
    assert "held by the fullest rank" in repr(explorer)
