"""A node: all actors of one engine process, wired together, and what one can ask of them.

Everything comes in through ports; there is no module-level state. Several nodes may run in one process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import attrs
import trio

from stellwerk.actors.attendance import Attendance
from stellwerk.actors.backups import Backups
from stellwerk.actors.births import TopicBirths
from stellwerk.actors.bounds import check_length, check_report, shortened
from stellwerk.actors.clockwork import Clockwork
from stellwerk.actors.committer import Committer
from stellwerk.actors.credentials import Authority, require_worker
from stellwerk.actors.definitions import Definitions
from stellwerk.actors.dispatcher import DispatcherServices, TopicDispatcher, ready_hint
from stellwerk.actors.doubts import LeaseDoubts
from stellwerk.actors.histories import HistoryPages
from stellwerk.actors.instance import Envelope, InstanceServices
from stellwerk.actors.instances import Instances
from stellwerk.actors.leases import LeaseBook, WorkerLink
from stellwerk.actors.mailbox import Reply
from stellwerk.actors.maintenance import NodeMaintenance
from stellwerk.actors.neighbours import Neighbours
from stellwerk.actors.node_config import NodeConfig, NodeIdentity
from stellwerk.actors.operations import NodeOperations
from stellwerk.actors.polling import Polling
from stellwerk.actors.pull_requests import PullRequests
from stellwerk.actors.pulling import NodePulling
from stellwerk.actors.reading import NodeReads
from stellwerk.actors.reports import NodeReports
from stellwerk.actors.requests import SessionStatistics
from stellwerk.actors.session import WorkerSession
from stellwerk.actors.supervisor import start_actor, supervise
from stellwerk.actors.topics import Topics
from stellwerk.actors.turns import Turns
from stellwerk.actors.views import EndWaiters
from stellwerk.core.changes import RowChanges
from stellwerk.core.commands import EndDraining, EndTaskInFailure, FailureKind
from stellwerk.core.external_task import ExternalTask, TaskState
from stellwerk.core.instance import InstanceState, InstanceStatus
from stellwerk.errors import CallerError, Conflict, InvalidInput, StellwerkError
from stellwerk.ids import FreshIds
from stellwerk.ports import ANYBODY, Committed, Identity, Ports, ReadyTask, Resumed, ResumeSession, RevokedLease
from stellwerk.wire.messages import Hello, NackCode

__all__ = ["Node", "NodeConfig", "NodeIdentity", "run_node"]

_LOOK_AGAIN_SECONDS = 0.02


class Node(NodeReads, NodeOperations, NodePulling, NodeMaintenance):
    """See `run_node`. All methods may be called from any task of the trio run that the node lives in."""

    def __init__(self, ports: Ports, config: NodeConfig, nursery: trio.Nursery) -> None:
        self.ports = ports
        self.config = config
        self.limits = config.limits
        self.session_statistics = SessionStatistics()
        self.leases = LeaseBook()
        self.committer = Committer(ports, config.limits)
        self.definition_cache = Definitions(ports, self.committer, config.limits)
        self.doubts = LeaseDoubts(ports, self.committer, self.leases, self.returned)
        turns = Turns(ports.clock)
        dispatching = DispatcherServices(ports, self.committer, self.leases, self.limits, self.doubts, turns)
        self.live_topics = Topics(dispatching, nursery)
        self.births = TopicBirths(self.live_topics, self.doubts)
        self.clockwork = Clockwork(self)
        self.draining = False
        self._nursery = nursery
        self._waiters = EndWaiters()
        self.step_watchers: set[Callable[[str, int], None]] = set()
        """Told of every step of this node's: the instance and its new version. None may wait or fail."""
        self.neighbours = Neighbours(self, self._waiters, is_offline=config.is_offline) if self.is_shared else None
        self.reports = NodeReports(ports, config.identity.node_id, self.report, is_offline=config.is_offline)
        self.attendance = Attendance(ports, self._attended, config.unattended_after_ms)
        self._history_pages = HistoryPages(ports.store)
        self._backups = Backups(ports)
        self._sessions: dict[str, WorkerSession] = {}
        self.polling = Polling(self)
        self._pull_requests = PullRequests(self)
        self._instances = Instances(self._instance_services(), nursery)
        self._started_at_ms = ports.clock.wall_ms()

    @property
    def is_shared(self) -> bool:
        """Other nodes may work on the same store."""
        return self.ports.store.is_shared

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
            ids=FreshIds(self.ports.clock.wall_ms(), self.ports.entropy.integer(74)),
        )

    def start(self) -> None:
        """Start the services; each is supervised."""
        self._supervise("committer", self.committer.run)
        self._supervise("passivation", self._instances.passivate_idle)
        if self.config.is_offline:
            return
        self._supervise("topics", self.live_topics.passivate_idle)
        self._supervise("leases in doubt", self.doubts.run)
        self._supervise("locks", self.clockwork.reclaim_locks)
        self._supervise("timers", self.clockwork.fire_timers)
        self._supervise("messages", self.clockwork.correlate_messages)
        self._supervise("draining", self.clockwork.end_drained)
        self._supervise("attendance", self.attendance.watch)
        if self.config.ended_kept_ms is not None:
            self._supervise("retention", partial(self.prune_for_ever, self.config.ended_kept_ms))
        if self.neighbours is not None:
            self._supervise("hints", self.neighbours.listen)
            self._supervise("held leases", self.neighbours.check_leases)
            self._supervise("reports", self.reports.run)

    def _supervise(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await supervise(name, service, clock=self.ports.clock, log=self.ports.log)

        self._nursery.start_soon(run, name=name)

    # --- workers ---------------------------------------------------------------------------------------------------

    async def open_session(
        self, hello: Hello, identity: Identity = ANYBODY, authority: Authority | None = None
    ) -> WorkerSession:
        """A worker says hello: its leases of this boot move to the new session or are released.

        :param identity: what its credential allows, which was checked.
        :param authority: who watches over the credential; None: nobody asks for any.
        :raises Forbidden: it may not be this worker.
        """
        if self.config.is_offline:
            raise Conflict("this node is offline: it gives no work to workers")
        self._check_hello(hello)
        require_worker(identity, hello.worker_id)
        self._supersede(hello)
        hello = attrs.evolve(hello, client=shortened(hello.client, self.limits.id_chars_max), token=None)
        session = WorkerSession(hello, self.ports.entropy.uuid(), self, identity, authority)
        self._sessions[session.session_id] = session
        try:
            holding = tuple((lease.task_id, lease.fence) for lease in hello.holding)
            began = self.ports.clock.monotonic()
            resumed = await self.committer.submit(ResumeSession(session.holder, holding, session.begun_before))
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
        self.connections_changed()
        kept = [self.leases.add(task, session.subscription(task.topic), began) for task in resumed.kept]
        session.welcome(resumed, kept)
        for held in kept:
            self.dispatcher(held.subscription.topic).watch(held)
        self.spawn(session.watch)
        if authority is not None:
            self.spawn(session.credential.watch, self.ports.clock)
        if self.neighbours is not None and hello.session_no > 1:
            self.spawn(self.neighbours.take_back_late_leases, session, session.begun_before)
        if self.draining:
            session.go_away("the node drains", 0)
        return session

    def _check_hello(self, hello: Hello) -> None:
        check_report(hello.holding, self.limits, "$.holding")
        check_report(hello.begun or (), self.limits, "$.begun")
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
            self.live_topics.forget(link, session.topics)
            self.connections_changed()

    def connections_changed(self) -> None:
        """A session, or what it subscribes to."""
        self.reports.changed()

    async def drain(self, seconds: float) -> None:
        """Lease nothing more, and tell the workers to finish and reconnect elsewhere. Wait until they hold nothing and
        until leases that nobody got are given back, at most so long."""
        self.draining = True
        self.connections_changed()
        self.ports.log.info("draining", workers=len(self._sessions), seconds_max=seconds)
        for session in list(self._sessions.values()):
            session.go_away("the node drains", int(seconds * 1000))
        self.polling.end_all()
        await self._wait_until(self._is_drained, seconds)

    def _is_drained(self) -> bool:
        is_busy = any(session.is_busy for session in self._sessions.values())
        return self.leases.are_settled and not is_busy and not len(self.polling)

    async def settle(self, seconds: float) -> None:
        """Wait until no lease is under way: asked of the store, or on its way back because no worker got it. At most
        so long. What is left when the node ends stays locked until its time is up."""
        await self._wait_until(lambda: self.leases.are_settled, seconds)

    async def _wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        clock = self.ports.clock
        deadline = clock.monotonic() + seconds
        while not is_so() and clock.monotonic() < deadline:
            await clock.sleep(_LOOK_AGAIN_SECONDS)

    def dispatcher(self, topic: str) -> TopicDispatcher:
        """For a subscription or a held lease: started if there is none."""
        return self.live_topics.dispatcher(topic)

    def wake_dispatchers(self, topics: Iterable[str]) -> None:
        self.live_topics.wake(topics)

    def returned(self, task: ExternalTask) -> None:
        """A lease ended and left the task behind: to be handed out again now or later, or ended if it drains."""
        if task.state is not TaskState.READY:
            return
        if task.draining:
            self.spawn(self.post, task.instance_id, Envelope(EndDraining(task.task_id), Reply()))
            return
        self.live_topics.returned(task)

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
        """:raises StoreUnavailable: the engine stops."""
        start_actor(self._nursery, function.__qualname__, self._run_background, function, arguments)

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
                self.live_topics.task_ready(task.topic, hint)
        for requeue in changes.requeued_tasks:
            self.spawn(self._requeued, requeue.task_id)
        for timer in changes.timers_armed:
            self.clockwork.timer_armed(timer.due_at_ms)
        if changes.subscriptions_opened:
            self.clockwork.match_messages()
        self._warn(instance_id, state, changes)
        if changes.status is not None or changes.incidents_opened:
            self._waiters.changed(instance_id)
        self._waiters.stepped(instance_id)
        for watch in tuple(self.step_watchers):
            watch(instance_id, committed.version)
        if self.neighbours is not None:
            self.neighbours.tell_stepped(instance_id, changes)

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
        for lease in committed.revoked:
            self.lease_ended(lease, "cancelled")

    def lease_ended(self, lease: RevokedLease, reason: str) -> None:
        """Without the worker's doing: it is told, by the node that it is connected to."""
        held = self.leases.remove(lease.task_id, lease.fence)
        if held is not None:
            held.link.revoked([(lease.task_id, lease.fence)], reason)
            self.live_topics.wake([lease.topic])
        is_held_here = held is not None and held.link.holder.session_id == lease.holder.session_id
        if self.neighbours is not None and not is_held_here:
            self.neighbours.tell_revoked(lease, reason)

    async def _requeued(self, task_id: str) -> None:
        task = await self.ports.store.task(task_id)
        if task is not None and task.state is TaskState.READY:
            self.live_topics.task_ready(task.topic, ready_hint(task))


class Superseded(CallerError):
    code = NackCode.SUPERSEDED


async def run_node(
    ports: Ports, config: NodeConfig, *, task_status: trio.TaskStatus[Node] = trio.TASK_STATUS_IGNORED
) -> None:
    """Open the store and run a node until cancelled. Starts with the `Node`.

    :raises StoreUnavailable: the store cannot be opened (another engine has it, say).
    """
    await ports.store.open()
    node = None
    try:
        async with trio.open_nursery() as nursery:
            node = Node(ports, config, nursery)
            node.start()
            task_status.started(node)
    finally:
        with trio.CancelScope(shield=True):
            if node is not None and node.is_shared and not config.is_offline:
                await node.reports.say_farewell()
            await ports.store.close()
        ports.log.info("stopped")
