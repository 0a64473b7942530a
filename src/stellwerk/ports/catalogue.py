"""Operations on what lies beside the instances: definitions and messages, and instances that ended long ago."""

from __future__ import annotations

import attrs

from stellwerk.instants import InstantMs
from stellwerk.values import frozen

__all__ = [
    "DefinitionRow",
    "DeployDefinitions",
    "Deployed",
    "DropMessages",
    "MessageRow",
    "PruneInstances",
    "Pruned",
    "PublishMessage",
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
class MessageRow:
    """A published message, kept until it is correlated or its time to live ends."""

    message_id: str
    name: str
    key: str
    variables: bytes
    published_at_ms: InstantMs
    """Both on the lease clock, which all nodes share: one whose wall clock is wrong must not take a message away."""
    expires_at_ms: InstantMs


@frozen
class PublishMessage:
    """→ bool: False when that message_id was published before."""

    message: MessageRow


@frozen
class DropMessages:
    """Drop messages whose time to live ended before `now_ms` (lease clock). → int: how many."""

    now_ms: InstantMs


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
