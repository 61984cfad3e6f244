"""Files that are there as a whole, or not at all."""

import errno
import os
import re
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
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*failing, full)
    with pytest.raises(OSError, match="No space left on device: " + re.escape(repr(str(path)))):
        write_whole(path, "new")
    assert os.listdir(tmp_path) == ["a.json"]
    assert path.read_text() == "old"


@pytest.mark.skipif(os.name == "nt", reason="links and devices are POSIX's")
def test_a_link_stays_and_what_is_no_file_is_written_to_not_replaced(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_whole(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_that_is_not_there_or_is_the_target_is_named(tmp_path):
    for path, named in ((tmp_path / "a" / "b.json", tmp_path / "a"), (tmp_path, tmp_path)):
        with pytest.raises(OSError, match=re.escape(repr(str(named)))):
            write_whole(path, "text")


def test_two_that_write_one_file_at_the_same_time_both_succeed_and_leave_one_whole(tmp_path, monkeypatch):
    path, synced = tmp_path / "a", os.fsync

    def meanwhile(file):
        monkeypatch.setattr(os, "fsync", synced)
        write_whole(path, "the other's")
        assert path.read_text() == "the other's"

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_whole(path, "ours")
    assert path.read_text() == "ours"
    assert os.listdir(tmp_path) == ["a"]


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(os, "fsync", lambda file: done.append("on the disk"))
    monkeypatch.setattr(Path, "replace", lambda *paths: done.append("named"))
    write_whole(tmp_path / "a", "text")
    assert done == ["on the disk", "named"]
