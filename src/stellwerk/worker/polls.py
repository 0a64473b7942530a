"""Which topics a worker polls for together, and when: one request for all that are alike, while there is room.

The engine knows one limit for all topics of a poll, a worker has one for each topic. So a poll asks for the least room
of its topics, and none can get more than it has room for. Where that holds up a topic of which more is there, it is
polled alone for a while, for all of its room. A topic is in one poll at a time; those that get room while others are
waited for are polled beside them, and not longer, so that in the end all are in one poll again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

import attrs

from stellwerk.worker.handler import Handler
from stellwerk.worker.http_client import HttpCall
from stellwerk.worker.settings import Backoff

__all__ = ["PollGroup", "PolledTopic", "TopicPoll", "poll_groups"]

_TOPICS_MAX = 100
"""In one poll: engines have their limit."""
_OVER_S = 0.01
"""With so little time left a poll counts as over: another one beside it would hardly wait."""
_LATE_S = 0.25
"""So long does the next poll wait for answers that are due, to be one for all."""


@attrs.define(eq=False)
class PolledTopic:
    handler: Handler
    backoff: Backoff
    not_before: float = 0.0
    """Monotonic seconds."""
    may_join: bool = False
    """Earlier than that, when others are polled for anyway."""
    is_alone: bool = False
    """Together with others it would be held up, or hold them up."""
    is_answered: bool = False
    """The engine answered its last poll."""
    is_polled: bool = False

    @property
    def name(self) -> str:
        return self.handler.topic


Room: TypeAlias = Callable[[PolledTopic], int]
"""For how many more tasks of the topic there is room."""


@attrs.define(eq=False)
class TopicPoll:
    topics: Sequence[PolledTopic]
    max_tasks: int
    started: float
    wait_s: float
    call: HttpCall | None = None

    @property
    def ends(self) -> float:
        """The engine answers at this time, or sooner."""
        return self.started + self.wait_s


class PollGroup:
    """Topics whose polls differ in nothing but the topic."""

    def __init__(self, topics: Sequence[PolledTopic], long_wait_s: float, idle_s: float) -> None:
        """:param idle_s: polls that bring nothing begin so far apart, at least."""
        self.topics = topics
        self._long_wait_s = long_wait_s
        self._idle_s = idle_s
        self._polls: set[TopicPoll] = set()

    def begin(self, room: Room, now: float) -> list[TopicPoll]:
        """The polls that are to be sent now."""
        free = [topic for topic in self.topics if not topic.is_polled and room(topic)]
        due = [topic for topic in free if topic.not_before <= now]
        if not due or self._held_until(now) > now:
            return []
        wanted = [topic for topic in free if topic.may_join or topic.not_before <= now]
        return [self._begun(topics, room, now) for topics in _together(wanted)]

    def next_look(self, room: Room, now: float) -> float:
        """When to look again whether a poll is due, if nothing changes before."""
        begins = [topic.not_before for topic in self.topics if not topic.is_polled and room(topic)]
        return max(min(begins), self._held_until(now)) if begins else float("inf")

    def _held_until(self, now: float) -> float:
        """While answers are due, their topics can soon be polled for, too."""
        due = [poll.ends for poll in self._polls if poll.wait_s and poll.ends - _OVER_S <= now]
        return max(due, default=float("-inf")) + _LATE_S

    def _begun(self, topics: Sequence[PolledTopic], room: Room, now: float) -> TopicPoll:
        poll = TopicPoll(topics, min(room(topic) for topic in topics), now, self._wait_s(topics, now))
        for topic in topics:
            topic.is_polled = True
        self._polls.add(poll)
        return poll

    def _wait_s(self, topics: Sequence[PolledTopic], now: float) -> float:
        """Whether the engine can be reached at all shows at once only if it answers at once."""
        if not all(topic.is_answered for topic in topics):
            return 0.0
        others = [poll.ends - now for poll in self._polls if poll.ends - _OVER_S > now]
        return min([self._long_wait_s, *others])

    def answered(self, poll: TopicPoll, arrived: Collection[str], tasks: int, now: float) -> None:
        """:param arrived: topics of the ``tasks`` that it brought."""
        was_first = not all(topic.is_answered for topic in poll.topics)
        goes_on = bool(tasks) or (was_first and self._long_wait_s > 0)
        for topic in poll.topics:
            topic.is_answered = True
            topic.backoff.reset()
            topic.is_alone = tasks >= poll.max_tasks and topic.name in arrived
            topic.not_before, topic.may_join = (now if goes_on else poll.started + self._idle_s), True
        self._end(poll)

    def failed(self, poll: TopicPoll, now: float, *, pause_s: float = 0.0, is_due_to_a_topic: bool = False) -> None:
        """:param pause_s: at least so long.
        :param is_due_to_a_topic: perhaps to one only, so that the others need not suffer for it.
        """
        for topic in poll.topics:
            topic.is_answered = False
            topic.is_alone = topic.is_alone or is_due_to_a_topic
            pause_s = max(pause_s, topic.backoff.next_s())
        for topic in poll.topics:
            topic.not_before, topic.may_join = now + pause_s, False
        self._end(poll)

    def _end(self, poll: TopicPoll) -> None:
        self._polls.discard(poll)
        for topic in poll.topics:
            topic.is_polled = False


def poll_groups(topics: Iterable[PolledTopic], long_wait_s: float, idle_s: float) -> list[PollGroup]:
    alike: dict[object, list[PolledTopic]] = {}
    for topic in topics:
        options = (topic.handler.lock_duration_ms, topic.handler.filter, topic.handler.variables)
        alike.setdefault(options, []).append(topic)
    return [PollGroup(group, long_wait_s, idle_s) for group in alike.values()]


def _together(topics: Sequence[PolledTopic]) -> list[Sequence[PolledTopic]]:
    shared = [topic for topic in topics if not topic.is_alone]
    alone: list[Sequence[PolledTopic]] = [[topic] for topic in topics if topic.is_alone]
    return [shared[begin : begin + _TOPICS_MAX] for begin in range(0, len(shared), _TOPICS_MAX)] + alone
