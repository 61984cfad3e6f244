"""A lesson's map of minutes: `python tools/lessons.py notebooks/06_zero.ipynb --write` adds up its rows.

The minutes are those that a fresh reader needed, exercises done; they are stated by hand. A lesson is cut at its `##`
headings; what stands before the first is the first screen. The map is a folded table there, with a row for each part,
in their order:

    <details>
    <summary>Core path: <b>48 minutes</b>. Further: 35 minutes.</summary>

    | section | minutes |
    |---|---|
    | first screen | 3 |
    | [Title](#Title) | 7 |
    | [Exercise: merge](#Exercise:-merge) | 17, exercise 15 |
    | *further:* [Title](#Title) | 6 |

    </details>
"""

import argparse
import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

FIRST = "first screen"
ROW = re.compile(
    rf"^\| (?P<further>\*further:\* )?(?:\[(?P<title>[^\]]+)\]\(#(?P<anchor>[^)]+)\)|{FIRST}) "
    r"\| *(?P<minutes>\d+)(?:, exercise (?P<exercise>\d+))? *\|$",
    re.M,
)
TOTAL = re.compile(r"^<summary>.*</summary>$", re.M)


@dataclass
class Section:
    """The cells below one `##` heading, and the minutes in its row of the map; the first screen has no title."""

    title: str
    further: bool
    cells: list[NotebookNode] = field(default_factory=list)
    minutes: int = 0
    exercise: int = 0

    @property
    def exercises(self) -> int:
        """The number of cells that check an answer."""
        return sum(cell.cell_type == "code" and "labs.check(" in cell.source for cell in self.cells)

    @property
    def row(self) -> str:
        """Its row of the map."""
        name = f"[{self.title}](#{anchor(self.title)})" if self.title else FIRST
        exercise = f", exercise {self.exercise}" if self.exercise else ""
        return f"| {'*further:* ' if self.further else ''}{name} | {self.minutes}{exercise} |"


def sections(notebook: NotebookNode) -> list[Section]:
    """The first screen and every section; a section is *further* if its heading is folded when the notebook opens."""
    found = [Section("", further=False)]
    for cell in notebook.cells:
        heading = re.match(r"## (.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            found.append(Section(heading[1].strip(), bool(cell.metadata.get("jp-MarkdownHeadingCollapsed"))))
        found[-1].cells.append(cell)
    rows = {row["title"] or "": row for cell in found[0].cells for row in ROW.finditer(cell.source)}
    for section in found:
        if row := rows.get(section.title):
            section.minutes, section.exercise = int(row["minutes"]), int(row["exercise"] or 0)
    return found


def anchor(title: str) -> str:
    """The name of a heading in links in JupyterLab."""
    return title.replace(" ", "-")


def total(lesson: list[Section], further: bool = False) -> int:
    """Minutes of the core path, or of all that is further."""
    return sum(section.minutes for section in lesson if section.further == further)


def summary(lesson: list[Section]) -> str:
    """The line of the map that is seen while it is folded."""
    return (
        f"<summary>Core path: <b>{total(lesson)} minutes</b>. Further: {total(lesson, further=True)} minutes.</summary>"
    )


def imported_names(source: str) -> list[str]:
    """Every name that a cell imports."""
    tree = ast.parse(re.sub(r"^[%!].*$", "", source, flags=re.M))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return [alias.asname or alias.name for node in imports for alias in node.names]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write the sums into the map")
    options = parser.parse_args()
    for path in options.notebooks:
        notebook = nbformat.read(path, as_version=4)
        lesson = sections(notebook)
        print(path.name, *(section.row for section in lesson), summary(lesson), sep="\n")
        if options.write:
            for cell in lesson[0].cells:
                if ROW.search(cell.source):
                    cell.source = TOTAL.sub(summary(lesson), cell.source)
            nbformat.write(notebook, path)
