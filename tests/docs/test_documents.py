"""What the documentation shows works, and what it lists is complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import stellwerk
from stellwerk.cli.main import _COMMANDS
from stellwerk.limits import Limits
from stellwerk.model.checks import check_executable
from stellwerk.model.dialects import stellwerk as own_dialect
from stellwerk.model.reader import read_definitions
from stellwerk.wire.messages import NackCode
from stellwerk.worker import Worker

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_documentation_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(DOCS), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_readme_begins_with_its_two_commands() -> None:
    commands = code_blocks(ROOT / "README.md", "sh")[:2]
    assert commands == [
        "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/stellwerk demo\n",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest\n",
    ]


def test_the_readmes_process_can_be_deployed() -> None:
    [xml] = code_blocks(ROOT / "README.md", "xml")
    result = read_definitions(xml.encode())
    assert result.findings == ()
    assert [check_executable(process) for process in result.processes] == [()]


def test_the_readmes_worker_is_one() -> None:
    code, _, _ = code_blocks(ROOT / "README.md", "python")
    names: dict[str, object] = {}
    exec(code, names)  # the example is ours
    assert isinstance(names["worker"], Worker)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_limit_is_documented() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert [field.name for field in attrs.fields(Limits) if f"`{field.name}`" not in text] == []


def test_every_code_of_the_protocol_is_documented() -> None:
    text = (DOCS / "worker-protocol.md").read_text(encoding="utf-8")
    codes = [value for name, value in vars(NackCode).items() if name.isupper()]
    assert [code for code in codes if f"`{code}`" not in text] == []


def test_every_attribute_of_our_namespace_is_documented() -> None:
    text = (DOCS / "bpmn.md").read_text(encoding="utf-8")
    assert [name for name in own_dialect._ATTRIBUTES if f"`{name}`" not in text] == []


def test_E6_the_program_that_embeds_engine_and_worker_runs(tmp_path: Path) -> None:
    [xml] = code_blocks(ROOT / "README.md", "xml")
    _, program, _ = code_blocks(ROOT / "README.md", "python")
    assert len(program.splitlines()) <= 25
    assert code_blocks(DOCS / "embedding.md", "python")[0] == program
    (tmp_path / "greeting.bpmn").write_text(xml)
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "Hello, Ada!\n", "")
    assert (tmp_path / "hello.db").exists()


def test_the_readmes_test_of_a_process_passes(tmp_path: Path) -> None:
    [xml] = code_blocks(ROOT / "README.md", "xml")
    (tmp_path / "greeting.bpmn").write_text(xml)
    (tmp_path / "test_greeting.py").write_text(code_blocks(ROOT / "README.md", "python")[2])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout


async def test_E6_the_example_that_opens_a_file_again_runs(tmp_path: Path) -> None:
    [xml] = code_blocks(ROOT / "README.md", "xml")
    xml = re.sub(r"<serviceTask .*/>", '<userTask id="greet"/>', xml)
    _, code, _ = code_blocks(DOCS / "embedding.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    db = tmp_path / "greeting.db"
    with trio.fail_after(30):
        async with stellwerk.open_engine(db) as engine:
            await engine.deploy(("greeting.bpmn", xml.encode()))
            instance_ids = [await engine.start("greeting") for _ in range(3)]
        assert await names["approve_all"](db) == len(instance_ids)
        async with stellwerk.open_engine(db) as engine:
            assert {(await engine.instance(id_)).summary.status for id_ in instance_ids} == {"COMPLETED"}


async def test_E6_the_example_in_virtual_time_runs(mock_clock: MockClock) -> None:
    [xml] = code_blocks(ROOT / "README.md", "xml")
    wait = "<timerEventDefinition><timeDuration>P3D</timeDuration></timerEventDefinition>"
    xml = re.sub(
        r"<serviceTask .*/>", f'<intermediateCatchEvent id="greet">{wait}</intermediateCatchEvent>', xml
    ).replace('process id="greeting"', 'process id="wait"')
    *_, code = code_blocks(DOCS / "embedding.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    assert await names["wait_for_days"](xml.encode(), 2) == "RUNNING"
    assert await names["wait_for_days"](xml.encode(), 3) == "COMPLETED"


def test_every_method_of_an_engine_is_documented() -> None:
    text = (DOCS / "embedding.md").read_text(encoding="utf-8")
    methods = [name for name in dir(stellwerk.Engine) if not name.startswith("_") and name != "node"]
    assert len(methods) > 20
    assert [name for name in methods if f"`{name}(" not in text and f"engine.{name}`" not in text] == []


def test_every_option_of_an_engine_is_documented() -> None:
    text = (DOCS / "embedding.md").read_text(encoding="utf-8")
    options = inspect.signature(stellwerk.open_engine).parameters
    assert [name for name in options if not re.search(rf"^\| .*`{name}`.* \|", text, re.MULTILINE)] == []


def test_every_command_is_documented() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    commands = [name for name, _, _ in _COMMANDS]
    assert [name for name in commands if f"`{name}`" not in text and f"`stellwerk {name}" not in text] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_pages_read_well_on_github(page: Path) -> None:
    """It knows no definition lists."""
    assert re.findall(r"^: .*", page.read_text(encoding="utf-8"), re.MULTILINE) == []
