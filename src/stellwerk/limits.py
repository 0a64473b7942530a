"""The bounds on everything that can grow, each with its unit last and the reason for its default."""

from __future__ import annotations

import attrs

__all__ = ["Limits"]


@attrs.frozen(kw_only=True)
class Limits:
    payload_bytes_max: int = 1024 * 1024
    """Variables of a start, a result or a message. What is accepted can also be delivered (see `frame_bytes_max`)."""
    frame_bytes_max: int = 4 * 1024 * 1024
    """A WebSocket frame: room for a payload after JSON escaping, with its envelope."""
    bodies_bytes_max: int = 64 * 1024 * 1024
    """Bodies of HTTP requests that are in memory at a time, over all connections; a large one is worth several times
    as much while it is worked on. One by itself may be longer (a deployment of the largest files)."""
    definition_bytes_max: int = 10 * 1024 * 1024
    """A BPMN file. The largest public one has 3 MB."""
    definition_elements_max: int = 100_000
    definition_depth_max: int = 100
    instance_tokens_max: int = 10_000
    """Tokens of one instance: a fork inside a loop must not eat the machine."""
    steps_in_one_command_max: int = 10_000
    """Nodes entered by one command: a loop without a wait state becomes an incident."""
    step_bytes_max: int = 16 * 1024 * 1024
    """What one command may write, estimated: far more than it can bring along, and little enough to be held in memory
    several times over (as facts, as rows, as text on its way into the store)."""
    mailbox_commands_max: int = 1_000
    """Commands that wait for one instance; beyond, the sender waits."""
    commit_operations_max: int = 1_000
    """Operations in one transaction: beyond this a batch gains nothing."""
    live_instances_max: int = 10_000
    """Instance actors in memory; the longest idle ones are passivated first."""
    instance_idle_ms: int = 30_000
    """An actor without commands for so long is passivated."""
    live_topics_max: int = 1_000
    """Topics with a dispatcher in memory; beyond, those without workers and leases are forgotten at once."""
    topic_idle_ms: int = 30_000
    """A topic without workers and leases for so long is forgotten, with its statistics."""
    lock_duration_ms_min: int = 1_000
    lock_duration_ms_max: int = 24 * 3_600_000
    lock_duration_ms_default: int = 30_000
    worker_max_tasks_max: int = 10_000
    """Leases of one worker session at once, for one topic and in all. Its reports may name twice as many: it does not
    know yet what it lost since."""
    session_topics_max: int = 1_000
    """Topics of one worker session: each has its dispatcher."""
    session_outbox_bytes_max: int = 16 * 1024 * 1024
    """What waits to be written to one worker; beyond, the worker reads too slowly and is disconnected."""
    session_write_ms_max: int = 10_000
    """One write to a worker may take so long."""
    request_topics_max: int = 200
    """Topics of one request for tasks: each begins with a look into the store."""
    delivery_timeout_ms: int = 5_000
    polls_max: int = 10_000
    """Requests for tasks that wait at a time; beyond, they are refused for now."""
    ready_hints_max: int = 10_000
    """READY tasks of a topic that a dispatcher keeps in mind."""
    filtered_hints_max: int = 100_000
    """The same while a worker filters: so many waiting tasks that nobody takes do not hide the others behind them."""
    filter_chars_max: int = 1_000
    worker_filters_max: int = 100
    """Different filters of one worker for one topic at a time: each keeps in mind what it has decided."""
    filter_match_ms_max: int = 50
    """Processor time to search one task's variables; a task that takes longer counts as not matching."""
    variable_names_max: int = 1_000
    """Variables that a subscription may name."""
    message_ttl_ms_default: int = 3_600_000
    topic_chars_max: int = 200
    id_chars_max: int = 200
    error_code_chars_max: int = 200
    """The code of a business error."""
    message_bytes_max: int = 64 * 1024
    """A text for people: why a task failed, or an instance is cancelled."""
