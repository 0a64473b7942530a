"""Tables, lines and help in the 80 columns of a terminal: nothing is wider, nothing is broken where it hurts."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stellwerk.cli.layout import Column, Table, one_line, wrapped
from stellwerk.cli.shortening import beginnings, brief_instant, endings, short_ids, times_of_day, without_uuids

Run = Callable[..., Any]

ORDER = """<?xml version="1.0" encoding="UTF-8"?>
<definitions xmlns="http://www.omg.org/spec/BPMN/20100524/MODEL" id="d" targetNamespace="t"
             xmlns:stellwerk="https://stellwerk.dev/schema/1.0/bpmn">
  <message id="m" name="payment received" stellwerk:correlationKey="=orderId"/>
  <process id="shop-order" isExecutable="true" stellwerk:failurePolicy="incident">
    <startEvent id="order-received"/>
    <sequenceFlow id="f1" sourceRef="order-received" targetRef="fork"/>
    <parallelGateway id="fork"/>
    <sequenceFlow id="f2" sourceRef="fork" targetRef="charge-credit-card"/>
    <sequenceFlow id="f3" sourceRef="fork" targetRef="wait-for-payment"/>
    <sequenceFlow id="f4" sourceRef="fork" targetRef="approve-shipment"/>
    <serviceTask id="charge-credit-card" stellwerk:topic="charge-credit-card" stellwerk:retries="1"/>
    <receiveTask id="wait-for-payment" messageRef="m"/>
    <userTask id="approve-shipment" name="Approve the shipment of this rather expensive order, would you, please"/>
    <boundaryEvent id="too-late" attachedToRef="approve-shipment">
      <timerEventDefinition><timeDuration>PT2H</timeDuration></timerEventDefinition>
    </boundaryEvent>
  </process>
</definitions>
"""
FAILURE = (
    "raise ValueError('the bank refuses this card:\\n  code 51 (insufficient funds)\\n  ask the customer for another')"
)
FAILURE_TOLD = "ValueError: the bank refuses this card: ↵ code 51 (insufficient funds) ↵ ask the customer for another"


@pytest.fixture
def order(ask: Run, work: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An instance that waits for everything that there is, at 80 columns, and its worker is gone."""
    (tmp_path / "order.bpmn").write_text(ORDER)
    assert ask("deploy", "order.bpmn").exit_code == 0
    worker = work("charge-credit-card", FAILURE)
    arguments = ("--variables", '{"orderId": "A-17"}', "--business-key", "order-2026-17")
    instance_id = str(ask("start", "shop-order", *arguments, "--wait", "--timeout", "30").out.split()[0])
    assert worker.stop() == 0
    monkeypatch.setenv("COLUMNS", "80")
    return instance_id


def rows_of(shown: str, title: str) -> list[str]:
    """The lines of a table below its rule."""
    after = shown.split(f"\n{title}", 1)[-1] if not shown.startswith(title) else shown
    return after.split("─\n", 1)[1].split("\n\n", 1)[0].splitlines()


def plain(shown: str) -> str:
    return " ".join(shown.split())


