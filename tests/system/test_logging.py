"""What stands in the log: no credential, and nothing that a terminal would take for a command."""

from __future__ import annotations

import io
import json

import pytest

from stellwerk.system.logging import LogFormat, LogLevel, open_log

KEY = "sw_AAAAAAAAAAA_" + "B" * 43
TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ3In0.c2lnbmF0dXJlX29mX2l0"
SECRETS = {
    "a key": KEY,
    "a key inside a name": f"worker-{KEY}-1",
    "a key that was cut off": KEY[:40],
    "a token": TOKEN,
    "a token behind a word": f"Bearer {TOKEN}",
    "a token without its signature": TOKEN.rpartition(".")[0],
}


@pytest.fixture(params=list(LogFormat))
def form(request: pytest.FixtureRequest) -> LogFormat:
    return LogFormat(request.param)


@pytest.mark.parametrize("name", SECRETS)
def test_what_looks_like_a_credential_is_masked_wherever_it_stands(form: LogFormat, name: str) -> None:
    stream = io.StringIO()
    log = open_log(LogLevel.DEBUG, form, stream)
    secret = SECRETS[name]
    log.info("worker connected", worker=secret, topics=["a", secret], about={"of": secret})
    log.warning(secret)
    try:
        raise ValueError(f"no such topic: {secret}")
    except ValueError as error:
        log.exception("request_failed", error=error)
    text = stream.getvalue()
    assert len(text.splitlines()) == 3
    assert "B" * 16 not in text
    assert "eyJhbGci" not in text
    assert "eyJzdWIi" not in text
    assert text.count("***") >= 6
    assert "no such topic: " in text


def test_names_that_only_begin_like_a_credential_stay(form: LogFormat) -> None:
    stream = io.StringIO()
    names = "sw_eu_1 answ_customer_service eyJoe.smith sw_AAAAAAAAAAA"
    open_log(LogLevel.INFO, form, stream).info("worker connected", worker=names)
    assert names in stream.getvalue()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("a\rb\x08c\x7f", r"a\x0db\x08c\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2028level=error", r"\u2028level=error"),
        ("\ud800", r"\ud800"),
        ("ü → 🚲", "ü → 🚲"),
    ],
)
def test_a_terminal_is_told_nothing_by_the_log(raw: str, shown: str) -> None:
    stream = io.StringIO()
    open_log(stream=stream).info("request_failed", path=f"/x/{raw}", other=[raw])
    line = stream.getvalue().removesuffix("\n")
    assert f"/x/{shown}" in line
    assert line.isprintable()


def test_json_has_no_control_characters_and_the_same_values() -> None:
    stream = io.StringIO()
    path = "/x/\x1b[2J\x7f\u202e\n"
    open_log(form=LogFormat.JSON, stream=stream).info("request_failed", path=path)
    line = stream.getvalue().removesuffix("\n")
    assert line.isprintable()
    assert json.loads(line)["path"] == path
