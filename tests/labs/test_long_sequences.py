"""The checkers of notebook 03 accept the solutions and refuse what learners write on the way there."""

from functools import partial

import numpy as np
import pytest

from parlab.sequence import ring_attention
from tests.labs.answers import heads, hops, node, place, refused, reviewed, usp


def test_the_passing_texts_count_16_kv_heads_and_11_of_42_hops():
    said = reviewed("03.heads", heads).text
    # rank 0 of 12 has 3 of 32 heads: it sends q of 29, keys and values of 15, and 11 times 3 heads' out and lse
    sent = 29 * 128 + 15 * 2 * 128 + 33 * 128 + 33 * 4  # KiB
    assert said.endswith(
        f"16 K/V heads on all ranks together, of 8; rank 0 sends {sent} KiB for its 1024 tokens of size 64"
    )
    turned = 16 * (2 * 4 + 2 * 4) * 3 // 4  # 12 ranks in groups of 4, a token each, 4 query and 4 K/V heads
    assert f"bytes a rank sends: {turned + 2 * 16 * 2 * 4}; closed form: " in reviewed("03.usp", usp).text
    assert reviewed("03.hops", hops).text.endswith("K/V make 11 of 42 hops")  # 1 + 4 + 3 + 2 + 1


def blocks(rank, U, R):
    return rank // R


with_exchanged_groups = partial(usp, group=lambda r, U, R: r % R, ring=blocks)


def with_both_arrays_turned_back(comm, q, k, v, ulysses):
    group, ring = comm.split(comm.rank // ulysses), comm.split(comm.rank % ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(ring_attention(ring, q, k, v, causal=True), 2, 1)


def twice_on_9_ranks(comm, *given):
    return usp(comm, *given) * (1 + (comm.size == 9))


def with_a_kv_head_for_each_query_head(comm, q, k, v, ulysses):
    more = q.shape[1] // k.shape[1]
    return usp(comm, q, np.repeat(k, more, axis=1), np.repeat(v, more, axis=1), ulysses)


def kv_heads_dealt_like_query_heads(rank, size, H, G):
    return heads(rank, size, H, G)[0], range(rank * G // size, (rank + 1) * G // size)


def with_heads(of):
    """Another cut of the query heads, with the K/V heads that these read."""
    return lambda rank, size, H, G: (own := of(rank, size, H), {head * G // H for head in own})


def striped_kv_heads(rank, size, H, G):
    query, _ = heads(rank, size, H, G)
    return query, sorted({head % G for head in query})


def once_for_each_query_head(rank, size, H, G):
    query, _ = heads(rank, size, H, G)
    return query, [head // (H // G) for head in query]


def by_the_first_token(rank, size, documents):
    c = documents[-1] // size
    return (min(edge for edge in documents if edge > rank * c) - 1) // c - rank


WRONG = [
    ("03.usp", with_both_arrays_turned_back, "likely cause: ring_attention returns two arrays"),
    ("03.usp", partial(usp, group=place, ring=node), "among other ranks than the U neighbours"),  # K/V do not divide
    ("03.usp", partial(usp, causal=False), "the mask is missing"),
    ("03.usp", partial(usp, ring=lambda r, U, R: r), "each rank attends the tokens of its group alone"),
    ("03.usp", partial(usp, back=False), "the outputs must turn back"),
    ("03.usp", partial(usp, ring=lambda r, U, R: 0), "the ring has all ranks"),
    ("03.usp", partial(usp, cut=2), "cut the heads, axis 1, and join the tokens, axis 2"),
    ("03.usp", twice_on_9_ranks, "rank 0 returned"),  # where a token a rank cannot be cut into 3
    ("03.heads", lambda rank, size, H, G: (heads(rank, size, H, G)[0], range(G)), "they need not travel"),
    ("03.heads", kv_heads_dealt_like_query_heads, "K/V heads are not dealt to the ranks"),
    ("03.heads", with_heads(lambda r, P, H: range(r * (H // P), (r + 1) * (H // P))), "belong to no rank; the first"),
    ("03.heads", with_heads(lambda r, P, H: range(H)[r * (H // P) :][: None if r == P - 1 else H // P]), "left over"),
    ("03.heads", striped_kv_heads, "K/V head h // (H/G), and not h % G"),
    ("03.heads", lambda *given: heads(*given)[0], "expected (its query heads, the K/V heads they read)"),
    ("03.heads", once_for_each_query_head, "each one once"),
    ("03.hops", by_the_first_token, "too few: token 2, on rank 1, sees token 1, the last one of rank 0"),
    ("03.hops", lambda *given: -1, "a number of hops is not negative"),
    ("03.hops", lambda rank, size, documents: float(hops(rank, size, documents)), "expected a whole number"),
]


@pytest.mark.parametrize(("name", "answer", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_answer_is_refused_and_explained(name, answer, said):
    refused(name, answer, said)
