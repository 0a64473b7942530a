"""``MODULE:OBJECT`` on a command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stellwerk.errors import InvalidInput, NotFound
from stellwerk.worker import load_worker

SOURCE = """
from stellwerk.worker import Worker
worker = Worker()
other = Worker(worker_id="other")
nothing = 3
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("shop_of_test", "broken_of_test", "wrong_of_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "shop_of_test.py").write_text(SOURCE)
    (tmp_path / "wrong_of_test.py").write_text("len(1)")
    (tmp_path / "broken_of_test.py").write_text("import not_installed_anywhere")
    return tmp_path


def test_a_module_and_a_file_are_found(shop: Path) -> None:
    assert load_worker("shop_of_test:other").worker_id == "other"
    assert load_worker("shop_of_test") is load_worker("shop_of_test:worker")
    assert load_worker(f"{shop}/shop_of_test.py:other").worker_id == "other"
    assert load_worker("shop_of_test.py:other").worker_id == "other"


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        ("", InvalidInput, "MODULE:OBJECT is expected"),
        (":worker", InvalidInput, "MODULE:OBJECT is expected"),
        ("missing_of_test:worker", NotFound, "there is no module missing_of_test"),
        ("missing_of_test.py:worker", NotFound, "there is no file missing_of_test.py"),
        ("shop_of_test.inner:worker", NotFound, "there is no module shop_of_test.inner"),
        ("shop_of_test:missing", NotFound, "has no 'missing'"),
        ("shop_of_test:nothing", InvalidInput, "is no Worker but of type int"),
        ("..:worker", InvalidInput, "is no name of a module"),
        ("shop-of-test:worker", InvalidInput, "is no name of a module"),
    ],
)
def test_mistakes_are_named(shop: Path, target: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load_worker(target)


def test_what_the_module_misses_itself_is_not_hidden(shop: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_worker("broken_of_test:worker")


def test_what_the_module_does_wrong_is_not_hidden(shop: Path) -> None:
    for target in ("wrong_of_test:worker", "wrong_of_test.py"):
        with pytest.raises(TypeError, match="has no len"):
            load_worker(target)
