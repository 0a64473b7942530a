"""The page in a real browser: what is on the screen, and whether the scrubber moves it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simulations.tools.explanation import explain_run
from simulations.tools.outcomes import RunResult
from simulations.tools.page.document import page

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_WIDTH, _HEIGHT = 1280, 900
_SECONDS_MAX = 60


class Browser:
    """Headless Chromium, driven through chromedriver's WebDriver."""

    def __init__(self, driver: str, browser: str, folder: Path) -> None:
        self._driver = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        )
        assert self._driver.stdout is not None
        port = next(
            match[1] for line in self._driver.stdout if (match := re.search(r"successfully on port (\d+)", line))
        )
        self._url = f"http://127.0.0.1:{port}/session"
        arguments = [
            "--headless=new",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            f"--window-size={_WIDTH},{_HEIGHT}",
            f"--user-data-dir={folder / 'profile'}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": browser, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            session = self._post("", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._end_driver()
            raise
        self._url += f"/{session['sessionId']}"

    def _post(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        request = urllib.request.Request(
            f"{self._url}{path}",
            data=json.dumps(body).encode() if method == "POST" else None,
            headers={"Content-Type": "application/json"},
            method=method,
        )
        # Straight to this machine, whatever proxy there is.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_SECONDS_MAX) as answer:
            return json.load(answer)["value"]

    def open(self, file: Path) -> None:
        self._post("/url", {"url": file.as_uri()})

    def run(self, script: str, *values: object) -> Any:
        """JavaScript; `values` are its `arguments`, what it returns is the result."""
        return self._post("/execute/sync", {"script": script, "args": list(values)})

    def click(self, selector: str) -> None:
        """As a hand would: it must be on the screen, and nothing above it."""
        element = self._post("/element", {"using": "css selector", "value": selector})
        self._post(f"/element/{next(iter(element.values()))}/click", {})

    def press(self, selector: str, key: str) -> None:
        element = self._post("/element", {"using": "css selector", "value": selector})
        self._post(f"/element/{next(iter(element.values()))}/value", {"text": key})

    def prefers(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._post("/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})

    def console(self) -> list[str]:
        """What the page wrote there since the last call, errors of loading too."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def boxes(self, selector: str) -> list[dict[str, float]]:
        """Where each of them is on the page; hidden ones have no size."""
        script = """
            return [...document.querySelectorAll(arguments[0])].map((one) => {
              const box = one.getBoundingClientRect();
              return {left: box.left, right: box.right, top: box.top, bottom: box.bottom};
            });"""
        found: list[dict[str, float]] = self.run(script, selector)
        return found

    def close(self) -> None:
        self._post("", {}, method="DELETE")
        self._end_driver()

    def _end_driver(self) -> None:
        self._driver.terminate()
        self._driver.wait(_SECONDS_MAX)
        assert self._driver.stdout is not None
        self._driver.stdout.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    binary = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if driver is None or binary is None:
        pytest.skip("no Chromium with chromedriver here (Debian: chromium and chromium-driver)")
    opened = Browser(driver, binary, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def shown(browser: Browser, failing: RunResult, tmp_path: Path) -> Browser:
    file = tmp_path / "page.html"
    file.write_text(page(explain_run(failing, "python -m simulations run --seed 42")), encoding="utf-8")
    browser.prefers("light")
    browser.open(file)
    return browser


def _is_within(inner: dict[str, float], outer: dict[str, float]) -> bool:
    return (
        outer["left"] - 1 <= inner["left"] < inner["right"] <= outer["right"] + 1
        and outer["top"] - 1 <= inner["top"] < inner["bottom"] <= outer["bottom"] + 1
    )


def test_lanes_bars_leases_arrows_and_the_violation_are_on_the_screen(shown: Browser) -> None:
    (figure,) = shown.boxes("#figure")
    assert figure["right"] - figure["left"] > 1000
    assert figure["top"] < 400, "the figure begins within the first screen"
    lanes = shown.boxes(".lane")
    assert len(lanes) == 8
    assert all(_is_within(lane, figure) for lane in lanes)
    assert all(above["bottom"] <= below["top"] + 1 for above, below in pairwise(lanes))
    for selector, count in (("rect.strip", 6), ("rect.state", 2), ("rect.lease", 2), ("rect.promise", 1)):
        bars = shown.boxes(selector)
        assert len(bars) == count, selector
        assert all(bar["right"] - bar["left"] > 10 for bar in bars), selector
    assert len(shown.boxes("line.arrow")) >= 8
    (violation,) = shown.boxes("#violation")
    assert violation["bottom"] - violation["top"] > 250
    assert figure["left"] < violation["left"] < figure["right"]
    assert shown.console() == []


def test_a_page_of_1280_pixels_needs_no_scrolling_to_the_side(shown: Browser) -> None:
    assert shown.run("return document.documentElement.scrollWidth") <= _WIDTH


def test_the_scrubber_moves_through_time(shown: Browser) -> None:
    def chip(lane: str) -> str:
        return str(
            shown.run("return document.querySelector(`[data-lane='${arguments[0]}'].chip span`).textContent", lane)
        )

    def at(seconds: float) -> None:
        shown.run(
            """const one = document.getElementById("scrubber"), start = Number(figure.dataset.start);
            one.value = Math.round((arguments[0] - start) * 1e6);
            one.dispatchEvent(new Event("input"));""",
            seconds,
        )

    assert shown.run("return now.textContent") == "3.900000 s", "it begins at the violation"
    assert chip("t-4711") == "COMPLETED"
    (before,) = shown.boxes("#cursor")
    at(2.5)
    (after,) = shown.boxes("#cursor")
    assert after["left"] < before["left"] - 100
    assert chip("t-4711") == "LOCKED by worker-2, fence …0041, 0.500 s left"
    assert chip("worker-2") == "frozen"
    assert chip("node-1") == "down"
    assert shown.run("return document.querySelector('#events tr.now').textContent").startswith("2.2")
    at(3.04)
    assert chip("t-4711").endswith("over for 0.040 s")
    at(0.95)
    assert chip("t-4711") == "READY"
    assert chip("node-1") == "up"
    assert shown.run("return document.querySelectorAll('svg .future').length") > 10
    assert shown.console() == []


def test_buttons_and_keys_go_from_event_to_event(shown: Browser) -> None:
    shown.click("#previous")
    assert shown.run("return now.textContent") == "3.610000 s"
    shown.click("#next")
    assert shown.run("return now.textContent") == "3.900000 s"
    shown.press("#scrubber", "\ue012")  # arrow left
    assert shown.run("return now.textContent") == "3.610000 s"
    shown.click("#events tr[data-at='3.200000']")
    assert shown.run("return now.textContent") == "3.200000 s"
    shown.click(".mark[data-x='3.601000'] circle")
    assert shown.run("return now.textContent") == "3.601000 s"
    assert shown.console() == []


def test_zoom_makes_a_moment_wide(shown: Browser) -> None:
    def width() -> float:
        first = shown.boxes("line.arrow.request")[-1]
        return first["right"] - first["left"]

    before = width()
    shown.click("#zoom-in")
    assert width() == pytest.approx(2 * before, rel=0.05)
    shown.click("#focus")
    assert shown.boxes("rect.lease")[0]["right"] < shown.boxes("#figure")[0]["left"] + 150, "it is out of sight"
    shown.click("#fit")
    assert width() == pytest.approx(before, rel=0.05)
    assert shown.console() == []


def test_it_plays(shown: Browser) -> None:
    shown.run("document.getElementById('scrubber').value = 0; scrubber.dispatchEvent(new Event('input'))")
    shown.click("#play")
    script = """
        const done = arguments[0];
        const look = () => Number(scrubber.value) > 1e6 ? done(true) : requestAnimationFrame(look);
        look();"""
    assert shown._post("/execute/async", {"script": script, "args": []}) is True
    shown.click("#play")
    assert shown.run("return play.textContent") == "play"
    assert shown.console() == []


def test_colours_follow_the_reader(shown: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    light = shown.run(paper)
    shown.prefers("dark")
    dark = shown.run(paper)
    assert light == "rgb(246, 247, 249)"
    assert dark == "rgb(17, 21, 27)"
