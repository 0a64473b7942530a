"""Steps of instances: all or nothing, and never half."""

from __future__ import annotations

import attrs

from stellwerk.core.changes import IncidentRow, RowChanges, SubscriptionRow, TaskRequeue, TimerRow, UserTaskRow
from stellwerk.core.external_task import OutcomeKind
from stellwerk.core.facts import InstanceCompleted, VariablesSet
from stellwerk.ports import (
    BirthLease,
    Committed,
    DefinitionRow,
    DeployDefinitions,
    Deployed,
    FailTask,
    InboxRow,
    LeaseAnswerKind,
    MessageRow,
    PublishMessage,
    RefusedChangeset,
    RefusedGuard,
    TaskQuery,
)
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld, holder, new_task

__all__ = ["ChangesetContract"]


def _everything(world: StoreWorld) -> RowChanges:
    """One row of each kind."""
    return RowChanges(
        new_tasks=(new_task(world.fresh("task")),),
        timers_armed=(TimerRow(world.fresh("timer"), "Timer_1", START_MS),),
        subscriptions_opened=(SubscriptionRow(world.fresh("subscription"), "Catch_1", "paid", "1"),),
        user_tasks_opened=(
            UserTaskRow(world.fresh("user task"), "User_1", "Check", "ann", ("ann", "bob"), ("clerks",), "f", b"{}"),
        ),
        incidents_opened=(IncidentRow(world.fresh("incident"), "model_fault", "Task_1", "no such variable"),),
    )


async def _rows(world: StoreWorld, instance_id: str) -> tuple[int, int, int, int, int, int]:
    """How many rows an instance has: history, tasks, timers due, user tasks, incidents, inbox rows of all."""
    due, _ = await world.store.due_timers(START_MS, 100)
    return (
        len(await world.store.history(instance_id)),
        len(await world.store.tasks(TaskQuery(instance_id=instance_id))),
        len([timer for timer in due if timer.instance_id == instance_id]),
        len(await world.store.user_tasks(instance_id)),
        len(await world.store.incidents(instance_id)),
        len(await world.store.inbox(100)),
    )


