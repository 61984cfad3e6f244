"""The checkers of notebook 04 accept the solutions and refuse what learners write on the way there."""

import pytest

from parlab.labs import pipeline
from parlab.labs.pipeline import PUZZLE, listing
from parlab.pipeline import Schedule, gpipe, one_f_one_b, run_schedule, simulate, validate, zb_h1, zb_h2, zb_v
from tests.labs.answers import FOUND, faster, place_weights, refused, reviewed


def test_the_passing_text_shows_count_beside_closed_form():
    assert reviewed("04.place_weights", place_weights).text == (
        "04.place_weights: passed, 12 cases and 4 drawn anew. With 7 ranks, 13 microbatches:\n"
        "  activations a rank keeps: 7; closed form: p = 7\n"
        "  makespan: 45; closed form: m(F + I + W) + (p − 1)(F + I − W) = 45\n"
        "  executed on arrays: loss and 66 gradients equal the serial ones to 1e-12: True"
    )


def test_the_puzzle_has_no_answer_in_the_library():
    for make in (one_f_one_b, gpipe, zb_h1, zb_h2):
        timeline = simulate(make(PUZZLE.size, PUZZLE.microbatches), PUZZLE.costs)
        assert timeline.makespan > PUZZLE.target or max(timeline.peak_activations) > PUZZLE.limit
    assert simulate(zb_h1(3, 5), PUZZLE.costs).makespan == 42
    assert simulate(zb_h2(3, 5), PUZZLE.costs).makespan == PUZZLE.shortest == 36


def test_the_listing_is_refused_as_pytorchs_is():
    with pytest.raises(ValueError, match=r"^3B0 \(rank 3, action 1\) needs 3F0, which no rank does$"):
        validate(listing(4, 8))


def test_no_schedule_beats_the_puzzles_shortest():
    costs = PUZZLE.costs
    first_start_of_the_last_rank = (PUZZLE.size - 1) * (costs.forward + costs.transfer)
    work = PUZZLE.microbatches * (costs.forward + costs.backward_input + costs.backward_weight)
    assert first_start_of_the_last_rank + work == PUZZLE.shortest


def test_an_answer_whose_gradients_are_not_the_serial_ones_is_refused(monkeypatch):
    def twice(*arguments):
        loss, gradients = run_schedule(*arguments)
        return loss, {
            name: 2 * gradient if "layers.1.mlp" in name else gradient for name, gradient in gradients.items()
        }

    monkeypatch.setattr(pipeline, "run_schedule", twice)
    assert "executed on arrays it gets model.layers.1.mlp." in refused("04.faster", faster)


def unchanged(listing):
    return listing


def renumbered_backwards(listing):
    *others, last = listing.ranks
    return Schedule([*others, [a._replace(microbatch=a.microbatch + (a.kind == "B")) for a in last]])


def as_gpipe(listing):
    return gpipe(listing.num_ranks, listing.num_microbatches - 1)


def without_the_last_rank(listing):
    return Schedule(listing.ranks[:-1])


def with_every_forward_renumbered(listing):
    return Schedule(
        [[a._replace(microbatch=max(a.microbatch - (a.kind == "F"), 0)) for a in row] for row in listing.ranks]
    )


def with_an_idle_slot_and_as_gpipe(listing):
    return Schedule([[None, *row] for row in as_gpipe(listing).ranks])


def with_a_microbatch_more(listing):
    return one_f_one_b(listing.num_ranks, listing.num_microbatches)


def as_rows(listing):
    return [list(row) for row in listing.ranks]


def that_fails(listing):
    return listing.row[-1]


def w_after_each_i(row, rank, p):
    return [b for a in row for b in ([a, a._replace(kind="W")] if a.kind == "I" else [a])]


def all_w_at_the_end(row, rank, p):
    return row + [a._replace(kind="W") for a in row if a.kind == "I"]


def without_w(row, rank, p):
    return row


def w_before_its_i(row, rank, p):
    return [b for a in row for b in ([a._replace(kind="W"), a] if a.kind == "I" else [a])]


