"""The notifications that are served: what each is called on the socket, and in the paths of long polling."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LONG_POLLING", "NOT_SERVED"]

LONG_POLLING: Mapping[str, str] = {
    "process_starting": "OnProcessStarting",
    "process_started": "OnProcessStarted",
    "process_ended": "OnProcessFinished",
    "process_terminated": "OnProcessTerminated",
    "process_error": "OnProcessError",
    "external_task_created": "external_task_created",
    "activity_reached": "activity_reached",
    "activity_finished": "activity_finished",
    "activity_canceled": "activity_canceled",
    "empty_activity_waiting": "empty_activity_waiting",
    "empty_activity_finished": "empty_activity_finished",
    "manual_task_waiting": "manual_task_waiting",
    "manual_task_finished": "manual_task_finished",
    "user_task_waiting": "user_task_waiting",
    "user_task_finished": "user_task_finished",
    "user_task_reserved": "user_task_reserved",
    "user_task_reservation_canceled": "user_task_reservation_canceled",
    "boundary_event_triggered": "boundary_event_triggered",
    "boundary_event_finished": "boundary_event_finished",
    "intermediate_throw_event_triggered": "intermediate_throw_event_triggered",
    "intermediate_catch_event_reached": "intermediate_catch_event_reached",
    "intermediate_catch_event_finished": "intermediate_catch_event_finished",
    "message_triggered": "message_triggered",
    "start_event_finished": "start_event_finished",
    "end_event_finished": "end_event_finished",
}
"""By name in the path."""
NOT_SERVED = (
    "cronjob_created",
    "cronjob_executed",
    "cronjob_stopped",
    "cronjob_updated",
    "cronjob_removed",
    "cronjob_enabled_changed",
    "process_deployed",
    "process_undeployed",
    "process_is_executable_changed",
    "process_resumed",
    "process_owner_changed",
    "process_instances_deleted",
    "external_task_locked",
    "external_task_unlocked",
    "external_task_expired",
    "flow_node_event_retry_sending",
    "signal_triggered",
    "process_instance_metadata_changed",
    "correlation_metadata_changed",
)
"""Nothing in an instance's history says when these happen (or they do not happen here)."""
