"""The checkers of notebook 03 accept the solutions and refuse what learners write on the way there."""

import numpy as np
import pytest

from parlab.nn.dense_attention import dense_attention
from parlab.sequence import ring_attention
from tests.labs.answers import heads, hops, refused, reviewed, usp


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


def with_exchanged_groups(comm, q, k, v, ulysses):
    rings = comm.size // ulysses
    group, ring = comm.split(comm.rank % rings), comm.split(comm.rank // rings)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(ring_attention(ring, q, k, v, causal=True)[0], 2, 1)


def split_the_other_way(comm, q, k, v, ulysses):
    group, ring = comm.split(comm.rank % ulysses), comm.split(comm.rank // ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(ring_attention(ring, q, k, v, causal=True)[0], 2, 1)


def split_into_groups_of_p_over_u(comm, q, k, v, ulysses):
    rings = comm.size // ulysses
    group, ring = comm.split(comm.rank // rings), comm.split(comm.rank % rings)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(ring_attention(ring, q, k, v, causal=True)[0], 2, 1)


def without_a_mask(comm, q, k, v, ulysses):
    group, ring = comm.split(comm.rank // ulysses), comm.split(comm.rank % ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(ring_attention(ring, q, k, v)[0], 2, 1)


def without_a_ring(comm, q, k, v, ulysses):
    group = comm.split(comm.rank // ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(dense_attention(q, k, v, causal=True)[0], 2, 1)


def not_turned_back(comm, q, k, v, ulysses):
    group, ring = comm.split(comm.rank // ulysses), comm.split(comm.rank % ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return ring_attention(ring, q, k, v, causal=True)[0]


def with_a_ring_of_all_ranks(comm, q, k, v, ulysses):
    group = comm.split(comm.rank // ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(ring_attention(comm, q, k, v, causal=True)[0], 2, 1)


def with_exchanged_axes(comm, q, k, v, ulysses):
    group, ring = comm.split(comm.rank // ulysses), comm.split(comm.rank % ulysses)
    q, k, v = (group.all_to_all(x, 2, 1) for x in (q, k, v))
    return group.all_to_all(ring_attention(ring, q, k, v, causal=True)[0], 1, 2)


def with_lse(comm, q, k, v, ulysses):
    return usp(comm, q, k, v, ulysses), q[..., 0]


def with_both_arrays_turned_back(comm, q, k, v, ulysses):
    group, ring = comm.split(comm.rank // ulysses), comm.split(comm.rank % ulysses)
    q, k, v = (group.all_to_all(x, 1, 2) for x in (q, k, v))
    return group.all_to_all(ring_attention(ring, q, k, v, causal=True), 2, 1)


def with_a_kv_head_for_each_query_head(comm, q, k, v, ulysses):
    more = q.shape[1] // k.shape[1]
    return usp(comm, q, np.repeat(k, more, axis=1), np.repeat(v, more, axis=1), ulysses)


def every_kv_head(rank, size, H, G):
    return heads(rank, size, H, G)[0], range(G)


def kv_heads_dealt_like_query_heads(rank, size, H, G):
    return heads(rank, size, H, G)[0], range(rank * G // size, (rank + 1) * G // size)


def kv_head_of_the_first_only(rank, size, H, G):
    query, keys = heads(rank, size, H, G)
    return query, keys[:1]


def the_rest_on_the_last_rank(rank, size, H, G):
    first, last = rank * (H // size), (rank + 1) * (H // size) if rank < size - 1 else H
    return range(first, last), range(first * G // H, (last - 1) * G // H + 1)


def striped_kv_heads(rank, size, H, G):
    query, _ = heads(rank, size, H, G)
    return query, sorted({head % G for head in query})


def one_kv_head_too_many(rank, size, H, G):
    query, keys = heads(rank, size, H, G)
    return query, range(keys.start, min(keys.stop + 1, G))


def only_query_heads(rank, size, H, G):
    return heads(rank, size, H, G)[0]


def slices_of_heads(rank, size, H, G):
    return tuple(slice(found.start, found.stop) for found in heads(rank, size, H, G))


def once_for_each_query_head(rank, size, H, G):
    query, _ = heads(rank, size, H, G)
    return query, [head // (H // G) for head in query]


def all_around(rank, size, documents):
    return size - 1


def to_the_last_rank(rank, size, documents):
    return size - 1 - rank


def by_the_first_token(rank, size, documents):
    c = documents[-1] // size
    return (min(edge for edge in documents if edge > rank * c) - 1) // c - rank


def one_edge_too_far(rank, size, documents):
    c = documents[-1] // size
    last = (rank + 1) * c - 1
    return min(min(edge for edge in documents if edge > last) // c, size - 1) - rank


def the_token_behind(rank, size, documents):
    c = documents[-1] // size
    stops = [edge for edge in documents if edge > (rank + 1) * c]
    return (min(stops) - 1) // c - rank if stops else 0


def the_rank_and_not_the_hops(rank, size, documents):
    return hops(rank, size, documents) + rank


def as_float(rank, size, documents):
    return float(hops(rank, size, documents))


COLORS = [lambda rank, U, P: rank // U, lambda rank, U, P: rank % U]
COLORS += [lambda rank, U, P: rank // (P // U), lambda rank, U, P: rank % (P // U)]
SPLITS = {
    (0, 0): "each rank attends the tokens of its group alone",
    (0, 2): "the ring is of other ranks than one of each group",
    (0, 3): "each rank attends the tokens of its group alone",
    (1, 0): "the two splits are swapped",
    (1, 1): "the all-to-all is among other ranks than the U neighbours of a group",
    (1, 2): "of a group, and the ring is of other ranks",
    (1, 3): "of a group, and the ring is of other ranks",
    (2, 0): "of a group, and the ring is of other ranks",
    (2, 1): "the all-to-all is among other ranks than the U neighbours of a group",
    (2, 2): "of a group, and the ring is of other ranks",
    (2, 3): "these are groups of P/U ranks",
    (3, 0): "each rank attends the tokens of its group alone",
    (3, 1): "the all-to-all is among other ranks than the U neighbours of a group",
    (3, 2): "the groups are exchanged",
    (3, 3): "each rank attends the tokens of its group alone",
}  # on the smallest case that fails; (0, 1) is right


@pytest.mark.parametrize(("group", "ring"), SPLITS)
def test_every_wrong_pair_of_splits_by_quotient_or_remainder_is_told_its_cause(group, ring):
    def usp(comm, q, k, v, ulysses):
        node, around = (comm.split(COLORS[i](comm.rank, ulysses, comm.size)) for i in (group, ring))
        q, k, v = (node.all_to_all(x, 1, 2) for x in (q, k, v))
        return node.all_to_all(ring_attention(around, q, k, v, causal=True)[0], 2, 1)

    text = refused("03.usp", usp)
    (cause,) = [line for line in text.splitlines() if "likely cause: " in line]
    assert SPLITS[group, ring] in cause
    assert ("ring is of" in cause) == ("ring is of" in SPLITS[group, ring])


WRONG = [
    ("03.usp", with_exchanged_groups, "the groups are exchanged: neighbours share the heads"),
    ("03.usp", split_the_other_way, "likely cause: the two splits are swapped"),
    ("03.usp", split_into_groups_of_p_over_u, "likely cause: these are groups of P/U ranks"),
    ("03.usp", without_a_mask, "the mask is missing"),
    ("03.usp", without_a_ring, "each rank attends the tokens of its group alone"),
    ("03.usp", not_turned_back, "the outputs must turn back"),
    ("03.usp", with_a_ring_of_all_ranks, "the ring has all ranks"),
    ("03.usp", with_exchanged_axes, "cut the heads, axis 1, and join the tokens, axis 2"),
    ("03.usp", with_lse, "returned tuple, expected float64[1, 2, 2, 2]"),
    ("03.usp", with_both_arrays_turned_back, "likely cause: ring_attention returns two arrays"),
    ("03.usp", with_a_kv_head_for_each_query_head, "bytes a rank sends: 128, should be"),
    ("03.heads", every_kv_head, "they need not travel"),
    ("03.heads", kv_heads_dealt_like_query_heads, "K/V heads are not dealt to the ranks"),
    ("03.heads", kv_head_of_the_first_only, "the K/V head of the first query head alone"),
    (
        "03.heads",
        the_rest_on_the_last_rank,
        "the last rank has all heads that are left over; the first H mod P ranks have one",
    ),
    ("03.heads", striped_kv_heads, "K/V head h // (H/G), and not h % G"),
    ("03.heads", one_kv_head_too_many, "they need not travel"),
    ("03.heads", only_query_heads, "expected (its query heads, the K/V heads they read)"),
    ("03.heads", slices_of_heads, "expected (its query heads, the K/V heads they read)"),
    ("03.heads", once_for_each_query_head, "each one once"),
    ("03.hops", all_around, "returned 1, expected 0 hops"),
    (
        "03.hops",
        to_the_last_rank,
        "too many: token 1, the last one of rank 0, ends its document; no later rank sees it",
    ),
    ("03.hops", by_the_first_token, "too few: token 2, on rank 1, sees token 1, the last one of rank 0"),
    ("03.hops", one_edge_too_far, "no later rank sees it"),
    ("03.hops", the_token_behind, "no later rank sees it"),
    ("03.hops", the_rank_and_not_the_hops, "for rank 1 it returned"),
    ("03.hops", as_float, "expected a whole number"),
]


@pytest.mark.parametrize(("name", "answer", "said"), WRONG, ids=[answer.__name__ for _, answer, _ in WRONG])
def test_a_wrong_answer_is_refused_and_explained(name, answer, said):
    assert said in refused(name, answer)
