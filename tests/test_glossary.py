"""The glossary has an index in the order of the alphabet; its entries lead back to the lessons that link to them."""

from copy import deepcopy

import nbformat

from tools.exercises import NOTEBOOKS
from tools.glossary import GLOSSARY, entries, index, links_back, write
from tools.lessons import anchor

BACK = links_back(sorted(NOTEBOOKS.glob("[0-9]*.ipynb")))


def made(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(cell) for cell in cells])


def test_the_glossary_is_as_the_tool_writes_it():
    glossary = nbformat.read(GLOSSARY, as_version=4)
    written = deepcopy(glossary)
    write(written, BACK)
    assert [cell.source for cell in written.cells] == [cell.source for cell in glossary.cells], (
        "python -m tools.glossary"
    )


def test_every_word_has_one_entry():
    names = entries(nbformat.read(GLOSSARY, as_version=4))
    assert len(names) == len({name.casefold() for name in names}) > 90


def test_the_index_follows_the_alphabet_whatever_the_case():
    assert index(["Port", "bf16", "1F1B", "Bubble", "Wall clock"]) == (
        "## Index\n\n**1** [1F1B](#1F1B)\n\n**B** [bf16](#bf16) · [Bubble](#Bubble)\n\n**P** [Port](#Port)\n\n"
        "**W** [Wall clock](#Wall-clock)"
    )


def test_an_entry_leads_to_the_first_section_of_each_lesson_that_links_to_it(tmp_path):
    lesson = made("# 00", "## Who waits?\nA [port](glossary.ipynb#Port).", "## Later\n[Ports](glossary.ipynb#Port).")
    nbformat.write(lesson, tmp_path / "00_ranks.ipynb")
    nbformat.write(made("A [port](glossary.ipynb#Port)."), tmp_path / "04b_frontier.ipynb")
    back = links_back(sorted(tmp_path.glob("*.ipynb")))
    glossary = made("# Glossary", "## Index", "### Port\n\nA connection. Lesson [00](00.ipynb).\n\n### Slack\n\nRoom.")
    for _ in range(2):
        write(glossary, back)
        assert glossary.cells[2].source == (
            "### Port\n\nA connection.\n\nLessons [00](00_ranks.ipynb#Who-waits?), [04b](04b_frontier.ipynb).\n\n"
            "### Slack\n\nRoom."
        )
    assert glossary.cells[1].source.endswith("**P** [Port](#Port)\n\n**S** [Slack](#Slack)")


def test_every_link_of_a_lesson_leads_to_an_entry_and_some_lesson_links_to_every_entry():
    assert BACK.keys() == {anchor(name) for name in entries(nbformat.read(GLOSSARY, as_version=4))}
