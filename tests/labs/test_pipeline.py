"""The checkers of notebook 04 refuse what learners write on the way there."""

import pytest

from parlab.labs import pipeline
from parlab.labs.pipeline import listing
from parlab.pipeline import (
    Action,
    Schedule,
    gpipe,
    naive,
    one_f_one_b,
    run_schedule,
    validate,
    zb_h1,
)
from tests.labs.answers import my_1f1b, refused
from tests.labs.lucky_answers import with_warmup


def test_the_listing_is_refused_as_pytorchs_is():
    with pytest.raises(ValueError, match=r"^3B0 \(rank 3, action 1\) needs 3F0, which no rank does$"):
        validate(listing(4, 8))


def test_an_answer_whose_gradients_are_not_the_serial_ones_is_refused(monkeypatch):
    def twice(*arguments):
        loss, gradients = run_schedule(*arguments)
        return loss, {
            name: 2 * gradient if "layers.1.mlp" in name else gradient for name, gradient in gradients.items()
        }

    monkeypatch.setattr(pipeline, "run_schedule", twice)
    refused("04.one_f_one_b", my_1f1b, "executed on arrays it gets model.layers.1.mlp.")


def as_gpipe(listing):
    return gpipe(listing.num_ranks, listing.num_microbatches - 1)


def with_every_forward_renumbered(listing):
    return Schedule(
        [[a._replace(microbatch=max(a.microbatch - (a.kind == "F"), 0)) for a in row] for row in listing.ranks]
    )


def with_a_microbatch_more(listing):
    return one_f_one_b(listing.num_ranks, listing.num_microbatches)


one_at_a_time = naive


def one_too_many(p, m):
    return with_warmup(p, m, lambda rank: p - rank)


def as_many_as_the_rank(p, m):
    return with_warmup(p, m, lambda rank: rank)


def without_the_last_backwards(p, m):
    return Schedule([row[:-1] if rank == 0 else row for rank, row in enumerate(my_1f1b(p, m).ranks)])


def a_forward_too_many(p, m):
    return Schedule([[*row, Action("F", rank, m)] for rank, row in enumerate(my_1f1b(p, m).ranks)])


def with_a_forward_repeated(p, m):
    """The last rank does its first forward again behind its first backward."""
    rows = [list(row) for row in my_1f1b(p, m).ranks]
    rows[-1].insert(2, rows[-1][0])
    return Schedule(rows)


def with_forwards_that_begin_again(p, m):
    """1F1B whose forwards behind the warm-up begin with microbatch 0."""
    rows = [list(row) for row in my_1f1b(p, m).ranks]
    for rank, row in enumerate(rows):
        later = [place for place, action in enumerate(row) if action.kind == "F"][p - rank - 1 :]
        for microbatch, place in enumerate(later):
            row[place] = row[place]._replace(microbatch=microbatch)
    return Schedule(rows)


def without_the_first_backwards(p, m):
    return Schedule([[a for a in row if a != Action("B", a.stage, 0)] for row in my_1f1b(p, m).ranks])


def with_stage_and_microbatch_swapped(p, m):
    return Schedule([[Action(a.kind, a.microbatch, a.stage) for a in row] for row in my_1f1b(p, m).ranks])


def backward_of_the_newest(p, m):
    """After each forward of the steady phase its own backward, and the oldest at the end."""
    rows = []
    for rank in range(p):
        forwards, backwards = ([Action(kind, rank, i) for i in range(m)] for kind in "FB")
        warm_up = p - rank - 1
        pairs = [a for pair in zip(forwards[warm_up:], backwards[warm_up:], strict=True) for a in pair]
        rows.append([*forwards[:warm_up], *pairs, *backwards[:warm_up]])
    return Schedule(rows)


def as_rows(p, m):
    return [list(row) for row in my_1f1b(p, m).ranks]


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [
        ("04.listing", lambda listing: listing, "it is still the listing that you were given"),
        ("04.listing", with_every_forward_renumbered, "it cannot run: 0F0 is done twice"),
        ("04.listing", with_a_microbatch_more, "it has 3 microbatches, should have 2"),
        ("04.one_f_one_b", as_many_as_the_rank, "it cannot run: deadlock|the first rank needs the most forwards, not"),
        ("04.one_f_one_b", without_the_last_backwards, "likely cause: rank 0 ends with 1 backward still to do, which"),
        ("04.one_f_one_b", with_forwards_that_begin_again, "likely cause: 0F0 stands again where 0F1 should"),
        ("04.one_f_one_b", with_a_forward_repeated, "likely cause: a part of the row begins with 1F0, and a part"),
        ("04.one_f_one_b", without_the_first_backwards, "likely cause: the backwards pass over microbatch 0"),
        ("04.one_f_one_b", a_forward_too_many, "likely cause: there are 2 microbatches, 0 to 1"),
        ("04.one_f_one_b", zb_h1, "should have F and B alone"),
        ("04.one_f_one_b", with_stage_and_microbatch_swapped, "Action(kind, stage, microbatch)"),
        ("04.one_f_one_b", backward_of_the_newest, "0B1 stands before 0B0"),
        ("04.one_f_one_b", as_rows, "expected a Schedule\n  Schedule(rows) makes one of a list for each rank"),
    ],
)
def test_a_wrong_answer_is_refused_with_its_reason(name, answer, reason):
    refused(name, answer, reason)
