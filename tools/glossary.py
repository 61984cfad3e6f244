"""Write the glossary's index and its links back to the lessons: `python -m tools.glossary`.

An entry is a `###` heading with its text. The index is the cell `## Index`. The last paragraph of an entry says which
lessons link to it, and leads to the sections in which they first do. Entries that no lesson links to are printed.
"""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.exercises import NOTEBOOKS
from tools.lessons import anchor, sections

GLOSSARY = NOTEBOOKS / "glossary.ipynb"
ENTRY = re.compile(r"^### (?P<name>[^\n]+)\n\n(?P<text>.*?)(?=\n+##|\Z)", re.M | re.S)
BACK = re.compile(r"\s+Lessons? \[[^\]]+\]\([^)]+\)(, \[[^\]]+\]\([^)]+\))*\.\Z")
INDEX = "## Index"


def entries(glossary: NotebookNode) -> list[str]:
    """The names of the entries, as they stand."""
    return [entry["name"] for cell in glossary.cells for entry in ENTRY.finditer(cell.source)]


def index(names: list[str]) -> str:
    """A cell with a line for each first letter."""
    lines: dict[str, list[str]] = {}
    for name in sorted(names, key=str.casefold):
        lines.setdefault(name[0].upper(), []).append(f"[{name}](#{anchor(name)})")
    return "\n\n".join([INDEX, *(f"**{letter}** {' · '.join(links)}" for letter, links in lines.items())])


def links_back(lessons: list[Path]) -> dict[str, list[str]]:
    """For each anchor in the glossary: a link to the section of each lesson that first leads there."""
    back: dict[str, list[str]] = {}
    for path in lessons:
        number, found = path.name.partition("_")[0], set()
        for section in sections(nbformat.read(path, as_version=4)):
            place = f"{path.name}#{anchor(section.title)}" if section.title else path.name
            for cell in section.cells:
                for name in re.findall(r"\]\(glossary\.ipynb#([^)]+)\)", cell.source):
                    if name not in found:
                        back.setdefault(name, []).append(f"[{number}]({place})")
                        found.add(name)
    return back


def write(glossary: NotebookNode, back: dict[str, list[str]]) -> None:
    """Bring the index and the links back up to date."""

    def with_links(entry: re.Match[str]) -> str:
        links = back.get(anchor(entry["name"]))
        if not links:
            return entry[0]
        text = BACK.sub("", entry["text"].rstrip())
        return f"### {entry['name']}\n\n{text}\n\nLesson{'s' * (len(links) > 1)} {', '.join(links)}."

    for cell in glossary.cells:
        cell.source = ENTRY.sub(with_links, cell.source)
    (place,) = [cell for cell in glossary.cells if cell.source.startswith(INDEX)]
    place.source = index(entries(glossary))


if __name__ == "__main__":
    notebook = nbformat.read(GLOSSARY, as_version=4)
    known = links_back(sorted(NOTEBOOKS.glob("[0-9]*.ipynb")))
    write(notebook, known)
    nbformat.write(notebook, GLOSSARY)
    print("no lesson links to:", ", ".join(name for name in entries(notebook) if anchor(name) not in known) or "none")
