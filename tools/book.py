"""The reading edition, as an extension of Sphinx: a first page with the lessons' table, and further sections folded."""

import re
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes

from tools.exercises import NOTEBOOKS
from tools.lessons import Section, sections, total
from tools.lite import STARTS_PROCESSES

ROOT = NOTEBOOKS.parent
ROW = re.compile(r"^\| \[(?P<title>[^\]]+)\]\(notebooks/(?P<file>[^)]+)\) \| (?P<sentence>.+) \|$", re.M)
TABLE = "% The table of the lessons"  # where it stands on the first page
BUTTON = "% The button"  # where the first page says what it does
OPENING = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">'


def lessons_table(readme: str) -> str:
    """The table of the lessons in README, with their minutes."""
    rows = ["| lesson | its sentence | core | further |", "|---|---|---:|---:|"]
    for row in ROW.finditer(readme):
        lesson = sections(nbformat.read(NOTEBOOKS / row["file"], as_version=4))
        minutes = f"{total(lesson)} min | {total(lesson, further=True)} min"
        rows.append(f"| [{row['title']}](../notebooks/{row['file']}) | {row['sentence']} | {minutes} |")
    return "\n".join(rows)


def put_table(app: Any, docname: str, source: list[str]) -> None:
    """Put the table on the first page, and the word of the button where lessons have one."""
    if docname == app.config.root_doc:
        told = "Or press *Run this lesson here* above it: nothing to install." if app.config.run_here else ""
        text = source[0].replace(BUTTON, told)
        source[0] = text.replace(TABLE, lessons_table((ROOT / "README.md").read_text(encoding="utf-8")))


def put_button(app: Any, doctree: nodes.document, docname: str) -> None:
    """Put a link below the title of each lesson that opens it in the edition which runs in a browser."""
    path = Path(app.env.doc2path(docname))
    if not _is_lesson(path) or not app.config.run_here or path.name == STARTS_PROCESSES:
        return
    place = f"../{app.config.run_here}/lab/index.html?path={path.name}"
    (title, *_) = doctree.findall(nodes.title)
    button = f'<p><a class="run" href="{place}">Run this lesson here</a></p>'
    title.parent.insert(1, nodes.raw("", button, format="html"))


def _is_lesson(path: Path) -> bool:
    return path.parent == NOTEBOOKS and path.name[0].isdigit()


def put_opening(app: Any, failed: Exception | None) -> None:
    """Let the folder itself open the first page."""
    if not failed:
        (Path(app.outdir) / "index.html").write_text(OPENING, encoding="utf-8")


def mark_sections(app: Any, doctree: nodes.document, docname: str) -> None:
    """Say the minutes below each heading of a lesson; fold all that is further."""
    path = Path(app.env.doc2path(docname))
    if not _is_lesson(path):
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
    app.add_config_value("run_here", "", "env", str, "the folder of the edition that `make lite` builds, from the root")
    app.connect("source-read", put_table)
    app.connect("doctree-resolved", mark_sections)
    app.connect("doctree-resolved", put_button)
    app.connect("build-finished", put_opening)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
