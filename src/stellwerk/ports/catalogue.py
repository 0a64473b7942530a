"""Operations on what lies beside the instances: definitions and messages, and instances that ended long ago."""

from __future__ import annotations

import attrs

from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = [
    "DefinitionRow",
    "DeleteDefinition",
    "DeployDefinitions",
    "Deployed",
    "DropMessages",
    "MessageRow",
    "ProcessRow",
    "PruneInstances",
    "Pruned",
    "PublishMessage",
    "SetProcessEnabled",
]


@frozen
class DefinitionRow:
    """A deployed process. ``definition_id`` is ``key:version``."""

    key: str
    name: str | None
    digest: str
    """SHA-256 of the XML: the same text again is the same version."""
    xml: bytes = attrs.field(repr=False)
    deployed_at_ms: InstantMs
    start_messages: tuple[str, ...] = ()
    """Names of message start events: their subscriptions switch to this version in the deploying transaction."""
    failure_policy: str | None = None
    adopt_java: bool = False
    """Java classes and beans became topics: the file must be read again in the same way."""
    version: int = 0

    @property
    def definition_id(self) -> str:
        return f"{self.key}:{self.version}"


@frozen
class DeployDefinitions:
    """All or none (consistency.md 7). → `Deployed`."""

    definitions: tuple[DefinitionRow, ...]


@frozen
class Deployed:
    definitions: tuple[DefinitionRow, ...]
    """With their versions."""
    unchanged: tuple[str, ...]
    """Keys whose newest version already had this digest."""


@frozen
class ProcessRow:
    """What is to be known of a process beside its versions. There is none for most processes."""

    key: str
    is_enabled: bool = True
    """Otherwise nothing of it starts. What runs goes on."""
    last_deleted: int = 0
    """The highest version that was deleted: no later one gets its number."""


@frozen
class SetProcessEnabled:
    """Of all its versions, and those to come. → bool: False where it was so already; `NotFound` where none is there."""

    key: str
    is_enabled: bool


@frozen
class DeleteDefinition:
    """Delete one version of a process. The newest that is left takes its place, also for messages that start it.

    → None; `NotFound`, or `Conflict` while the store has instances of it, ended ones too.
    """

    definition_id: str


@frozen
class MessageRow:
    """A published message, kept until it is correlated or its time to live ends without anybody who waits for it."""

    message_id: str
    name: str
    key: str
    variables: bytes
    published_at_ms: InstantMs
    """Both on the lease clock, which all nodes share: one whose wall clock is wrong must not take a message away."""
    expires_at_ms: InstantMs
    instance_id: str | None = None
    """Only for this instance: it starts nothing. With an empty key it reaches any subscription of its name there."""


@frozen
class PublishMessage:
    """→ bool: False when that message_id was published before."""

    message: MessageRow


@frozen
class DropMessages:
    """Drop messages whose time to live ended before `now_ms` (lease clock). → int: how many that still waited.

    One that something waited for before it ended is kept until it is correlated, or nothing waits for it any more.
    """

    now_ms: InstantMs
    given_up: tuple[str, ...] = ()
    """Ids of messages that are dropped then although something waits for them: nobody can take them."""


@frozen
class PruneInstances:
    """Delete instances that ended (COMPLETED, FAILED or CANCELLED) before `ended_before_ms` (wall clock), with all that
    belongs to them (history, snapshots, tasks, attempts, rows of any kind), the longest ended first. → `Pruned`.

    Running instances are never touched. A start or message whose request_id is repeated later than that is new again.
    """

    ended_before_ms: InstantMs
    limit: int
    """At most so many instances: a large prune is many small transactions."""


@frozen
class Pruned:
    instances: int
    """0: there are no more."""
