"""What holds for every picture, widget and film: an example each, its words, its controls, its size."""

from base64 import b64decode

import numpy as np
import pytest

from parlab import labs, run, views
from parlab.labs import PRICES, kept_of_405b, many_models, on_rank_0, sixteen_stages, three_arguments
from parlab.labs.seeds import loads_of_seeds
from parlab.pipeline import (
    Costs,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    looped_bfs,
    naive,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)
from parlab.plan import LLAMA_405B, validation
from parlab.views.engine.picture import png
from tests.views.drawn import (
    both_send_first,
    check_controls,
    check_text,
    last_returns_early,
    nothing,
    one_skips,
    ring,
    stuck,
)
from tests.views.experts.test_experts import scores_of_lesson_10
from tests.views.pipeline.test_schedule import DUALPIPEV
from tests.views.pipeline.test_step_by_costs import COSTS, SCHEDULES, WAYS
from tests.views.sequence.ring_runs import rings
from tests.views.tensor.test_tensor import CONFIG
from tests.views.tensor.test_whole_or_partial import arrays
from tests.views.world.test_pieces_sent import RUNS
from tests.views.world.test_stall_waits import again
from tests.views.zero.zero_runs import step

ONES = {"b.post_attention_layernorm.weight": np.ones(3), "a": np.ones(3)}
MS = Costs(18.522, 18.086, 9.337, 0.601)
LONG = simulate(looped_bfs(16, 64, 4), Costs(1 / 4, 1 / 4, 3 / 16, 1 / 8))


def of_ranks(size):
    return run(ring, size, np.ones(256))


def framed(shown):
    """A schedule with all that can be drawn on it."""
    return views.schedule(shown, critical_path=True, why=shown.size - 1 if shown.size > 1 else None)


def lesson_10(gamma):
    return views.balanced_rows(labs.balanced, scores_of_lesson_10(), gamma=gamma)


