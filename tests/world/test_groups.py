"""The ranks of a group as a grid of nodes and places."""

from __future__ import annotations

import pytest

from parlab import per_rank, run
from parlab.world import MismatchError, grid


def groups(comm, ranks_per_node):
    """The ranks of both groups, each told by its own member, with no message of ours but this."""
    inside, between = grid(comm, ranks_per_node)
    return [inside.rank, inside.size, between.rank, between.size]


@pytest.mark.parametrize("size", [1, 2, 6, 8])
def test_rank_r_of_nodes_of_g_is_at_place_r_mod_g_of_node_r_over_g(size):
    for g in (g for g in range(1, size + 1) if size % g == 0):
        done = run(groups, size, g)
        assert done.results == [[rank % g, g, rank // g, size // g] for rank in range(size)]
        assert done.timeline.transfers == []
        assert done.timeline.makespan == 0


@pytest.mark.parametrize("wrong", [0, -2, 3, 8])
def test_nodes_that_4_ranks_do_not_fill_are_refused_with_the_divisors_1_2_4(wrong):
    with pytest.raises(ValueError, match=rf"ranks_per_node={wrong}: must divide the 4 ranks: use one of \[1, 2, 4\]"):
        run(groups, 4, wrong)
    with pytest.raises(ValueError, match=f"ulysses={wrong}: must divide"):
        run(lambda comm: grid(comm, wrong, name="ulysses"), 4)
    with pytest.raises(ValueError, match="ranks_per_node='2': must be a whole number"):
        run(groups, 4, "2")


@pytest.mark.parametrize(
    "told", [(2, 2, 1, 1), (1, 1, 2, 2), (4, 2, 2, 4), (2, 2, 2, 4), (1, 4, 1, 1), (2, 3, 2, 3, 2, 3)]
)
def test_ranks_that_were_told_different_numbers_are_found_also_where_each_has_a_node_of_its_size(told):
    with pytest.raises(MismatchError, match=r"rank \d was told ranks_per_node=\d, and another rank something else"):
        run(groups, len(told), per_rank(told))
