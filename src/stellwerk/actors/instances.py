"""The live instances of a node: one actor for each, started when a command comes and passivated when idle."""

from __future__ import annotations

import heapq

import trio

from stellwerk.actors.instance import Envelope, InstanceActor, InstanceServices
from stellwerk.actors.mailbox import MailboxClosed
from stellwerk.actors.supervisor import STOPPED, start_actor
from stellwerk.errors import InvariantBroken, StellwerkError, StoreUnavailable

__all__ = ["Instances"]

_SWEEP_SECONDS = 1.0


class Instances:
    """A fault in one instance never stops another: its actor is logged, dropped and comes back from the store."""

    def __init__(self, services: InstanceServices, nursery: trio.Nursery) -> None:
        self._services = services
        self._nursery = nursery
        self._live: dict[str, tuple[InstanceActor, trio.CancelScope]] = {}

    def __len__(self) -> int:
        return len(self._live)

    async def post(self, instance_id: str, envelope: Envelope, *, fresh: bool = False) -> None:
        """Put a command into the instance's mailbox; waits while it is full. The envelope's reply gets the answer.

        :raises StoreUnavailable: the engine stops.
        """
        while True:
            live = self._live.get(instance_id)
            actor = live[0] if live is not None else self._start(instance_id, fresh)
            try:
                await actor.mailbox.put(envelope)
            except MailboxClosed:
                fresh = False
            else:
                return

    def _start(self, instance_id: str, fresh: bool) -> InstanceActor:
        actor = InstanceActor(instance_id, self._services, fresh=fresh)
        scope = trio.CancelScope()
        start_actor(self._nursery, f"instance {instance_id}", self._run, actor, scope)
        self._live[instance_id] = (actor, scope)
        return actor

    async def _run(self, actor: InstanceActor, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await actor.run()
        except Exception:  # the boundary of one instance
            self._services.ports.log.exception("instance failed and is dropped", instance=actor.instance_id)
            self._drop(actor, InvariantBroken(f"instance {actor.instance_id} failed; the request may be repeated"))
        except BaseException:
            self._drop(actor, StoreUnavailable(STOPPED))
            raise

    def _drop(self, actor: InstanceActor, error: StellwerkError) -> None:
        live = self._live.get(actor.instance_id)
        if live is not None and live[0] is actor:
            del self._live[actor.instance_id]
        for envelope in [*actor.busy, *actor.mailbox.close()]:
            if not envelope.reply.answered:
                envelope.reply.fail(error)

    def forget_ended(self) -> None:
        """Their rows may be gone: whoever has to do with them again begins at the store."""
        for instance_id in [actor.instance_id for actor, _ in self._live.values() if actor.has_ended]:
            self._passivate(instance_id)

    async def passivate_idle(self) -> None:
        """Sweep for ever: end the actors that were idle for long, and the longest idle ones when there are too many."""
        clock, limits = self._services.ports.clock, self._services.limits
        while True:
            await clock.sleep(_SWEEP_SECONDS)
            self._passivate_before(clock.monotonic() - limits.instance_idle_ms / 1000)
            if len(self._live) > limits.live_instances_max:
                self._passivate_longest_idle(len(self._live) - limits.live_instances_max)

    def _passivate_before(self, oldest_allowed: float) -> None:
        # Few are that old: the others cost a comparison each.
        old = [actor.instance_id for actor, _ in self._live.values() if actor.last_active < oldest_allowed]
        for instance_id in old:
            self._passivate(instance_id)

    def _passivate_longest_idle(self, count: int) -> None:
        idle = ((actor.last_active, actor.instance_id) for actor, _ in self._live.values() if actor.idle)
        for _, instance_id in heapq.nsmallest(count, idle):
            self._passivate(instance_id)

    def _passivate(self, instance_id: str) -> None:
        # No checkpoint between looking and cancelling: nobody can post to an actor that is about to end.
        actor, scope = self._live[instance_id]
        if actor.idle:
            del self._live[instance_id]
            actor.mailbox.close()  # a sender that was just woken by room in it must not put into an ended actor
            scope.cancel()
