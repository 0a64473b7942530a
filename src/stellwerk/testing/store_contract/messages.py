"""Messages, timers and what waits for them."""

from __future__ import annotations

from stellwerk.core.changes import RowChanges, SubscriptionRow, TimerRow
from stellwerk.ports import (
    DefinitionRow,
    DeployDefinitions,
    Deployed,
    DropMessages,
    DueTimer,
    KeptMessage,
    MessageRow,
    PublishMessage,
    SetProcessEnabled,
)
from stellwerk.testing.store_contract.world import START_MS, ContractBase, StoreWorld

__all__ = ["MessageContract"]


def _message(
    message_id: str, key: str = "1", name: str = "paid", at_ms: int = START_MS, to: str | None = None
) -> MessageRow:
    return MessageRow(message_id, name, key, b'{"x":1}', at_ms, at_ms + 60_000, to)


async def _publish(world: StoreWorld, *messages: MessageRow) -> list[object]:
    return await world.transact(*(PublishMessage(message) for message in messages))


async def _subscribe(world: StoreWorld, instance_id: str, *subscriptions: tuple[str, str]) -> None:
    rows = tuple(SubscriptionRow(subscription_id, "Catch_1", "paid", key) for subscription_id, key in subscriptions)
    await world.step(instance_id, RowChanges(subscriptions_opened=rows))


async def _matches(world: StoreWorld, limit: int = 10) -> list[tuple[str, str | None]]:
    """(message id, subscription or definition)."""
    found = await world.store.matched_messages(world.clock.wall_ms(), limit)
    return [(match.message.message_id, match.subscription_id or match.definition_id) for match in found]


async def _kept(world: StoreWorld) -> list[tuple[str, bool]]:
    """(message id, whether something waits for it) of those that are not correlated."""
    found = await world.store.waiting_messages(world.clock.wall_ms())
    for kept in found:
        assert await world.store.message(kept.message_id) == kept
    return [(kept.message_id, kept.is_awaited) for kept in found]


def _starting(digest: str, *names: str) -> DefinitionRow:
    return DefinitionRow("order", None, digest, b"", START_MS, names)


