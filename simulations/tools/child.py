"""A process that runs plans: one JSON object a line comes in, one goes out.

``{"plan": …, "mutant": null, "trace": null}`` → ``{"outcome": …}`` or ``{"error": "…"}``. `trace` names a file for the
lines of the trace. What the engine prints goes to standard error.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO, cast

import attrs

from simulations.kernel.trace import line_of
from simulations.plans.plan import from_json
from simulations.tools.outcomes import Outcome, Simulate

__all__ = ["serve"]

_SIMULATE = "simulations.running:simulate"


def serve(requests: TextIO, answers: TextIO, simulate: Simulate) -> None:
    """Until there are no more requests."""
    for line in requests:
        answers.write(f"{json.dumps(_answer(json.loads(line), simulate))}\n")
        answers.flush()


def _answer(request: Mapping[str, object], simulate: Simulate) -> dict[str, object]:
    try:
        return {"outcome": attrs.asdict(_run(request, simulate))}
    except Exception:  # noqa: BLE001 - whatever it is, the one who asked shall hear of it and of the plan
        return {"error": traceback.format_exc()}


def _run(request: Mapping[str, object], simulate: Simulate) -> Outcome:
    plan, mutant, trace = from_json(str(request["plan"])), request["mutant"], request["trace"]
    result = simulate(plan, keep_trace=trace is not None, mutant=None if mutant is None else str(mutant))
    if trace is not None:
        Path(str(trace)).write_text("".join(f"{line_of(row)}\n" for row in result.rows or ()), encoding="utf-8")
    return Outcome.of(result)


def _named(name: str) -> Simulate:
    module, _, function = name.partition(":")
    return cast("Simulate", getattr(importlib.import_module(module), function))


if __name__ == "__main__":
    # Who waits for too long asks so where it hangs; afterwards the signal does what it does else, and ends the process.
    faulthandler.register(signal.SIGUSR1, chain=True)
    output, sys.stdout = sys.stdout, sys.stderr
    serve(sys.stdin, output, _named(sys.argv[1] if len(sys.argv) > 1 else _SIMULATE))
