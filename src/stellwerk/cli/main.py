"""The command ``stellwerk``.

Each command lives in a module of its own, which imports the engine, trio or rich only when it runs: help is quick.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter

from stellwerk.cli import keys
from stellwerk.cli.check import check
from stellwerk.cli.deploy import definitions, deploy
from stellwerk.cli.incidents import incidents, resolve, retry
from stellwerk.cli.instances import cancel, instances, set_variables, start
from stellwerk.cli.maintenance import backup, prune
from stellwerk.cli.mistakes import CommandFailed, Mistake, traceback_if_wanted, unexpected
from stellwerk.cli.options import flag
from stellwerk.cli.output import warn
from stellwerk.cli.past import replay, trace
from stellwerk.cli.people import complete, message, messages, user_tasks
from stellwerk.cli.serve import serve
from stellwerk.cli.show import show
from stellwerk.cli.streams import OutputFailed, ReaderGone, guarded_output, occupy_closed_descriptors
from stellwerk.cli.tasks import nodes, tasks, topics, workers
from stellwerk.cli.worker import worker

__all__ = ["main", "run"]

_INTERRUPTED = 130
_PLACE_TO_BREAK = re.compile(r"""'[^']*'|"[^"]*"|(?<=\S) (?=--|\| )""")
_SEVERAL = {"check": "[FILE...]", "deploy": "FILE...", "retry": "[INCIDENT...]", "cancel": "INSTANCE..."}
"""What they take any number of, for the line that says how to use them."""
_DEMO_ORDERS_MAX = 10_000
_DEMO_WORKERS_MAX = 32
"""It is to show something, not to bring the machine down."""

_HELP = """\
A BPMN process engine whose heart is external tasks: durable, leased, fenced, pushed to workers.

See it at work: stellwerk demo

Or step by step, in three terminals:

    stellwerk check order.bpmn      # what of it can run; needs no engine
    stellwerk serve                 # an engine; its data are in stellwerk.db
    stellwerk worker shop.workers   # the Worker of shop/workers.py
    stellwerk deploy order.bpmn
    stellwerk start order --variables '{"amount": 12.5}' --wait
    stellwerk show INSTANCE         # where it stands; its past: trace, replay

Commands ask the engine at --url (or STELLWERK_URL; http://127.0.0.1:10560 without), or with --db a database: a file
that no engine has open, or PostgreSQL. Nothing begins to work in it by that: it is read, or changed as you say.

Exit codes: 0 ended well, 1 ended in an error or with an incident, 2 wrong use or
another obstacle, 3 no engine answers, or it cannot now.
"""

_RUNNING = Group("Run", sort_key=1)
_PROCESSES = Group("Processes", sort_key=2)
_LOOKING = Group("Look", sort_key=3)
_OPERATING = Group("Operate", sort_key=4)

_COMMANDS: tuple[tuple[str, Callable[..., int], Group], ...] = (
    ("serve", serve, _RUNNING),
    ("worker", worker, _RUNNING),
    ("check", check, _PROCESSES),
    ("deploy", deploy, _PROCESSES),
    ("definitions", definitions, _PROCESSES),
    ("start", start, _PROCESSES),
    ("instances", instances, _LOOKING),
    ("show", show, _LOOKING),
    ("trace", trace, _LOOKING),
    ("replay", replay, _LOOKING),
    ("tasks", tasks, _LOOKING),
    ("user-tasks", user_tasks, _LOOKING),
    ("incidents", incidents, _LOOKING),
    ("messages", messages, _LOOKING),
    ("topics", topics, _LOOKING),
    ("workers", workers, _LOOKING),
    ("nodes", nodes, _LOOKING),
    ("message", message, _OPERATING),
    ("complete", complete, _OPERATING),
    ("resolve", resolve, _OPERATING),
    ("retry", retry, _OPERATING),
    ("set-variables", set_variables, _OPERATING),
    ("cancel", cancel, _OPERATING),
    ("prune", prune, _OPERATING),
    ("backup", backup, _OPERATING),
)