def one_w_missing(row, rank, p):
    return place_weights(row, rank, p)[:-1]


def w_of_another_stage(row, rank, p):
    return [a._replace(stage=0) if a.kind == "W" else a for a in place_weights(row, rank, p)]


def only_rank_0_right(row, rank, p):
    return place_weights(row, rank, p) if rank == 0 else w_after_each_i(row, rank, p)


def delayed_by_the_reversed_rank(row, rank, p):
    return place_weights(row, p - 1 - rank, p)


def with_the_forwards_first(row, rank, p):
    return place_weights(sorted(row, key=lambda a: a.kind), rank, p)


def with_text(row, rank, p):
    return [str(a) for a in row]


def too_slow(costs):
    return zb_h1(3, 5)


def keeping_too_much(costs):
    return zb_h2(3, 5)


def too_few_microbatches(costs):
    return zb_h2(3, 3)


def too_few_ranks(costs):
    return zb_h1(2, 5)


def with_two_chunks_a_rank(costs):
    return zb_v(3, 5)


def with_a_typing_error(costs):
    return FOUND.replace("1W2", "1w2")


def with_a_cell_dropped(costs):
    return FOUND.replace(",2W4", "")


def with_ranks_that_wait_for_each_other(costs):
    return FOUND.replace("2F1,2F2,2I1", "2F2,2F4,2F1").replace("2W0,2F4,2I4", "2W0,2I1,2I4")


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("04.listing", unchanged, "it is still the listing that you were given"),
        ("04.listing", renumbered_backwards, "it cannot run: "),
        ("04.listing", as_gpipe, "no longer 1F1B: rank 1 does 1F1 as action 1, should be 1B0"),
        ("04.listing", without_the_last_rank, "it has 1 ranks and 1 stages, should have 2 of each"),
        ("04.listing", with_every_forward_renumbered, "it cannot run: 0F0 is done twice"),
        ("04.listing", with_an_idle_slot_and_as_gpipe, "no longer 1F1B: rank 1 does 1F1 as action 1"),
        ("04.listing", with_a_microbatch_more, "it has 3 microbatches, should have 2"),
        ("04.listing", as_rows, "returned list"),
        ("04.listing", that_fails, "AttributeError: 'Schedule' object has no attribute 'row', at line"),
        ("04.place_weights", w_after_each_i, "makespan: "),
        ("04.place_weights", all_w_at_the_end, "or leaves a gap empty that it could fill"),
        ("04.place_weights", without_w, "0I0 has no 0W0"),
        ("04.place_weights", w_before_its_i, "1W0 (rank 1, action 1) needs 1I0, which the same rank does only later"),
        ("04.place_weights", one_w_missing, "has no 0W1: the gradient of the weights would miss microbatch 1"),
        ("04.place_weights", w_of_another_stage, "it cannot run: 0W0 is done twice"),
        ("04.place_weights", only_rank_0_right, "a W delays an I that another rank waits for"),
        ("04.place_weights", delayed_by_the_reversed_rank, "2 ranks, 2 microbatches"),
        ("04.place_weights", with_the_forwards_first, "rank 1: the F's and I's are not those that were given"),
        ("04.place_weights", with_text, "rank 0: returned list"),
        ("04.faster", too_slow, "it runs in 42, should be at most 38"),
        ("04.faster", keeping_too_much, "rank 0 keeps 5 activations, the limit is 4"),
        ("04.faster", too_few_microbatches, "it has 3 microbatches, should have 5"),
        ("04.faster", too_few_ranks, "it has 2 ranks and 2 stages, should have 3 of each"),
        ("04.faster", with_two_chunks_a_rank, "it has 3 ranks and 6 stages, should have 3 of each"),
        ("04.faster", with_a_typing_error, "row 2 (rank 1), column 12: '1w2' is not an action"),
        ("04.faster", with_a_cell_dropped, "2I4 has no 2W4"),
        ("04.faster", with_ranks_that_wait_for_each_other, "it cannot run: deadlock: "),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(name, answer, reason):
    assert reason in refused(name, answer)
