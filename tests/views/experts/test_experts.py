"""Figures of experts: their numbers are those of the closed forms and of what was given; bad input is refused."""

import re
from collections import Counter
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from parlab import labs, views
from parlab.labs.seeds import loads_of_seeds
from parlab.views.engine import theme
from parlab.views.experts.copies import DARK, LINES
from tests.views.drawn import words
from tests.views.filmed import check_film, marks, parts

EIGHT = [5, 40, 41, 77, 113, 120, 200, 250]  # on nodes 0, 1, 1, 2, 3, 3, 6, 7; 40 and 41 on one rank


def test_a_copy_a_node_leaves_5_times_and_goes_on_to_7_ranks():
    film = views.token_way(EIGHT)
    check_film(film)
    assert "5 copies between nodes, one a node; the mean of any 8 is 4.63" in film.story
    assert "7 copies inside" in film.story
    assert Counter(re.findall(r'class="go', film.html)) == {'class="go': 2 * (5 + 7)}  # there and back


def test_two_copies_to_one_rank_leave_in_turn_carry_their_expert_lie_side_by_side_and_7_ranks_are_marked_at_first():
    film = views.token_way(EIGHT, copy="expert")
    there = [(times["a"], times["x"], said) for times, said in marks(film, "go") if times["y"] == 54][:2]  # to rank 10
    assert [said for *_, said in there] == [["t40"], ["t41"]]
    assert there[0][0] < there[1][0]
    assert there[1][1] - there[0][1] >= 34  # the width of a copy
    assert film.html.count('height="3"') == 7


@pytest.mark.parametrize(("copy", "copies"), [("expert", 7), ("node", 5)])
def test_the_copies_that_have_crossed_between_nodes_are_counted_one_by_one_as_they_arrive(copy, copies):
    film = views.token_way(EIGHT, copy=copy)
    said = "crossed between nodes"
    seen = {words[0]: times for times, words in marks(film, "see") if words and said in words[0]}
    assert list(seen) == [f"{n} {'copy has' if n == 1 else 'copies have'} {said}" for n in range(copies + 1)]
    arrive = [times["b"] for times, words in marks(film, "go") if times["x"] >= 70 and words[0][0] == "t"]
    assert [times.get("a") for times in seen.values()] == [None, *arrive]
    assert [times.get("b") for times in seen.values()] == pytest.approx([*arrive, None], abs=0.01)  # one at a time
    assert "b" not in seen[f"{copies} copies have {said}"]


def test_answers_start_where_copies_have_come_to_and_copies_are_seen_there_until_they_are_answered():
    film = views.token_way(EIGHT, copy="expert")
    ways = {}
    for times, part in parts(film, "go"):
        copy = part.find("rect")
        ways["".join(part.itertext())] = times, (float(copy.get("x")), float(copy.get("y")))
    stays = {words[0]: times for times, words in marks(film, "see") if len(words) == 1}
    for expert in EIGHT:
        (there, start), (back, end) = ways[f"t{expert}"], ways[f"y{expert}"]
        assert end == pytest.approx((start[0] + there["x"], start[1] + there["y"]))
        assert (back["x"], back["y"]) == pytest.approx((-there["x"], -there["y"]))
        assert stays[f"t{expert}"]["a"] == pytest.approx(there["b"], abs=0.02)


@pytest.mark.parametrize("copy", ["expert", "node"])
def test_of_the_copies_that_leave_a_rank_or_come_back_to_it_one_is_under_way_at_a_time(copy):
    film = views.token_way(EIGHT, copy=copy)
    of_home = [times for times, words in marks(film, "go") if copy == "expert" or abs(times["x"]) >= 70]
    ways = sorted((times["a"], times["b"]) for times in of_home)
    assert len(ways) == (16 if copy == "expert" else 10)
    assert all(end <= start + 0.011 for (_, end), (start, _) in pairwise(ways))


def test_an_answer_has_the_colour_of_its_node_and_a_sum_a_node_travels_back():
    film = views.token_way(EIGHT)
    sums = [times for times, words in marks(film, "go") if words == ["Σ"]]
    assert len(sums) == 5
    assert re.search(rf'fill="{theme.rank_color(7)}"/><text[^>]*>y<', film.html)
    colors = [theme.rank_color(node) for node in (0, 1, 2, 3, 3, 6, 7)]  # of the ranks with experts, and of these
    assert re.findall(r'height="3" fill="(#\w+)"', film.html) == colors
    assert re.findall(r'fill="(#\w+)"/><text[^>]*>(?:5|40 41|77|113|120|200|250)<', film.html) == colors


def test_a_token_whose_experts_are_all_at_home_travels_nowhere_and_one_copy_is_singular():
    assert "0 copies between nodes" in views.token_way([0, 1], 16, 2, 2).story
    assert "1 copy between nodes" in views.token_way([0, 15], 16, 2, 2).story


