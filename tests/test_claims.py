"""Each claim of docs/claims.md stands in its lesson, and its evidence is there."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
CLAIM = re.compile(r"^- > (?P<said>.+)\n  - if: (?P<conditions>.+)\n  - by: (?P<evidence>.+)$", re.M)
CELL = re.compile(r"cell `([^`]+)`")
TEST = re.compile(r"test `(tests/[\w/]+\.py)::(test_\w+)`")
LINK = re.compile(r"\[[^\]]+\]\(https://[^)\s]+\)")
LESSONS = {
    section.partition("\n")[0].strip(): section
    for section in re.split(r"^## ", TEXT, flags=re.M)[1:]  # by the name of the lesson's file
}
CLAIMS = [(lesson, match) for lesson, section in LESSONS.items() for match in CLAIM.finditer(section)]


def plain(text: str) -> str:
    """A text without marks and line breaks, and each link as its words."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[*`>]", "", words).split())


def cells(lesson: str, kind: str) -> list[str]:
    notebook = nbformat.read(ROOT / "notebooks" / f"{lesson}.ipynb", as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def name(claim: tuple[str, re.Match[str]]) -> str:
    return f"{claim[0][:3]}-{claim[1]['said'][:40]}"


def test_every_bullet_is_a_claim_with_its_conditions_and_its_evidence():
    claims = TEXT.partition("\n## ")[2]
    assert len(CLAIMS) == len(re.findall(r"^- ", claims, re.M))
    assert 3 * len(CLAIMS) == len(re.findall(r"^ *- ", claims, re.M))


@pytest.mark.parametrize(("lesson", "claim"), CLAIMS, ids=map(name, CLAIMS))
def test_a_claim_stands_word_for_word_in_its_lesson(lesson, claim):
    assert plain(claim["said"]) in plain("\n".join(cells(lesson, "markdown")))


@pytest.mark.parametrize(("lesson", "claim"), CLAIMS, ids=map(name, CLAIMS))
def test_the_evidence_of_a_claim_is_a_cell_a_test_or_a_public_source(lesson, claim):
    evidence = claim["evidence"]
    pieces, tests = CELL.findall(evidence), TEST.findall(evidence)
    assert pieces or tests or LINK.search(evidence)
    code = "\n".join(cells(lesson, "code"))
    assert [piece for piece in pieces if piece not in code] == []
    assert [at for at in tests if f"def {at[1]}(" not in (ROOT / at[0]).read_text(encoding="utf-8")] == []
