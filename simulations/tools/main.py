"""``python -m simulations``: the commands and how they end."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, Group

from simulations.tools.children import ChildFailed
from simulations.tools.commands import PROGRAM
from simulations.tools.coverage import coverage
from simulations.tools.explain import explain
from simulations.tools.hunt import hunt
from simulations.tools.mutants import mutants
from simulations.tools.run import replay, run
from simulations.tools.shrink import shrink
from simulations.tools.twins import twins
from stellwerk.cli.mistakes import ENDED_BADLY, WRONG_USE, CommandFailed
from stellwerk.cli.output import warn
from stellwerk.cli.streams import OutputFailed, ReaderGone, guarded_output

__all__ = ["main"]

_INTERRUPTED = 130

_HELP = f"""\
Runs a whole cluster (engine nodes, workers, clients, database, network) in one process, on simulated time, from one
seed. The same seed gives the same run, to the byte.

A seed expands into a plan: what the world is like, which faults happen when, which process instances there are. First
everything is shaken by the faults; then it is left in peace, and all must come to an end. What must always hold is
checked at every commit, and against what workers and clients saw.

    {PROGRAM} run --seed 42            # a plan and its run
    {PROGRAM} hunt --minutes 5         # seeds until one fails
    {PROGRAM} replay FILE              # a plan that was kept
    {PROGRAM} explain FILE             # what happened: a page
    {PROGRAM} shrink FILE              # the smallest such plan

And is the harness itself any good?

    {PROGRAM} twins 0..19              # the same run twice?
    {PROGRAM} mutants --jobs 2         # are known bugs found?
    {PROGRAM} coverage                 # did enough happen?

Exit codes: 0 all is well, 1 a property was violated (or a bug survived, or something never happened), 2 wrong use or
another obstacle.
"""

_RUNNING = Group("Find bugs", sort_key=1)
_LOOKING = Group("Understand them", sort_key=2)
_JUDGING = Group("Judge the harness", sort_key=3)

_COMMANDS: tuple[tuple[Callable[..., int], Group], ...] = (
    (run, _RUNNING),
    (hunt, _RUNNING),
    (replay, _RUNNING),
    (explain, _LOOKING),
    (shrink, _LOOKING),
    (twins, _JUDGING),
    (mutants, _JUDGING),
    (coverage, _JUDGING),
)


def _make_app() -> App:
    app = App(
        name=PROGRAM,
        help=_flowing(_HELP.rstrip()),
        help_format="plaintext",
        version_flags=(),
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for function, group in _COMMANDS:
        app.command(function, name=function.__name__, group=group, help=_flowing(inspect.getdoc(function) or ""))
    return app


def _flowing(text: str) -> str:
    """Each paragraph on one line, to be wrapped for the terminal that it is shown in; examples stay as they are."""
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else " ".join(part.split()) for part in parts)


def main(tokens: Sequence[str] | None = None) -> int:
    """:param tokens: the command line; None: this process's. → the exit code."""
    with guarded_output():
        try:
            code = _make_app()(list(sys.argv[1:] if tokens is None else tokens))
            sys.stdout.flush()
        except CycloptsError as error:
            return _fail(" ".join(str(error).split()), WRONG_USE)
        except CommandFailed as error:
            return _fail(str(error), error.exit_code)
        except ChildFailed as error:
            return _fail(str(error), ENDED_BADLY)
        except KeyboardInterrupt:
            return _INTERRUPTED
        except ReaderGone:
            return 0
        except OutputFailed as error:
            return _fail(str(error), WRONG_USE)
    return code if isinstance(code, int) else 0


def _fail(text: str, code: int) -> int:
    for line in text.splitlines():
        warn(f"simulations: {line}")
    return code