def test_copies_are_7_and_4_63_and_3_5_and_a_token_with_one_expert_reaches_one_node():
    assert "7.00 copies leave, one an expert; 4.63, one a node; at most 3.50, limited to 4" in str(views.copies())
    assert "k = 1: 0.88 copies leave, one an expert; 0.88, one a node; at most 0.88" in str(views.copies(k=1))
    assert "limited" not in str(views.copies(limit=None))


def test_the_sliders_of_copies_stand_at_their_ends_without_an_error():
    explorer = views.explore_copies()
    for name, value in (("num_experts", 8), ("k", 16), ("nodes", 2), ("limit", 8), ("limit", 0), ("nodes", 8)):
        explorer.controls[name].value = value
    assert "8 experts on 8 nodes, k = 8: 7.00 copies" in repr(explorer)


@pytest.mark.parametrize(
    "given",
    [(8, 256, 8, 4), (2, 256, 8, 4), (1, 8, 2, None), (2, 8, 8, 1), (16, 256, 4, 1), (16, 256, 2, 2), (16, 16, 8, 4)],
)
def test_each_dot_of_copies_has_its_number_once_and_no_two_touch_and_both_have_its_lines_colour_or_are_of_two(given):
    figure = views.copies(*given)
    dots = [line for line in figure.axes[0].lines if (line.get_gid() or "").startswith("here")]
    here = {dot.get_gid().removeprefix("here "): f"{dot.get_ydata()[0]:.2f}" for dot in dots}
    assert [dot.get_color() for dot in dots] == [LINES[name][0] for name in here]
    assert sorted(words(figure)) == sorted(set(here.values()))
    for number in figure.axes[0].texts:
        names = [name for name, said in here.items() if said == number.get_text()]
        assert number.get_color() == (DARK[names[0]] if len(names) == 1 else theme.INK)


WANTED = [[[0, 3], [1, 0]], [[2, 1], [0, 1]]]  # 2 ranks of 2 tokens and 2 experts, k = 2


def rows_of(film):
    """Still and moving rows: their numbers and times, the lane's y, the digits, whether they are pale."""
    found = []
    for style, fill, path, digits in re.findall(
        r'style="([^"]*)"[^>]*><path fill="(#\w+)" d="([^"]*)"/><text[^>]*>(\d+)</text>', film.html
    ):
        times = {name: float(number) for name, number in re.findall(r"--(\w):([-\d.]+)", style)}
        starts = [tuple(map(float, place)) for place in re.findall(r"M([\d.]+) ([\d.]+)", path)]
        found.append((times, starts, digits, fill not in {theme.rank_color(0), theme.rank_color(1)}))
    return found


def still(film, second):
    """The rows that lie still at a second of the film."""
    return [row for row in rows_of(film) if "x" not in row[0] and row[0].get("a", -9) <= second < row[0].get("b", 9999)]


def at_stop(film, number):
    return film.second(film.times[number]) + 0.1


def test_after_the_dispatch_rows_lie_by_source_and_then_by_expert_and_all_come_home():
    film = views.rows_way(WANTED, 4)
    check_film(film)
    assert film.headline == "Rank 0 gets 6 rows, the mean is 4"
    assert "the ranks get 6, 2" in film.story
    dispatched = [row for row in still(film, at_stop(film, 2)) if row[3]]
    there = sorted((starts[0][1], starts[0][0], digits) for _, starts, digits, _ in dispatched)
    lanes = ["".join(digits for y, _, digits in there if y == lane) for lane in sorted({y for y, _, _ in there})]
    assert lanes == ["001" + "011", "3" + "2"]  # from rank 0, then from rank 1


def test_own_pieces_go_first_then_one_after_another_to_the_next_rank_and_to_the_one_after_it():
    film = views.rows_way([[[0], [1], [2]]] * 3, 3)
    start, end = film.second(film.times[1], leaves=True), film.second(film.times[2])
    moves = [times | {"digit": int(digits)} for times, _, digits, pale in rows_of(film) if pale and "x" in times]
    moves = sorted((times for times in moves if start <= times["a"] < end), key=lambda times: times["a"])
    own, others = moves[:3], moves[3:]
    assert {(times["a"], times["y"]) for times in own} == {(start, -40)}  # from the lower lane to the upper one
    assert [times["y"] for times in others] == [90 - 40, 90 - 40, -180 - 40, 180 - 40, -90 - 40, -90 - 40]
    flights = [(start, own[0]["b"]), *((times["a"], times["b"]) for times in others)]
    assert [one[1] for one in flights[:-1]] == pytest.approx([other[0] for other in flights[1:]], abs=0.011)
    assert flights[-1][1] == pytest.approx(end, abs=0.011)


