"""The films of attention: what each message carries, when it is here, and who attends it."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import parlab.sequence
from parlab import per_rank, run, views
from parlab.nn.attention import merge
from parlab.sequence import ring_attention, shard
from parlab.views.engine import theme
from parlab.views.sequence import attention_film as attention
from parlab.views.sequence.attention_film import KV, OUT, QKV, plan_of
from parlab.world import CLASSROOM, Link
from tests.labs.answers import usp
from tests.views.filmed import check_film, marks

NODES = replace(CLASSROOM, ranks_per_node=2, inter=Link(latency=5e-6, bandwidth=2.5e9))


def composed(comm, q, k, v):
    """USP of groups of 2, as a student writes it."""
    return usp(comm, q, k, v, 2), None


def crossing_first(comm, q, k, v):
    """A double ring of two rings and a crossing, as lesson 03 writes it."""
    node, pair = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
    leaving, coming = pair.isend((k, v), 1 - pair.rank), pair.irecv(1 - pair.rank, (k, v))
    ours = ring_attention(node, q, k, v)
    theirs = ring_attention(node, q, *coming.wait())
    leaving.wait()
    return merge(*ours, *theirs)


COMPOSED = {"composed": composed, "crossing first": crossing_first}
METHODS = {  # what the run is told, and what the film
    "composed": ({}, {"method": "USP", "causal": True, "ulysses": 2}),
    "crossing first": ({}, {"method": "double ring"}),
    "usp, causal": ({"ulysses": 2, "causal": True}, {"method": "USP", "ulysses": 2, "causal": True}),
    "ring": ({}, {"method": "ring"}),
    "double_ring": ({"ranks_per_node": 2}, {"method": "double ring"}),
    "ulysses": ({}, {"method": "Ulysses"}),
    "usp": ({"ulysses": 2}, {"method": "USP", "ulysses": 2}),
}


@cache
def ran(name, size=4, cluster=NODES):
    method = COMPOSED.get(name) or getattr(parlab.sequence, f"{name.partition(',')[0]}_attention")
    x = [np.zeros((1, 4, 1024, 16), np.float32)] * 3
    return run(method, size, *[per_rank(shard(y, size)) for y in x], cluster=cluster, **METHODS[name][0])


def filmed(name, done=None):
    return views.attention_film(done or ran(name), **METHODS[name][1], ranks_per_node=2)


def planned(name, shown):
    return plan_of(shown, **METHODS[name][1], ranks_per_node=2)


@pytest.mark.parametrize("name", METHODS)
def test_every_message_has_the_bytes_of_the_cells_that_it_carries(name):
    shown = ran(name).timeline
    cell = 256 * 16 * 4  # bytes of one of q, k, v, out for a shard of the tokens and a head
    unit = {KV: 2 * cell, QKV: 3 * cell, OUT: cell + (256 * 4 if name != "composed" else 0)}
    unit |= dict.fromkeys(attention.APART, cell)
    for t, part in attention._carried(shown, planned(name, shown)):
        assert t.nbytes == len(part.cells) * unit[part.kind], (t, part)


@pytest.mark.parametrize("name", METHODS)
def test_a_rank_attends_all_tokens_of_its_heads_once_and_only_what_has_come(name):
    shown = ran(name).timeline
    plan = planned(name, shown)
    messages = attention._carried(shown, plan)
    for rank in range(4):
        came = {(rank, head): 0 for head in range(4)}
        for t, part in messages:
            if t.dst == rank and part.kind in (KV, QKV, *attention.APART):
                came |= dict.fromkeys(part.cells, t.end)
        attended = [cell for cells in plan.attends[rank] for cell in cells]
        heads = {head for _, head in plan.queries[rank]}
        tokens = set(range(4))
        if name in ("composed", "usp, causal") and rank < 2:
            tokens = {0, 1}  # a causal mask hides the other group's
        assert sorted(attended) == sorted((token, head) for token in tokens for head in heads)
        for span, cells in zip(attention._attends(shown, rank), plan.attends[rank], strict=True):
            assert all(came[cell] <= span.start for cell in cells)


@pytest.mark.parametrize("name", METHODS)
def test_a_rank_sends_only_what_it_has_and_all_output_of_its_tokens_comes_home(name):
    shown = ran(name).timeline
    plan = planned(name, shown)
    messages = attention._carried(shown, plan)
    own = [{(rank, head) for head in range(4)} for rank in range(4)]
    has = {KV: [set(cells) for cells in own], OUT: list(map(set, plan.queries))}
    for t, part in sorted(messages, key=lambda message: message[0].start):
        kind = KV if part.kind in (QKV, *attention.APART) else part.kind
        came = {
            cell for m, p in messages if m.dst == t.src and m.end <= t.start and p.kind == part.kind for cell in p.cells
        }
        assert part.cells <= has[kind][t.src] | came | (has[KV][t.src] if kind == KV else set()), (t, part)
        has[kind][t.dst] |= part.cells
    home = [
        {cell for t, part in messages if t.dst == rank and part.kind == OUT for cell in part.cells} for rank in range(4)
    ]
    for rank in range(4):
        assert own[rank] <= home[rank] | set(plan.queries[rank])


def test_k_and_v_that_a_rank_still_has_to_send_are_seen_until_then():
    done = ran("double_ring", cluster=replace(NODES, intra=Link(latency=1e-6, bandwidth=5e9)))
    film = filmed("double_ring", done)
    (sent,) = [t.start for t in done.timeline.transfers if (t.src, t.dst) == (0, 2)]
    ends = [numbers["b"] for numbers, words in marks(film, "see") if words == ["0"] and "a" not in numbers]
    assert ends == [film.second(sent, leaves=True)]
    assert sent > attention._attends(done.timeline, 0)[0].end


def test_a_cell_of_output_is_8_lower_than_one_of_kv_at_the_same_middle():
    cells = frozenset({(1, 0)})
    tall, low = (attention._cells(0, attention.Carried(kind, cells), 4) for kind in (KV, OUT))
    (top, height), (lower_top, lower) = (
        [float(re.search(rf'{side}="([0-9.]+)"', mark)[1]) for side in (" y", "height")] for mark in (tall, low)
    )
    assert f'fill="{theme.rank_color(1)}"' in tall  # of the rank that owns the tokens, on rank 0 too
    assert (height - lower, lower_top + lower / 2) == (8, top + height / 2)


@pytest.mark.parametrize("name", METHODS)
def test_all_output_is_at_home_in_the_end(name):
    film = filmed(name)
    check_film(film)
    kept = [words for numbers, words in marks(film, "see") if "b" not in numbers and words and words[0].startswith("o")]
    assert {word for words in kept for word in words} == {"o0", "o1", "o2", "o3"}


def test_below_a_ranks_work_a_line_shows_each_message_that_arrives():
    """The hop inside, the crossing, the hop of the second turn: three a rank, beside four tiles."""
    drawn = filmed("double_ring")._repr_html_()
    assert drawn.count(f'height="4" fill="{attention.ARRIVES}"') == 4 * 3
    assert drawn.count(f'fill="{attention.WORK}"') == 4 * 4


@pytest.mark.parametrize("name", METHODS)
def test_a_caption_has_at_most_60_letters(name):
    lines = repr(filmed(name)).splitlines()[1:]
    assert all(len(line.partition(": ")[2]) <= 60 for line in lines)


def test_two_ranks_and_a_students_usp_that_turns_q_k_and_v_one_by_one():
    check_film(views.attention_film(ran("ring", 2), "ring"))
    check_film(views.attention_film(ran("ulysses", 2), "Ulysses"))
    assert repr(filmed("composed")).splitlines()[:3] == [
        "USP, 4 ranks: 108 µs",
        "0 s: rank 0 sends q 0 (heads 2, 3) to rank 1",
        "4.28 µs: rank 0 sends k 0 (heads 2, 3) to rank 1",
    ]