def test_nothing_is_wider_than_the_terminal(ask: Run, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: tuple[tuple[str, ...], ...] = (
        ("instances",),
        ("tasks",),
        ("topics",),
        ("definitions",),
        ("incidents",),
        ("user-tasks",),
        ("trace", order),
        ("replay", order),
        ("show", order, "--history"),
    )
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        for command in commands:
            shown = re.sub(r"^  Traceback.*?\n(?!  )", "", ask(*command).out, flags=re.DOTALL | re.MULTILINE)
            too_wide = [line for line in shown.splitlines() if len(line) > int(columns)]
            assert not too_wide, (command, columns)


def test_instances_are_a_line_each_with_an_id_to_copy(ask: Run, order: str) -> None:
    ask("start", "shop-order", "--variables", '{"orderId": "A-18"}')
    shown = ask("instances", "--process", "shop-order").out
    ids = [row["instance_id"] for row in json.loads(ask("instances", "--process", "shop-order", "--json").out)]
    lines = rows_of(shown, "Instances (ids shortened)")
    assert len(lines) == len(ids) >= 2
    for line, instance_id in zip(lines, ids, strict=True):
        beginning = line.split()[0]
        assert instance_id.startswith(beginning)
        assert len(beginning) >= 13
        assert f"Instance {instance_id}" in ask("show", beginning).out
        assert "shop-order:1" in line


def test_ids_are_whole_where_they_fit(ask: Run, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    assert any(line.startswith(f"{order} ") for line in ask("instances").out.splitlines())


def test_tasks_say_what_happened_below_where_there_is_no_room_beside(ask: Run, order: str) -> None:
    lines = rows_of(ask("tasks", "--instance", order).out, "External tasks")
    (row, *below) = lines
    assert row.split()[1:] == ["charge-credit-card", "charge-credit-card", "FAILED", "0/1"]
    assert all(line.startswith("    ") for line in below)
    assert plain("\n".join(below)) == FAILURE_TOLD


def test_show_says_what_each_token_waits_for(ask: Run, order: str) -> None:
    shown = ask("show", order).out
    told = {line.split()[0]: line for line in rows_of(shown, "Tokens")}
    assert told["charge-credit-card"].endswith("incident retries_exhausted")
    assert told["wait-for-payment"].endswith('message "payment received", key A-17')
    assert "user task; timer at too-late, due " in plain(shown)
    last = ask("start", "shop-order", "--variables", '{"orderId": "A-19"}').out.strip()
    assert "external task, topic charge-credit-card" in plain(ask("show", last).out)


def test_trace_tells_the_key_of_a_message_and_keeps_its_indent(ask: Run, order: str) -> None:
    shown = ask("trace", order).out
    assert "open: payment received, key A-17" in plain(shown)
    assert f"open: {FAILURE_TOLD}" in plain(shown)
    (at,) = (number for number, line in enumerate(shown.splitlines()) if line.startswith("  incident "))
    following = shown.splitlines()[at + 1 :]
    told = following[: following.index("")]
    assert told
    assert all(line.startswith("    ") for line in told)


def test_workers_default_names_are_short_in_tables_only(ask: Run, order: str, work: Run) -> None:
    (lease,) = json.loads(ask("show", order, "--json").out)["tasks"][0]["attempts"]
    whole = lease["worker_id"]
    short = re.sub(r"-([0-9a-f]{8})-[0-9a-f-]{27}$", r"-\1", whole)
    assert len(short) == len(whole) - 28
    for command in ("show", "trace"):
        shown = ask(command, order).out
        assert f" {short} " in shown
        assert whole not in shown


def test_history_stands_in_steps(ask: Run, order: str) -> None:
    shown = ask("show", order, "--history").out.split("\nHistory\n", 1)[1]
    history = json.loads(ask("show", order, "--history", "--json").out)["history"]
    assert len(re.findall(r"^  step \d+, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC$", shown, re.MULTILINE)) == 2
    events = re.findall(r"^ +(\d+)  (\w+)", shown, re.MULTILINE)
    assert events == [(str(entry["sequence"]), entry["event_type"]) for entry in history]
    assert re.search(r"TokenEntered +node_id=fork via=f1 scope_id=…\w{4} token_id=…\w{4}\n", shown)
    assert re.search(r"due_at=\d{4}-\d\d-\d\dT", shown)


def test_incidents_and_titles_go_on_indented(ask: Run, order: str) -> None:
    shown = ask("incidents", "--instance", order).out
    first, *others = shown.rstrip().splitlines()
    assert first.startswith("incident ")
    assert len(others) > 3
    assert all(line.startswith("  ") for line in others)
    assert FAILURE_TOLD in plain(shown)
    (row,) = json.loads(ask("user-tasks", "--instance", order, "--json").out)
    first, second, *_ = ask("user-tasks", "--instance", order).out.splitlines()
    assert plain(f"{first} {second}") == f"user task {row['user_task_id']}: {row['name']} (approve-shipment)"
    assert second.startswith("  ")


def test_beginning_of_several_ids_names_them_all(stellwerk: Run, start_engine: Run, model: Run) -> None:
    at = ("--url", start_engine().url)
    assert stellwerk("deploy", model('<userTask id="step"/>', key="order"), *at).exit_code == 0
    ids = [stellwerk("start", "order", *at).out.strip() for _ in range(6)]
    ambiguous = stellwerk("show", ids[0][:6], *at)
    assert (ambiguous.exit_code, ambiguous.is_one_clear_line) == (2, True)
    named = ", ".join(reversed(ids[1:]))
    assert ambiguous.err == f"stellwerk: {ids[0][:6]!r} is the beginning of several instances: {named}, …\n"
    (other, *_) = json.loads(stellwerk("user-tasks", "--json", *at).out)
    assert stellwerk("cancel", *ids[2:], *at).exit_code == 0
    left = [row["user_task_id"] for row in json.loads(stellwerk("user-tasks", "--json", *at).out)]
    assert other["user_task_id"] == left[0]
    complete = stellwerk("complete", left[0][:6], *at)
    assert complete.err == f"stellwerk: {ids[0][:6]!r} is the beginning of several user tasks: {', '.join(left)}\n"


def test_too_short_beginning_is_told_so(ask: Run, order: str) -> None:
    for command in (("show", order[:5]), ("resolve", "01a2"), ("complete", "0")):
        ended = ask(*command)
        assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
        assert ended.err == f"stellwerk: {command[1]!r} is too short: give at least the first 6 characters of the id\n"


def test_wrong_value_is_told_by_its_option(ask: Run, order: str) -> None:
    for arguments, option in (
        (("replay", order, "--at", "0"), "--at"),
        (("tasks", "--limit", "0"), "--limit"),
        (("message", "paid", "--ttl-seconds", "99999999999"), "--ttl-seconds"),
        (("start", "shop-order", "--business-key", "x" * 300), "--business-key"),
    ):
        ended = ask(*arguments)
        assert (ended.exit_code, ended.is_one_clear_line) == (2, True)
        assert ended.err.endswith(f" ({option})\n")
        assert "@" not in ended.err


# --- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", ["60", "80"])
def test_examples_in_the_help_can_be_copied(stellwerk: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    listed = stellwerk("--help").out
    commands = re.findall(r"^│ ([a-z][a-z-]+) ", listed, re.MULTILINE)
    assert len(commands) > 20
    monkeypatch.setenv("COLUMNS", "500")
    whole = {command: examples_of(stellwerk(command, "--help").out) for command in commands}
    monkeypatch.setenv("COLUMNS", columns)
    for command in commands:
        shown = stellwerk(command, "--help").out
        assert examples_of(re.sub(r" \\ *\n +", " ", shown)) == whole[command]
        assert max(map(len, shown.splitlines())) <= int(columns)


def examples_of(shown: str) -> list[str]:
    return [line.strip() for line in shown.splitlines() if line.startswith("    stellwerk ")]


def test_usage_names_the_arguments(stellwerk: Run) -> None:
    for command, arguments in (
        ("check", "[FILE...]"),
        ("deploy", "FILE..."),
        ("retry", "[INCIDENT...]"),
        ("cancel", "INSTANCE..."),
    ):
        assert stellwerk(command, "--help").out.startswith(f"Usage: stellwerk {command} [OPTIONS] {arguments}\n")


# --- the layout itself -----------------------------------------------------------------------------------------------

FIRST, SECOND = "0199f2a4-1b2c-7d3e-8f40-0123456789ab", "0199f2a4-1b2c-7d3e-8f40-0123456789ac"
LATER = "0199f2a4-1b2d-7d3e-8f40-0123456789ad"


@pytest.mark.parametrize(
    "text, width, lines",
    [
        ("", 5, [""]),
        ("one two three", 7, ["one two", "three"]),
        ("  one two three", 12, ["  one two", "  three"]),
        ("charge-credit-card", 8, ["charge-", "credit-", "card"]),
        ("at charge-credit-card", 18, ["at", "charge-credit-card"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("größe größe", 5, ["größe", "größe"]),
        ("漢字漢字", 4, ["漢字", "漢字"]),
        ("one two", None, ["one two"]),
    ],
)
def test_lines_break_between_words_first(text: str, width: int | None, lines: list[str]) -> None:
    assert wrapped(text, width) == lines


def test_line_that_goes_on_hangs() -> None:
    assert wrapped("incident a: no money", 14, "  ") == ["incident a: no", "  money"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert one_line("  a\n\n  b\r\nc\td") == "  a ↵ b ↵ c d"
    assert one_line("\x1b[31mred\x07") == "\\x1b[31mred\\x07"


def test_ids_are_cut_to_what_is_different() -> None:
    assert beginnings("id", [FIRST, LATER, ""]) == ("id", [FIRST[:13], LATER[:13], ""])
    assert beginnings("id", [FIRST, SECOND, LATER]) == ("id", [FIRST, SECOND, LATER])
    assert endings("id", [FIRST, SECOND]) == ("id", ["…89ab", "…89ac"])
    assert short_ids([f"token={FIRST}", f"by {SECOND}"]) == ["token=…89ab", "by …89ac"]


def test_workers_are_cut_unless_they_become_alike() -> None:
    assert without_uuids("worker", [f"till-7-{FIRST}", "billing"]) == ("worker", ["till-7-0199f2a4", "billing"])
    alike = [f"till-{FIRST}", f"till-{SECOND}"]
    assert without_uuids("worker", alike) == ("worker", alike)


def test_date_of_today_is_left_out_and_another_one_goes_into_the_heading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2026, 1, 31, 12, 0, 0, 5, 31, 0)))
    assert times_of_day("from", ["2026-01-31 10:00:00", "2026-01-30 09:00:00"]) == (
        "from",
        ["10:00:00", "2026-01-30 09:00:00"],
    )
    assert times_of_day("from", ["2026-01-30 09:00:00", ""]) == ("2026-01-30 from", ["09:00:00", ""])
    assert brief_instant("2026-01-31T10:00:00.123Z") == "10:00:00"
    assert brief_instant("2026-01-30T10:00:00.123Z") == "2026-01-30 10:00:00"


def test_very_narrow_terminal_gets_a_line_for_each_cell() -> None:
    columns = (Column("instance", "id"), Column("definition"), Column("status", "whole"), Column("key"))
    heading, lines = Table.of(columns, [(FIRST, "subscription:1", "COMPLETED", None)], 24).lines(24)
    assert (heading, lines) == ([], ["0199f2a4-1b2c", "  definition:", "    subscription:1", "  status: COMPLETED"])


def test_letters_are_not_broken_while_others_can_give_way() -> None:
    columns = (Column("element"), Column("value"))
    _, lines = Table.of(columns, [("reserveStockAndNotify", "one two three four")], 32).lines(32)
    assert lines == ["reserveStockAndNotify  one two", "                       three", "                       four"]
