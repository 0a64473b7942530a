"""A node: all actors of one engine process, wired together, and what one can ask of them.

Everything comes in through ports; there is no module-level state. Several nodes may run in one process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import attrs
import trio

from stellwerk.actors.births import TopicBirths
from stellwerk.actors.bounds import RETRIES_MAX, check_length, check_report, shortened
from stellwerk.actors.clockwork import Clockwork
from stellwerk.actors.committer import Committer
from stellwerk.actors.definitions import Definitions, Deployment
from stellwerk.actors.dispatcher import DispatcherServices, TopicDispatcher, ready_hint
from stellwerk.actors.instance import Envelope, InstanceServices
from stellwerk.actors.instances import Instances
from stellwerk.actors.leases import LeaseBook, WorkerLink
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.requests import SessionStatistics
from stellwerk.actors.session import WorkerSession
from stellwerk.actors.supervisor import supervise
from stellwerk.actors.topics import Topics
from stellwerk.actors.views import EndWaiters, InstanceView, view_of
from stellwerk.core.changes import RowChanges
from stellwerk.core.commands import (
    CancelInstance,
    Command,
    CompleteUserTask,
    EndDraining,
    EndTaskInFailure,
    FailureKind,
    ResolveIncident,
    SetVariables,
    StartInstance,
)
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.core.instance import InstanceState, InstanceStatus
from stellwerk.errors import CallerError, InvalidInput, LimitExceeded, NotFound, StellwerkError
from stellwerk.ids import derived_id
from stellwerk.json_values import JsonObject, canonical, canonical_object, dumps
from stellwerk.limits import Limits
from stellwerk.model.process import FailurePolicy
from stellwerk.ports import (
    Committed,
    DefinitionRow,
    InstanceSummary,
    LeaseAnswerKind,
    MessageRow,
    Ports,
    PublishMessage,
    ReadyTask,
    Resumed,
    ResumeSession,
)
from stellwerk.wire.messages import Hello, NackCode

__all__ = ["Node", "NodeConfig", "run_node"]


@attrs.frozen(kw_only=True)
class NodeConfig:
    limits: Limits = attrs.field(factory=Limits)
    failure_policy: FailurePolicy | None = None
    """For models that say nothing of their own; None: as fits the dialect."""
    retries_default: int = 3
    lock_expiries_max: int = 10


class Node:
    """See `run_node`. All methods may be called from any task of the trio run that the node lives in."""

    def __init__(self, ports: Ports, config: NodeConfig, nursery: trio.Nursery) -> None:
        self.ports = ports
        self.config = config
        self.limits = config.limits
        self.session_statistics = SessionStatistics()
        self.leases = LeaseBook()
        self.committer = Committer(ports, config.limits)
        self.definition_cache = Definitions(ports, self.committer, config.limits)
        self.topics = Topics(DispatcherServices(ports, self.committer, self.leases, self.limits), nursery)
        self.births = TopicBirths(self.topics)
        self.clockwork = Clockwork(self)
        self.draining = False
        self._nursery = nursery
        self._published_at_ms = 0
        self._waiters = EndWaiters()
        self._sessions: dict[str, WorkerSession] = {}
        self._instances = Instances(self._instance_services(), nursery)

    def _instance_services(self) -> InstanceServices:
        return InstanceServices(
            ports=self.ports,
            committer=self.committer,
            definitions=self.definition_cache,
            births=self.births,
            listener=self,
            limits=self.limits,
            failure_policy=self.config.failure_policy,
            retries_default=self.config.retries_default,
            lock_expiries_max=self.config.lock_expiries_max,
        )

    def start(self) -> None:
        """Start the services; each is supervised."""
        self._supervise("committer", self.committer.run)
        self._supervise("passivation", self._instances.passivate_idle)
        self._supervise("topics", self.topics.passivate_idle)
        self._supervise("locks", self.clockwork.reclaim_locks)
        self._supervise("timers", self.clockwork.fire_timers)
        self._supervise("messages", self.clockwork.correlate_messages)
        self._supervise("draining", self.clockwork.end_drained)

    def _supervise(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await supervise(name, service, clock=self.ports.clock, log=self.ports.log)

        self._nursery.start_soon(run, name=name)

    # --- definitions and instances ---------------------------------------------------------------------------------

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
        self.clockwork.match_messages()
        return deployment

    async def definitions(self) -> Sequence[DefinitionRow]:
        return await self.ports.store.definitions()

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
        """Start an instance; answers when that is durable. The same ``request_id`` again gives the same instance."""
        for name, value in (("process", process_key), ("business_key", business_key), ("request_id", request_id)):
            self._check_text(name, value)
        deployed = await self.definition_cache.latest(process_key, version)
        instance_id = self.ports.entropy.uuid() if request_id is None else derived_id("start", process_key, request_id)
        command = StartInstance(
            instance_id,
            deployed.row.definition_id,
            self._payload(variables),
            business_key=business_key,
            start_event_id=start_event_id,
        )
        if request_id is not None and await self.ports.store.instance(instance_id) is not None:
            return instance_id
        reply: Reply[LeaseAnswerKind] = Reply()
        await self._instances.post(instance_id, Envelope(command, reply), fresh=request_id is None)
        try:
            await reply.wait()
        except StellwerkError:
            # Two requests with one request_id at the same moment: the other one started it.
            if request_id is None or await self.ports.store.instance(instance_id) is None:
                raise
        return instance_id

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

    async def resolve_incident(self, incident_id: str, retries: int = 1) -> None:
        """Try again from where the incident stands. :raises NotFound: it is not open (any more)."""
        if not 1 <= retries <= RETRIES_MAX:
            raise InvalidInput(f"retries must be 1 to {RETRIES_MAX} @ $.retries")
        row = await self.ports.store.incident(incident_id)
        if row is None:
            raise NotFound(f"there is no open incident {incident_id}")
        await self._ask(str(row["instance_id"]), ResolveIncident(incident_id, retries))

    async def publish_message(
        self,
        name: str,
        key: str,
        variables: JsonObject,
        *,
        ttl_ms: int | None = None,
        message_id: str | None = None,
    ) -> str:
        """Publish a message; answers when it is durable. It is correlated once, now or within its time to live.

        The same ``message_id`` again is no second message while the first is kept; it never starts a second instance.
        ``ttl_ms`` 0 is for who waits already.
        """
        for field, value in (("name", name), ("key", key), ("message_id", message_id)):
            self._check_text(field, value)
        if ttl_ms is not None and not 0 <= ttl_ms <= _TTL_MS_MAX:
            raise InvalidInput(f"0 to {_TTL_MS_MAX} ms are possible @ $.ttl_ms")
        now_ms = self.ports.clock.wall_ms()
        payload = dumps(self._payload(variables))
        # Later than any before, also within a millisecond, and on a clock that is never set back: messages with one
        # key are correlated in this order (consistency.md 6).
        self._published_at_ms = max(await self.ports.store.lease_now(), self._published_at_ms + 1)
        message = MessageRow(
            message_id=message_id if message_id is not None else self.ports.entropy.uuid(),
            name=name,
            key=key,
            variables=payload,
            published_at_ms=self._published_at_ms,
            expires_at_ms=now_ms + max(_TTL_MS_MIN, self.limits.message_ttl_ms_default if ttl_ms is None else ttl_ms),
        )
        await self.committer.submit(PublishMessage(message))
        self.clockwork.match_messages()
        return message.message_id

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

    async def _ask(self, instance_id: str, command: Command) -> None:
        reply: Reply[LeaseAnswerKind] = Reply()
        await self.post(instance_id, Envelope(command, reply))
        await reply.wait()

    # --- reading ---------------------------------------------------------------------------------------------------

    async def instances(
        self, *, status: str | None = None, process_key: str | None = None, limit: int = 100, after: str | None = None
    ) -> Sequence[InstanceSummary]:
        return await self.ports.store.instances(status=status, process_key=process_key, limit=limit, after=after)

    async def view(self, instance_id: str, *, with_history: bool = True) -> InstanceView:
        """:raises NotFound: there is no such instance."""
        return await view_of(self.ports.store, instance_id, with_history=with_history)

    async def user_tasks(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        """Open ones, by id; `after` is the last id of the page before. So with `incidents`."""
        return await self.ports.store.user_tasks(instance_id, limit=limit, after=after)

    async def incidents(
        self, instance_id: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> Sequence[Mapping[str, object]]:
        return await self.ports.store.incidents(instance_id, limit=limit, after=after)

    async def wait_for_end(
        self, instance_id: str, *, timeout_seconds: float | None = None, or_incident: bool = False
    ) -> InstanceSummary:
        """Wait until the instance ends (or, if asked, an incident is open), and give what stands in the store then.

        When time is up the summary as it is. :raises NotFound: there is no such instance.
        """
        deadline = None if timeout_seconds is None else self.ports.clock.monotonic() + timeout_seconds
        with self._waiters.watching(instance_id) as waiter:
            while True:
                summary = await self.ports.store.instance(instance_id)
                if summary is None:
                    raise NotFound(f"there is no instance {instance_id}")
                if summary.status != "RUNNING" or (or_incident and await self.incidents(instance_id, limit=1)):
                    return summary
                left = _FOREVER if deadline is None else deadline - self.ports.clock.monotonic()
                if left <= 0:
                    return summary
                with trio.move_on_after(left):
                    await waiter.wait()

    def statistics(self) -> Mapping[str, object]:
        """Figures for operators."""
        return {
            "instances_live": len(self._instances),
            "sessions": len(self._sessions),
            "leases_held": len(self.leases),
            "locks_reclaimed": self.clockwork.locks_reclaimed,
            "requests": attrs.asdict(self.session_statistics),
            "commits": attrs.asdict(self.committer.statistics),
            "topics_live": len(self.topics),
            "topics": self.topics.statistics(),
        }

    # --- workers ---------------------------------------------------------------------------------------------------

    async def open_session(self, hello: Hello) -> WorkerSession:
        """A worker says hello: its leases of this boot move to the new session or are released."""
        self._check_hello(hello)
        self._supersede(hello)
        hello = attrs.evolve(hello, client=shortened(hello.client, self.limits.id_chars_max))
        session = WorkerSession(hello, self.ports.entropy.uuid(), self)
        self._sessions[session.session_id] = session
        try:
            holding = tuple((lease.task_id, lease.fence) for lease in hello.holding)
            began = self.ports.clock.monotonic()
            resumed = await self.committer.submit(ResumeSession(session.holder, holding))
            assert isinstance(resumed, Resumed)
        except BaseException:
            session.closed = True
            self._sessions.pop(session.session_id, None)
            raise
        for task in resumed.released:
            self.leases.remove(task.task_id)
            self.returned(task)
        if session.closed:  # meanwhile; the newer session takes over what this one was to keep
            raise Superseded("a newer session of this process connected")
        kept = [self.leases.add(task, session.subscription(task.topic), began) for task in resumed.kept]
        session.welcome(resumed, kept)
        for held in kept:
            self.dispatcher(held.subscription.topic).watch(held)
        self.spawn(session.watch)
        if self.draining:
            session.go_away("the node drains", 0)
        return session

    def _check_hello(self, hello: Hello) -> None:
        check_report(hello.holding, self.limits, "$.holding")
        check_length("token", hello.token, self.limits.message_bytes_max)
        for name, value in (("worker_id", hello.worker_id), ("boot_id", hello.boot_id)):
            if not value or len(value) > self.limits.id_chars_max:
                raise InvalidInput(f"1 to {self.limits.id_chars_max} characters are expected @ $.{name}")
        if hello.session_no < 1:
            raise InvalidInput("session_no counts from 1 @ $.session_no")

    def _supersede(self, hello: Hello) -> None:
        """Take-over applies within one boot: two processes may share a worker_id (consistency.md 17)."""
        for session in list(self._sessions.values()):
            if session.hello.boot_id != hello.boot_id:
                continue
            if session.hello.session_no >= hello.session_no:
                raise Superseded(f"session {session.hello.session_no} of this process is connected")
            session.close(NackCode.SUPERSEDED, "a newer session of this process connected")

    def session_ended(self, link: WorkerLink) -> None:
        session = self._sessions.pop(link.holder.session_id, None)
        if session is not None:
            self.topics.forget(link, session.topics)

    async def drain(self, seconds: float) -> None:
        """Tell the workers to finish and reconnect elsewhere; wait until they hold nothing, at most so long."""
        self.draining = True
        self.ports.log.info("draining", workers=len(self._sessions), seconds_max=seconds)
        for session in list(self._sessions.values()):
            session.go_away("the node drains", int(seconds * 1000))
        deadline = self.ports.clock.monotonic() + seconds
        while any(session.is_busy for session in self._sessions.values()) and self.ports.clock.monotonic() < deadline:
            await self.ports.clock.sleep(0.02)

    def dispatcher(self, topic: str) -> TopicDispatcher:
        """For a subscription or a held lease: started if there is none."""
        return self.topics.dispatcher(topic)

    def wake_dispatchers(self, topics: Iterable[str]) -> None:
        self.topics.wake(topics)

    def returned(self, task: ExternalTask) -> None:
        """A lease ended and left the task behind: to be handed out again now or later, or ended if it drains."""
        if task.state is not TaskState.READY:
            return
        if task.draining:
            self.spawn(self.post, task.instance_id, Envelope(EndDraining(task.task_id), Reply()))
            return
        dispatcher = self.topics.find(task.topic)
        if dispatcher is not None:
            dispatcher.returned(task, task.updated_at_ms)

    def undeliverable(self, task: ExternalTask, bytes_needed: int) -> None:
        """The task fits into no frame: it becomes an incident and never blocks the topic (protocol rule 7)."""
        self.leases.remove(task.task_id, task.fence)
        message = f"the task needs {bytes_needed} bytes, a frame has at most {self.limits.frame_bytes_max}"
        command = EndTaskInFailure(task.task_id, task.fence, FailureKind.UNDELIVERABLE, message)
        self.spawn(self.post, task.instance_id, Envelope(command, Reply()))

    # --- between the actors ----------------------------------------------------------------------------------------

    async def post(self, instance_id: str, envelope: Envelope) -> None:
        await self._instances.post(instance_id, envelope)

    def spawn(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._nursery.start_soon(self._run_background, function, arguments)

    async def _run_background(self, function: Callable[..., Awaitable[None]], arguments: tuple[object, ...]) -> None:
        try:
            await function(*arguments)
        except StellwerkError as error:
            self.ports.log.warning("background work not done", what=function.__name__, reason=error.message)
        except Exception:  # a fault there must not take the node with it
            self.ports.log.exception("background work failed", what=function.__name__)

    def stepped(
        self, instance_id: str, state: InstanceState, changes: RowChanges, committed: Committed, began: float
    ) -> None:
        """A step is durable: wake whoever has to act on it (hints only; each has a poll behind it)."""
        self._revoke(committed)
        self.births.born(committed.born_leased, began)
        born = {task.task_id for task in committed.born_leased}
        for task in changes.new_tasks:
            if task.task_id not in born:
                rank, size = -task.priority, len(task.variables)
                hint = ReadyTask(rank, committed.now_ms, task.task_id, task.lock_duration_ms, size)
                self.topics.task_ready(task.topic, hint)
        for requeue in changes.requeued_tasks:
            self.spawn(self._requeued, requeue.task_id)
        for timer in changes.timers_armed:
            self.clockwork.timer_armed(timer.due_at_ms)
        if changes.subscriptions_opened:
            self.clockwork.match_messages()
        self._warn(instance_id, state, changes)
        if changes.status is not None or changes.incidents_opened:
            self._waiters.changed(instance_id)

    def _warn(self, instance_id: str, state: InstanceState, changes: RowChanges) -> None:
        """What an operator has to see."""
        for row in changes.incidents_opened:
            self.ports.log.warning(
                "incident opened",
                incident=row.incident_id,
                instance=instance_id,
                definition=state.definition_id,
                element=row.element_id,
                kind=row.kind,
                message=row.message,
            )
        if changes.status == InstanceStatus.FAILED.value:
            self.ports.log.warning("instance failed", instance=instance_id, definition=state.definition_id)

    def _revoke(self, committed: Committed) -> None:
        for revoked in committed.revoked:
            held = self.leases.remove(revoked.task_id, revoked.fence)
            if held is not None:
                held.link.revoked([(revoked.task_id, revoked.fence)], "cancelled")
                self.topics.wake([revoked.topic])

    async def _requeued(self, task_id: str) -> None:
        task = await self.ports.store.task(task_id)
        if task is not None and task.state is TaskState.READY:
            self.topics.task_ready(task.topic, ready_hint(task))


_FOREVER = float("inf")
_TTL_MS_MIN = 1_000
"""Correlating takes a moment itself: who waits already is reached however short the message is to be kept."""
_TTL_MS_MAX = 100 * 366 * 24 * 3_600_000


class Superseded(CallerError):
    code = NackCode.SUPERSEDED


async def run_node(
    ports: Ports, config: NodeConfig, *, task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED
) -> None:
    """Open the store and run a node until cancelled. Starts with the `Node`.

    :raises StoreUnavailable: the store cannot be opened (another engine has it, say).
    """
    await ports.store.open()
    try:
        async with trio.open_nursery() as nursery:
            node = Node(ports, config, nursery)
            node.start()
            task_status.started(node)
    finally:
        with trio.CancelScope(shield=True):
            await ports.store.close()
        ports.log.info("stopped")
