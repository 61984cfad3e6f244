"""The instructor's guide says what the lessons and the checkers say."""

import re
from functools import partial
from pathlib import Path

import nbformat
import pytest

from tests.labs import (
    lucky_answers,
    test_collectives,
    test_frontier,
    test_long_sequences,
    test_mesh,
    test_mixture,
    test_pipeline,
    test_planning,
    test_processes,
    test_ranks,
    test_ring,
    test_ring_hops,
    test_silent_bugs,
    test_tensor,
    test_zero,
)
from tests.labs.answers import mlp_step, refused
from tools.lessons import sections

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
TOLD = sorted(ROOT.glob("notebooks/[0-9]*_*.ipynb"))
MISTAKES = [
    ("00.overlap", test_ranks.overlap_that_waits),
    ("00.overlap", test_ranks.overlap_that_comes_home),
    ("00.overlap", lucky_answers.that_sends_its_own_piece_each_time),
    ("00.to_blame", lucky_answers.as_in_the_lessons_guess),
    ("01.reduce_scatter", test_collectives.with_the_indices_of_the_all_gather),
    ("01.reduce_scatter", test_collectives.sent_each_time("the next")),
    ("01.reduce_scatter", test_collectives.without_adding),
    ("01.reduce_scatter", test_collectives.with_the_whole_array_travelling),
    ("02.merge", test_ring.mean),
    ("02.merge", test_ring.overflowing),
    ("02.ring", lucky_answers.in_the_other_direction),
    ("02.ring", test_ring_hops.after_the_work),
    ("02.zigzag_tile", test_ring.wrong_half_of_the_keys),
    ("03.usp", test_long_sequences.with_exchanged_groups),
    ("03.usp", test_long_sequences.with_a_kv_head_for_each_query_head),
    ("04.one_f_one_b", test_pipeline.one_at_a_time),
    ("04.one_f_one_b", test_pipeline.one_too_many),
    ("04.listing", test_pipeline.as_gpipe),
    ("04b.lower_bound", test_frontier.as_1f1b_takes),
    ("04b.lower_bound", test_frontier.the_last_rank_alone),
    ("04b.place_weights", test_frontier.without_the_memory),
    ("04b.place_weights", test_frontier.as_in_lesson_04),
    ("05.mlp_step", lambda *given: mlp_step(*given, without="dx")),
    ("05.block_step", test_tensor.step(without="dm")),
    ("05.block_step", test_tensor.step(behind="dm")),
    ("06.zero_1", test_zero.all_reduce_first),
    ("06.zero_1", lucky_answers.with_whole_moments_in_state),
    ("07.who_sums", test_mesh.norms_as_cut),
    ("07.find_bug", test_silent_bugs.by_the_loss),
    ("07.find_bug", test_silent_bugs.gradients_first),
    ("08.memory", partial(test_planning.held, flight=lambda p, m: m)),
    ("08.memory", partial(test_planning.held, cuts=lambda zero, stage: zero >= stage - 1)),
    ("09.buffering", test_processes.relies_on_buffering),
    ("09.buffering", test_processes.one_after_the_other),
    ("10.mixture", test_mixture.rank_alone),
    ("10.mixture", test_mixture.every_pair_to_every_rank),
    ("10.mixture", test_mixture.counts_not_swapped_in_combine),
    ("10.balanced", lucky_answers.with_the_bias_in_the_gates),
    ("10.balanced", lucky_answers.with_the_turned_sign),
]


def plain(text):
    """Without line ends, indentation, and where in an answer a line stands."""
    return re.sub(r"at line \d+ of \w+", "at line", " ".join(text.split()))


def part(name):
    """What the guide says of the lesson of a notebook, "04b_frontier", or of an exercise, "04b.uneven"."""
    number = re.match(r"\w+?(?=[._])", name)[0]
    return GUIDE.partition(f"\n## {number} ")[2].partition("\n## ")[0]


@pytest.mark.parametrize("path", TOLD, ids=lambda path: path.stem)
def test_the_minutes_are_those_of_the_lesson(path):
    core = [section for section in sections(nbformat.read(path, as_version=4)) if not section.further]
    minutes = " · ".join(f"{section.title or 'first screen'} {section.minutes}" for section in core)
    assert plain(f"**Minutes.** {minutes}") in plain(part(path.stem))


def test_every_section_that_the_guide_names_stands_in_a_lesson():
    titles = {section.title for path in TOLD for section in sections(nbformat.read(path, as_version=4))}
    dropped = " ".join(re.findall(r"\*\*To drop\.\*\*.*?\n\n", GUIDE, re.S))
    named = set(re.findall(r"\*([A-Z][^*.]+)\*", dropped + GUIDE[GUIDE.index("## A term") : GUIDE.index("## Set-up")]))
    assert len(named) > 15
    assert {plain(name) for name in named} <= titles


@pytest.mark.parametrize(("exercise", "answer"), MISTAKES)
def test_a_mistake_shows_the_message_that_the_guide_quotes_whole(exercise, answer):
    text, hint = refused(exercise, answer).rsplit("\n", 1)
    assert hint == f'  hint: labs.hint("{exercise}", 1)'
    quotes = re.findall(r"(?:^    .+\n)+", part(exercise), re.M)
    assert plain(text) in map(plain, quotes)


def test_every_lesson_has_its_six_parts():
    for path in TOLD:
        for title in ("Minutes.", "Say before.", "The guess", "Usual mistakes.", "To drop.", "Exam."):
            assert f"**{title}**" in part(path.stem), (path.stem, title)
