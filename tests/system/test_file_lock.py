"""The lock that keeps a second engine from a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stellwerk.errors import StoreUnavailable
from stellwerk.system import file_lock
from stellwerk.system.file_lock import FileLock

TRY_TO_LOCK = """
import sys
from stellwerk.errors import StoreUnavailable
from stellwerk.system.file_lock import FileLock
try:
    FileLock(sys.argv[1]).acquire()
    print("locked")
except StoreUnavailable as error:
    print(error.message)
"""

IN_USE = "{} is in use by another process (pid {}): an engine, or another stellwerk command"


def lock_elsewhere(path: Path) -> str:
    command = [sys.executable, "-c", TRY_TO_LOCK, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(params=["on the file", "beside the file"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a file to lock, with the system's own locks, and as on systems without locks of file descriptions."""
    if request.param == "beside the file":
        monkeypatch.setattr(file_lock, "_has_description_locks", lambda: False)
    elif not file_lock._has_description_locks():
        pytest.skip("this system has no locks of file descriptions")
    return tmp_path / "engine.db"


def refusal(path: Path) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        FileLock(path).acquire()
    return refused.value.message


def test_one_has_it_at_a_time_under_every_name(path: Path) -> None:
    lock = FileLock(path)
    lock.acquire()
    names = [path, path.with_name("hard.db"), path.with_name("soft.db")]
    names[1].hardlink_to(path)
    names[2].symlink_to(path)
    for name in names:
        assert refusal(name) == f"{name} is in use by another engine (pid {os.getpid()})"
    lock.release()
    lock.release()
    again = FileLock(names[1])
    again.acquire()
    again.release()


def test_another_file_under_the_same_name_is_another_lock(tmp_path: Path) -> None:
    path = tmp_path / "engine.db"
    first, second = FileLock(path), FileLock(path)
    first.acquire()
    path.unlink()
    second.acquire()
    assert "is in use" in refusal(path)
    first.release()
    assert "is in use" in refusal(path)
    second.release()


@pytest.mark.skipif(not file_lock._has_description_locks(), reason="this system has no locks of file descriptions")
def test_another_process_is_told_the_holders_pid_from_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "engine.db"
    lock = FileLock(path)
    lock.acquire()
    path.open("rb").close()  # drops every POSIX lock of this process
    assert lock_elsewhere(path) == IN_USE.format(path, os.getpid())
    assert [file.name for file in tmp_path.iterdir()] == ["engine.db"]
    lock.release()
    assert lock_elsewhere(path) == "locked"


def test_the_lock_beside_the_file_names_its_holder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "_has_description_locks", lambda: False)
    path = tmp_path / "engine.db"
    lock = FileLock(path)
    lock.acquire()
    script = TRY_TO_LOCK.replace(
        "try:", "import stellwerk.system.file_lock as m; m._has_description_locks = bool\ntry:"
    )
    command = [sys.executable, "-c", script, str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert told == IN_USE.format(path, os.getpid())
    lock.release()


def test_a_place_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "engine.db"
    assert refusal(path) == f"{path} cannot be opened: No such file or directory"


def test_a_forked_process_does_not_keep_what_was_released(path: Path) -> None:
    lock = FileLock(path)
    lock.acquire()
    assert lock._descriptor is not None
    inherited = os.dup(lock._descriptor)  # shares the lock, as the descriptor of a forked process does
    try:
        lock.release()
        assert lock_elsewhere(path) == "locked"
    finally:
        os.close(inherited)
