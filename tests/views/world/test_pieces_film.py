"""The film of a ring collective: pieces travel to the right neighbour, and gather all ranks' numbers."""

import re

import numpy as np

from parlab import Cluster, run, views
from parlab.views.engine import theme
from parlab.views.world.pieces_film import moves_of
from parlab.world import Link
from tests.views.filmed import check_film, marks, parts, tree_of

CLUSTER = Cluster.uniform(latency=1e-6, bandwidth=1.024e9)


def collective(name, size, length=1024, algorithm=None):
    return run(lambda comm, x: getattr(comm, name)(x, algorithm=algorithm), size, np.ones(length), cluster=CLUSTER)


def test_all_reduce_of_4_ranks_says_whose_numbers_rank_0_sends():
    film = views.pieces_film(collective("all_reduce", 4))
    check_film(film)
    assert repr(film).splitlines() == [
        "Ring all-reduce, 4 ranks: 18.0 µs",
        "0 s: rank 0 sends piece 3 (0) to rank 1, which adds its own: 0+1",
        "3.00 µs: rank 0 sends piece 2 (0+3) to rank 1, which adds its own: 0+1+3",
        "6.00 µs: rank 0 sends piece 1 (0+2+3) to rank 1, which adds its own: 0+1+2+3",
        "9.00 µs: rank 0 sends piece 0 (0+1+2+3) to rank 1, which keeps it",
        "12.0 µs: rank 0 sends piece 3 (0+1+2+3) to rank 1, which keeps it",
        "15.0 µs: rank 0 sends piece 2 (0+1+2+3) to rank 1, which keeps it",
    ]


def test_24_messages_travel_and_each_carries_the_numbers_that_its_sender_has():
    messages = marks(views.pieces_film(collective("all_reduce", 4)), "go")
    assert len(messages) == 2 * 3 * 4
    by_start = sorted(messages, key=lambda mark: mark[0]["a"])
    assert [sorted(len(words) for _, words in by_start[step * 4 : step * 4 + 4]) for step in range(6)] == [
        [1] * 4, [2] * 4, [3] * 4, [4] * 4, [4] * 4, [4] * 4,
    ]  # fmt: skip


def test_each_number_has_the_colour_of_its_rank_and_all_reduces_end_with_all_numbers_in_each_row():
    film = views.pieces_film(collective("all_reduce", 4))
    chips = re.findall(r'fill="(#\w+)"/><text[^>]*>(\d)<', film.html)
    assert {(color, int(rank)) for color, rank in chips} == {(theme.rank_color(rank), rank) for rank in range(4)}


def test_down_a_column_a_message_goes_through_the_middle_where_no_names_are():
    film = views.pieces_film(collective("all_reduce", 4))
    inward = [mark[0] for mark in marks(film, "go") if mark[0]["x"] == 0]
    assert len(inward) == 12  # from rank 1 to 2, and from 3 to 0
    assert {(numbers["y"] > 0, numbers["v"]) for numbers in inward} == {(True, -128), (False, 128)}
    names = [float(part.get("x")) for part in tree_of(film).iter("text") if (part.text or "")[:5] in ("piece", "rank ")]
    assert sorted(names) == [34] * 10 + [606] * 10, "beside the columns, which lie from 70 to 570"


def veils(film):
    """For each row that turns pale: its corner, and the film's seconds from when to when (9999: to the end)."""
    found = []
    for span, part in parts(film, "see"):
        veil = part.find("g[@fill-opacity]")
        if veil is not None:
            assert 0.5 < float(veil.get("fill-opacity")) < 1  # the numbers below it are seen, and paler
            corner = part.find("g/rect")
            found.append((float(corner.get("x")), float(corner.get("y")), span["a"], span.get("b", 9999)))
    return found


def test_a_row_is_pale_while_its_numbers_are_added_elsewhere():
    """A ring of 4 sends 3 rows a rank away, one in each of the steps 1 to 3; they come back in the steps 4 to 6."""
    film = views.pieces_film(collective("all_reduce", 4))
    second = {at: film.second(3_000_000 * at, leaves=True) for at in range(6)}
    back = {at: film.second(3_000_000 * at) for at in range(1, 7)}
    rank_0 = sorted(veil[1:] for veil in veils(film) if veil[0] < 320 and veil[1] < 160)
    row = [38 + 30 * piece for piece in range(4)]
    assert rank_0 == [(row[1], second[2], back[6]), (row[2], second[1], back[5]), (row[3], second[0], back[4])]
    assert len(veils(film)) == 4 * 3
    for algorithm in ("rabenseifner", "circulant"):
        assert len(veils(views.pieces_film(collective("all_reduce", 4, 1024, algorithm)))) == 4 * 3
    assert not veils(views.pieces_film(collective("all_reduce", 4, 1024, "recursive_doubling"))), (
        "both add, and both keep"
    )
    assert not veils(views.pieces_film(collective("all_gather", 4))), "who sends a finished piece keeps it"


def test_of_a_reduce_scatter_a_rank_has_its_own_row_left():
    for size, algorithm in ((4, "ring"), (5, "circulant")):
        film = views.pieces_film(collective("reduce_scatter", size, 60, algorithm))
        assert len(veils(film)) == size * (size - 1)
        assert {end for *_, end in veils(film)} == {9999}


