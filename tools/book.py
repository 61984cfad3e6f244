"""The reading edition, as an extension of Sphinx: a first page with the lessons' table, and further sections folded."""

import re
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes

from tools.exercises import NOTEBOOKS
from tools.lessons import Section, sections, total

ROOT = NOTEBOOKS.parent
ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\(notebooks/(?P<file>[^)]+)\) \| (?P<sentence>.+) \|$", re.M)
TABLE = "% The table of the lessons"  # where it stands on the first page


def lessons_table(readme: str) -> str:
    """The table of the lessons in README, with their minutes."""
    rows = ["| lesson | its sentence | core | further |", "|---|---|---:|---:|"]
    for row in ROW.finditer(readme):
        lesson = sections(nbformat.read(NOTEBOOKS / row["file"], as_version=4))
        minutes = f"{total(lesson)} min | {total(lesson, further=True)} min"
        rows.append(f"| [{row['title']}](../notebooks/{row['file']}) | {row['sentence']} | {minutes} |")
    return "\n".join(rows)


def put_table(app: Any, docname: str, source: list[str]) -> None:
    """Put the table on the first page."""
    if docname == app.config.root_doc:
        source[0] = source[0].replace(TABLE, lessons_table((ROOT / "README.md").read_text(encoding="utf-8")))


def mark_sections(app: Any, doctree: nodes.document, docname: str) -> None:
    """Say the minutes below each heading of a lesson; fold all that is further."""
    path = Path(app.env.doc2path(docname))
    if path.parent != NOTEBOOKS or not path.name[0].isdigit():
        return
    parts = sections(nbformat.read(path, as_version=4))[1:]
    found = [section for section in doctree.findall(nodes.section) if isinstance(section.parent.parent, nodes.document)]
    for section, part in zip(found, parts, strict=True):
        opened, closed = _around(part)
        section.insert(1, nodes.raw("", opened, format="html"))
        section += nodes.raw("", closed, format="html")


def _around(part: Section) -> tuple[str, str]:
    """What stands behind the heading, and behind the section."""
    exercise = f", the exercise {part.exercise}" if part.exercise else ""
    said = f"{part.minutes} minute{'s' * (part.minutes != 1)}{exercise}"
    if part.further:
        return f"<details class='further'><summary>further · {said}</summary>", "</details>"
    return f"<p class='core'>core · {said}</p>", ""


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", put_table)
    app.connect("doctree-resolved", mark_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