def _demo(
    *,
    orders: Annotated[int, Parameter(help="How many orders.")] = 200,
    workers: Annotated[int, Parameter(help="How many worker processes.")] = 4,
    seed: Annotated[int, Parameter(help="Which orders fail, and how.")] = 1,
    keep: Annotated[bool, flag(help="Keep database, logs and ledgers.")] = False,
) -> int:
    """An order saga with real processes: a worker and the engine are killed on the way, and nothing is lost.

    Exit code 0 when every order was shipped once or compensated in reverse order; that is checked.
    """
    if not (1 <= orders <= _DEMO_ORDERS_MAX and 1 <= workers <= _DEMO_WORKERS_MAX):
        raise Mistake(f"--orders is 1 to {_DEMO_ORDERS_MAX}, --workers 1 to {_DEMO_WORKERS_MAX}: each is a process")
    from stellwerk.cli.demo.run import run_demo

    return run_demo(orders=orders, workers=workers, seed=seed, keep=keep)


def _make_app() -> App:
    app = App(
        name="stellwerk",
        help=_flowing(_HELP.rstrip()),
        help_format="plaintext",
        version=version("stellwerk"),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for name, function, group in (("demo", _demo, _RUNNING), *_COMMANDS):
        usage = f"Usage: stellwerk {name} [OPTIONS] {_SEVERAL[name]}\n" if name in _SEVERAL else None
        app.command(function, name=name, group=group, help=_flowing(inspect.getdoc(function) or ""), usage=usage)
    app.command(_make_keys_app())
    return app


def _make_keys_app() -> App:
    about = "Make, list and revoke API keys."
    app = App(name="keys", help=about, help_format="plaintext", version_flags=(), group=_OPERATING)
    for name, function in (("create", keys.create), ("list", keys.list_keys), ("revoke", keys.revoke)):
        app.command(function, name=name, help=_flowing(inspect.getdoc(function) or ""))
    return app


def _flowing(text: str) -> str:
    """Each paragraph on one line, to be wrapped for the terminal that it is shown in; examples are broken for it here.

    So that a command that is copied from there runs.
    """
    paragraphs = text.split("\n\n")
    width = shutil.get_terminal_size().columns
    return "\n\n".join(
        "\n".join(piece for line in part.splitlines() for piece in _broken(line, width - 1))
        if part.startswith(" ")
        else " ".join(part.split())
        for part in paragraphs
    )


def _broken(command: str, width: int) -> list[str]:
    """A command in lines that the shell reads as one: broken before options and pipes that stand in no quotes."""
    places = [match.start() for match in _PLACE_TO_BREAK.finditer(command) if match[0].startswith(" ")]
    fitting = [at for at in places if at + 2 <= width]
    if len(command) <= width or not fitting:
        return [command]
    at = max(fitting)
    return [f"{command[:at]} \\", *_broken(f"        {command[at:].lstrip()}", width)]


def run(tokens: Sequence[str]) -> int:
    """Run a command line; returns the exit code. Whatever is wrong with it becomes a line on stderr."""
    with guarded_output():
        return _run(tokens)


def _run(tokens: Sequence[str]) -> int:
    try:
        code = _make_app()(list(tokens))
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(Mistake(" ".join(str(error).split())))
    except CommandFailed as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ReaderGone:
        return 0
    except OutputFailed as error:
        return _fail(Mistake(str(error)))
    except Exception as error:  # noqa: BLE001 - whatever it is, a user can do more with a line than with a traceback
        return _fail_unexpectedly(error)
    return code if isinstance(code, int) else 0


def _fail(error: CommandFailed) -> int:
    for line in str(error).splitlines() or [type(error).__name__]:
        warn(line if _names_a_place(line) else f"stellwerk: {line}")
    return error.exit_code


def _fail_unexpectedly(error: Exception) -> int:
    shown = traceback_if_wanted(error)
    if shown is not None:
        warn(shown)
    return _fail(unexpected(error))


def _names_a_place(line: str) -> bool:
    """``order.bpmn:3:7: …`` or ``shop.py:7: …``: as compilers print it, so that editors find the place. A host with its
    port is none."""
    return re.match(r"(?!PostgreSQL database )[^:]+:\d+:(\d+:)? ", line) is not None


def main() -> None:
    occupy_closed_descriptors()
    sys.exit(run(sys.argv[1:]))