def test_doubling_sends_all_pieces_twice_and_halving_fewer_in_4_steps():
    doubling = views.pieces_film(collective("all_reduce", 4, algorithm="recursive_doubling"))
    assert repr(doubling).splitlines() == [
        "Recursive doubling all-reduce, 4 ranks: 18.0 µs",
        "0 s: rank 0 sends pieces 0, 1, 2, 3 (0) to rank 1, which adds its own: 0+1",
        "9.00 µs: rank 0 sends pieces 0, 1, 2, 3 (0+1) to rank 2, which adds its own: 0+1+2+3",
    ]
    halving = views.pieces_film(collective("all_reduce", 4, algorithm="rabenseifner"))
    assert repr(halving).splitlines() == [
        "Halving and doubling all-reduce, 4 ranks: 16.0 µs",
        "0 s: rank 0 sends pieces 2, 3 (0) to rank 2, which adds its own: 0+2",
        "5.00 µs: rank 0 sends piece 1 (0+2) to rank 1, which adds its own: 0+1+2+3",
        "8.00 µs: rank 0 sends piece 0 (0+1+2+3) to rank 1, which keeps it",
        "11.0 µs: rank 0 sends pieces 0, 1 (0+1+2+3) to rank 2, which keeps them",
    ]
    for film, messages in ((doubling, 8), (halving, 16)):
        check_film(film)
        assert len(marks(film, "go")) == messages


def test_circulant_films_5_ranks_with_windows_that_go_around_the_end():
    film = views.pieces_film(collective("all_reduce", 5, 1000, algorithm="circulant"))
    check_film(film)
    assert film.headline == "Circulant all-reduce, 5 ranks: 18.5 µs"
    assert film.lines[1] == "4.12 µs: rank 0 sends piece 2 (0) to rank 2, which adds its own: 0+2+4"
    assert len(film.lines) == 6


NODES = Cluster("nodes of two", CLUSTER.device, 2, Link(1e-6, 12.288e9), Link(1e-6, 1.024e9), ports="a level")


def in_two_levels(name):
    how = {"algorithm": "hierarchical", "ranks_per_node": 2}
    return run(lambda comm, x: getattr(comm, name)(x, **how), 4, np.ones(1024), cluster=NODES)


def test_two_levels_of_4_ranks_halve_inside_and_send_a_quarter_to_the_other_node():
    """Labels count pieces in the group that sends: inside, a half of the array is pieces 0, 1 or 2, 3 of four."""
    film = views.pieces_film(in_two_levels("all_reduce"))
    check_film(film)
    assert repr(film).splitlines() == [
        "Two-level all-reduce, 4 ranks in nodes of 2: 8.67 µs",
        "0 s: rank 0 sends pieces 2, 3 (0) to rank 1, which adds its own: 0+1",
        "1.33 µs: rank 0 sends piece 1 (0+1) to rank 2, which adds its own: 0+1+2+3",
        "4.33 µs: rank 0 sends piece 0 (0+1+2+3) to rank 2, which keeps it",
        "7.33 µs: rank 0 sends pieces 0, 1 (0+1+2+3) to rank 1, which keeps them",
    ]
    assert film.html.count('class="frame"') == 4 * 4
    assert [part.text for part in tree_of(film).iter("text") if "node " in (part.text or "")] == ["node 0", "node 1"]
    assert {numbers["y"] for numbers, _ in marks(film, "go")} == {0}


def test_the_halves_of_two_levels_end_and_begin_with_a_ranks_own_piece():
    last = [move for move in moves_of(in_two_levels("reduce_scatter").timeline) if move.src // 2 != move.dst // 2]
    assert {(move.dst, move.pieces) for move in last} == {(rank, (rank,)) for rank in range(4)}
    first = [move for move in moves_of(in_two_levels("all_gather").timeline) if move.src // 2 != move.dst // 2]
    assert {(move.src, move.pieces) for move in first} == {(rank, (rank,)) for rank in range(4)}
    for name in ("reduce_scatter", "all_gather"):
        check_film(views.pieces_film(in_two_levels(name)))


def test_a_ring_across_nodes_is_a_ring():
    film = views.pieces_film(run(lambda comm, x: comm.all_reduce(x), 4, np.ones(1024), cluster=NODES))
    assert film.headline.startswith("Ring all-reduce, 4 ranks: ")
    assert len(film.lines) == len(film.times) - 1 == 6  # 2(P − 1): none where a message inside a node arrives first


def test_before_the_first_message_the_film_says_so():
    late = run(lambda comm, x: [comm.compute("work", seconds=1e-6), comm.all_reduce(x)], 2, np.ones(4))
    assert views.pieces_film(late).lines[0] == "0 s: no message has left"


def test_in_a_line_a_message_covers_no_box_and_no_message_that_goes_the_other_way():
    """From one bar to the next are 54: what goes right passes in the 17 above a bar with its frame, left below."""
    for size, algorithm in ((4, "recursive_doubling"), (5, "circulant"), (4, "rabenseifner")):
        film = views.pieces_film(collective("all_reduce", size, 960, algorithm))
        empty = [box for box in tree_of(film).iter("rect") if box.get("class") == "empty"]
        tops = [float(box.get("y")) for box in empty if box.get("height") == "24"]
        first, bars = min(tops), {(top - min(tops)) % 54 for top in tops}
        assert bars == {0}, "a bar with its frame is the first 24"
        lanes = {True: set(), False: set()}  # for both ways: (top, bottom) of what travels, in its row
        for numbers, part in parts(film, "go"):
            assert numbers["y"] == 0
            for box in part.iter("rect"):
                top = (float(box.get("y")) - first) % 54
                lanes[numbers["x"] > 0].add((top, top + float(box.get("height"))))
        assert min(top for top, _ in lanes[False]) >= 24
        assert max(bottom for _, bottom in lanes[False]) <= min(top for top, _ in lanes[True])
        assert max(bottom for _, bottom in lanes[True]) <= 54