class ChangesetContract(ContractBase):
    # --- rule 1: all or nothing ------------------------------------------------------------------------------------

    async def test_rule_1_a_step_writes_all_its_rows_and_one_history_row(self) -> None:
        async with self.open_world() as world:
            sent = (InboxRow("other", "child ended", b"{}"),)
            committed = await world.step("i", _everything(world), inbox_sent=sent)
            assert (committed.version, committed.now_ms) == (1, START_MS)
            assert await _rows(world, "i") == (1, 1, 1, 1, 1, 1)

    async def test_rule_1_a_step_with_a_stale_version_writes_nothing(self) -> None:
        async with self.open_world() as world:
            await world.step("i")
            stale = world.changeset("i", _everything(world), expected_version=7, inbox_sent=(InboxRow("o", "k", b""),))
            refused = await world.refuse(stale)
            assert (refused.guard, refused.subject) == (RefusedGuard.VERSION, "i")
            assert await _rows(world, "i") == (1, 0, 0, 0, 0, 0)

    async def test_rule_1_a_step_whose_lease_is_refused_moves_no_token(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            world.clock.advance(30_000)
            refused = await world.refuse(world.completion(task, changes=_everything(world)))
            assert refused.guard is RefusedGuard.LEASE
            assert await _rows(world, task.instance_id) == (1, 1, 0, 0, 0, 0)
            stored = await world.store.instance(task.instance_id)
            assert stored is not None
            assert stored.version == 1

    async def test_rule_1_two_operations_on_one_row_in_one_batch_both_count(self) -> None:
        async with self.open_world() as world:
            first, second = world.changeset("i"), world.changeset("i", expected_version=1, new_instance=None)
            outcomes = await world.transact(first, second, first)
            assert [type(outcome) for outcome in outcomes] == [Committed, Committed, RefusedChangeset]
            assert len(await world.store.history("i")) == 2

    async def test_rule_1_a_data_error_spoils_no_neighbour(self) -> None:
        async with self.open_world() as world:
            twice = await world.ready_task()
            other = await world.leased_task()
            bad = world.changeset("bad", RowChanges(new_tasks=(new_task("new"), new_task(twice))))
            publish = PublishMessage(MessageRow("m", "paid", "1", b"{}", START_MS, START_MS + 1))
            outcomes = await world.transact(world.changeset("before"), bad, world.completion(other), publish)
            assert [type(outcome) for outcome in outcomes] == [Committed, RefusedChangeset, Committed, bool]
            assert isinstance(outcomes[1], RefusedChangeset)
            assert outcomes[1].guard is RefusedGuard.DATA
            assert await _rows(world, "bad") == (0, 0, 0, 0, 0, 0)
            assert await world.store.task("new") is None
            assert await world.state(other.task_id) == "COMPLETED"
            assert await world.store.instance("before") is not None

    async def test_rule_1_after_a_data_error_repeats_and_versions_are_judged_as_ever(self) -> None:
        async with self.open_world() as world:
            twice = await world.ready_task()
            await world.step("known")
            bad = world.changeset("bad", RowChanges(new_tasks=(new_task(twice),)))
            again = world.changeset("known", expected_version=0)
            step = world.changeset("known")
            outcomes = await world.transact(bad, again, step)
            guards = [outcome.guard if isinstance(outcome, RefusedChangeset) else None for outcome in outcomes]
            assert guards == [RefusedGuard.DATA, RefusedGuard.VERSION, None]

    async def test_rule_1_after_a_data_error_the_neighbours_are_known_as_they_became(self) -> None:
        async with self.open_world() as world:
            task, failing = await world.leased_task(), await world.leased_task()
            bad = world.changeset("bad", RowChanges(new_tasks=(new_task(task.task_id),)))
            fail = FailTask(failing.task_id, failing.fence, "d", "m", retry_after_ms=0)
            await world.transact(world.completion(task), bad, fail)
            assert (await world.fail(task)).kind is LeaseAnswerKind.ALREADY_FINISHED
            assert [item.task_id for item in await world.fetch()] == [failing.task_id]
            world.versions[task.instance_id] = 2
            await world.step(task.instance_id)

    async def test_rule_1_rows_removed_and_created_again_in_one_batch_are_there(self) -> None:
        async with self.open_world() as world:
            rows = _everything(world)
            await world.step("i", rows)
            gone = RowChanges(
                timers_disarmed=(rows.timers_armed[0].timer_id,),
                user_tasks_closed=(rows.user_tasks_opened[0].user_task_id,),
                incidents_resolved=(rows.incidents_opened[0].incident_id,),
            )
            again = RowChanges(
                timers_armed=rows.timers_armed,
                user_tasks_opened=rows.user_tasks_opened,
                incidents_opened=rows.incidents_opened,
            )
            steps = [
                world.changeset("i", changes, expected_version=version, new_instance=None)
                for version, changes in enumerate((gone, again, gone, again), start=1)
            ]
            outcomes = await world.transact(*steps)
            assert [type(outcome) for outcome in outcomes] == [Committed] * 4
            assert await _rows(world, "i") == (5, 1, 1, 1, 1, 0)

    async def test_rule_1_a_step_after_the_end_in_the_same_batch_has_the_last_word(self) -> None:
        async with self.open_world() as world:
            await world.step("i")
            end = world.changeset("i", RowChanges(status="COMPLETED"))
            after = world.changeset("i", expected_version=2)
            outcomes = await world.transact(end, after)
            assert [type(outcome) for outcome in outcomes] == [Committed] * 2
            stored = await world.store.instance("i")
            assert stored is not None
            assert (stored.version, stored.status, stored.ended_at_ms) == (3, "COMPLETED", START_MS)

    async def test_an_instance_cannot_be_created_twice(self) -> None:
        async with self.open_world() as world:
            create = world.changeset("i", _everything(world))
            await world.commit(create)
            refused = await world.refuse(create)
            assert refused.guard is RefusedGuard.VERSION
            assert await _rows(world, "i") == (1, 1, 1, 1, 1, 0)

    async def test_a_step_of_an_unknown_instance_is_refused(self) -> None:
        async with self.open_world() as world:
            assert (await world.refuse(world.changeset("i", expected_version=3))).guard is RefusedGuard.VERSION
            assert (await world.refuse(world.changeset("i", new_instance=None))).guard is RefusedGuard.DATA

    async def test_an_empty_batch_does_nothing(self) -> None:
        async with self.open_world() as world:
            assert await world.transact() == []

    async def test_rows_that_a_step_removes_are_gone(self) -> None:
        async with self.open_world() as world:
            rows = _everything(world)
            await world.step("i", rows)
            await world.step(
                "i",
                RowChanges(
                    timers_disarmed=(rows.timers_armed[0].timer_id,),
                    subscriptions_closed=(rows.subscriptions_opened[0].subscription_id,),
                    user_tasks_closed=(rows.user_tasks_opened[0].user_task_id,),
                    incidents_resolved=(rows.incidents_opened[0].incident_id,),
                    cancelled_tasks=(rows.new_tasks[0].task_id,),
                ),
            )
            assert await _rows(world, "i") == (2, 1, 0, 0, 0, 0)
            assert await world.state(rows.new_tasks[0].task_id) == "CANCELLED"

    # --- rule 2: guards --------------------------------------------------------------------------------------------

    async def test_rule_2_the_refusal_names_the_task_whose_lease_failed(self) -> None:
        async with self.open_world() as world:
            instance_id = await world.instance_with(new_task("t1"), new_task("t2"))
            first, second = await world.lease("t1"), await world.lease("t2", duration_ms=60_000)
            world.clock.advance(30_000)
            both = world.completion(second).endings + world.completion(first).endings
            refused = await world.refuse(world.changeset(instance_id, endings=both))
            assert (refused.guard, refused.subject) == (RefusedGuard.LEASE, "t1")
            assert refused.answer is not None
            assert refused.answer.kind is LeaseAnswerKind.LEASE_LOST
            assert await world.state("t2") == "LOCKED"
            await world.commit(world.completion(second))

    async def test_rule_2_a_step_may_not_end_another_instances_task(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task()
            await world.step("other")
            stolen = world.changeset("other", endings=world.completion(task).endings)
            refused = await world.refuse(stolen)
            assert refused.answer is not None
            assert refused.answer.kind is LeaseAnswerKind.UNKNOWN

    async def test_rule_2_messages_incidents_and_inbox_rows_are_consumed_exactly_once(self) -> None:
        async with self.open_world() as world:
            await world.step("i", RowChanges(incidents_opened=(IncidentRow("x", "model_fault", "Task_1", "m"),)))
            await world.do(PublishMessage(MessageRow("m", "paid", "1", b"{}", START_MS, START_MS + 1)), bool)
            await world.step("sender", inbox_sent=(InboxRow("i", "k", b"{}"),))
            resolve = RowChanges(incidents_resolved=("x",))
            for guard, subject, changes, fields in (
                (RefusedGuard.MESSAGE, "m", None, {"messages_consumed": ("m",)}),
                (RefusedGuard.INCIDENT, "x", resolve, {}),
                (RefusedGuard.INBOX, "k", None, {"inbox_consumed": ("k",)}),
            ):
                await world.step("i", changes, **fields)
                refused = await world.refuse(world.changeset("i", changes, **fields))
                assert (refused.guard, refused.subject) == (guard, subject)

    async def test_rule_2_one_message_in_one_batch_goes_to_one_of_two_instances(self) -> None:
        async with self.open_world() as world:
            await world.do(PublishMessage(MessageRow("m", "paid", "1", b"{}", START_MS, START_MS + 1)), bool)
            steps = [world.changeset(instance_id, messages_consumed=("m",)) for instance_id in ("a", "b")]
            outcomes = await world.transact(*steps)
            assert [type(outcome) for outcome in outcomes] == [Committed, RefusedChangeset]
            assert await world.store.instance("b") is None

    # --- rule 5: the inbox -----------------------------------------------------------------------------------------

    async def test_rule_5_one_inbox_row_whoever_sends_it_how_often(self) -> None:
        async with self.open_world() as world:
            await world.step("receiver")
            row = InboxRow("receiver", "child ended", b'{"n":1}')
            await world.transact(*(world.changeset(sender, inbox_sent=(row, row)) for sender in ("a", "b")))
            assert list(await world.store.inbox(10)) == [row]
            receiver = await world.store.instance("receiver")
            assert receiver is not None
            assert receiver.version == 1

    async def test_rule_5_rows_for_ended_instances_are_dropped(self) -> None:
        async with self.open_world() as world:
            await world.step("receiver")
            await world.step("a", inbox_sent=(InboxRow("receiver", "1", b"{}"), InboxRow("another", "1", b"{}")))
            await world.step("receiver", RowChanges(status="COMPLETED"))
            await world.step("a", inbox_sent=(InboxRow("receiver", "2", b"{}"),))
            assert [row.instance_id for row in await world.store.inbox(10)] == ["another"]

    # --- rule 7: definitions ---------------------------------------------------------------------------------------

    async def test_rule_7_versions_count_up_and_the_same_text_is_the_same_version(self) -> None:
        async with self.open_world() as world:
            first = DefinitionRow("order", "Order", "digest 1", b"<xml/>", START_MS, (), "incident")
            second = DefinitionRow("order", "Order", "digest 2", b"<xml />", START_MS)
            other = DefinitionRow("bill", None, "digest 3", b"<x/>", START_MS)
            deployed = await world.do(DeployDefinitions((first, other)), Deployed)
            assert [row.definition_id for row in deployed.definitions] == ["order:1", "bill:1"]
            deployed = await world.do(DeployDefinitions((first,)), Deployed)
            assert (deployed.unchanged, deployed.definitions[0].definition_id) == (("order",), "order:1")
            deployed = await world.do(DeployDefinitions((second, second)), Deployed)
            assert [row.definition_id for row in deployed.definitions] == ["order:2", "order:2"]
            assert [row.definition_id for row in await world.store.definitions()] == ["bill:1", "order:1", "order:2"]
            latest = await world.store.latest_definition("order")
            assert latest == deployed.definitions[0]
            stored = await world.store.definition("order:1")
            assert stored is not None
            assert (stored.xml, stored.failure_policy) == (b"<xml/>", "incident")
            assert await world.store.definition("order:9") is None
            assert await world.store.definition("no version") is None
            assert await world.store.latest_definition("nothing") is None

    async def test_rule_7_a_definition_comes_back_with_every_field(self) -> None:
        async with self.open_world() as world:
            row = DefinitionRow(
                "order", "Order", "d", b"<x/>", START_MS, ("paid", "sent"), "compensate", adopt_java=True
            )
            await world.do(DeployDefinitions((row,)), Deployed)
            await world.reopen()
            assert await world.store.definition("order:1") == attrs.evolve(row, version=1)

    # --- rule 9: FAILED with an open incident ----------------------------------------------------------------------

    async def test_rule_9_resolving_an_incident_makes_its_task_ready_once(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(retries=1)
            incident = IncidentRow("x", "retries_exhausted", "Task_1", "m", task.task_id)
            opened = RowChanges(incidents_opened=(incident,))
            await world.commit(world.ending(task, "FAILED", OutcomeKind.FAIL, changes=opened))
            assert (await world.store.incidents())[0]["task_id"] == task.task_id
            resolve = RowChanges(incidents_resolved=("x",), requeued_tasks=(TaskRequeue(task.task_id, 2, b"[7]"),))
            await world.step(task.instance_id, resolve)
            requeued = await world.task(task.task_id)
            assert (requeued.state.value, requeued.retries_left, requeued.variables) == ("READY", 2, b"[7]")
            assert (await world.refuse(world.changeset(task.instance_id, resolve))).guard is RefusedGuard.INCIDENT
            assert (await world.lease(task.task_id)).fence > task.fence

    async def test_rule_9_a_failed_task_may_be_cancelled(self) -> None:
        async with self.open_world() as world:
            task = await world.leased_task(retries=1)
            await world.commit(world.ending(task, "FAILED", OutcomeKind.FAIL))
            committed = await world.step(task.instance_id, RowChanges(cancelled_tasks=(task.task_id,)))
            assert committed.revoked == ()
            assert await world.state(task.task_id) == "CANCELLED"

    # --- rule 10, 11: born leased ----------------------------------------------------------------------------------

    async def test_rule_10_a_task_is_born_leased(self) -> None:
        async with self.open_world() as world:
            births = (BirthLease("t2", holder(), 9_000),)
            rows = RowChanges(new_tasks=(new_task("t1"), new_task("t2")))
            committed = await world.step("i", rows, birth_leases=births)
            (born,) = committed.born_leased
            assert born == await world.task("t2")
            assert (born.state.value, born.attempt) == ("LOCKED", 1)
            assert born.lease is not None
            assert (born.lease.holder, born.lease.until_ms) == (holder(), START_MS + 9_000)
            assert await world.state("t1") == "READY"
            assert [task.task_id for task in await world.fetch()] == ["t1"]
            world.versions["i"] = 1
            await world.commit(world.completion(born))

    async def test_rule_11_a_fence_is_at_least_the_clock_also_at_birth(self) -> None:
        async with self.open_world() as world:
            births = (BirthLease("t", holder(), 9_000),)
            committed = await world.step("i", RowChanges(new_tasks=(new_task("t"),)), birth_leases=births)
            assert committed.born_leased[0].fence == START_MS
            first = await world.leased_task()
            assert first.fence == START_MS
            await world.fail(first, retry_after_ms=0)
            assert (await world.lease(first.task_id)).fence == START_MS + 1

    # --- what can be stored ----------------------------------------------------------------------------------------

    async def test_integers_of_any_size_and_all_unicode_come_back(self) -> None:
        async with self.open_world() as world:
            values: dict[str, object] = {
                "big": 10**30,
                "text": "\U0001f600 ü \u2028 \x7f",
                "float": 0.1,
                "list": [None],
            }
            await world.step("i", facts=(VariablesSet("scope", values), InstanceCompleted(terminated=True)))
            (step,) = await world.store.history("i")
            assert step.facts == (VariablesSet("scope", values), InstanceCompleted(terminated=True))
            assert (step.version, step.at_ms) == (1, START_MS)

    async def test_a_task_comes_back_as_it_was_created(self) -> None:
        async with self.open_world() as world:
            wanted = new_task(
                "t",
                topic="tøpic",
                priority=-7,
                retries=5,
                retry_backoffs_ms=(1, 20, 300),
                lock_expiries_max=0,
                single_try=True,
                lock_duration_ms=1_234,
                variables='{"ü":"\U0001f600"}'.encode(),
            )
            await world.instance_with(wanted)
            await world.reopen()
            task = await world.task("t")
            assert (task.topic, task.priority, task.retries, task.retries_left) == ("tøpic", -7, 5, 5)
            assert (task.retry_backoffs_ms, task.lock_expiries_max) == ((1, 20, 300), 0)
            assert (task.single_try, task.lock_duration_ms, task.draining) == (True, 1_234, False)
            assert (task.variables, task.headers) == (wanted.variables, wanted.headers)
            assert (task.definition_id, task.business_key, task.element_id) == ("order:1", "business key", "Task_1")
            assert (task.attempt, task.fence, task.lease, task.outcome) == (0, 0, None, None)
            assert (task.token_id, task.activity_id) == (wanted.token_id, wanted.activity_id)
