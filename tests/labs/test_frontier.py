"""The checkers of notebook 04b refuse what learners write on the way there."""

from operator import truediv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.labs import place_weights
from parlab.labs.wrong import Wrong
from parlab.pipeline import (
    Costs,
    partition,
    simulate,
    zb_auto,
)
from tests.labs.answers import cut, place_weights_in_time, refused


def every_row(case, placed=(), put_off=(), number=0):
    """The W's in all places where they may stand, in order."""
    if number == len(case.row):
        yield [*placed, *put_off]
        return
    action = case.row[number]
    more = (action._replace(kind="W"),) * (action.kind == "I")
    for now in range(len(put_off) + 1):
        yield from every_row(case, (*placed, *put_off[:now], action), (*put_off[now:], *more), number + 1)


@settings(max_examples=20)
@given(st.integers(2, 3), st.data())
def test_no_other_row_starts_any_f_or_i_sooner_or_ends_sooner(p, data):
    delays = data.draw(st.lists(st.integers(0, 2), max_size=6))
    case = place_weights.row_case(p, data.draw(st.integers(0, p - 1)), 3, data.draw(st.integers(1, 2 * p)), delays)
    at, _, soonest, _ = place_weights._timed(place_weights._as_early_as_possible(case), case, True)
    for row in every_row(case):
        try:
            starts, _, end, _ = place_weights._timed(row, case, True)
        except Wrong:
            continue
        assert end >= soonest
        assert all(starts[action] >= at[action] for action in case.row)


@pytest.mark.parametrize("transfer", [0, 1])
def test_room_below_p_buys_round_trips_and_above_it_hides_messages(transfer):
    costs = Costs(transfer=transfer)
    found = [simulate(zb_auto(3, 6, costs, limit, metric="makespan"), costs).makespan for limit in range(1, 6)]
    assert found[0] == 6 * (3 * 2 + 2 * 2 * transfer + 1)  # one round trip after the other
    assert found[0] > found[1] > found[2]
    assert (found[2] > found[3] > found[4]) if transfer else found[2:] == [20, 20, 20]


def as_1f1b_takes(p, m, limit, f, i, w, c):
    return (m + p - 1) * (f + i + w)


def the_last_rank_alone(p, m, limit, f, i, w, c):
    return (p - 1) * (f + c) + m * (f + i + w)


def the_places_alone(p, m, limit, f, i, w, c):
    return -(-m // limit) * (p * (f + i) + 2 * (p - 1) * c + w)


def bound(stay=None, turns=lambda m, limit: -(-m // limit), open_ws=None):
    """The larger of what the last rank needs and of the turns on rank 0, in which a microbatch stays so long; if it is
    said how many W's are open when the last I ends, that I's bound, too."""

    def none_is_below(p, m, limit, f, i, w, c):
        place = stay(p, f, i, w, c) if stay else p * (f + i) + 2 * (p - 1) * c + w
        last_i = (p - 1) * (f + i + 2 * c) + m * (f + i + w) + w
        more = [last_i - open_ws(m, limit) * w] if open_ws else []
        return max(the_last_rank_alone(p, m, limit, f, i, w, c), turns(m, limit) * place, *more)

    return none_is_below


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (the_places_alone, "5 is true, but no schedule takes less than 7\n  the last rank alone needs longer"),
        (bound(lambda p, f, i, w, c: p * (f + i + w) + 2 * (p - 1) * c), "no schedule takes less than 18, but this"),
        (bound(turns=truediv), "likely cause: 3 / 2 is not rounded up: some place serves 2 microbatches"),
        (bound(lambda p, f, i, w, c: p * (f + i) + 2 * (p - 1) * c), "from its F to the end of its W; here its"),
        (bound(lambda p, f, i, w, c: p * (f + i) + 2 * p * c + w), "takes 34:|likely cause: 2 stages have 1 border"),
        (bound(lambda p, f, i, w, c: p * (f + i) + (p - 1) * c + w), "the gradient sends messages, too, on its way up"),
        (bound(), "the last I proves more: how many W's of its rank may be open when it ends"),
        (bound(open_ws=lambda m, limit: m), "the last I proves more"),
        (bound(open_ws=lambda m, limit: min(limit, m) + 1), "the last I proves more"),
        (lambda p, m, limit, f, i, w, c: float("inf"), "expected a number of units"),
    ],
)
def test_a_bound_that_is_not_true_or_too_low_is_refused_with_a_schedule_or_the_reason(answer, reason):
    refused("04b.lower_bound", answer, reason)


def as_in_lesson_04(row, arrivals, limit):
    placed, put_off = [], []
    ahead = [a.kind for a in row].index("I")
    for action in row:
        placed.append(action)
        put_off += [action._replace(kind="W")] * (action.kind == "I")
        if len(put_off) > limit - ahead:
            placed.append(put_off.pop(0))
    return placed + put_off


def without_the_memory(row, arrivals, limit):
    return place_weights_in_time(row, arrivals, limit, memory=False)


def one_twice(row, arrivals, limit):
    placed = place_weights_in_time(row, arrivals, limit)
    return [*placed, placed[-1]]


def before_their_i(row, arrivals, limit):
    return [b for a in row for b in ([a._replace(kind="W"), a] if a.kind == "I" else [a])]


def with_the_forwards_first(row, arrivals, limit):
    return place_weights_in_time(sorted(row, key=lambda a: a.kind), arrivals, limit)


def evenly(layers, p):
    return [len(stage) for stage in partition(len(layers), p)]


def starts_of_the_stages(layers, p):
    numbers = cut(layers, p)
    return [sum(numbers[:stage]) for stage in range(p)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda row, arrivals, limit: row, "0I0 has no W: the gradient of the weights would miss microbatch 0"),
        (lambda *given: place_weights_in_time(*given, spare=1), "the rank waits, and could do a W in that time"),
        (lambda row, arrivals, limit: place_weights_in_time(row, arrivals, limit)[:-1], "0I3 has no W"),
        (one_twice, "0W3 is done twice"),
        (before_their_i, "0W0 stands before 0I0, or that was never to be done"),
        (with_the_forwards_first, "the F's and I's are not those that were given"),
        (lambda row, arrivals, limit: [str(a) for a in row], "returned list"),
    ],
)
def test_wrongly_placed_w_are_refused_with_the_reason(answer, reason):
    refused("04b.place_weights", answer, reason)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (evenly, "its stages take [3, 5]: the slowest 5, and 4 is possible"),
        (lambda layers, p: [1] * (p + 1), "it makes 3 stages, should make 2"),
        (lambda layers, p: [len(layers) - p + 2, *[1] * (p - 2), 0], "no stage is without layers"),
        (lambda layers, p: [cut(layers, p)[0] + 1, *cut(layers, p)[1:]], "7 layers together, should have 6"),
        (lambda layers, p: [1] * p, "its stages have 2 layers together, should have 6"),
        (starts_of_the_stages, "expected whole numbers from 1 on"),
        (lambda layers, p: max(layers), "returned int 3, expected a list"),
        (lambda layers, p: cut(layers, p)[::-1], "where time goes: each of m microbatches waits for stage"),
    ],
)
def test_a_wrong_cut_is_refused_with_its_reason(answer, reason):
    refused("04b.uneven", answer, reason)
