"""The film of a step of ZeRO-3: blocks that are gathered, and gradients that are reduced."""

from itertools import pairwise

from parlab import views
from parlab.views.zero.zero_film import UPDATE, step_of
from tests.views.filmed import check_film, marks, parts
from tests.views.zero.zero_runs import step


def test_3_ranks_and_6_blocks_make_12_gathers_of_6_shards_and_6_reductions_of_6_pieces():
    film = views.zero_film(step(3, size=3))
    check_film(film)
    assert len(marks(film, "go")) + len(marks(film, "go flow")) == 12 * 6 + 6 * 6


def test_each_block_is_gathered_before_its_forward_and_before_its_backward_and_reduced_after_it():
    found = step_of(step(3, size=3).timeline)
    order = [0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0]
    assert [use.block for use in found.uses] == [trip.block for trip in found.gathers] == order
    assert all(trip.end <= use.start for use, trip in zip(found.uses, found.gathers, strict=True))
    made = {use.block: use.end for use in found.uses if use.backward}
    assert [trip.block for trip in found.reductions] == [5, 4, 3, 2, 1, 0]
    assert all(made[trip.block] <= trip.start for trip in found.reductions)


def test_the_story_ends_with_the_optimizer_and_names_every_block():
    film = views.zero_film(step(3, size=3))
    assert film.lines[-1].endswith(UPDATE)
    assert all(name in film.story for name in ("embedding", "layer 0", "layer 1", "layer 2", "layer 3", "head"))


def test_the_frame_of_a_block_is_gone_when_the_next_one_is_framed():
    """A reader who stops the film between two blocks must see one in use."""
    film = views.zero_film(step(3, size=3))
    framed = [numbers for numbers, part in parts(film, "see") if part.find("rect[@class='frame']") is not None]
    spans = [list(numbers.values()) for numbers in framed]
    uses = [use for use in step_of(step(3, size=3).timeline).uses if use.end > use.start]
    assert len(spans) == len(uses) + 1  # and the shards that the optimizer updates
    assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
