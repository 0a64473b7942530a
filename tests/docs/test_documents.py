"""What the documentation shows works, and what it lists is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from stellwerk.actors.node import Node
from stellwerk.app import AppConfig, open_engine
from stellwerk.cli.main import _COMMANDS
from stellwerk.limits import Limits
from stellwerk.model.checks import check_executable
from stellwerk.model.dialects import stellwerk as own_dialect
from stellwerk.model.reader import read_definitions
from stellwerk.system.logging import LogLevel
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
    [code] = code_blocks(ROOT / "README.md", "python")
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


async def test_E6_the_example_of_an_engine_inside_a_program_runs() -> None:
    [xml] = code_blocks(ROOT / "README.md", "xml")
    code, _ = code_blocks(DOCS / "embedding.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    with trio.fail_after(30):
        assert await names["greet_in_process"](xml.encode()) == "Hello, Ada!"


async def test_E6_the_example_of_a_node_without_a_port_runs(tmp_path: Path) -> None:
    [xml] = code_blocks(ROOT / "README.md", "xml")
    xml = re.sub(r"<serviceTask .*/>", '<userTask id="greet"/>', xml)
    _, code = code_blocks(DOCS / "embedding.md", "python")
    names: dict[str, Any] = {}
    exec(code, names)
    config = AppConfig(db=tmp_path / "greeting.db", log_level=LogLevel.ERROR)
    with trio.fail_after(30):
        async with open_engine(config) as node:
            await node.deploy([("greeting.bpmn", xml.encode())])
            instance_ids = [await node.start_instance("greeting", {}) for _ in range(3)]
        assert await names["approve_all"](config.db) == len(instance_ids)
        async with open_engine(config) as node:
            assert {(await node.view(id_)).summary.status for id_ in instance_ids} == {"COMPLETED"}


def test_every_method_of_a_node_is_documented() -> None:
    text = (DOCS / "embedding.md").read_text(encoding="utf-8")
    internal = {
        *("start", "open_session", "session_ended", "dispatcher", "wake_dispatchers", "returned", "undeliverable"),
        *("post", "spawn", "stepped"),
    }
    methods = [name for name, value in vars(Node).items() if callable(value) and not name.startswith("_")]
    assert [name for name in methods if f"`{name}(" not in text and name not in internal] == []


def test_every_command_is_documented() -> None:
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    commands = [name for name, _, _ in _COMMANDS]
    assert [name for name in commands if f"`{name}`" not in text and f"`stellwerk {name}" not in text] == []


def test_every_path_of_the_http_api_is_documented() -> None:
    text = re.sub(r"\{\w+\}", "{id}", (DOCS / "http-api.md").read_text(encoding="utf-8"))
    paths = re.findall(
        r'^            \("(GET|POST)", "(/[^"]+)"',
        (ROOT / "src/stellwerk/server/http/api.py").read_text(),
        re.MULTILINE,
    )
    assert len(paths) > 10
    wanted = [f"{method} /api/v1{re.sub(r'{[a-z_]+}', '{id}', path)}" for method, path in paths]
    assert [line for line in wanted if f"`{line}`" not in text] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_pages_read_well_on_github(page: Path) -> None:
    """It knows no definition lists."""
    assert re.findall(r"^: .*", page.read_text(encoding="utf-8"), re.MULTILINE) == []
