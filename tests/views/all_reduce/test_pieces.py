"""What is drawn of a ring collective is what ran: the sums are those that the same code makes of numbers."""

import numpy as np
import pytest

from parlab import run, views
from parlab.views.all_reduce.pieces import all_reduce_film, pieces_of
from parlab.world.collectives.common import piece_sizes
from parlab.world.collectives.common import pieces_of as slices
from parlab.world.collectives.ring import ring_all_gather, ring_reduce_scatter
from tests.views.drawn import artists, boxes, check_refused, check_text, title

SIZES = range(2, 9)


def after_each_message(comm):
    """A ring all-reduce in which `+` writes one number after the other: what every piece holds after each step."""
    total = np.full(comm.size, comm.rank + 1, dtype=np.int64)
    pieces, seen = slices(piece_sizes(comm.size, comm.size)), [total.copy()]

    class Watched:
        rank, size, left, right = comm.rank, comm.size, comm.left, comm.right

        def sendrecv(self, x, dst, src, like, **labels):
            seen[-1] = total.copy()
            seen.append(None)
            return comm.sendrecv(x, dst, src, like, **labels)

    def one_after_the_other(own, partial):
        return np.array([int(f"{a}{b}") for a, b in zip(partial, own, strict=True)])

    ring_reduce_scatter(Watched(), total, pieces, one_after_the_other)
    ring_all_gather(Watched(), total, pieces)
    seen[-1] = total.copy()
    return [[tuple(int(digit) - 1 for digit in str(piece)) for piece in totals] for totals in seen]


def collective(name, size):
    return run(lambda comm, x: getattr(comm, name)(x), size, np.ones(3 * size))


@pytest.mark.parametrize("size", SIZES)
def test_the_sums_are_those_of_the_same_code_on_numbers_in_their_order(size):
    ran = run(after_each_message, size).results
    expected = [[ran[rank][step] for rank in range(size)] for step in range(2 * size - 1)]
    assert pieces_of(collective("all_reduce", size)).sums == expected


@pytest.mark.parametrize("size", SIZES)
def test_a_reduce_scatter_and_an_all_gather_are_the_two_halves(size):
    first, second = pieces_of(collective("reduce_scatter", size)), pieces_of(collective("all_gather", size))
    whole = set(range(size))
    assert [set(first.sums[-1][rank][rank]) for rank in range(size)] == [whole] * size
    assert second.sums[-1] == [[(piece,) for piece in range(size)]] * size
    assert len(first.steps) == len(second.steps) == size - 1


def test_block_2_of_four_ranks_is_summed_as_3_0_1_2_and_all_texts_say_so():
    figure = views.all_reduce_steps(collective("all_reduce", 4))
    assert repr(figure).splitlines()[1].startswith("rank 0: piece 2: 3+0, piece 1: 2+3+0, piece 0: 1+2+3+0, ")
    assert title(figure).endswith("after 3 steps each piece is summed on one rank, after 6 on all")
    assert len(boxes(figure, "complete sums")) == 16  # of the 24 that come
    lines = views.step_through(collective("all_reduce", 4)).film.lines
    assert lines[2].startswith("step 2 of 6: rank 0 sends piece 2 (3+0) to rank 1, which adds its own: 3+0+1; at the")


@pytest.mark.parametrize("size", [2, 5, 8])
def test_text_can_be_read_on_2_to_8_ranks(size):
    check_text(views.all_reduce_steps(collective("all_reduce", size)))


def test_a_frame_at_rest_shows_the_sums_and_one_between_them_the_messages_too():
    from parlab.views.all_reduce.pieces import _frame

    done = pieces_of(collective("all_reduce", 4))
    rest, moving = _frame(done, "", 2.0), _frame(done, "", 2.5)
    assert len(boxes(rest, "pieces")) == sum(len(ranks) for row in done.sums[2] for ranks in row)
    assert not artists(rest, "travelling")
    assert len(boxes(moving, "messages")) == 4 + 1  # the one around the corner leaves below and comes in above
    assert {box[0] for box in boxes(moving, "messages")} == {float(move.piece) for move in done.steps[2]}


def test_the_film_ends_with_all_sums_everywhere():
    film = all_reduce_film(collective("all_reduce", 3))
    assert film.frames[0] == (0, 0.0)
    assert film.frames[-1] == (4, 4.0)
    assert film.png(4.0) != film.png(0.0)


def two(comm, x):
    comm.all_reduce(x)
    comm.all_reduce(x)


@pytest.mark.parametrize(
    "done",
    [
        run(two, 4, np.ones(4)),
        run(lambda comm, x: comm.all_reduce(x, algorithm="recursive_doubling"), 4, np.ones(4)),
        run(lambda comm, x: comm.all_reduce(x, algorithm="hierarchical", ranks_per_node=2), 4, np.ones(4)),
        collective("all_reduce", 9),
        collective("all_reduce", 1),
    ],
)
def test_anything_else_than_one_ring_collective_is_refused(done):
    check_refused(lambda: views.all_reduce_steps(done), "run=", "one ring all_reduce, reduce_scatter or all_gather")
