"""The areas are what the rank held, one above the other; the formula's line touches the model's state."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex

from parlab import views
from parlab.views.zero_redundancy.step_memory import LAYERS, levels_at_changes
from parlab.world import Link, Timeline
from parlab.world.units import format_bytes
from parlab.zero import Offload, accounting, model_state_bytes, state_bytes_held
from tests.views.drawing.test_theme import NOTICEABLE, VISIONS, closest
from tests.views.drawn import artists, title
from tests.views.zero_redundancy.zero_runs import PSI, WEIGHTS, stages, step

LEVELS = {f"stage {stage}": model_state_bytes(PSI, 4, stage) for stage in range(4)}


def area(axes, layer):
    """{time: (floor, roof) from then on} of one layer of a panel."""
    (drawn,) = [artist for artist in axes.collections if artist.get_gid() == f"layer {layer.said}"]
    (path,) = drawn.get_paths()
    columns = {}
    for (time, y), (later, other) in pairwise(path.vertices):
        if y == other and later != time:
            columns.setdefault(min(time, later), []).append(y)
    return {time: (min(ys), max(ys)) for time, ys in columns.items() if len(ys) > 1}


@pytest.mark.parametrize("stage", range(4))
def test_every_layer_is_as_high_as_the_bytes_held_under_its_name_and_stands_on_the_one_below(stage):
    timeline = step(stage).timeline
    (axes,) = views.step_memory({"one": timeline}).axes
    held = timeline.held_by_name(0)
    times, by_name = levels_at_changes(held, timeline.makespan)
    heights = dict(zip(held, map(np.array, by_name), strict=True))
    heights["received"] = heights["received"] + heights.pop("sent")  # one layer: messages
    floor = np.zeros(len(times))
    for layer in LAYERS:
        of_layer = heights.get(layer.name, np.zeros(len(times)))
        if any(of_layer):
            drawn = area(axes, layer)
            for time, low, height in zip(times, floor, of_layer, strict=True):
                if height and time in drawn:
                    assert drawn[time] == (low, low + height)
            assert {time for time, height in zip(times[:-1], of_layer, strict=False) if height} <= drawn.keys()
        floor += of_layer


def test_stages_0_to_3_reach_the_formula_16_7_5p5_and_4_bytes_a_parameter_on_4_ranks():
    figure = views.step_memory(stages(), formula=LEVELS)
    for stage, a_parameter in enumerate((16, 7, 5.5, 4)):
        (line,) = artists(figure, f"formula stage {stage}")
        assert set(line.get_ydata()) == {a_parameter * PSI}
        row = repr(figure).splitlines()[2 + stage].split()
        assert row[:4] == ["stage", str(stage), f"{a_parameter * PSI:.0f}", f"{a_parameter * PSI:.0f}"]
        top = max(high for _, high in area(figure.axes[stage], LAYERS[2]).values())
        assert top == a_parameter * PSI  # optimizer state, weights and gradients, when all have come


def test_all_panels_have_the_same_scales():
    figure = views.step_memory(stages(), formula=LEVELS)
    assert len({axes.get_xlim() for axes in figure.axes}) == len({axes.get_ylim() for axes in figure.axes}) == 1
    assert figure.axes[0].get_xlim()[1] == max(run.timeline.makespan for run in stages().values())


def test_the_title_is_a_single_runs_peak_or_the_highest_and_the_lowest_of_several():
    peaks = {name: format_bytes(run.timeline.peak_bytes(0)) for name, run in stages().items()}
    assert title(views.step_memory({"stage 1": step(1)})) == f"A step on rank 0 of 4: at most {peaks['stage 1']}"
    several = f"most in stage 0, {peaks['stage 0']}, least in stage 3, {peaks['stage 3']}"
    assert title(views.step_memory(stages())) == f"A step on rank 0 of 4: {several}"


def test_activations_are_the_same_at_every_stage():
    rows = [row.split() for row in repr(views.step_memory(stages())).splitlines()]
    assert rows[1][-4:] == ["activations", "all", "at", "once"]
    assert len({row[-2] for row in rows[2:]}) == 1


def test_gradients_grow_whole_at_stage_1_and_to_a_quarter_at_stage_2():
    figure = views.step_memory({"stage 1": step(1), "stage 2": step(2)})
    heights = [max(high - low for low, high in area(axes, LAYERS[2]).values()) for axes in figure.axes]
    assert heights == [2 * PSI, 2 * PSI / 4]


def test_two_blocks_at_most_are_gathered_at_once():
    (axes,) = views.step_memory({"stage 3": step(3)}).axes
    layer = sum(weight.size for name, weight in WEIGHTS.items() if ".layers.0." in name)
    assert max(high - low for low, high in area(axes, LAYERS[3]).values()) == 2 * 2 * layer


def phases(figure):
    (lines,) = artists(figure, "phases")
    words = [text.get_text() for text in figure.axes[0].texts]
    return [segment[0][0] for segment in lines.get_segments()], words


def test_the_phases_end_with_the_last_forward_the_last_backward_and_the_step():
    timeline = step(1).timeline
    ends = {
        kind: max(span.end for span in timeline.computes if span.rank == 0 and span.name.startswith(kind))
        for kind in ("forward", "backward")
    }
    found, words = phases(views.step_memory({"one": timeline}))
    assert found == [ends["forward"], ends["backward"], timeline.makespan]
    assert words == ["forward", "backward", "step"]


@pytest.mark.parametrize(("makespan", "found"), [(30, [10, 30]), (50, [10, 30, 50])])
def test_what_comes_after_the_last_backward_without_a_name_is_the_step(makespan, found):
    computes = [0, 0], [0, 10], [10, 30], ["forward 0", "backward 0"]
    timeline = Timeline(1, makespan, computes=computes, held=[[(0, 8, "activations")]])
    assert phases(views.step_memory({"one": timeline})) == (found, ["forward", "backward", "step"][: len(found)])


def test_blocks_in_use_are_those_gathered_and_those_that_leave_at_the_same_time():
    held = [[(0, 100, accounting.GATHERED), (2, 30, accounting.LEAVING), (5, -100, accounting.GATHERED)]]
    _, headings, row = repr(views.step_memory({"one": Timeline(1, 9, held=held)})).splitlines()
    assert headings.split()[:4] == ["state", "blocks", "in", "use"]
    assert row.split()[2] == "130"


def test_2_microbatches_have_5_phases():
    found, _ = phases(views.step_memory({"one": step(2, microbatches=2)}))
    assert len(found) == 5
    assert found == sorted(found)


def test_a_program_without_phases_and_with_names_of_its_own_is_drawn_as_other():
    timeline = Timeline(1, held=[[(0, 800, "mine"), (0, 5, "activations"), (2, 80, "yours")]], makespan=10)
    figure = views.step_memory({"one": timeline})
    other = next(layer for layer in LAYERS if not layer.name)
    assert area(figure.axes[0], other) == {0: (0, 800), 2: (0, 880)}
    assert area(figure.axes[0], LAYERS[-1]) == {0: (800, 805), 2: (880, 885)}
    assert repr(figure).splitlines()[2].split()[-1] == "885"
    assert not figure.axes[0].texts


def test_offloaded_state_is_not_on_the_device():
    offload = Offload(Link(1e-6, 1e9), 1e9)
    figure = views.step_memory({"away": step(1, offload=offload), "here": step(1)})
    first, second = (int(row.split()[-1]) for row in repr(figure).splitlines()[2:])
    assert second - first == 12 * PSI / 4
    assert [len(artists(axes, "layer optimizer state")) for axes in figure.axes] == [0, 1]


def test_uneven_shards_show_the_ranks_own_bytes_beside_the_mean_of_the_formula():
    done = step(1, size=3)
    row = repr(views.step_memory({"one": done}, formula={"one": model_state_bytes(PSI, 3, 1)})).splitlines()[2].split()
    assert int(row[1]) == sum(state_bytes_held(done.timeline, 0).values())
    assert float(row[2]) == pytest.approx(4 * PSI + 12 * PSI / 3, abs=0.05)


@pytest.mark.parametrize("vision", VISIONS)
def test_the_layers_differ_by_more_than_15(vision):
    assert closest([layer.color for layer in LAYERS], vision) > NOTICEABLE
    assert len({to_hex(layer.color) for layer in LAYERS}) == 8


def test_layers_add_up_to_what_is_held_at_every_change():
    shown = step(3).timeline
    for rank in range(4):
        times, layers = levels_at_changes(shown.held_by_name(rank), shown.makespan)
        held = dict(shown.held(rank))  # of several changes at one time, the last
        totals = {time: sum(column) for time, column in zip(times, zip(*layers, strict=True), strict=True)}
        assert {time: totals[time] for time in held} == held


def test_a_name_that_comes_later_starts_at_0():
    times, layers = levels_at_changes({"a": [(0, 8)], "b": [(5, 4), (7, 0)]}, 10)
    assert times == [0, 5, 7, 10]
    assert layers == [[8, 8, 8, 8], [0, 4, 0, 0]]


def test_a_headline_of_its_own_stands_above_and_in_the_text():
    figure = views.step_memory(stages(), headline="The peak hardly falls")
    assert title(figure) == "The peak hardly falls"
    assert repr(figure).startswith("The peak hardly falls; peaks in bytes\n")


def test_at_the_peak_stage_2_saves_the_gradients_of_earlier_microbatches_and_with_one_microbatch_nothing():
    for microbatches, saved in ((1, 0), (2, 2 * PSI * 3 / 4)):
        peaks = [
            step(stage, rows=4 * microbatches, microbatches=microbatches).timeline.peak_bytes(0) for stage in (1, 2)
        ]
        assert peaks[0] - peaks[1] == pytest.approx(saved, abs=2 * 528)  # but for the head's, on its way
