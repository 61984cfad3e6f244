"""The checkers of notebook 02 refuse what learners write on the way there."""

import numpy as np
import pytest

from tests.labs.answers import bring_home, merge, refused, reviewed, zigzag_tile


def without_the_causal_flag(rank, source, length):
    return zigzag_tile(rank, source, length)[:2]


def mean(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, np.logaddexp(lse_a, lse_b)


def without_rescaling(out_a, lse_a, out_b, lse_b):
    return out_a + out_b, np.logaddexp(lse_a, lse_b)


def added_lse(out_a, lse_a, out_b, lse_b):
    return merge(out_a, lse_a, out_b, lse_b)[0], lse_a + lse_b


def overflowing(out_a, lse_a, out_b, lse_b):
    a, b = np.exp(lse_a)[:, None], np.exp(lse_b)[:, None]
    total = np.where(a + b == 0, 1, a + b)
    return (out_a * a + out_b * b) / total, np.logaddexp(lse_a, lse_b)


def plain(out_a, lse_a, out_b, lse_b):
    a, b = np.exp(lse_a)[:, None], np.exp(lse_b)[:, None]
    return (out_a * a + out_b * b) / (a + b), np.log(np.exp(lse_a) + np.exp(lse_b))


def overflowing_lse(out_a, lse_a, out_b, lse_b):
    return merge(out_a, lse_a, out_b, lse_b)[0], np.log(np.exp(lse_a) + np.exp(lse_b))


def minus(lse, other):
    return lse - np.where(np.isneginf(other), 0.0, other)


def without_exp(out_a, lse_a, out_b, lse_b):
    lse = np.logaddexp(lse_a, lse_b)
    return out_a * minus(lse_a, lse)[:, None] + out_b * minus(lse_b, lse)[:, None], lse


def weights_of_at_most_1(out_a, lse_a, out_b, lse_b):
    top = np.maximum(lse_a, lse_b)
    return out_a * np.exp(lse_a - top)[:, None] + out_b * np.exp(lse_b - top)[:, None], np.logaddexp(lse_a, lse_b)


def weight_beside_one(out_a, lse_a, out_b, lse_b):
    return out_a * np.exp(minus(lse_a, lse_b))[:, None] + out_b, np.logaddexp(lse_a, lse_b)


def one_hop_short(comm, x):
    total = x[comm.rank]
    for hop in range(1, comm.size):
        total = comm.sendrecv(total, comm.right, comm.left) + x[(comm.rank - hop) % comm.size]
    return total


def a_reduce_scatter_that_starts_at_the_neighbour(comm, x):
    total = x[(comm.rank - 1) % comm.size]
    for hop in range(2, comm.size + 1):
        total = comm.sendrecv(total, comm.right, comm.left) + x[(comm.rank - hop) % comm.size]
    return total


WRONG = [
    ("02.zigzag_tile", without_the_causal_flag, "expected (slice of queries, slice of keys, whether causal)"),
    ("02.merge", without_rescaling, "without their weights"),
    ("02.merge", added_lse, "exp(lse) is"),
    ("02.merge", lambda *given: (merge(*given)[0], np.maximum(*given[1::2])), "the larger lse alone: add exp(lse)"),
    ("02.merge", weights_of_at_most_1, "the weights do not add up to 1"),
    ("02.merge", lambda out_a, lse_a, out_b, lse_b: merge(out_b, lse_a, out_a, lse_b), "the weights changed places"),
    ("02.merge", plain, "both sides without keys|−inf − (−inf), 0/0 or ∞/∞; what weight has a side without keys?"),
    ("02.merge", overflowing_lse, "exp(lse) is 0 or ∞ at such an lse"),
    ("02.merge", without_exp, "exp is missing"),
    ("02.merge", weight_beside_one, "is not yet the weight of a"),
    ("02.merge", lambda out_a, lse_a, out_b, lse_b: merge(out_a, lse_a, out_b, lse_b)[0], "expected (out, lse)"),
    ("02.bring_home", one_hop_short, "this is what rank"),
    ("02.bring_home", lambda comm, x: bring_home(comm, np.stack([x, x], -1))[..., 0], "a rank holds one gradient at"),
    ("02.bring_home", a_reduce_scatter_that_starts_at_the_neighbour, "one rank short of home"),
]


@pytest.mark.parametrize(("name", "answer", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_answer_is_refused_and_explained(name, answer, said):
    refused(name, answer, said)


def _tile(own=None, lower=None, higher=None):
    """A rule of zigzag tiles (queries, keys, causal) in which one of the three cases is another."""

    def zigzag_tile(rank, source, length):
        early, late, whole = slice(0, length // 2), slice(length // 2, length), slice(0, length)
        pieces = {"early": early, "late": late, "whole": whole}
        case = own or ("whole", "whole", True)
        if source < rank:
            case = lower or ("whole", "early", False)
        if source > rank:
            case = higher or ("late", "whole", False)
        return pieces[case[0]], pieces[case[1]], case[2]

    return zigzag_tile


wrong_half_of_the_keys = _tile(lower=("whole", "late", False))


def test_the_stub_of_the_zigzag_rule_which_has_a_ranks_own_tile_is_not_written_yet():
    def zigzag_tile(rank, source, length):
        if source == rank:
            return slice(0, length), slice(0, length), True
        raise NotImplementedError

    assert reviewed("02.zigzag_tile", zigzag_tile).status == "not written yet"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (_tile(own=("whole", "whole", False)), "a rank's own tile has a causal mask"),
        (_tile(lower=("late", "whole", False), higher=("whole", "early", False)), "the two cases are swapped"),
        (_tile(higher=("early", "whole", False)), "the wrong half of the tile"),
        (_tile(lower=("whole", "whole", False)), "half of the tile is later than its queries"),
        (_tile(lower=("whole", "whole", True)), "a mask by places in the shards"),
        (_tile(lower=("whole", "early", True)), "the right half, but it needs no mask"),
        (_tile(higher=("late", "whole", True)), "the right half, but it needs no mask"),
        (_tile(own=("whole", "early", True)), "of a rank's own tile all queries and all keys are selected"),
        (_tile(higher=("late", "late", False)), ""),
    ],
)
def test_a_wrong_rule_of_zigzag_tiles_is_refused_with_its_cause(answer, cause):
    refused("02.zigzag_tile", answer, cause)


def test_a_higher_rank_skipped_whole_is_the_rule_of_contiguous_shards():
    def contiguous(rank, source, length):
        queries, keys, causal = _tile()(rank, source, length)
        return (slice(0, 0), keys, False) if source > rank else (queries, keys, causal)

    refused("02.zigzag_tile", contiguous, "a later source is skipped whole, as with contiguous shards")
