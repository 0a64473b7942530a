"""The bodies and queries of Camunda's API as attrs classes; on the wire their names are in camelCase.

Variables are typed values there: `typed_values` makes what the engine keeps of them.
"""

from __future__ import annotations

from typing import Literal

import attrs

from stellwerk.json_values import JsonObject, JsonValue
from stellwerk.server.http.foreign_texts import FREE, LONG

__all__ = [
    "AssigneeRequest",
    "BpmnErrorRequest",
    "CompleteRequest",
    "CompleteUserTaskRequest",
    "ExtendLockRequest",
    "FailureRequest",
    "FetchRequest",
    "FetchTopic",
    "LockRequest",
    "MessageRequest",
    "PriorityRequest",
    "ProcessDefinitionsQuery",
    "ProcessInstancesQuery",
    "RetriesOfManyRequest",
    "RetriesRequest",
    "SliceQuery",
    "Sorting",
    "StartRequest",
    "TasksQuery",
    "TopicNamesQuery",
    "UserTasksQuery",
    "ValuesQuery",
    "VariablesRequest",
]


# --- bodies: external tasks ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class FetchTopic:
    topic_name: str
    lock_duration: int
    variables: tuple[str, ...] | None = attrs.field(default=None, metadata=FREE)
    """None: all."""
    local_variables: bool | None = None
    business_key: str | None = None
    process_definition_id: str | None = None
    process_definition_id_in: tuple[str, ...] | None = None
    process_definition_key: str | None = None
    process_definition_key_in: tuple[str, ...] | None = None
    process_definition_version_tag: str | None = None
    process_variables: JsonObject | None = None
    """Their values, without types."""
    tenant_id_in: tuple[str, ...] | None = None
    without_tenant_id: bool | None = None
    include_extension_properties: bool | None = None
    deserialize_values: bool | None = None


@attrs.frozen(kw_only=True)
class FetchRequest:
    worker_id: str
    max_tasks: int
    topics: tuple[FetchTopic, ...] | None = None
    use_priority: bool | None = None
    async_response_timeout: int | None = None
    sorting: JsonValue = None


@attrs.frozen(kw_only=True)
class CompleteRequest:
    worker_id: str
    variables: JsonObject | None = None
    local_variables: JsonObject | None = None


@attrs.frozen(kw_only=True)
class FailureRequest:
    worker_id: str
    error_message: str | None = attrs.field(default=None, metadata=FREE)
    error_details: JsonValue = None
    retries: int | None = None
    """None: the engine counts."""
    retry_timeout: int | None = None
    variables: JsonObject | None = None
    local_variables: JsonObject | None = None


@attrs.frozen(kw_only=True)
class BpmnErrorRequest:
    worker_id: str
    error_code: str = attrs.field(metadata=FREE)
    error_message: str | None = attrs.field(default=None, metadata=FREE)
    variables: JsonObject | None = None


@attrs.frozen(kw_only=True)
class ExtendLockRequest:
    worker_id: str
    new_duration: int


@attrs.frozen(kw_only=True)
class LockRequest:
    worker_id: str
    lock_duration: int


@attrs.frozen(kw_only=True)
class RetriesRequest:
    retries: int


@attrs.frozen(kw_only=True)
class PriorityRequest:
    priority: JsonValue
    """A whole number, which may be negative."""


# --- bodies: the others ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class StartRequest:
    variables: JsonObject | None = None
    business_key: str | None = None
    case_instance_id: str | None = None
    start_instructions: JsonValue = None
    with_variables_in_return: bool = False


@attrs.frozen(kw_only=True)
class VariablesRequest:
    modifications: JsonObject | None = None
    deletions: tuple[str, ...] | None = attrs.field(default=None, metadata=FREE)


@attrs.frozen(kw_only=True)
class MessageRequest:
    message_name: str
    business_key: str | None = None
    correlation_keys: JsonObject | None = None
    local_correlation_keys: JsonObject | None = None
    process_instance_id: str | None = None
    process_variables: JsonObject | None = None
    process_variables_local: JsonObject | None = None
    tenant_id: str | None = None
    all: bool = False
    result_enabled: bool = False
    variables_in_result_enabled: bool = False


