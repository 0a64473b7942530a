"""The process instance as an actor: on its node it alone owns its tokens and takes one batch of commands at a time.

Decide, hand a changeset to the committer, answer after the commit is durable. On a refused guard the step never
happened: the state of before is still there (deciding changes no state), the one command is refused and the others are
decided again; after a stale version the state is thrown away and loaded anew.

On a shared store other nodes may step the same instance. Then what stands here is a guess that the commit's version
guard judges; a refusal, which no commit follows, is only given on a state that was read since the command came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stellwerk.actors.committer import Committer
from stellwerk.actors.definitions import DefinitionDeleted, Definitions, DeployedProcess, NewerVersion
from stellwerk.actors.mailbox import Mailbox, Reply
from stellwerk.actors.steps import Envelope, Step, answer_lease, endings_of, messages_of, repeat_of, subjects_of
from stellwerk.actors.views import state_of
from stellwerk.core.changes import NewTask, RowChanges
from stellwerk.core.commands import EndDraining, StartInstance
from stellwerk.core.decide import Context, NotOpen, decide
from stellwerk.core.effects import row_changes
from stellwerk.core.facts import Fact
from stellwerk.core.history import encode_state
from stellwerk.core.instance import InstanceState
from stellwerk.errors import Conflict, InvariantBroken, NotFound, StellwerkError, StoreUnavailable
from stellwerk.ids import FreshIds, process_key_of
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy
from stellwerk.ports import (
    BirthLease,
    Changeset,
    Committed,
    LeaseAnswer,
    LeaseAnswerKind,
    NewInstance,
    Ports,
    RefusedChangeset,
    RefusedGuard,
    StoredInstance,
    TaskEnding,
)
from stellwerk.values import frozen

__all__ = ["Births", "Envelope", "InstanceActor", "InstanceServices", "StepListener"]

_LOCKED_AFTER_REFUSALS = 3
"""Refused so often in a row for its version, a step is decided under the instance's lock: nodes that step a wide
instance would refuse each other for ever otherwise (consistency.md 4)."""
_STALE_VERSIONS_MAX = 10
"""A step refused so often for its version, also under the lock, meets a fault, not a rival."""
_START_GUARDS = frozenset({RefusedGuard.UNDEPLOYED, RefusedGuard.DISABLED})
_SNAPSHOT_EVERY_STEPS = 100
"""A reload folds at most so many steps."""


class Births(Protocol):
    """Gives new tasks to workers that have room at this moment (consistency.md 10)."""

    def reserve(self, tasks: Sequence[NewTask]) -> tuple[BirthLease, ...]: ...

    def give_back(self, leases: Sequence[BirthLease]) -> None: ...

    def leave_in_doubt(self, leases: Sequence[BirthLease]) -> None: ...


class StepListener(Protocol):
    """Who is told of a durable step."""

    def stepped(
        self, instance_id: str, state: InstanceState, changes: RowChanges, committed: Committed, began: float
    ) -> None: ...


@frozen
class InstanceServices:
    """What every instance actor of a node shares."""

    ports: Ports
    committer: Committer
    definitions: Definitions
    births: Births
    listener: StepListener
    limits: Limits
    failure_policy: FailurePolicy | None
    retries_default: int
    lock_expiries_max: int
    ids: FreshIds
    """One source for all: drawing a new one costs more than all the ids of a step."""


class InstanceActor:
    """One process instance. `run` until its scope is cancelled; the registry decides when it is passivated."""

    def __init__(self, instance_id: str, services: InstanceServices, *, fresh: bool = False) -> None:
        """``fresh``: the id was just drawn, so there is nothing to load."""
        self.instance_id = instance_id
        self.mailbox: Mailbox[Envelope] = Mailbox(services.limits.mailbox_commands_max)
        self.busy: list[Envelope] = []
        self.last_active = services.ports.clock.monotonic()
        self._services = services
        self._loaded = fresh
        self._state: InstanceState | None = None
        self._version = 0
        self._deployed: tuple[DeployedProcess, FailurePolicy] | None = None
        """What it runs, once that is known: an instance stays with its definition."""

    def __repr__(self) -> str:
        return f"<InstanceActor {self.instance_id} version {self._version} {self.mailbox!r}>"

    @property
    def idle(self) -> bool:
        return not self.busy and self.mailbox.idle

    @property
    def has_ended(self) -> bool:
        """Its instance has, as far as it knows."""
        return self._state is not None and self._state.ended

    async def run(self) -> None:
        while True:
            self.busy = await self.mailbox.get_all()
            await self._handle(self.busy)
            self.busy = []
            self.last_active = self._services.ports.clock.monotonic()

    async def _handle(self, envelopes: list[Envelope]) -> None:
        try:
            await self._step_until_settled(envelopes)
        except StellwerkError as error:
            # What became of the commit is not known here (the store is gone, say): load before the next step.
            self._loaded = False
            for envelope in envelopes:
                if not envelope.reply.answered:
                    envelope.reply.fail(error)

    async def _step_until_settled(self, envelopes: list[Envelope]) -> None:
        stale = 0
        batch = len(envelopes)
        is_current = not self._services.ports.store.is_shared
        while pending := [envelope for envelope in envelopes if not envelope.reply.answered]:
            if stale < _LOCKED_AFTER_REFUSALS:
                is_current |= await self._load()
                step = await self._decide(pending[:batch])
                if not (step.accepted or is_current):
                    self._loaded = False  # another node may have gone on: refuse nothing before that was looked at
                    continue
                outcome = await self._commit(step) if step.accepted else None
            else:
                step, outcome = await self._step_locked(pending[:batch])
            if outcome is None:
                await self._refuse(step.refused)
            elif isinstance(outcome, Committed):
                await self._settle(step)
                is_current = True
                stale = 0
                batch *= 2
            elif outcome.guard is RefusedGuard.VERSION:
                self._loaded = False
                stale += 1
                if stale > _STALE_VERSIONS_MAX:
                    raise InvariantBroken(f"instance {self.instance_id}: every version is stale")
            else:
                # What one command is refused for, others may be too: with fewer at a time each is decided a few times,
                # not once for each refusal.
                batch = max(1, len(step.accepted) // 2)
                self._refuse_guarded(step, outcome)

    # --- loading ---------------------------------------------------------------------------------------------------

    async def _load(self) -> bool:
        """Unless that was done before. True: it was done now."""
        if self._loaded:
            return False
        self._take(await self._services.ports.store.load_instance(self.instance_id))
        return True

    def _take(self, stored: StoredInstance | None) -> None:
        if stored is None:
            self._state, self._version, self._deployed = None, 0, None
        else:
            self._state, self._version = state_of(stored), stored.version
        # One that is not there may be started by another node at any time.
        self._loaded = stored is not None or not self._services.ports.store.is_shared

    # --- deciding --------------------------------------------------------------------------------------------------

    async def _context(self, commands: Sequence[Envelope]) -> Context:
        deployed, policy = self._deployed or await self._find_deployed(commands)
        services = self._services
        now_ms = services.ports.clock.wall_ms()
        return Context(
            definition=deployed.process,
            definition_id=deployed.row.definition_id,
            now_ms=now_ms,
            ids=services.ids.at(now_ms),
            failure_policy=policy,
            limits=services.limits,
            default_retries=services.retries_default,
            lock_expiries_max=services.lock_expiries_max,
        )

    async def _find_deployed(self, commands: Sequence[Envelope]) -> tuple[DeployedProcess, FailurePolicy]:
        deployed = await self._definition(commands)
        given = deployed.row.failure_policy
        default = FailurePolicy(given) if given is not None else self._services.failure_policy
        found = deployed, deployed.process.effective_failure_policy(default)
        if self._state is not None:
            self._deployed = found
        return found

    async def _definition(self, envelopes: Sequence[Envelope]) -> DeployedProcess:
        if self._state is not None:
            return await self._services.definitions.get(self._state.definition_id)
        for envelope in envelopes:
            if isinstance(envelope.command, StartInstance):
                return await self._services.definitions.get(envelope.command.definition_id)
        raise NotFound(f"there is no instance {self.instance_id}")

    async def _decide(self, envelopes: Sequence[Envelope]) -> Step:
        return self._decide_in(await self._context(envelopes), envelopes)

    def _decide_in(self, context: Context, envelopes: Sequence[Envelope]) -> Step:
        state = self._state
        accepted: list[Envelope] = []
        refused: list[tuple[Envelope, StellwerkError]] = []
        facts: list[Fact] = []
        endings: list[TaskEnding] = []
        for envelope in envelopes:
            try:
                decision = decide(state, envelope.command, context)
            except StellwerkError as refusal:
                refused.append((envelope, refusal))
                continue
            except Exception:  # a fault of ours that one command meets is no reason to refuse the others
                self._services.ports.log.exception("a command failed", command=type(envelope.command).__name__)
                fault = InvariantBroken(f"instance {self.instance_id} failed; the request may be repeated")
                refused.append((envelope, fault))
                self._loaded = False
                continue
            state = decision.state
            accepted.append(envelope)
            facts += decision.facts
            endings += endings_of(envelope.command, decision)
        return Step(tuple(accepted), tuple(refused), tuple(facts), tuple(endings), state)

    # --- committing ------------------------------------------------------------------------------------------------

    async def _commit(self, step: Step) -> Committed | RefusedChangeset:
        assert step.state is not None
        services = self._services
        changes = row_changes(step.facts, step.state)
        births = services.births.reserve(changes.new_tasks)
        began = services.ports.clock.monotonic()
        try:
            outcome = await services.committer.submit(self._changeset(step, changes, births))
        except StoreUnavailable:
            services.births.leave_in_doubt(births)
            raise
        except BaseException:
            services.births.give_back(births)
            raise
        if isinstance(outcome, RefusedChangeset):
            services.births.give_back(births)
            return outcome
        assert isinstance(outcome, Committed)
        self._committed(step.state, changes, outcome, began)
        services.births.give_back(births)
        return outcome

    async def _step_locked(self, envelopes: Sequence[Envelope]) -> tuple[Step, Committed | RefusedChangeset | None]:
        """Load, decide and commit while no other node can step the instance. None: nothing was accepted.

        Nothing is leased at birth here: deciding must have no effects of its own.
        """
        await self._load()
        context = await self._context(envelopes)
        decided: list[tuple[Step, RowChanges]] = []

        def decide_on(stored: StoredInstance | None) -> Changeset | None:
            self._take(stored)
            step = self._decide_in(context, envelopes)
            changes = row_changes(step.facts, step.state) if step.state is not None else RowChanges()
            decided.append((step, changes))
            return self._changeset(step, changes, ()) if step.accepted else None

        began = self._services.ports.clock.monotonic()
        outcome = await self._services.ports.store.step_locked(self.instance_id, decide_on)
        step, changes = decided[-1]
        if isinstance(outcome, Committed):
            assert step.state is not None
            self._committed(step.state, changes, outcome, began)
        return step, outcome

    def _committed(self, state: InstanceState, changes: RowChanges, outcome: Committed, began: float) -> None:
        self._state, self._version = state, outcome.version
        self._tell(state, changes, outcome, began)
        for task_id in outcome.drained_ready:
            self.mailbox.put_unbounded(Envelope(EndDraining(task_id), Reply()))

    def _tell(self, state: InstanceState, changes: RowChanges, committed: Committed, began: float) -> None:
        """Hints, each with a poll behind it: the step is durable, so no fault there may refuse the requests."""
        try:
            self._services.listener.stepped(self.instance_id, state, changes, committed, began)
        except Exception:
            self._services.ports.log.exception("a step was not told to all", instance=self.instance_id)

    def _changeset(self, step: Step, changes: RowChanges, births: tuple[BirthLease, ...]) -> Changeset:
        state = step.state
        assert state is not None
        started = self._version == 0
        snapshot_due = (self._version + 1) % _SNAPSHOT_EVERY_STEPS == 0
        return Changeset(
            instance_id=self.instance_id,
            expected_version=self._version,
            at_ms=self._services.ports.clock.wall_ms(),
            facts=step.facts,
            changes=changes,
            new_instance=_new_instance(step, state) if started else None,
            endings=step.endings,
            birth_leases=births,
            messages_consumed=tuple(messages_of(step.accepted)),
            snapshot=encode_state(state) if snapshot_due else None,
        )

    # --- answering -------------------------------------------------------------------------------------------------

    async def _settle(self, step: Step) -> None:
        for envelope in step.accepted:
            try:
                envelope.reply.set(LeaseAnswerKind.DONE)
            except Exception:  # whoever cannot take an answer must not keep his neighbours from theirs
                name = type(envelope.command).__name__
                self._services.ports.log.exception("an answer could not be taken", command=name)
        await self._refuse(step.refused)

    async def _refuse(self, refused: Sequence[tuple[Envelope, StellwerkError]]) -> None:
        """Refusals rest on what is durable now; what a worker asks for again gets the recorded answer."""
        for envelope, refusal in refused:
            repeat = repeat_of(envelope.command)
            if isinstance(refusal, NotOpen) and repeat is not None:
                answer = await self._services.committer.submit(repeat)
                assert isinstance(answer, LeaseAnswer)
                answer_lease(envelope, answer)
            else:
                envelope.reply.fail(refusal)

    def _refuse_guarded(self, step: Step, refused: RefusedChangeset) -> None:
        """Refuse the one command whose guard failed; the loop decides the others again."""
        if refused.guard is RefusedGuard.DATA:
            if len(step.accepted) == 1:
                step.accepted[0].reply.fail(InvariantBroken(f"the store cannot write this step: {refused.subject}"))
            return  # else it is not known which of them it is: the loop tries fewer
        for envelope in step.accepted:
            if refused.guard is RefusedGuard.DEFINITION and envelope.must_be_newest:
                envelope.reply.fail(NewerVersion(f"{refused.subject} was deployed meanwhile"))
                return
            if isinstance(envelope.command, StartInstance) and refused.guard in _START_GUARDS:
                envelope.reply.fail(self._not_startable(refused))
                return
            if refused.subject in subjects_of(envelope.command):
                if refused.answer is not None:
                    answer_lease(envelope, refused.answer)
                else:
                    envelope.reply.fail(Conflict(f"{refused.guard.value} {refused.subject} is not there any more"))
                return
        raise InvariantBroken(f"instance {self.instance_id}: {refused.guard.value} guard of {refused.subject} failed")

    def _not_startable(self, refused: RefusedChangeset) -> StellwerkError:
        if refused.guard is RefusedGuard.DISABLED:
            return Conflict(f'process "{refused.subject}" is disabled: nothing of it starts', code="disabled")
        self._services.definitions.forget(refused.subject)
        return DefinitionDeleted(f'no definition "{refused.subject}" is deployed')


def _new_instance(step: Step, state: InstanceState) -> NewInstance:
    key = process_key_of(state.definition_id)
    must_be_newest = any(envelope.must_be_newest for envelope in step.accepted)
    return NewInstance(state.definition_id, key, state.business_key, must_be_newest, must_be_deployed=True)