class MessageContract(ContractBase):
    async def test_rule_6_whichever_comes_first_message_and_subscription_are_paired(self) -> None:
        async with self.open_world() as world:
            await _publish(world, _message("m1"))
            assert await _matches(world) == []
            await _subscribe(world, "i", ("s1", "1"), ("s2", "2"))
            await _publish(world, _message("m2", "2"), _message("m3", "3"), _message("m4", "1", "other"))
            assert await _matches(world) == [("m1", "s1"), ("m2", "s2")]
            assert await _matches(world, limit=1) == [("m1", "s1")]
            (match, _) = await world.store.matched_messages(START_MS, 10)
            assert (match.message, match.instance_id, match.definition_id) == (_message("m1"), "i", None)

    async def test_rule_6_oldest_message_first_and_one_for_each_subscription(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("s1", "1"))
            await _subscribe(world, "j", ("s2", "1"))
            await _publish(world, _message("late", at_ms=START_MS + 1), _message("c"), _message("b"))
            assert await _matches(world) == [("b", "s1"), ("c", "s2")]

    async def test_rule_6_the_correlating_step_takes_message_and_subscription(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("s1", "1"))
            await _publish(world, _message("m"))
            await world.step("i", RowChanges(subscriptions_closed=("s1",)), messages_consumed=("m",))
            assert await _matches(world) == []
            await _subscribe(world, "j", ("s2", "1"))
            assert await _matches(world) == []

    async def test_a_message_is_published_once_also_when_it_was_consumed(self) -> None:
        async with self.open_world() as world:
            assert await _publish(world, _message("m"), _message("m")) == [True, False]
            await world.step("i", messages_consumed=("m",))
            await world.reopen()
            assert await _publish(world, _message("m")) == [False]
            assert await world.do(DropMessages(START_MS + 60_000), int) == 0
            assert await _publish(world, _message("m")) == [True]

    async def test_a_message_says_what_became_of_it(self) -> None:
        async with self.open_world() as world:
            await _publish(world, *(_message(name) for name in ("b", "a", "c")), _message("later", at_ms=START_MS + 1))
            await world.step("i", messages_consumed=("b",))

            async def waiting(now_ms: int = START_MS, **page: object) -> list[str]:
                found = await world.store.waiting_messages(now_ms, **page)  # type: ignore[arg-type]
                return [message.message_id for message in found]

            assert await waiting() == ["a", "c", "later"]
            assert await waiting(limit=1) == ["a"]
            assert await waiting(limit=1, after="a") == ["c"]
            assert await waiting(after="b") == ["c", "later"], "the end of a page may be gone"
            assert await waiting(START_MS + 60_000) == ["later"]
            for name, is_correlated in (("a", False), ("b", True)):
                assert await world.store.message(name) == KeptMessage(
                    message_id=name,
                    name="paid",
                    key="1",
                    published_at_ms=START_MS,
                    expires_at_ms=START_MS + 60_000,
                    is_correlated=is_correlated,
                    is_awaited=False,
                )
            assert await world.store.message("nothing") is None
            await world.do(DropMessages(START_MS + 60_000), int)
            assert await world.store.message("a") is None

    async def test_a_message_says_whether_something_waits_for_it(self) -> None:
        async with self.open_world() as world:
            await _publish(world, _message("a"), _message("b", "2"), _message("c", "3", "ordered"))

            async def awaited() -> list[bool]:
                found = await world.store.waiting_messages(START_MS)
                for message in found:
                    assert await world.store.message(message.message_id) == message
                return [message.is_awaited for message in found]

            assert await awaited() == [False, False, False]
            await _subscribe(world, "i", ("s", "2"))
            starting = DefinitionRow("order", None, "1", b"", START_MS, ("ordered",))
            await world.do(DeployDefinitions((starting,)), Deployed)
            assert await awaited() == [False, True, True]

    async def test_who_waits_for_a_name_is_found_whatever_the_key(self) -> None:
        async with self.open_world() as world:
            assert await world.store.receivers("paid", 10) == []
            await _subscribe(world, "i", ("s2", "2"), ("s1", "1"))
            world.clock.advance(1_000)
            await _subscribe(world, "j", ("s0", "1"), ("s3", ""))
            assert await world.store.receivers("paid", 10) == [("j", ""), ("i", "1"), ("j", "1"), ("i", "2")]
            assert await world.store.receivers("paid", 2) == [("j", ""), ("i", "1")]
            assert await world.store.receivers("ordered", 10) == []
            await world.reopen()
            assert len(await world.store.receivers("paid", 10)) == 4

    async def test_names_that_something_waits_for_are_told_once_each(self) -> None:
        async with self.open_world() as world:
            assert await world.store.awaited_names(10) == []
            starting = DefinitionRow("order", None, "1", b"", START_MS, ("ordered", "paid"))
            await world.do(DeployDefinitions((starting,)), Deployed)
            assert await world.store.awaited_names(10) == ["ordered", "paid"]
            await _subscribe(world, "i", ("s1", "1"), ("s2", "2"))
            rows = tuple(SubscriptionRow(name, "Catch_1", name, "1") for name in ("packed", "a", "zero"))
            await world.step("j", RowChanges(subscriptions_opened=rows))
            assert await world.store.awaited_names(10) == ["a", "ordered", "packed", "paid", "zero"]
            assert await world.store.awaited_names(2) == ["a", "ordered"]
            await world.step("j", RowChanges(subscriptions_closed=("a", "zero")))
            assert await world.store.awaited_names(10) == ["ordered", "packed", "paid"]

    async def test_a_message_whose_time_ended_meets_nobody_and_is_dropped(self) -> None:
        async with self.open_world() as world:
            await _publish(world, _message("m"), _message("later", at_ms=START_MS + 1))
            world.clock.advance(60_000)
            await _subscribe(world, "i", ("s", "1"))
            await world.do(DeployDefinitions((_starting("1", "paid"),)), Deployed)
            assert await _matches(world) == [("later", "s")]
            assert await _kept(world) == [("later", True)]
            assert await world.do(DropMessages(START_MS + 60_000), int) == 1
            assert await world.do(DropMessages(START_MS + 60_000), int) == 0

    async def test_what_was_waited_for_in_time_is_correlated_however_late(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("s1", "1"))
            await _publish(world, _message("m1"), _message("m2", "2"), _message("nobody", "3"))
            world.clock.advance(59_999)
            await _subscribe(world, "j", ("s2", "2"))
            world.clock.advance(3_600_000)
            await _subscribe(world, "k", ("s3", "3"), ("a", "1"))
            assert await _matches(world) == [("m1", "s1"), ("m2", "s2")]
            assert await _kept(world) == [("m1", True), ("m2", True)]
            assert await world.do(DropMessages(world.clock.wall_ms()), int) == 1
            await world.reopen()
            assert await _matches(world) == [("m1", "s1"), ("m2", "s2")]
            assert await _matches(world, limit=1) == [("m1", "s1")]
            await world.step("i", RowChanges(subscriptions_closed=("s1",)), messages_consumed=("m1",))
            await world.step("j", RowChanges(subscriptions_closed=("s2",)), messages_consumed=("m2",))
            assert await _kept(world) == []
            assert await world.do(DropMessages(world.clock.wall_ms()), int) == 0
            assert await _publish(world, _message("m1")) == [True]

    async def test_a_message_whose_time_ended_is_kept_as_long_as_somebody_waits_for_it(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("s", "1"))
            await _publish(world, _message("first"), _message("second"), _message("to i", "", to="i"))
            world.clock.advance(90_000)
            assert (await _matches(world))[:1] == [("first", "s")]
            assert await world.do(DropMessages(world.clock.wall_ms()), int) == 0
            await world.step("i", RowChanges(subscriptions_closed=("s",)), messages_consumed=("first",))
            await _subscribe(world, "i", ("again", "1"))
            assert await _matches(world) == []
            assert await _kept(world) == []
            assert await world.do(DropMessages(world.clock.wall_ms()), int) == 2

    async def test_a_message_that_is_given_up_goes_when_its_time_ends(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("s", "1"))
            await _publish(world, _message("m"), _message("next"))
            given_up = ("m", "unheard of")
            assert await world.do(DropMessages(START_MS + 59_999, given_up), int) == 0
            assert await world.do(DropMessages(START_MS + 60_000, given_up), int) == 1
            assert await _matches(world) == [("next", "s")]

    async def test_late_messages_go_to_those_who_waited_in_time_and_others_to_the_rest(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("z in time", "1"))
            await _publish(world, _message("late"), _message("too late"))
            world.clock.advance(60_000)
            await _subscribe(world, "j", ("a", "1"))
            await _subscribe(world, "k", ("b", "2"))
            await _publish(world, _message("live", "2", at_ms=START_MS + 60_000))
            assert await _matches(world) == [("late", "z in time"), ("live", "b")]
            await world.step("i", RowChanges(subscriptions_closed=("z in time",)), messages_consumed=("late",))
            await _publish(world, _message("also live", at_ms=START_MS + 60_000))
            assert await _matches(world) == [("also live", "a"), ("live", "b")]

    async def test_who_has_waited_longest_comes_first(self) -> None:
        async with self.open_world() as world:
            for subscription_id in ("c", "b", "a"):
                await _subscribe(world, f"for {subscription_id}", (subscription_id, "1"))
                world.clock.advance(10)
            await _publish(world, *(_message(name) for name in ("m1", "m2")))
            assert await _matches(world) == [("m1", "c"), ("m2", "b")]

    async def test_a_late_message_for_one_instance_reaches_what_waited_there_in_time(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("z", "1"))
            await _publish(world, _message("m1", to="i"), _message("m2", "", to="i"), _message("m3", "2", to="i"))
            world.clock.advance(60_000)
            await _subscribe(world, "i", ("a", "2"), ("b", "1"))
            await _subscribe(world, "j", ("c", "1"))
            assert await _matches(world) == [("m1", "z")]
            assert await world.do(DropMessages(world.clock.wall_ms()), int) == 1
            assert await _kept(world) == [("m1", True), ("m2", True)]

    async def test_a_late_message_starts_what_would_have_started_in_time(self) -> None:
        async with self.open_world() as world:
            await world.do(DeployDefinitions((_starting("1", "paid"),)), Deployed)
            await _publish(world, _message("m"), _message("other", name="ordered"))
            world.clock.advance(60_000)
            await world.do(DeployDefinitions((_starting("2", "paid", "ordered"),)), Deployed)
            assert await _matches(world) == [("m", "order:2")], "it has waited since the version before"
            assert await world.do(DropMessages(world.clock.wall_ms()), int) == 1
            await world.reopen()
            assert await _matches(world) == [("m", "order:2")]
            await world.do(SetProcessEnabled("order", is_enabled=False), bool)
            await world.do(SetProcessEnabled("order", is_enabled=True), bool)
            assert await _matches(world) == []
            assert await world.do(DropMessages(world.clock.wall_ms()), int) == 1

    async def test_rule_7_start_subscriptions_switch_to_the_new_version(self) -> None:
        async with self.open_world() as world:
            first = DefinitionRow("order", None, "1", b"", START_MS, ("paid", "ordered"))
            second = DefinitionRow("order", None, "2", b"", START_MS, ("paid",))
            await world.do(DeployDefinitions((first,)), Deployed)
            await _publish(world, _message("m1", "any"), _message("m2", "other"), _message("m3", name="ordered"))
            assert await _matches(world) == [("m1", "order:1"), ("m2", "order:1"), ("m3", "order:1")]
            await world.do(DeployDefinitions((second,)), Deployed)
            assert await _matches(world) == [("m1", "order:2"), ("m2", "order:2")]
            await world.reopen()
            assert await _matches(world) == [("m1", "order:2"), ("m2", "order:2")]

    async def test_a_waiting_instance_goes_before_a_new_one(self) -> None:
        async with self.open_world() as world:
            row = DefinitionRow("order", None, "1", b"", START_MS, ("paid",))
            await world.do(DeployDefinitions((row,)), Deployed)
            await _subscribe(world, "i", ("s", "1"))
            await _publish(world, _message("m1"), _message("m2"))
            assert await _matches(world) == [("m1", "s"), ("m2", "order:1")]

    async def test_a_message_for_one_instance_reaches_no_other(self) -> None:
        async with self.open_world() as world:
            row = DefinitionRow("order", None, "1", b"", START_MS, ("paid",))
            await world.do(DeployDefinitions((row,)), Deployed)
            await _subscribe(world, "i", ("s1", "1"))
            await _subscribe(world, "j", ("s2", "1"), ("s3", "2"))
            await _publish(world, _message("m1", to="j"), _message("m2", to="j"), _message("m3", to="nobody"))
            assert await _matches(world) == [("m1", "s2")]
            assert await _matches(world, limit=1) == [("m1", "s2")]
            (match,) = await world.store.matched_messages(START_MS, 10)
            assert (match.message, match.instance_id) == (_message("m1", to="j"), "j")
            await world.reopen()
            await world.step("j", RowChanges(subscriptions_closed=("s2",)), messages_consumed=("m1",))
            assert await _matches(world) == [], "no instance is started by it"

    async def test_without_a_key_it_reaches_any_subscription_of_the_instance(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("s0", "1"))
            await _subscribe(world, "j", ("s1", "1"), ("s2", "2"))
            await _publish(world, _message("m1", "", to="j"), _message("m2", "", to="j"), _message("m3", "", to="j"))
            assert await _matches(world) == [("m1", "s1"), ("m2", "s2")]
            assert await _matches(world, limit=1) == [("m1", "s1")]

    async def test_rule_6_the_older_message_goes_first_however_they_are_addressed(self) -> None:
        async with self.open_world() as world:
            await _subscribe(world, "i", ("s1", "1"))
            await _publish(world, _message("b", at_ms=START_MS + 1), _message("c", "", to="i", at_ms=START_MS + 2))
            assert await _matches(world) == [("b", "s1")]
            await _publish(world, _message("a", "", to="i"))
            assert await _matches(world) == [("a", "s1")]

    async def test_a_message_for_one_instance_tells_whether_that_one_waits(self) -> None:
        async with self.open_world() as world:
            row = DefinitionRow("order", None, "1", b"", START_MS, ("paid",))
            await world.do(DeployDefinitions((row,)), Deployed)
            await _subscribe(world, "i", ("s1", "1"))
            await _subscribe(world, "j", ("s2", "2"))
            await _publish(world, _message("m1", to="j"), _message("m2", "", to="j"), _message("m3", "2", to="j"))
            kept = await world.store.waiting_messages(START_MS, limit=9)
            assert [(each.message_id, each.instance_id, each.is_awaited) for each in kept] == [
                ("m1", "j", False),
                ("m2", "j", True),
                ("m3", "j", True),
            ]
            assert await world.store.message("m2") == kept[1]

    async def test_timers_come_due_in_order(self) -> None:
        async with self.open_world() as world:
            timers = tuple(TimerRow(f"t{number}", "Timer_1", START_MS + 1_000 * number) for number in (3, 1, 2))
            await world.step("i", RowChanges(timers_armed=timers))
            assert await world.store.due_timers(START_MS, 10) == ([], START_MS + 1_000)
            due, following = await world.store.due_timers(START_MS + 2_000, 10)
            assert list(due) == [DueTimer("t1", "i", START_MS + 1_000), DueTimer("t2", "i", START_MS + 2_000)]
            assert following == START_MS + 3_000
            due, following = await world.store.due_timers(START_MS + 9_000, 1)
            assert ([timer.timer_id for timer in due], following) == (["t1"], START_MS + 2_000)
            await world.step("i", RowChanges(timers_disarmed=("t1", "t2", "t3")))
            assert await world.store.due_timers(START_MS + 9_000, 10) == ([], None)
