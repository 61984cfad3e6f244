"""A lock on a folder: one at a time, whatever becomes of who had it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from parlab.train.lock import locked

HOLDER = """
import sys
from pathlib import Path
from parlab.train.lock import locked

with locked(Path(sys.argv[1]), "saving"):
    print("inside", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        assert process.stdout.readline() == "inside\n"
        yield process
        process.kill()


def test_the_second_is_refused_by_the_process_and_host_of_the_first(holder, tmp_path):
    said = rf"folder='{re.escape(str(tmp_path))}': another run is saving there \(process {holder.pid} on \S+, since "
    with pytest.raises(ValueError, match=said), locked(tmp_path, "saving"):
        pass
    with locked(tmp_path, "training"):  # for another purpose
        pass


def test_the_lock_of_a_process_that_was_killed_is_in_nobodys_way(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".saving.holder", ".saving.lock"]
    with locked(tmp_path, "saving"):
        said = (tmp_path / ".saving.holder").read_text()
        assert re.fullmatch(rf"process {os.getpid()} on \S+, since [-\d]+ [:\d]+ UTC", said)
    assert list(tmp_path.iterdir()) == []


def test_it_excludes_threads_of_one_process_too_and_can_be_had_again(tmp_path):
    for _ in range(2):
        with (
            locked(tmp_path, "saving"),
            pytest.raises(ValueError, match=f"process {os.getpid()} "),
            locked(tmp_path, "saving"),
        ):
            pass


def test_a_folder_that_it_made_is_gone_again_unless_something_was_written(tmp_path):
    for name, there in (("empty", False), ("full", True)):
        with locked(tmp_path / name, "saving"):
            if there:
                (tmp_path / name / "file").write_text("")
        assert (tmp_path / name).exists() == there
    (tmp_path / "kept").mkdir()
    with locked(tmp_path / "kept", "saving"):
        pass
    assert (tmp_path / "kept").exists()


def test_a_folder_that_is_deleted_meanwhile_can_be_had_again(tmp_path):
    for _ in range(2):
        with locked(tmp_path / "run", "saving"):
            shutil.rmtree(tmp_path / "run")


def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch):
    def refuses(number):
        def acquire(self, **how):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(FileLock, "acquire", acquire)

    refuses(errno.ENOLCK)
    said = r"\.saving\.lock: there are no locks here .*No locks available"
    with pytest.warns(UserWarning, match=said), locked(tmp_path, "saving"):
        assert (tmp_path / ".saving.holder").exists()
    assert list(tmp_path.iterdir()) == []
    refuses(errno.EROFS)  # nothing can be written there at all
    with pytest.raises(OSError, match="Read-only file system"), locked(tmp_path, "saving"):
        pass