@attrs.frozen(kw_only=True)
class CompleteUserTaskRequest:
    variables: JsonObject | None = None
    with_variables_in_return: bool = False


@attrs.frozen(kw_only=True)
class AssigneeRequest:
    user_id: str | None = None


# --- queries of lists: a parameter that is not here is refused, lest more is found than was asked for -----------------


@attrs.frozen(kw_only=True)
class Sorting:
    sort_by: str
    sort_order: Literal["asc", "desc"] = "asc"


@attrs.frozen(kw_only=True)
class SliceQuery:
    first_result: int = 0
    max_results: int | None = None
    sort_by: str | None = None
    sort_order: Literal["asc", "desc"] | None = None
    sorting: tuple[Sorting, ...] = ()
    """In bodies, instead of the two above."""

    @property
    def orders(self) -> tuple[Sorting, ...]:
        if self.sort_by is None:
            return self.sorting
        return (Sorting(sort_by=self.sort_by, sort_order=self.sort_order or "asc"), *self.sorting)


@attrs.frozen(kw_only=True)
class TasksQuery(SliceQuery):
    external_task_id: str | None = None
    external_task_id_in: tuple[str, ...] | None = None
    topic_name: str | None = None
    worker_id: str | None = None
    locked: bool = False
    not_locked: bool = False
    with_retries_left: bool = False
    no_retries_left: bool = False
    activity_id: str | None = None
    process_instance_id: str | None = None
    process_definition_id: str | None = None
    process_definition_key: str | None = None
    active: bool = False
    suspended: bool = False
    without_tenant_id: bool = False
    priority_higher_than_or_equals: JsonValue = None
    priority_lower_than_or_equals: JsonValue = None


@attrs.frozen(kw_only=True)
class TopicNamesQuery:
    with_locked_tasks: bool = False
    with_unlocked_tasks: bool = False
    with_retries_left: bool = False


@attrs.frozen(kw_only=True)
class ProcessDefinitionsQuery(SliceQuery):
    process_definition_id: str | None = None
    process_definition_id_in: tuple[str, ...] | None = None
    key: str | None = None
    keys_in: tuple[str, ...] | None = None
    name: str | None = attrs.field(default=None, metadata=LONG)
    version: int | None = None
    latest_version: bool = False
    active: bool = False
    suspended: bool = False
    without_tenant_id: bool = False


@attrs.frozen(kw_only=True)
class ProcessInstancesQuery(SliceQuery):
    process_instance_ids: tuple[str, ...] | None = None
    business_key: str | None = None
    process_definition_id: str | None = None
    process_definition_key: str | None = None
    active: bool = False
    suspended: bool = False
    with_incident: bool = False
    without_tenant_id: bool = False


@attrs.frozen(kw_only=True)
class RetriesOfManyRequest:
    retries: int
    external_task_ids: tuple[str, ...] | None = None
    process_instance_ids: tuple[str, ...] | None = None
    external_task_query: TasksQuery | None = None
    process_instance_query: ProcessInstancesQuery | None = None
    historic_process_instance_query: JsonValue = None


@attrs.frozen(kw_only=True)
class UserTasksQuery(SliceQuery):
    task_id: str | None = None
    process_instance_id: str | None = None
    process_definition_key: str | None = None
    process_definition_id: str | None = None
    task_definition_key: str | None = None
    name: str | None = attrs.field(default=None, metadata=LONG)
    assignee: str | None = None
    assigned: bool = False
    unassigned: bool = False
    candidate_group: str | None = None
    candidate_user: str | None = None
    active: bool = False
    suspended: bool = False
    without_tenant_id: bool = False


@attrs.frozen(kw_only=True)
class ValuesQuery:
    deserialize_values: bool = True
    """For lists of variables."""
    deserialize_value: bool = True
    """For a single one."""
