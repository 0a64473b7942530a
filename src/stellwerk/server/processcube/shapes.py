"""The bodies and queries of ProcessCube's API. On the wire their names are in camelCase; unknown ones are ignored."""

from __future__ import annotations

import attrs

from stellwerk.json_values import JsonValue
from stellwerk.server.http.foreign_texts import FREE, LONG
from stellwerk.server.http.structuring import Instant
from stellwerk.server.processcube.views import OWNER

__all__ = [
    "DefinitionsQuery",
    "DeleteQuery",
    "DeployRequest",
    "ErrorRequest",
    "ExtendLockRequest",
    "FetchAndLockRequest",
    "FinishRequest",
    "FlowNodesQuery",
    "InstancesQuery",
    "ReserveRequest",
    "RetryQuery",
    "StartRequest",
    "TriggerQuery",
    "WorkerError",
]


# --- bodies --------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class FetchAndLockRequest:
    worker_id: str
    topic_name: JsonValue
    """One topic, or an array of topics."""
    max_tasks: int = 10
    long_polling_timeout: int = 10_000
    """Milliseconds."""
    lock_duration: int = 30_000
    """Milliseconds."""
    payload_filter: str | None = attrs.field(default=None, metadata=FREE)
    """``/regular expression/flags``."""


@attrs.frozen(kw_only=True)
class ExtendLockRequest:
    worker_id: str
    additional_duration: int
    """Milliseconds from now."""


@attrs.frozen(kw_only=True)
class FinishRequest:
    worker_id: str
    result: JsonValue = None


@attrs.frozen(kw_only=True)
class WorkerError:
    error_code: JsonValue = None
    error_message: JsonValue = None
    error_details: JsonValue = None


@attrs.frozen(kw_only=True)
class ErrorRequest:
    worker_id: str
    error: WorkerError | None = None
    bpmn_error: WorkerError | None = None
    """The older name, which the Python client still sends."""


@attrs.frozen(kw_only=True)
class DeployRequest:
    xml: JsonValue
    """One file, or an array of files."""
    overwrite_existing: bool | None = None


@attrs.frozen(kw_only=True)
class StartRequest:
    process_model_id: str | None = None
    start_event_id: str | None = None
    correlation_id: str | None = None
    initial_token: JsonValue = None
    return_on: int | None = None
    """1: when it is started; 2: at the first end event; 3: at the end event that is named."""
    end_event_id: str | None = None


@attrs.frozen(kw_only=True)
class ReserveRequest:
    actual_owner_id: str | None = None


# --- queries -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PagedQuery:
    """Texts: some clients send -1 or 0 for "all"."""

    offset: str = "0"
    limit: str = "0"


@attrs.frozen(kw_only=True)
class DefinitionsQuery(PagedQuery):
    include_xml: bool = False


@attrs.frozen(kw_only=True)
class DeleteQuery:
    delete_all_related_data: bool = attrs.field(default=False, metadata={"name": "delete_all_related_data"})


@attrs.frozen(kw_only=True)
class InstancesQuery(PagedQuery):
    """Arrays are written with commas."""

    correlation_id: str | None = None
    process_instance_id: str | None = None
    process_definition_id: str | None = None
    process_model_id: str | None = None
    state: str | None = None
    created_before: Instant | None = None
    created_after: Instant | None = None


@attrs.frozen(kw_only=True)
class FlowNodesQuery(PagedQuery):
    """Arrays are written with commas."""

    flow_node_instance_id: str | None = None
    flow_node_id: str | None = None
    flow_node_name: str | None = attrs.field(default=None, metadata=LONG)
    flow_node_type: str | None = None
    event_type: str | None = None
    correlation_id: str | None = None
    process_definition_id: str | None = None
    process_model_id: str | None = None
    process_instance_id: str | None = None
    state: str | None = None
    previous_flow_node_instance_id: str | None = None
    process_model_name: str | None = attrs.field(default=None, metadata=LONG)
    owner_id: str | None = None
    flow_node_lane: str | None = None
    embedded_process_model_id: str | None = None
    parent_process_instance_id: str | None = None
    triggered_by_flow_node_instance: str | None = None

    @property
    def asks_for_what_is_not_here(self) -> bool:
        """There are no lanes, no embedded models, no parents, and no other owner."""
        owners = None if self.owner_id is None else self.owner_id.split(",")
        others = (
            self.flow_node_lane,
            self.embedded_process_model_id,
            self.parent_process_instance_id,
            self.triggered_by_flow_node_instance,
        )
        return any(each is not None for each in others) or (owners is not None and OWNER not in owners)


@attrs.frozen(kw_only=True)
class TriggerQuery:
    process_instance_id: str | None = attrs.field(default=None, metadata={"name": "process_instance_id"})
    other_process_instance_id: str | None = attrs.field(default=None, metadata={"name": "processInstanceId"})
    """As one method of the Python client has it."""
    custom_correlation_id: str | None = attrs.field(default=None, metadata={"name": "custom_correlation_id"})


@attrs.frozen(kw_only=True)
class RetryQuery:
    flow_node_instance_id: str | None = attrs.field(default=None, metadata={"name": "flow_node_instance_id"})
    update_process_model: bool = attrs.field(default=False, metadata={"name": "update_process_model"})