def test_an_expert_answers_all_its_rows_at_once_when_its_rank_has_worked_a_unit_for_each_row_up_to_them():
    """Rank 0 has 3 rows for expert 0 and 3 for expert 1; rank 1 has one for each of its experts: 6 units in all."""
    film = views.rows_way(WANTED, 4)
    dispatched, answered = film.times[2:4]
    start, end = film.second(dispatched, leaves=True), film.second(answered)
    found = {}
    for times, _, digits, pale in rows_of(film):
        if not pale and "x" not in times and start < times.get("a", 0) <= end:
            found.setdefault(times["a"], []).append(digits)
    units = {1: ["2"], 2: ["3"], 3: ["0", "00"], 6: ["1", "11"]}
    ended = {film.second(dispatched + (answered - dispatched) * n / 6): rows for n, rows in units.items()}
    assert {time: sorted(rows) for time, rows in found.items()} == ended


def test_while_experts_work_a_box_is_as_long_as_their_rows_and_the_wait_ends_with_the_fullest_rank():
    film = views.rows_way([[[0], [0], [1], [1]], [[0], [0], [1], [2]]], 4)  # rank 0 gets 7 rows, rank 1 gets 1
    clock = next(mark for mark in film.html.split("<g ") if 'class="wait"' in mark)
    boxes = re.findall(r'x="(\d+)" y="(\d+)" width="(\d+)" height="24" class="(\w+)"', clock)
    wide = 27
    assert [(int(x) - 64, int(width) + 1, look) for x, _, width, look in boxes] == [
        (0, 4 * wide, "empty"),
        (4 * wide, 3 * wide, "empty"),
        (0, wide, "empty"),
        (wide, 6 * wide, "wait"),
    ]
    assert re.findall(r">([a-z0-9 ]+)</text>", clock) == ["expert 0", "expert 1", "e2", "waits"]
    assert "the ranks work for 7, 1, and wait until 7" in film.story


def test_where_each_rank_gets_as_many_rows_nobody_waits():
    film = views.rows_way([[[0], [1]], [[1], [0]]], 2)
    assert film.headline == "Each rank gets 2 rows"
    assert "the ranks work for 2, 2, and nobody waits" in film.story
    assert ">waits<" not in film.html


def named(film):
    """Marks of rows: their times, and of each row in them the place, the expert's digit and the token's name."""
    found = []
    for kind in ("see", "go"):
        for times, said in marks(film, kind):
            if len(said) == 2 and said[0].isdigit() and said[1][0] == "t":
                names = re.findall(r"t\d+", said[1])
                assert len(names) == len(said[0])
                found.append((kind, times, list(zip(said[0], names, strict=True))))
    return found


@pytest.mark.parametrize(
    "wanted", [WANTED, [[[0], [1], [2]] * 4] * 3], ids=["k = 2", "12 tokens, t10 and t11 among them"]
)
def test_each_row_carries_the_name_of_its_token_through_all_steps(wanted):
    film = views.rows_way(wanted, 4 if wanted is WANTED else 3)
    its = [(str(e), f"t{t}") for of_rank in wanted for t, of_token in enumerate(of_rank) for e in of_token]
    for stop in range(6):
        now = at_stop(film, stop)
        rows = [
            row
            for kind, times, of_mark in named(film)
            if kind == "see" and times.get("a", -9) <= now < times.get("b", 9999)
            for row in of_mark
        ]
        assert set(rows) == set(its), stop
    moved = Counter(row for kind, _, of_mark in named(film) if kind == "go" for row in of_mark)
    assert moved == Counter(4 * its)  # to its place by expert, to its expert, back, and to its token


def lying(film, second):
    """Place and digit of each row that lies still at a second; an answer hides the row below it."""
    return Counter(
        {
            (*place, digit): 1
            for _, starts, digits, _ in still(film, second)
            for place, digit in zip(starts, digits, strict=True)
        }
    )


def test_each_row_is_seen_once_at_each_stop_and_moves_from_where_it_lay_to_where_it_lies():
    film = views.rows_way(WANTED, 4)
    for stop in range(6):
        there = lying(film, at_stop(film, stop))
        assert sorted(digit for *_, digit in there) == sorted(str(e) for e in np.ravel(WANTED)), stop
    moves = [(times, starts, digits) for times, starts, digits, _ in rows_of(film) if "x" in times]
    for times, starts, digits in moves:
        before, after = lying(film, times["a"] - 0.1), lying(film, times["b"] + 0.1)
        for (x, y), digit in zip(starts, digits, strict=True):
            assert (x, y, digit) in before
            assert (x + times["x"], y + times["y"], digit) in after


def test_rows_are_pale_at_their_tokens_before_they_are_answered_and_not_after():
    film = views.rows_way(WANTED, 4)
    for stop, expected in ((0, True), (1, True), (2, True), (4, False), (5, False)):
        assert {pale for *_, pale in still(film, at_stop(film, stop))} == {expected}, stop


