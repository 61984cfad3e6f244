"""Files that are there as a whole, or not at all."""

import os
from pathlib import Path

import pytest

from parlab.files import write_whole


@pytest.mark.parametrize("content", [b"\x00\xff\r\n", "é\r\n", "", b""])
def test_a_file_has_every_byte_of_its_content(tmp_path, content):
    path = tmp_path / "a.json"
    write_whole(str(path), content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("failing", [(os, "fsync"), (Path, "replace")])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, failing):
    path = tmp_path / "a.json"
    write_whole(path, "old")

    def full(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(*failing, full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, "new")
    assert os.listdir(tmp_path) == ["a.json"]
    assert path.read_text() == "old"


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(os, "fsync", lambda file: done.append("on the disk"))
    monkeypatch.setattr(Path, "replace", lambda *paths: done.append("named"))
    write_whole(tmp_path / "a", "text")
    assert done == ["on the disk", "named"]
