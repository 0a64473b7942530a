"""Timers and messages (M1, M2; rule 6)."""

from __future__ import annotations

from simulations.mutants.mutant import Mutant
from simulations.mutants.patching import Rewrite

__all__ = ["MUTANTS"]

_CLOCKWORK = "stellwerk.actors.clockwork:Clockwork"

MUTANTS = (
    Mutant(
        name="timer-early",
        what="Timers that are due before the next look are fired at once.",
        invariants=("M2",),
        patches=(
            Rewrite(
                f"{_CLOCKWORK}.fire_timers",
                ("store.claim_timers(now_ms, _BATCH)", "store.claim_timers(now_ms + int(POLL_SECONDS * 1000), _BATCH)"),
            ),
        ),
    ),
    Mutant(
        name="timer-row-stays",
        what="The row of a timer that has fired is not deleted with its step.",
        invariants=("C1", "C3"),
        patches=(
            Rewrite(
                "stellwerk.core.effects:_Rows.timer_gone",
                (
                    "if self.timers.pop(fact.timer_id, None) is None:",
                    "if self.timers.pop(fact.timer_id, None) is None and not isinstance(fact, f.TimerFired):",
                ),
            ),
        ),
    ),
    Mutant(
        name="message-not-consumed",
        what="A message that was correlated stays and is correlated with the next one that waits for its key.",
        invariants=("M1",),
        patches=(
            Rewrite(
                "stellwerk.actors.steps:messages_of",
                ("isinstance(command, CorrelateMessage | StartInstance)", "isinstance(command, StartInstance)"),
            ),
        ),
    ),
    Mutant(
        name="message-kept-too-shortly",
        what="A message for which nobody waits yet is kept for a second only.",
        # W: the message that should have started an instance is gone, and so nothing is there that could stand still.
        invariants=("M1", "V1", "V2", "W"),
        patches=(
            Rewrite(
                "stellwerk.actors.operations:NodeOperations.publish_message",
                (
                    "self.limits.message_ttl_ms_default if ttl_ms is None else ttl_ms",
                    "_TTL_MS_MIN",
                ),
            ),
        ),
    ),
    Mutant(
        name="unanswered-command-never-repeated",
        what="A timer, a message or a lock whose step the store did not commit counts as under way for ever: its node "
        "does not try again.",
        invariants=("V1", "V2", "L7", "M1", "M2"),
        patches=(
            Rewrite(
                f"{_CLOCKWORK}._send",
                ("self._under_way.discard(subject)\n        try:", "try:"),
                (
                    "# Somebody else was quicker, or the thing is gone: that is what the guards are for.\n",
                    "self._under_way.discard(subject)\n",
                ),
                (
                    "# The next message for the same subscription may wait already.\n",
                    "self._under_way.discard(subject)\n",
                ),
            ),
        ),
    ),
    Mutant(
        name="message-twice-by-id",
        what="A message that is published again with its id, because its answer was lost, is a second message.",
        invariants=("D1", "M1"),
        patches=(
            Rewrite(
                "stellwerk.actors.operations:NodeOperations.publish_message",
                (
                    "message_id=message_id if message_id is not None else self.ports.entropy.uuid(),",
                    "message_id=self.ports.entropy.uuid(),",
                ),
            ),
        ),
    ),
)
