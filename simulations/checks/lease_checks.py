"""Leases, attempts and retries: what each write of a task's row may be (L1 to L8, F1, R1 to R3)."""

from __future__ import annotations

from simulations.checks.explanations import ActKind, Explanations
from simulations.checks.reports import Reports
from simulations.checks.shadow import Shadow, label
from simulations.checks.store_clock import StoreClock
from simulations.world.rows import RowChange
from stellwerk.core.external_task import AttemptEnd, ExternalTask, OutcomeKind, TaskAttempt, TaskState
from stellwerk.core.facts import IncidentResolved
from stellwerk.ports import FailTask, FetchAndLock, TaskEnding
from stellwerk.stores.tables import ENDED_STATUSES

__all__ = ["LeaseChecks"]

_READY, _LOCKED, _COMPLETED = TaskState.READY, TaskState.LOCKED, TaskState.COMPLETED
_FAILED, _EXPIRED, _CANCELLED = TaskState.FAILED, TaskState.EXPIRED, TaskState.CANCELLED
_HALF_OVER = (_FAILED, _EXPIRED)
_EXPIRY_KINDS = ("lock_expired", "lock_expiries_exhausted")


class LeaseChecks:
    def __init__(self, reports: Reports, shadow: Shadow, clock: StoreClock, lock_ms_max: int) -> None:
        self._reports = reports
        self._shadow = shadow
        self._clock = clock
        self._lock_ms_max = lock_ms_max
        self._highest_fences: dict[str, int] = {}
        """Ever given, also by commits that a crash took back: whoever saw one must not meet it a second time."""
        self._ended: dict[tuple[str, int], TaskAttempt] = {}
        self._explained = Explanations()
        self._now_ms = 0

    def begin(self, explained: Explanations, changes: tuple[RowChange, ...], now_ms: int) -> None:
        self._explained = explained
        self._now_ms = now_ms
        self._ended = {
            (change.after.task_id, change.after.fence): change.after
            for change in changes
            if change.table == "attempts" and isinstance(change.after, TaskAttempt)
        }

    def _check(self, invariant: str, holds: bool, task: ExternalTask, what: str) -> None:
        if not holds:
            self._reports.always(invariant, False, f"{label(task)} at {self._now_ms}: {what}; now {_shown(task)}")

    def finish(self) -> None:
        """Rule 17: what a hello keeps is its session's from then on."""
        for task_id, acts in self._explained.acts.items():
            resumed = [act for act in acts if act.kind is ActKind.RESUME]
            task = self._shadow.tasks.get(task_id) if resumed else None
            if task is None or task.lease is None or task.fence != resumed[-1].fence:
                continue
            holders = [act.holder for act in resumed]
            self._check("L1", task.lease.holder in holders, task, f"it was kept for {holders[-1]}, and did not move")

    # --- by table --------------------------------------------------------------------------------------------------

    def attempt_written(self, change: RowChange) -> None:
        """What a lease ended in is told once and for good."""
        before, after = change.before, change.after
        if isinstance(before, TaskAttempt):
            is_pruned = after is None and self._explained.prunes
            self._reports.always(
                "I1", is_pruned, lambda: f"the outcome of lease {before.fence} of task {before.task_id} changed"
            )

    def task_written(self, change: RowChange) -> None:
        before, after = change.before, change.after
        assert before is None or isinstance(before, ExternalTask)
        if not isinstance(after, ExternalTask):
            if before is not None:
                self._deleted(before)
            return
        if before is None:
            self._created(after)
            return
        self._common(before, after)
        match before.state, after.state:
            case TaskState.READY, TaskState.LOCKED:
                self._granted(before, after)
            case TaskState.LOCKED, TaskState.LOCKED:
                self._kept(before, after)
            case TaskState.LOCKED, TaskState.READY:
                self._returned(before, after)
            case TaskState.LOCKED, _:
                self._ended_locked(before, after)
            case TaskState.READY, _:
                self._unleased(before, after)
            case ((TaskState.FAILED | TaskState.EXPIRED), _):
                self._taken_up_again(before, after)
            case _:
                self._check("F1", False, after, f"it was {before.state.value} and is over")

    def _common(self, before: ExternalTask, after: ExternalTask) -> None:
        self._check("L2", after.fence >= before.fence, after, f"its fence fell from {before.fence}")
        is_explained = bool(self._explained.acts.get(after.task_id)) or self._explained.step_of(after.instance_id)
        self._check("I2", is_explained, after, "it changed, but no request that was granted in this commit names it")
        if after.state is before.state or after.state in (_READY, _LOCKED):
            self._retries(before, after)

    def _deleted(self, before: ExternalTask) -> None:
        instance = self._shadow.instances.get(before.instance_id)
        is_over = instance is None or instance.status in ENDED_STATUSES
        self._check("F1", self._explained.prunes and is_over, before, "it was deleted before its instance was over")

    def _created(self, after: ExternalTask) -> None:
        self._check("I2", self._explained.step_of(after.instance_id), after, "it was created by no step")
        if after.state is _LOCKED:
            self._lease_is_sound(after, fence_before=0)
            self._reports.sometimes("lease: given at birth")
        else:
            self._check("L1", after.state is _READY and after.fence == 0, after, "it was born neither READY nor leased")

    # --- granted and kept ------------------------------------------------------------------------------------------

    def _granted(self, before: ExternalTask, after: ExternalTask) -> None:
        self._lease_is_sound(after, before.fence)
        self._check("L1", after.attempt == before.attempt + 1, after, "the lease was not counted")
        self._check("L1", not before.draining, after, "it drains and was leased all the same")
        self._check(
            "R3",
            before.available_at_ms <= max(self._now_ms, before.updated_at_ms),
            after,
            f"it was leased before its next attempt at {before.available_at_ms}",
        )
        if before.single_try:
            self._single_try_granted(before, after)
        self._note_grant(before, after)

    def _lease_is_sound(self, after: ExternalTask, fence_before: int) -> None:
        lease = after.lease
        act = self._explained.act(after.task_id, ActKind.LEASE)
        self._check("L1", lease is not None and act is not None, after, "it was locked by no request for a lease")
        if lease is None or act is None:
            return
        self._check("L1", lease.holder == act.holder, after, f"it was locked for {lease.holder}, not {act.holder}")
        highest = max(fence_before, self._highest_fences.get(after.task_id, 0))
        self._check("L2", after.fence == lease.fence, after, f"its lease has fence {lease.fence}")
        self._check("L2", after.fence > highest, after, f"fence {after.fence} is not above {highest}")
        self._check("L2", after.fence >= self._now_ms, after, "its fence is behind the clock (rule 11)")
        self._highest_fences[after.task_id] = max(after.fence, highest)
        self._end_is_sound(after)
        if isinstance(act.operation, FetchAndLock):
            self._check("L8", after.topic in act.operation.topics, after, f"topic {after.topic} was not asked for")

    def _end_is_sound(self, after: ExternalTask) -> None:
        assert after.lease is not None
        left_ms = after.lease.until_ms - self._now_ms
        longest = max(self._lock_ms_max, after.lock_duration_ms or 0) + self._clock.leniency_ms(after.lease)
        self._check("L3", 0 < left_ms <= longest, after, f"the lease that was given lasts {left_ms} ms")

    def _single_try_granted(self, before: ExternalTask, after: ExternalTask) -> None:
        """Only a lease that its worker surely had not begun, or an operator, may be followed by another one."""
        last = self._shadow.attempts.get((before.task_id, before.fence))
        if last is not None and last.end is AttemptEnd.EXPIRED:
            self._check("L7", before.lock_expiries == 0, after, "a single-try task is offered again after its expiry")

    def _note_grant(self, before: ExternalTask, after: ExternalTask) -> None:
        last = self._shadow.attempts.get((before.task_id, before.fence))
        if last is None or after.lease is None:
            return
        is_other = last.worker_id != after.lease.holder.worker_id
        self._reports.sometimes(
            "lease: expired and reclaimed by another worker", last.end is AttemptEnd.EXPIRED and is_other
        )
        self._reports.sometimes("task: leased again after a failure", last.end is AttemptEnd.FAILED)

    def _kept(self, before: ExternalTask, after: ExternalTask) -> None:
        """Extended, renewed, moved to another session, or marked as draining."""
        if before.lease is None or after.lease is None:
            self._check("L1", False, after, "it is LOCKED without a lease")
            return
        self._check("L1", after.fence == before.fence, after, f"it was leased by {before.lease.holder.worker_id} still")
        self._check("L1", after.attempt == before.attempt, after, "a lease was counted that was not given")
        acts = self._explained.acts.get(after.task_id, [])
        self._holder_may_change(before, after)
        leniency = self._clock.leniency_ms(before.lease)
        if after.lease.until_ms > before.lease.until_ms + leniency:
            extending = [act for act in acts if act.kind in (ActKind.EXTEND, ActKind.RENEW)]
            self._check("L2", any(act.fence == before.fence for act in extending), after, "a stale fence extended it")
            is_live = before.lease.until_ms + leniency > self._now_ms
            self._check("L3", is_live, after, f"a lock that ran out at {before.lease.until_ms} was revived")
            self._end_is_sound(after)
            self._reports.sometimes("lease: renewed", any(act.kind is ActKind.RENEW for act in extending))
            self._reports.sometimes("lease: extended by request", any(act.kind is ActKind.EXTEND for act in extending))

    def _holder_may_change(self, before: ExternalTask, after: ExternalTask) -> None:
        assert before.lease is not None
        assert after.lease is not None
        old, new = before.lease.holder, after.lease.holder
        if old == new:
            return
        is_same_process = (old.worker_id, old.boot_id) == (new.worker_id, new.boot_id)
        acts = self._explained.acts.get(after.task_id, [])  # a batch may have two hellos of one process
        is_resumed = any(act.kind is ActKind.RESUME and act.holder == new for act in acts)
        is_resumed = is_resumed and old.session_no < new.session_no
        self._check("L1", is_same_process and is_resumed, after, f"the lease of {old} went over to {new}")
        is_live = before.lease.until_ms + self._clock.leniency_ms(before.lease) > self._now_ms
        self._check("L3", is_live, after, f"a lock that ran out at {before.lease.until_ms} was resumed")
        self._reports.sometimes("lease: moved to a later session")

    # --- given back ------------------------------------------------------------------------------------------------

    def _returned(self, before: ExternalTask, after: ExternalTask) -> None:
        attempt = self._ended.get((before.task_id, before.fence))
        if attempt is None or before.lease is None:
            self._check("L4", False, after, "its lease went without a trace among the attempts")
            return
        match attempt.end:
            case AttemptEnd.EXPIRED:
                self._returned_by_expiry(before, after)
            case AttemptEnd.RELEASED:
                self._returned_by_release(before, after)
            case AttemptEnd.FAILED:
                self._returned_by_failure(before, after)
            case _:
                self._check("L4", False, after, f"a lease that ended {attempt.end.value} does not make it READY")

    def _returned_by_expiry(self, before: ExternalTask, after: ExternalTask) -> None:
        assert before.lease is not None
        until_ms = before.lease.until_ms
        early_ms = until_ms - self._now_ms
        self._check("L4", early_ms <= 0, after, f"it was reclaimed {early_ms} ms before the end of its lease")
        self._check("L7", not before.single_try, after, "a single-try task is READY again after its expiry")
        limit = before.lock_expiries_max
        self._check("L7", not 0 < limit <= after.lock_expiries, after, f"its lock may run out {limit} times at most")
        self._check("L4", not before.draining, after, "a draining task must end, not be offered again")
        self._reports.sometimes("lease: expired")

    def _returned_by_release(self, before: ExternalTask, after: ExternalTask) -> None:
        act = self._explained.act(before.task_id, ActKind.RELEASE, ActKind.RESUME_RELEASE)
        if act is None or before.lease is None:
            self._check("L4", False, after, "it was released by nobody")
            return
        self._check("L2", act.fence == before.fence, after, f"fence {act.fence} released the lease {before.fence}")
        if act.kind is ActKind.RESUME_RELEASE:
            old, new = before.lease.holder, act.holder
            is_own = new is not None and (old.worker_id, old.boot_id) == (new.worker_id, new.boot_id)
            self._check("L4", is_own, after, "the hello of another worker process released it")
            self._reports.sometimes("lease: released by hello")
            self._reports.sometimes("lease: released")
            return
        is_own = act.session_id in (None, before.lease.holder.session_id)
        self._check("L4", is_own, after, f"session {act.session_id} gave back what had gone over to a later one")
        if before.single_try:
            self._check("L7", not act.is_started, after, "a single-try task that was begun is READY again")
            self._reports.sometimes("task: single-try released before its start")
        self._reports.sometimes("lease: released")

    def _returned_by_failure(self, before: ExternalTask, after: ExternalTask) -> None:
        assert before.lease is not None
        act = self._explained.act(before.task_id, ActKind.FAIL)
        if act is None or not isinstance(act.operation, FailTask):
            self._check("L5", False, after, "it failed at nobody's request")
            return
        self._by_holder(before, after, act.fence, act.operation.worker_id)
        wanted = before.retries_left - 1 if act.operation.retries is None else act.operation.retries
        self._check(
            "R1", after.retries_left == wanted, after, f"{before.retries_left} retries became other than {wanted}"
        )
        self._check("R3", after.retries_left >= 1, after, "it is offered again without a retry left")
        if act.operation.retry_after_ms is not None:
            due_ms = self._now_ms + act.operation.retry_after_ms
            self._check("R3", after.available_at_ms >= due_ms, after, f"its next attempt is before {due_ms}")
        self._reports.sometimes("task: failed with retries left")

    def _by_holder(self, before: ExternalTask, after: ExternalTask, fence: int | None, worker_id: str | None) -> None:
        assert before.lease is not None
        self._check("L5", fence == before.fence, after, f"fence {fence} ended the lease {before.fence}")
        is_holder = worker_id in (None, before.lease.holder.worker_id)
        self._check("L5", is_holder, after, f"{worker_id} ended the lease of {before.lease.holder.worker_id}")
        left_ms = before.lease.until_ms - self._now_ms
        is_live = left_ms + self._clock.leniency_ms(before.lease) > 0
        self._check("L5", is_live, after, f"it was ended {-left_ms} ms after the end of its lease")

    # --- ended -----------------------------------------------------------------------------------------------------

    def _ended_locked(self, before: ExternalTask, after: ExternalTask) -> None:
        is_stepped = self._explained.step_of(before.instance_id)
        self._check("F2", is_stepped, after, "it was ended without a step of its instance (rule 8)")
        ending = self._explained.ending(before)
        if ending is None:
            self._check("L5", after.state is _CANCELLED, after, f"no request made it {after.state.value}")
            self._attempt_is(before, after, AttemptEnd.REVOKED)
            self._reports.sometimes("task: cancelled while leased")
            return
        self._check("L5", ending.final_state == after.state.value, after, f"it should be {ending.final_state}")
        if ending.outcome is None:
            self._ended_without_worker(before, after, ending)
            return
        self._by_holder(before, after, ending.fence, ending.worker_id)
        self._outcome_is_kept(before, after, ending)

    def _attempt_is(self, before: ExternalTask, after: ExternalTask, *ends: AttemptEnd) -> None:
        attempt = self._ended.get((before.task_id, before.fence))
        shown = "none" if attempt is None else attempt.end.value
        is_right = attempt is not None and attempt.end in ends
        self._check("I1", is_right, after, f"attempt {before.fence} is told as {shown}, not {ends[0].value}")

    def _outcome_is_kept(self, before: ExternalTask, after: ExternalTask, ending: TaskEnding) -> None:
        assert before.lease is not None
        outcome = after.outcome
        is_kept = outcome is not None and (outcome.kind, outcome.request_digest) == (
            ending.outcome,
            ending.request_digest,
        )
        self._check("I1", is_kept, after, f"the outcome {ending.outcome} {ending.request_digest} was not kept")
        left_ms = before.lease.until_ms - self._now_ms
        match ending.outcome:
            case OutcomeKind.COMPLETE:
                self._check("L5", after.state is _COMPLETED, after, "it was completed")
                self._check("R2", after.retries_left == before.retries_left, after, "completing it changed its retries")
                self._reports.sometimes("task: completed within 100 ms of expiry", left_ms <= 100)
                self._reports.sometimes("task: completed while draining", before.draining)
            case OutcomeKind.BPMN_ERROR:
                self._attempt_is(before, after, AttemptEnd.BPMN_ERROR)
                self._check("R1", after.retries_left == before.retries_left, after, "a BPMN error changed its retries")
                self._reports.sometimes("task: BPMN error reported")
            case _:
                self._attempt_is(before, after, AttemptEnd.FAILED)
                is_last = before.retries_left <= 1 or before.draining or ending.worker_gives_up
                self._check("R3", is_last, after, f"it failed for good with {before.retries_left} retries left")
                self._check("R1", after.retries_left == 0, after, "it failed for good and has retries")
                self._reports.sometimes("task: retries exhausted")

    def _ended_without_worker(self, before: ExternalTask, after: ExternalTask, ending: TaskEnding) -> None:
        """Expiry, a task that cannot be delivered, or the end of draining."""
        assert before.lease is not None
        self._attempt_is(before, after, AttemptEnd.EXPIRED, AttemptEnd.FAILED)
        self._check("L2", ending.fence == before.fence, after, f"fence {ending.fence} ended the lease {before.fence}")
        self._check("R2", after.retries_left == before.retries_left, after, "an expiry changed its retries")
        kind = self._explained.failure_kind(before)
        is_expiry = after.state is _EXPIRED or kind in _EXPIRY_KINDS or kind is None
        if is_expiry:
            early_ms = before.lease.until_ms - self._now_ms
            self._check("L4", early_ms <= 0, after, f"its lock was ended {early_ms} ms before its time")
        if kind == "lock_expired":
            self._check("L7", before.single_try, after, "only a single-try task may end by one expiry")
            self._reports.sometimes("task: single-try lock expired")
        elif kind == "lock_expiries_exhausted":
            is_last = 0 < before.lock_expiries_max <= before.lock_expiries + 1
            self._check("R3", is_last, after, "it ended by expiry before its limit")
            self._reports.sometimes("task: expiry limit reached")

    def _unleased(self, before: ExternalTask, after: ExternalTask) -> None:
        """READY, and READY (draining) or ended by its process."""
        self._check("F2", self._explained.step_of(before.instance_id), after, "no step of its instance changed it")
        if after.state is _READY:
            is_drained = after.draining and not before.draining and after.fence == before.fence
            self._check("I2", is_drained, after, "it changed while nobody had it")
        else:
            self._check("L5", after.state is _CANCELLED, after, "it was READY, so nobody can have ended it")

    def _taken_up_again(self, before: ExternalTask, after: ExternalTask) -> None:
        """Rule 9: FAILED and EXPIRED are final unless an open incident is resolved."""
        resolved = [
            self._shadow.incidents.get(fact.incident_id)
            for fact in self._explained.facts(before.instance_id)
            if isinstance(fact, IncidentResolved)
        ]
        is_open = any(
            waiting is None or getattr(waiting.row, "task_id", None) == before.task_id for waiting in resolved
        )
        self._check(
            "F1", bool(resolved) and is_open, after, f"it was {before.state.value}, and no incident was resolved"
        )
        self._check("F1", after.state in (_READY, _CANCELLED), after, f"it was {before.state.value}")
        if after.state is _READY:
            self._check("R1", after.retries_left >= 1, after, "it is offered again without a retry")
            self._reports.sometimes("incident: resolved, task offered again")

    def _retries(self, before: ExternalTask, after: ExternalTask) -> None:
        """Only failures and operators change the retries, only expiries the count of those."""
        if before.state in _HALF_OVER:
            return
        attempt = self._ended.get((before.task_id, before.fence))
        ended = None if attempt is None or before.state is not _LOCKED or after.state is _LOCKED else attempt.end
        if ended is not AttemptEnd.FAILED:
            is_same = after.retries_left == before.retries_left
            self._check("R2", is_same, after, f"{before.retries_left} retries changed without a failure")
        expiries = before.lock_expiries + (ended is AttemptEnd.EXPIRED)
        self._check("R2", after.lock_expiries == expiries, after, f"{expiries} expiries are counted as others")


def _shown(task: ExternalTask) -> str:
    """Only what decides."""
    holder = "" if task.lease is None else f" {task.lease.holder.worker_id} until {task.lease.until_ms}"
    return f"{task.state.value} fence {task.fence}{holder} retries {task.retries_left} expiries {task.lock_expiries}"
