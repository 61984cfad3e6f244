"""Read back from a film what it shows, and when."""

import re
from xml.etree import ElementTree


def tree_of(film):
    """Well formed without its style, which has `<number>` in it and is raw text in HTML."""
    return ElementTree.fromstring(re.sub("<style>.*</style>", "", film._repr_html_(), flags=re.DOTALL))


def check_film(film):
    """A page may hold this film many times, with no network and no script; and it is small."""
    html, tree = film._repr_html_(), tree_of(film)
    assert len(html.encode()) <= 60_000
    assert "<script" not in html
    assert "http" not in html
    assert "url(" not in html
    assert not [
        part for part in tree.iter() if "id" in part.attrib or any(name.startswith("on") for name in part.attrib)
    ]
    assert [line.text for line in tree.iter("li")] == film.lines
    assert repr(film) == "\n".join([film.headline, *film.lines])


def parts(film, kind):
    """The moving parts of a `kind`, each with its numbers by name: from when to when, how far, ..."""
    found = [part for part in tree_of(film).iter() if part.get("class") == kind]
    styles = [re.findall(r"--(\w+):([-\d.e]+)", part.get("style", "")) for part in found]
    return [({name: float(value) for name, value in style}, part) for style, part in zip(styles, found, strict=True)]


def marks(film, kind):
    """The moving parts of a `kind`: their numbers by name, and the words in them."""
    return [(numbers, list(filter(None, part.itertext()))) for numbers, part in parts(film, kind)]