PICTURES = {
    **{f"timeline of {size}": lambda size=size: views.timeline(of_ranks(size)) for size in (1, 8, 64)},
    "timeline without time": lambda: views.timeline(run(nothing, 4)),
    "timeline of 1F1B": lambda: views.timeline(simulate(one_f_one_b(8, 32))),
    "timeline of GPipe": lambda: views.timeline(simulate(gpipe(64, 4))),
    **{f"runs of {size}": lambda size=size: views.compare_timelines(rings(size)) for size in (1, 8)},
    "a run of 33": lambda: views.compare_timelines({"long name " * 3: run(lambda comm: comm.barrier(), 33)}),
    "a run without time": lambda: views.compare_timelines({"nothing": run(nothing, 2)}),
    "lanes": lambda: views.lanes_of({"one way": step(3), "other": step(3, keep_after_forward=True)}, 3),
    "a loop to itself": lambda: views.deadlock(stuck(both_send_first, 1)),
    "deadlock of 5": lambda: views.deadlock(stuck(both_send_first, 5)),
    **{
        f"deadlock of 100, {program.__name__}": lambda program=program: views.deadlock(stuck(program, 100))
        for program in (both_send_first, last_returns_early, one_skips)
    },
    **{f"all-reduce of {size}": lambda size=size: views.all_reduce_seconds(size) for size in (8, 1024)},
    "pieces sent": lambda: views.pieces_sent(RUNS),
    "trace back": lambda: views.trace_back(labs.patient()),
    "rounds": lambda: views.rounds(labs.patient()),
    "a stall in every round": lambda: views.stall_waits(again(32e-3, 2e-3, True)),
    **{
        f"{layout} masks of {size}": lambda size=size, layout=layout: views.ring_masks(4 * size, size, layout)
        for size, layout in ((1, "contiguous"), (2, "striped"), (4, "zigzag"), (6, "zigzag"), (16, "zigzag"))
    },
    "packed documents": lambda: views.packed_ring([0, 8, 40, 64], 4, "zigzag"),
    "published groups": views.published_groups,
    "two published groups": lambda: views.published_groups((1, 8), headline="The same program on two machines"),
    "groups of 256": lambda: views.group_times(256, 8, 25),
    "ring bill of 256": views.ring_bill,
    "no gradient wrong": lambda: views.wrong_gradients(ONES, ONES),
    "a gradient wrong": lambda: views.wrong_gradients(ONES | {"a": np.ones(3) * 2}, ONES),
    "kept arrays": lambda: views.kept_arrays(LLAMA_405B, 8, 8192),
    "kept arrays of a small model": lambda: views.kept_arrays(CONFIG, 2, 8),
    "whole or partial": lambda: views.whole_or_partial(arrays(2), arrays(1)[0]),
    **{f"a stage of {number}": lambda number=number: views.price_tag(stages=number) for number in (1, 2, 3)},
    "a price with equal waits": lambda: views.price_tag(7.5e9, 64, tokens=512, microbatches=1),
    "a price with 12 passes": lambda: views.price_tag(7.5e9, 64, tokens=512),
    "a price of one rank": lambda: views.price_tag(7.5e9, 1),
    **{
        f"schedule {shown.schedule.name}, {shown.costs.pair}": lambda shown=shown: framed(shown)
        for shown in (
            simulate(naive(2, 3)),
            simulate(one_f_one_b(1, 2)),
            simulate(one_f_one_b(8, 32), Costs(1, 2, 1.5, 0.25)),
            simulate(interleaved_one_f_one_b(4, 8, 2), Costs(0.5, 0.5, 0.5)),
            simulate(zb_h2(16, 32)),
            simulate(DUALPIPEV, Costs(pair=3)),
        )
    },
    "the longest headline of a schedule": lambda: views.schedule(LONG, why=15),
    "a schedule that cannot run": lambda: views.schedule(Schedule(zb_h1(3, 4).ranks[::-1])),
    "bubble prices of 4 chunks": lambda: views.bubble_prices(chunks=4),
    "frontier": lambda: views.frontier(4, 8, {make.__name__: make(4, 8) for make in (gpipe, zb_h1, zb_h2, zb_v)}),
    "frontier of one placement": lambda: views.frontier(3, 4, {"slow": gpipe(3, 4)}),
    "step frontier": lambda: views.step_frontier(
        {"ZB-H1": zb_h1(8, 24), "ZB-H2": zb_h2(8, 24), "ZB-V": zb_v(8, 24)}, MS, three_arguments, on_rank_0
    ),
    "won back": lambda: views.won_back(
        sixteen_stages(one_f_one_b, Costs(1, 0.99, 0.72, 0.006), 32), *kept_of_405b(), base=15e9, room=80e9
    ),
    "losses": lambda: views.loss_curves({"right": [3.0, 2.0, 1.0], "wrong": [3.0, 2.5, 2.0], "other": [1.0] * 3}),
    "losses by ratio": lambda: views.loss_curves({"right": [4.0, 2.0, 1.0], "wrong": [4.0, 3.0, 2.0]}, log=True),
    **{
        f"mesh {sizes}": lambda sizes=sizes: views.groups_on_mesh(0, sizes)
        for sizes in ({"dp": 2, "pp": 2, "cp": 2, "tp": 2}, {"dp": 2, "pp": 2, "tp": 8}, {"dp": 16}, {"pp": 4}, {})
    },
    "predicted and measured": lambda: views.predicted_and_measured(validation()),
    "layout": views.layout,
    "a layout that fits": lambda: views.layout(tp=8, pp=8, chunks=16, zero=2, recompute="mlp.hidden"),
    **{
        f"no layout {sizes}": lambda sizes=sizes: views.layout(**sizes)
        for sizes in ({"tp": 4}, {"tp": 8, "pp": 32, "chunks": 8}, {"tp": 3})
    },
    "refuted": lambda: views.refuted({"all": 134.9, "some": 84.8, "few": 77.8}),
    **{
        f"copies {given}": lambda given=given: views.copies(*given)
        for given in ((2, 256, 8, 4), (1, 8, 2, None), (2, 8, 8, 1), (16, 256, 2, 2))
    },
    "balance": lambda: lesson_10(0.2),
    "load of seeds": lambda: views.load_of_seeds(loads_of_seeds()),
    "work and messages": lambda: views.work_and_messages({"one": (4.0, 0.0), "two": (2.0, 1.5)}, "Two are faster"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_on_the_canvas_free_of_others_and_7_points_high_or_more(name):
    figure = PICTURES[name]()
    check_text(figure)
    assert repr(figure) == str(figure)
    assert len(repr(figure)) > 10
    assert "Figure" not in repr(figure)
    assert " at 0x" not in repr(figure)


EXPLORERS = {  # the widget, and what it draws at first
    "all-reduce seconds": (views.explore_all_reduce_seconds, views.all_reduce_seconds),
    "a stall": (lambda: views.explore_stall(again), lambda: views.stall_waits(again(20e-3, 2e-3))),
    "group times": (views.explore_group_times, views.group_times),
    "ring bill": (views.explore_ring_bill, views.ring_bill),
    "tensor": (views.explore_tensor, views.tensor),
    "price tag": (views.explore_price_tag, views.price_tag),
    "bubble prices": (views.explore_bubble_prices, views.bubble_prices),
    "steps": (
        lambda: views.explore_steps({"ZB-H2": zb_h2(4, 8)}, Costs(), three_arguments, on_rank_0),
        lambda: views.step_frontier({"ZB-H2": zb_h2(4, 8)}, Costs(), three_arguments, on_rank_0),
    ),
    "step costs": (
        lambda: views.explore_step_costs(SCHEDULES, WAYS, COSTS),
        lambda: views.step_by_costs(SCHEDULES, COSTS, schedule="1F1B", layers=WAYS[0]),
    ),
    "who sees": (
        lambda: views.explore_who_sees(many_models().differences, PRICES),
        lambda: views.who_sees(many_models().differences["bf16"], PRICES, "bf16"),
    ),
    "dial": (views.explore_dial, views.dial),
    "copies": (views.explore_copies, views.copies),
    "balance": (lambda: views.explore_balance(labs.balanced, scores_of_lesson_10()), lambda: lesson_10(0.05)),
}


@pytest.mark.parametrize("name", EXPLORERS)
def test_a_widget_begins_as_its_figure_each_value_of_each_control_has_a_picture_and_words_fit_at_the_ends(name):
    explore, draw = EXPLORERS[name]
    explorer, first = explore(), draw()
    assert repr(explorer) == f"{explorer.name}: {first!r}"
    assert explorer.picture.value == png(first)
    bundle, described = explorer._repr_mimebundle_()
    assert repr(explorer).startswith(bundle["text/plain"].removesuffix("…"))
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert (b64decode(bundle["image/png"]), described["image/png"]) == explorer.figure._repr_png_()
    assert all(control.description and control.index is not None for control in explorer.controls.values())
    check_controls(explorer)
    for end in (0, -1):
        for control in explorer.controls.values():
            control.index = end % len(control.options)
        check_text(explorer.figure)