def test_the_sums_y_are_seen_from_the_last_stop_on():
    film = views.rows_way(WANTED, 4)
    sums = [times["a"] for times, said in marks(film, "see") if said == ["y0", "y1"]]
    assert sums == [film.second(film.times[6])] * 2


@cache
def scores_of_lesson_10():
    """Of its router, for its tokens on four ranks."""
    draw = np.random.default_rng(3)
    router = draw.normal(size=(4, 8))
    draw.normal(size=(8 * 4 * 4 + 5 * 4))  # its experts, and five tokens
    return [draw.normal(size=(5, 4)) @ router for _ in range(4)]


@pytest.mark.parametrize(
    ("gamma", "late"), [(0.002, "15"), (0.01, "12 to 13"), (0.05, "10"), (0.2, "13 to 16"), (1.0, "13 to 18")]
)
def test_in_lesson_10_0002_is_slow_005_comes_to_rest_at_the_mean_of_10_and_02_and_1_swing(gamma, late):
    figure = views.balanced_rows(labs.balanced, scores_of_lesson_10(), gamma=gamma)
    assert f"in the last 20 of 100 steps the layer takes {late} units, the mean is 10" in str(figure)
    assert "fullest rank: 16 after 0 steps" in str(figure)


def test_the_rows_of_a_rank_and_its_wait_end_together_and_a_row_has_the_colour_of_its_source():
    scores = [np.array([[3.0, 2, 1, 0]] * 3), np.array([[3.0, 2, 0, 1]] * 3)]
    figure = views.balanced_rows(labs.balanced, scores, k=1, gamma=1e-9)  # all six rows on rank 0
    marks_of = {mark.get_gid(): mark for mark in figure.axes[0].collections}
    assert max(path.vertices[:, 0].max() for path in marks_of["rows 0"].get_paths()) == 6
    (wait,) = [mark for mark in figure.axes[0].artists + figure.axes[0].patches if mark.get_gid() == "wait 1"]
    assert (wait.get_path().vertices[:, 0].min(), wait.get_path().vertices[:, 0].max()) == (0, 6)
    colors = [tuple(color[:3]) for color in marks_of["rows 0"].get_facecolor()]
    assert colors == [to_rgb(theme.rank_color(rank)) for rank in (0, 0, 0, 1, 1, 1)]


def test_of_120_seeds_training_leaves_the_fullest_rank_at_146_after_149_before_and_the_bias_holds_all_at_129():
    figure = views.load_of_seeds(loads_of_seeds())
    assert list(loads_of_seeds()) == list(range(41, 161))
    assert str(figure).startswith("Training leaves the fullest rank at 1.46 × the mean, and a bias holds it at 1.20")
    assert "before: 1.14 to 2.08, 1.49 on average\nafter 60 steps: 1.13 to 2.02, 1.46 on average" in str(figure)
    assert "with a bias: 1.13 to 1.29, 1.20 on average" in str(figure)
    assert "a bias changes the loss by -0.014 to +0.014" in str(figure)


def test_a_dot_is_the_load_of_a_seed_and_a_line_the_mean_of_its_column():
    axes = views.load_of_seeds(loads_of_seeds()).axes[0]
    drawn = {line.get_gid(): line.get_ydata() for line in axes.lines}
    plain, biased = zip(*loads_of_seeds().values(), strict=True)
    assert list(drawn["before"]) == [load.before for load in plain]
    assert list(drawn["after 60 steps"]) == [load.after for load in plain]
    assert list(drawn["after 60 steps with a bias"]) == [load.after for load in biased]
    means = [line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2][:3]
    assert means == [np.mean(drawn[name]) for name in ("before", "after 60 steps", "after 60 steps with a bias")]


def test_a_bar_is_as_long_as_its_work_and_its_messages_one_behind_the_other_and_its_sum_stands_beside_it():
    figure = views.work_and_messages({"one": (4.0, 0.0), "two": (2.0, 1.5)}, "Two are faster")
    ends = {
        mark.get_gid(): [path.vertices[:, 0].max() for path in mark.get_paths()]
        for mark in figure.axes[0].collections
        if mark.get_gid() in ("work", "messages")
    }
    assert ends == {"work": [4.0, 2.0], "messages": [4.0, 3.5]}
    assert "two: 3.5 ms = 2.0 work + 1.5 messages" in str(figure)


def test_a_hand_passes_over_the_clock_of_each_rank_alone():
    film = views.rows_way([[[0], [0], [1], [1]], [[0], [0], [1], [2]]], 4)
    hands = next(mark for mark in film.html.split("<g ") if mark.count('class="frame"') == 2)
    assert re.findall(r'y="(\d+)" width="1" height="24"', hands) == ["48", "138"]
