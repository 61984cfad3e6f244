"""The reading edition builds from what is stored, and needs no network to be read."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ASKED_FOR = re.compile(r"""(?:src=|<link[^>]*href=|@import|url\()["']?(https?:[^"')\s]+)""")


@pytest.mark.slow
def test_the_book_builds_without_a_warning_and_its_pages_ask_nobody_for_anything(tmp_path):
    options = ["-q", "-W", "--keep-going", "-c", "docs", "-d", tmp_path / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, ROOT, tmp_path / "book"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert (built.returncode, built.stderr) == (0, "")
    pages = list(tmp_path.glob("book/**/*.html")) + list(tmp_path.glob("book/**/*.css"))
    assert {path.stem for path in ROOT.glob("notebooks/*.ipynb")} <= {page.stem for page in pages}
    assert {link for page in pages for link in ASKED_FOR.findall(page.read_text(encoding="utf-8"))} == set()
