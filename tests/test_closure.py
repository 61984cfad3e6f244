"""A strategy can be held whole: the closures of CONTRIBUTING's table, and what they must not reach."""

import pytest

from tools.closure import BEGIN, CONTRIBUTING, ELSEWHERE, END, LIMITS, Definition, closure, code_lines, table

IDS = [f"{names[0].rpartition('.')[2]}{'_and_backward' if len(names) > 1 else ''}" for names, _, _ in LIMITS]


@pytest.mark.parametrize("limit", LIMITS, ids=IDS)
def test_a_strategy_reaches_no_more_code_lines_than_its_limit(limit):
    assert 0 < code_lines(closure(*limit.names), limit.room) <= limit.lines


@pytest.mark.parametrize("limit", LIMITS, ids=IDS)
def test_a_strategy_reaches_no_model_run_timeline_or_file(limit):
    reached = {f"{place}.{name}" for place, name in closure(*limit.names) if place.startswith(ELSEWHERE)}
    if "pipeline" in limit.names[0]:  # a schedule writes its own file
        reached -= {"parlab.files.write_whole", "parlab.files._replace"}
    assert reached == set()


def test_the_table_in_contributing_is_what_the_tool_counts_now():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table()


def test_the_ring_all_reduce_reaches_its_two_halves_and_not_the_comm_of_its_annotations():
    found = closure("parlab.world.collectives.ring.ring_all_reduce")
    halves = {Definition("parlab.world.collectives.ring", f"ring_{half}") for half in ("reduce_scatter", "all_gather")}
    assert halves < set(found)
    assert not any(place == "parlab.world.comm" for place, _ in found)
