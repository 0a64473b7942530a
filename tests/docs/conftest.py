"""Runs a page of the documentation: files are saved, commands run in one shell, and what they print is compared."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import metadata
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.document import Document
from sybil.parsers.markdown import CodeBlockParser

SECONDS_MAX = 60.0
"""Until a block has printed what the page shows: a loaded machine takes its time."""
_PORT = "10560"
_END = "---the-block-has-ended---"


class Shell:
    """One bash that runs the blocks of a page one after the other, as a reader would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._output = folder / ".output"
        self._output.touch()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("STELLWERK_", "PYTEST"))
        }
        self.port = _free_port()
        environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            "PYTHONDONTWRITEBYTECODE": "1",
            "STELLWERK_URL": f"http://127.0.0.1:{self.port}",
        }
        with self._output.open("wb") as output:
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def run(self, commands: str) -> tuple[int, str]:
        """→ the exit code of the last command, and everything that was printed."""
        before = self._output.stat().st_size
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{commands}\necho {_END} $?\n")
        self._bash.stdin.flush()
        ended = re.compile(rf"^{_END} (\d+)$", re.MULTILINE)
        deadline = time.monotonic() + SECONDS_MAX
        while (match := ended.search(self._text_from(before))) is None:
            assert time.monotonic() < deadline, f"{commands}\ndoes not end:\n{self._text_from(before)}"
            assert self._bash.poll() is None, f"{commands}\nended the shell:\n{self._text_from(before)}"
            time.sleep(0.02)
        return int(match[1]), self._text_from(before)[: match.start()]

    def _text_from(self, position: int) -> str:
        return self._output.read_bytes()[position:].decode()

    def close(self) -> None:
        """Ends everything that the page has started and left running: it is all of the shell's session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        assert self._bash.stdin is not None
        self._bash.stdin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Page:
    """What happens with the blocks of a page, by their language."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._commands = ""
        self._printed = ""
        self.blocks_run = 0

    def save(self, example: Example) -> None:
        """The text before the block says ``Save this as `name```."""
        before = example.document.text[: example.start]
        name = re.findall(r"[Ss]ave this as\s+`([^`]+)`", before)[-1]
        _, folder = self._shell.run("pwd")
        Path(folder.strip(), name).write_text(self._with_port(example.parsed), encoding="utf-8")
        self.blocks_run += 1

    def run(self, example: Example) -> None:
        self._commands, self._printed = self._with_port(example.parsed), ""
        self.blocks_run += 1
        if "pip install" in self._commands:
            self._check_installation()
            return
        self._run_again()
        if "stellwerk serve" in self._commands:
            self._wait_for_engine()

    def _run_again(self) -> None:
        exit_code, self._printed = self._shell.run(self._commands)
        assert exit_code == 0, f"{self._commands}\nexit code {exit_code}:\n{self._printed}"

    def compare(self, example: Example) -> None:
        """… stands for anything within a line, and alone on a line for any lines.

        What a command shows that only looks may be true a moment later: it is looked at again.
        """
        wanted = _pattern(example.parsed)
        only_looks = re.fullmatch(r"(cat|stellwerk (show|trace|instances|incidents))( .*)?\n", self._commands)
        deadline = time.monotonic() + (SECONDS_MAX if only_looks else 0)
        while not wanted.fullmatch(_squeezed(self._printed)):
            if time.monotonic() > deadline:
                pytest.fail(f"{self._commands}\nprinted\n{self._printed}\nand the page has\n{example.parsed}")
            time.sleep(0.1)
            self._run_again()
        self.blocks_run += 1

    def _with_port(self, text: str) -> str:
        text = text.replace(_PORT, str(self._shell.port))
        return text.replace("stellwerk serve", f"stellwerk serve --port {self._shell.port}")

    def _check_installation(self) -> None:
        """What is tested is installed already: its extras are those that the page names."""
        for extras in re.findall(r"\.\[([\w,]+)\]", self._commands):
            assert set(extras.split(",")) <= set(metadata("stellwerk").get_all("Provides-Extra") or ())

    def _wait_for_engine(self) -> None:
        """A reader takes a second for the next command, by which time an engine listens."""
        until_it_listens = f"until (echo > /dev/tcp/127.0.0.1/{self._shell.port}) 2> /dev/null; do sleep 0.1; done"
        exit_code, printed = self._shell.run(until_it_listens)
        assert exit_code == 0, printed


def _squeezed(text: str) -> str:
    """Columns are as wide as their content, which differs from machine to machine."""
    lines = [re.sub(r"─+", "─", re.sub(r" +", " ", line)).strip() for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def _pattern(text: str) -> re.Pattern[str]:
    lines = _squeezed(text).splitlines()
    return re.compile("".join(r"(?:.*\n)*?" if line == "…" else _line_pattern(line) for line in lines))


def _line_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("…"))) + r"\n"


@pytest.fixture
def run_page(tmp_path: Path) -> Iterator[Callable[[Path], int]]:
    """Run a page from its beginning to its end. → how many blocks it has"""
    shell = Shell(tmp_path)

    def run(path: Path) -> int:
        page = Page(shell)
        by_language = {"xml": page.save, "python": page.save, "sh": page.run, "text": page.compare}
        parsers = [CodeBlockParser(language, evaluator) for language, evaluator in by_language.items()]
        document: Document = Sybil(parsers).parse(path)
        for example in document.examples():
            example.evaluate()
        return page.blocks_run

    yield run
    shell.close()
