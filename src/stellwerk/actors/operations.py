"""What changes the state of instances: the operating half of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stellwerk.actors.bounds import check_length, check_retries
from stellwerk.actors.clockwork import Clockwork
from stellwerk.actors.committer import Committer
from stellwerk.actors.definitions import DefinitionDeleted, Definitions, DeployedProcess, Deployment, NewerVersion
from stellwerk.actors.incidents import IncidentFilter, IncidentRetry, RetriedIncidents
from stellwerk.actors.instance import Envelope
from stellwerk.actors.instances import Instances
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.neighbours import Neighbours
from stellwerk.actors.task_settings import NodeTaskSettings
from stellwerk.core.commands import (
    AssignUserTask,
    CancelInstance,
    CompleteUserTask,
    SetVariables,
    StartInstance,
)
from stellwerk.core.facts import InstanceStarted
from stellwerk.core.instance import InstanceStatus
from stellwerk.errors import Conflict, IdempotencyConflict, InvalidInput, LimitExceeded, NotFound, StellwerkError
from stellwerk.ids import derived_id, process_key_of
from stellwerk.instants import InstantMs
from stellwerk.json_values import JsonObject, canonical, canonical_object, digest, dumps
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy
from stellwerk.ports import DeleteDefinition, LeaseAnswerKind, MessageRow, Ports, PublishMessage, SetProcessEnabled

__all__ = ["NodeOperations"]

_TTL_MS_MIN = 1_000
"""Correlating takes a moment itself: who waits already is reached however short the message is to be kept."""
_TTL_MS_MAX = 100 * 366 * 24 * 3_600_000
_INSTANT_SECONDS = 0.001
_NEWER_VERSIONS_MAX = 10
"""Deployed by others while one instance starts: more is a fault."""


class NodeOperations(NodeTaskSettings):
    """A part of `Node`."""

    ports: Ports
    limits: Limits
    committer: Committer
    definition_cache: Definitions
    clockwork: Clockwork
    neighbours: Neighbours | None
    _instances: Instances
    _published_at_ms = 0
    """Of the newest message."""

    async def deploy(
        self,
        files: Sequence[tuple[str, bytes]],
        *,
        failure_policy: FailurePolicy | None = None,
        adopt_java: bool = False,
    ) -> Deployment:
        """Deploy BPMN files (name, content): all of them or none.

        :raises DeployRefused: with every finding in every file.
        """
        deployment = await self.definition_cache.deploy(files, failure_policy, adopt_java)
        ids = [row.definition_id for row in deployment.definitions]
        self.ports.log.info("deployed", definitions=" ".join(ids), unchanged=" ".join(deployment.unchanged))
        self._definitions_changed([row.key for row in deployment.definitions])
        return deployment

    async def set_process_enabled(self, process_key: str, enabled: bool) -> bool:
        """Whether instances of the process, of any version, may start. Messages that would start one wait meanwhile.

        → whether that changed anything. :raises NotFound: no such process is deployed.
        """
        changed = await self.committer.submit(SetProcessEnabled(process_key, enabled))
        self.ports.log.info("process enabled" if enabled else "process disabled", process=process_key)
        self._definitions_changed([process_key])
        return bool(changed)

    async def delete_definition(self, definition_id: str) -> None:
        """Delete one version of a process. The newest that is left takes its place.

        :raises NotFound: it is not deployed; Conflict: there are instances of it, running or ended.
        """
        try:
            await self.committer.submit(DeleteDefinition(definition_id))
        finally:
            self.definition_cache.forget(definition_id)
        self.ports.log.info("definition deleted", definition=definition_id)
        self._definitions_changed([process_key_of(definition_id)])

    def _definitions_changed(self, process_keys: Sequence[str]) -> None:
        self.clockwork.match_messages()
        if self.neighbours is not None:
            self.neighbours.tell_deployed(process_keys)

    async def start_instance(
        self,
        process_key: str,
        variables: JsonObject,
        *,
        business_key: str | None = None,
        request_id: str | None = None,
        start_event_id: str | None = None,
        version: int | None = None,
    ) -> str:
        """Start an instance; answers when that is durable. The same ``request_id`` again gives the same instance.

        :raises NotFound: no such process or version is deployed; Conflict: it is disabled (``disabled``);
            IdempotencyConflict: the ``request_id`` came before with other variables or another business key.
        """
        for name, value in (("process", process_key), ("business_key", business_key), ("request_id", request_id)):
            self._check_text(name, value)
        instance_id = self.ports.entropy.uuid() if request_id is None else derived_id("start", process_key, request_id)
        payload = self._payload(variables)

        def command(deployed: DeployedProcess) -> StartInstance:
            definition_id = deployed.row.definition_id
            return StartInstance(
                instance_id, definition_id, payload, business_key=business_key, start_event_id=start_event_id
            )

        for _ in range(_NEWER_VERSIONS_MAX):
            deployed = await self.definition_cache.latest(process_key, version)
            if request_id is not None and await self._is_same_start(instance_id, payload, business_key):
                return instance_id
            try:
                await self._start(command(deployed), is_fresh=request_id is None, must_be_newest=version is None)
            except (NewerVersion, DefinitionDeleted):
                if version is not None:
                    raise
                self.definition_cache.forget_latest([process_key])
            except StellwerkError:
                # Two requests with one request_id at the same moment: the other one started it.
                if request_id is None or not await self._is_same_start(instance_id, payload, business_key):
                    raise
                return instance_id
            else:
                return instance_id
        raise Conflict(f'newer and newer versions of "{process_key}" are being deployed; the request may be repeated')

    async def _is_same_start(self, instance_id: str, variables: JsonObject, business_key: str | None) -> bool:
        """Whether the instance is there, as this request would start it.

        :raises IdempotencyConflict: it is there, and was started by another request.
        """
        steps = await self.ports.store.history(instance_id, limit=1)
        if not steps:
            return False
        began = steps[0].facts[0]
        assert isinstance(began, InstanceStarted), began
        if began.business_key != business_key or digest(began.variables) != digest(variables):
            raise IdempotencyConflict(
                f"this request_id was used before, with another request: it started {instance_id}"
            )
        return True

    async def _start(self, command: StartInstance, *, is_fresh: bool, must_be_newest: bool) -> None:
        """:raises NewerVersion: only where other nodes deploy too; on a store of one's own the cache knows."""
        reply: Reply[LeaseAnswerKind] = Reply()
        envelope = Envelope(command, reply, must_be_newest and self.ports.store.is_shared)
        await self._instances.post(command.instance_id, envelope, fresh=is_fresh)
        await reply.wait()

    async def cancel_instance(self, instance_id: str, reason: str) -> None:
        canonical(reason, "$.reason")
        check_length("reason", reason, self.limits.message_bytes_max)
        await self._ask(instance_id, CancelInstance(reason))

    async def set_variables(self, instance_id: str, variables: JsonObject) -> None:
        """Set variables of the process's own scope by hand; others keep their values, and existing tasks their payload
        until an incident of theirs is resolved.

        :raises NotFound: there is no such instance; Conflict: it has ended.
        """
        await self._ask(instance_id, SetVariables(self._payload(variables)))

    async def complete_user_task(self, user_task_id: str, variables: JsonObject) -> None:
        """:raises NotFound: there is no such open user task."""
        row = await self.ports.store.user_task(user_task_id)
        if row is None:
            raise NotFound(f"there is no open user task {user_task_id}")
        await self._ask(str(row["instance_id"]), CompleteUserTask(user_task_id, self._payload(variables)))

    async def assign_user_task(self, user_task_id: str, assignee: str | None, *, unless_assigned: bool = True) -> None:
        """Give an open user task to somebody (None: to nobody), unless somebody else has it. Who completes it does not
        matter to the process.

        :raises NotFound: there is no such open user task; Conflict: somebody else has it (``assigned``).
        """
        self._check_text("assignee", assignee)
        if assignee == "":
            raise InvalidInput("at least one character is expected @ $.assignee")
        row = await self.ports.store.user_task(user_task_id)
        if row is None:
            raise NotFound(f"there is no open user task {user_task_id}")
        is_kept = unless_assigned and assignee is not None
        if is_kept and row["assignee"] not in (None, assignee):
            raise Conflict(f"user task {user_task_id} is assigned to somebody else", code="assigned")
        if row["assignee"] != assignee:
            await self._ask(str(row["instance_id"]), AssignUserTask(user_task_id, assignee, is_kept))

    async def resolve_incident(self, incident_id: str, retries: int | None = None) -> None:
        """Try again from where the incident stands.

        :param retries: attempts that its task gets; None: as many as it had in the beginning, by its model.
        :raises NotFound: it is not open (any more).
        """
        check_retries(retries)
        row = await self.ports.store.incident(incident_id)
        if row is None:
            raise NotFound(f"there is no open incident {incident_id}")
        await self._resolve(row, retries)

    async def retry_incidents(
        self,
        wanted: IncidentFilter,
        *,
        retries: int | None = None,
        limit: int = 1_000,
        after: str | None = None,
        progress: Callable[[int], None] = lambda _done: None,
    ) -> RetriedIncidents:
        """Like `resolve_incident` for the first `limit` that match behind id `after`.

        :param progress: told how many are re-queued so far.
        :raises StoreUnavailable: some may be re-queued already.
        """
        check_retries(retries)

        async def resolve(row: Mapping[str, object]) -> None:
            await self._resolve(row, retries)

        retry = IncidentRetry(self.ports.store, resolve)
        return await retry.run(wanted, limit=limit, after=after, progress=progress)

    async def publish_message(
        self,
        name: str,
        key: str,
        variables: JsonObject,
        *,
        ttl_ms: int | None = None,
        message_id: str | None = None,
        instance_id: str | None = None,
    ) -> str:
        """Publish a message; answers when it is durable. It is correlated once, with who waits in its time to live.

        The same ``message_id`` again is no second message while the first is kept; it never starts a second instance.
        ``ttl_ms`` 0 is for who waits already. With ``instance_id`` only that instance can get it, and an empty ``key``
        then stands for any.

        :raises NotFound: there is no instance ``instance_id``; Conflict: it has ended; IdempotencyConflict: the
            ``message_id`` came before with another name, key or instance.
        """
        for field, value in (("name", name), ("key", key), ("message_id", message_id), ("instance_id", instance_id)):
            self._check_text(field, value)
        if ttl_ms is not None and not 0 <= ttl_ms <= _TTL_MS_MAX:
            raise InvalidInput(f"0 to {_TTL_MS_MAX} ms are possible @ $.ttl_ms")
        payload = dumps(self._payload(variables))
        if instance_id is not None:
            await self._check_receiver(instance_id, message_id)
        published_at_ms = await self._publishing_instant()
        began = self.ports.clock.monotonic()
        message = MessageRow(
            message_id=message_id if message_id is not None else self.ports.entropy.uuid(),
            name=name,
            key=key,
            variables=payload,
            published_at_ms=published_at_ms,
            expires_at_ms=published_at_ms
            + max(_TTL_MS_MIN, self.limits.message_ttl_ms_default if ttl_ms is None else ttl_ms),
            instance_id=instance_id,
        )
        if not await self.committer.submit(PublishMessage(message)):
            await self._check_same_message(message)
        self.clockwork.match_messages()
        if self.neighbours is not None:
            self.neighbours.tell_published()
            await self._let_instant_pass(began)
        return message.message_id

    async def _check_same_message(self, message: MessageRow) -> None:
        """Of the variables nothing is kept once it is correlated."""
        kept = await self.ports.store.message(message.message_id)
        if kept is None:
            return
        if (kept.name, kept.key, kept.instance_id) != (message.name, message.key, message.instance_id):
            raise IdempotencyConflict(f'the message_id "{message.message_id}" was used before, for another message')

    async def _check_receiver(self, instance_id: str, message_id: str | None) -> None:
        """A repeated message may have ended its instance."""
        summary = await self.ports.store.instance(instance_id)
        if summary is None:
            raise NotFound(f"there is no instance {instance_id}")
        if summary.status == InstanceStatus.RUNNING.value:
            return
        if message_id is None or await self.ports.store.message(message_id) is None:
            raise Conflict(f"instance {instance_id} is {summary.status}", code="ended")

    async def _publishing_instant(self) -> InstantMs:
        """Messages with one key are correlated in its order (consistency.md 6), and their time to live begins with it:
        by a clock that all nodes share, and that is never set back."""
        now_ms = await self.ports.store.lease_now()
        if self.ports.store.is_shared:
            return now_ms
        # Later than any before, also within a millisecond.
        self._published_at_ms = max(now_ms, self._published_at_ms + 1)
        return self._published_at_ms

    async def _let_instant_pass(self, began: float) -> None:
        """Beside other nodes only the store's clock tells which message was the earlier. So that one which is published
        after this one was acknowledged, wherever, has a later instant, the acknowledgement waits for its end."""
        left = began + _INSTANT_SECONDS - self.ports.clock.monotonic()
        if left > 0:
            await self.ports.clock.sleep(left)

    def _check_text(self, name: str, value: str | None) -> None:
        """What becomes a key in the store.

        :raises InvalidInput: it is too long, or no text that every store can keep.
        """
        if value is not None and len(value) > self.limits.id_chars_max:
            raise InvalidInput(f"at most {self.limits.id_chars_max} characters are allowed @ $.{name}")
        canonical(value, f"$.{name}")

    def _payload(self, variables: JsonObject) -> JsonObject:
        """Canonical, and not larger than what can also be delivered."""
        canonical = canonical_object(variables)
        size = len(dumps(canonical))
        if size > self.limits.payload_bytes_max:
            raise LimitExceeded(f"the variables have {size} bytes, at most {self.limits.payload_bytes_max} are allowed")
        return canonical
