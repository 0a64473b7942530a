"""Tokens: splits, joins, boundary events and races of events (C1 to C3)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite

__all__ = ["MUTANTS"]

_GATEWAYS = "stellwerk.core.rules.gateways"
_EVENTS = "stellwerk.core.rules.events"

MUTANTS = (
    Mutant(
        name="token-doubled-at-split",
        number=21,
        what="A parallel split makes a new token for each flow, and the old one takes the first flow as well.",
        invariants=("C1",),
        patches=(
            Rewrite(
                "stellwerk.core.rules.flows:take", ("_split(step, token, flows[1:])", "_split(step, token, flows)")
            ),
        ),
    ),
    Mutant(
        name="join-fires-early",
        what="A parallel join goes on when all but one of its flows have brought a token.",
        invariants=("C1", "W"),
        patches=(
            Rewrite(
                f"{_GATEWAYS}:_parallel",
                ("< len(node.incoming):", "< len(node.incoming) - 1:"),
                ("if any(flow_id not in arrived for flow_id in node.incoming):", "if not arrived:"),
                (
                    "if arrived[flow_id] != token.id:\n",
                    "if arrived.get(flow_id, token.id) != token.id:\n",
                ),
            ),
        ),
    ),
    Mutant(
        name="join-counts-tokens",
        what="A parallel join consumes only the token that came last: the others are counted again in the next pass.",
        invariants=("C1", "V1", "V2"),
        patches=(
            Rewrite(
                f"{_GATEWAYS}:_parallel", ("if arrived[flow_id] != token.id:", "if arrived[flow_id] == token.via:")
            ),
        ),
    ),
    Mutant(
        name="interrupted-token-left-behind",
        what="An interrupting boundary event goes on with a token of its own; that of its activity stays.",
        invariants=("C1", "V1", "V2"),
        patches=(
            Rewrite(
                f"{_EVENTS}:_happen",
                (
                    "token_id = host.token_id\n        enter_event(step, event, token_id, host.scope_id, variables)",
                    "token_id = step.fresh_id()\n"
                    "        enter_event(step, event, token_id, host.scope_id, variables, from_token=host.token_id)",
                ),
            ),
        ),
    ),
    Mutant(
        name="boundary-event-does-not-cancel",
        what="A boundary event moves the token, but a leased task of the interrupted activity is not cancelled.",
        invariants=("C1", "C3"),
        patches=(
            Rewrite(
                "stellwerk.stores.changesets:_cancel",
                (
                    "cancelled = _move(step, task_id, Cancel())\n",
                    "if before is not None and before.state is TaskState.LOCKED:\n"
                    "        return\n"
                    "    cancelled = _move(step, task_id, Cancel())\n",
                ),
            ),
        ),
    ),
    Mutant(
        name="completed-activity-keeps-boundary",
        what="The boundary timers of an activity stay armed when it is completed.",
        invariants=("C3", "P0"),
        patches=(
            Rewrite(
                "stellwerk.core.rules.activities:_complete",
                ("if node.boundary_events:", "if not node.boundary_events:"),
            ),
        ),
    ),
    Mutant(
        name="loser-of-race-stays-armed",
        what="Behind an event-based gateway the events that did not happen are still waited for.",
        invariants=("C1", "C3"),
        patches=(Rewrite(f"{_EVENTS}:_choose", ("    disarm(step, token.id)\n", "")),),
    ),
    Mutant(
        name="ends-with-tokens-left",
        what="An instance is complete when its last token but one has ended.",
        invariants=("C3",),
        patches=(
            Rewrite(
                "stellwerk.core.step:Step.end_token",
                ("self.state.token_counts[token.scope_id] == 0", "self.state.token_counts[token.scope_id] <= 1"),
            ),
            Rewrite(
                "stellwerk.core.rules.scopes:scope_is_empty",
                ("state.token_counts[scope_id] > 0", "state.token_counts[scope_id] > 1"),
            ),
        ),
    ),
    Mutant(
        name="result-of-branch-lost",
        what="What a task returns while another branch is still open does not become a variable.",
        invariants=("W", "D1"),
        patches=(
            Rewrite(
                "stellwerk.core.rules.tasks:complete_task",
                (
                    "keep_result(step, activity, command.variables)\n",
                    "if len(step.state.tokens) < 2:\n        keep_result(step, activity, command.variables)\n",
                ),
            ),
        ),
    ),
)
