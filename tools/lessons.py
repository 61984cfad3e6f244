"""Count a lesson's minutes and write them into its map: `python tools/lessons.py notebooks/06_zero.ipynb --write`.

The rule: 110 words of text a minute, half a minute a code cell, 1½ a figure, 4 a widget, 2 a guess, 12 the exercise of
the core path and 10 any other exercise. It came within a fifth of the time of close readings.

A lesson is cut at its `##` headings. The first screen is the part before the first heading. It holds the map: a table
with the rows `| [Title](#Title) | 7 |`, those of folded sections `| *further:* [Title](#Title) | 6 |`, and below it a
line `Core path: **48 minutes**. Further: 35 minutes.`
"""

import argparse
import ast
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

WORDS_A_MINUTE = 110
CODE, FIGURE, WIDGET, GUESS, EXERCISE, FURTHER_EXERCISE = 0.5, 1.5, 4.0, 2.0, 12.0, 10.0
ROW = re.compile(
    r"^\| (?P<further>\*further:\* )?\[(?P<title>[^\]]+)\]\(#(?P<anchor>[^)]+)\) \| *(?P<minutes>\d+) *\|", re.M
)
TOTAL = re.compile(r"^Core path: \*\*(\d+) minutes\*\*\. Further: (\d+) minutes\.$", re.M)


@dataclass
class Section:
    """The cells below one `##` heading; the first screen has no title."""

    title: str
    further: bool
    cells: list[NotebookNode] = field(default_factory=list)

    @property
    def minutes(self) -> int:
        """Whole minutes, rounded up."""
        return math.ceil(sum(_minutes(cell, self.further) for cell in self.cells))


def sections(notebook: NotebookNode) -> list[Section]:
    """The first screen and every section; a section is *further* if its heading is folded when the notebook opens."""
    found = [Section("", further=False)]
    for cell in notebook.cells:
        heading = re.match(r"## (.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            found.append(Section(heading[1].strip(), bool(cell.metadata.get("jp-MarkdownHeadingCollapsed"))))
        found[-1].cells.append(cell)
    return found


def anchor(title: str) -> str:
    """The name of a heading in links in JupyterLab."""
    return title.replace(" ", "-")


def core_minutes(notebook: NotebookNode) -> int:
    """Minutes of the first screen and of all sections that are not further."""
    return sum(section.minutes for section in sections(notebook) if not section.further)


def imported_names(source: str) -> list[str]:
    """Every name that a cell imports."""
    tree = ast.parse(re.sub(r"^[%!].*$", "", source, flags=re.M))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [alias.asname or alias.name for node in imports for alias in node.names]


def with_minutes(notebook: NotebookNode, text: str) -> str:
    """`text`, a map, with the counted minutes."""
    known = {section.title: section for section in sections(notebook)}

    def row(match: re.Match[str]) -> str:
        title = match["title"]
        if title not in known:
            raise ValueError(f"the map names the section {title!r}; the notebook has {', '.join(filter(None, known))}")
        further = "*further:* " if known[title].further else ""
        return f"| {further}[{title}](#{anchor(title)}) | {known[title].minutes} |"

    further = sum(section.minutes for section in known.values() if section.further)
    total = f"Core path: **{core_minutes(notebook)} minutes**. Further: {further} minutes."
    return TOTAL.sub(total, ROW.sub(row, text))


def _minutes(cell: NotebookNode, further: bool) -> float:
    if cell.cell_type == "markdown":
        text = re.sub(r"\]\([^)]*\)|\$[^$]*\$|[|#*`_-]+", " ", cell.source)
        return len(text.split()) / WORDS_A_MINUTE
    if not cell.source.strip():
        return 0
    minutes = CODE
    if "labs.check(" in cell.source:
        minutes += FURTHER_EXERCISE if further else EXERCISE
    elif "views.predict(" in cell.source:
        minutes += GUESS
    elif re.search(r"views\.(explore_\w+|step_through)\(", cell.source):
        minutes += WIDGET
    elif any("image/png" in output.get("data", {}) for output in cell.outputs):
        minutes += FIGURE
    return minutes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put the minutes into the map")
    options = parser.parse_args()
    for path in options.notebooks:
        lesson = nbformat.read(path, as_version=4)
        print(f"{path.name}: core path {core_minutes(lesson)} minutes")
        for section in sections(lesson):
            print(f"  {section.minutes:3} {'further: ' if section.further else ''}{section.title or 'first screen'}")
        if options.write:
            for cell in lesson.cells:
                if ROW.search(cell.source):
                    cell.source = with_minutes(lesson, cell.source)
            nbformat.write(lesson, path)
