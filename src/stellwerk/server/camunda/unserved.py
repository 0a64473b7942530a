"""What of Camunda's API is not served, and what is there instead. docs/camunda has the same table."""

from __future__ import annotations

import re

import attrs

__all__ = ["UNSERVED", "Unserved", "instead_of"]

_ALL = "GET POST PUT DELETE PATCH OPTIONS"
_ELSEWHERE = "docs/camunda has the list of what is served"


@attrs.frozen
class Unserved:
    """Paths, behind ``/engine-rest``, with everything below them. ``{id}`` stands for one part of a path."""

    methods: str
    paths: tuple[str, ...]
    instead: str
    """Completes: "… is not served here: "."""


UNSERVED: tuple[Unserved, ...] = (
    Unserved(
        "POST",
        ("/external-task/retries-async",),
        "PUT /external-task/retries sets up to 1,000 at once; stellwerk retry (POST /api/v1/incidents/retry) "
        "resolves incidents by process, element, kind or topic",
    ),
    Unserved(
        _ALL,
        ("/external-task",),
        "GET /external-task lists them; they end by what their worker reports, or with their process instance",
    ),
    Unserved(
        _ALL,
        ("/deployment/{id}/redeploy",),
        "POST /deployment/create with the files",
    ),
    Unserved(
        _ALL,
        ("/deployment", "/deployment/{id}/resources"),
        "deployments are not kept, definitions are: GET /process-definition, DELETE /process-definition/{id}",
    ),
    Unserved(
        _ALL,
        ("/process-definition/{id}/diagram", "/process-definition/key/{key}/diagram"),
        "GET /process-definition/{id}/xml: the picture is in it",
    ),
    Unserved(
        _ALL,
        (
            "/process-definition/{id}/form-variables",
            "/process-definition/{id}/rendered-form",
            "/process-definition/{id}/startForm",
            "/process-definition/{id}/deployed-start-form",
            "/process-definition/{id}/submit-form",
            "/process-definition/key/{key}/form-variables",
            "/process-definition/key/{key}/rendered-form",
            "/process-definition/key/{key}/startForm",
            "/process-definition/key/{key}/deployed-start-form",
            "/process-definition/key/{key}/submit-form",
        ),
        "forms are the client's: POST /process-definition/key/{key}/start takes the variables",
    ),
    Unserved(
        _ALL,
        (
            "/process-definition/statistics",
            "/process-definition/{id}/statistics",
            "/process-definition/key/{key}/statistics",
        ),
        "GET /process-instance/count, by processDefinitionId and withIncident",
    ),
    Unserved(
        _ALL,
        (
            "/process-definition/suspended",
            "/process-definition/{id}/suspended",
            "/process-definition/key/{key}/suspended",
        ),
        "POST /api/v1/process-definitions/{key}/disable keeps instances from starting",
    ),
    Unserved(
        _ALL,
        ("/process-definition/{id}/history-time-to-live", "/process-definition/key/{key}/history-time-to-live"),
        "stellwerk prune (POST /api/v1/prune) removes what ended, by its age",
    ),
    Unserved(
        _ALL,
        ("/process-definition/key/{key}/tenant-id",),
        "there are no tenants: leave that part of the path out",
    ),
    Unserved(
        _ALL,
        ("/process-definition",),
        "GET /process-definition, GET /process-definition/{id}/xml",
    ),
    Unserved(
        _ALL,
        ("/process-instance/{id}/activity-instances",),
        "GET /api/v1/process-instances/{id} shows where the tokens stand",
    ),
    Unserved(
        _ALL,
        ("/process-instance/{id}/comment", "/task/{id}/comment", "/task/{id}/attachment"),
        "keep them in a variable: POST /process-instance/{id}/variables",
    ),
    Unserved(
        _ALL,
        ("/process-instance/{id}/modification", "/process-instance/{id}/modification-async", "/modification"),
        "an instance goes on from where it stands: set its variables, resolve its incidents with PUT "
        "/external-task/{id}/retries, or delete it",
    ),
    Unserved(
        _ALL,
        ("/process-instance/suspended", "/process-instance/suspended-async", "/process-instance/{id}/suspended"),
        "PUT /external-task/retries with 0 and processInstanceIds keeps their tasks from workers",
    ),
    Unserved(
        _ALL,
        ("/process-instance/{id}/variables/{name}/data",),
        "GET /process-instance/{id}/variables/{name}: bytes are there in base64",
    ),
    Unserved(
        _ALL,
        ("/process-instance/{id}/variables/{name}",),
        "set it to null: PUT /process-instance/{id}/variables/{name}",
    ),
    Unserved(
        _ALL,
        ("/process-instance/delete", "/process-instance/delete-historic-query-based"),
        "DELETE /process-instance/{id} for each",
    ),
    Unserved(
        _ALL,
        ("/process-instance/variables-async",),
        "POST /process-instance/{id}/variables for each",
    ),
    Unserved(
        _ALL,
        ("/process-instance/message-async",),
        "POST /message with each processInstanceId",
    ),
    Unserved(
        _ALL,
        ("/process-instance",),
        "GET /process-instance lists them, GET /api/v1/process-instances/{id} shows one whole",
    ),
    Unserved(
        _ALL,
        ("/task/{id}/bpmnError", "/task/{id}/bpmnEscalation"),
        "POST /task/{id}/complete with a variable that a gateway behind it asks for",
    ),
    Unserved(
        _ALL,
        ("/task/{id}/delegate", "/task/{id}/resolve", "/task/{id}/identity-links"),
        "POST /task/{id}/assignee gives it to somebody; GET /task lists by candidateGroup and candidateUser",
    ),
    Unserved(
        _ALL,
        ("/task/{id}/form", "/task/{id}/deployed-form", "/task/{id}/rendered-form", "/task/{id}/form-variables"),
        "GET /task/{id} has the formKey, GET /task/{id}/variables the values",
    ),
    Unserved(
        _ALL,
        ("/task/{id}/localVariables", "/task/{id}/variables"),
        "GET /task/{id}/variables has all that the task sees; POST /process-instance/{id}/variables sets them",
    ),
    Unserved(
        _ALL,
        ("/task",),
        "tasks come from the user tasks of models, and end by POST /task/{id}/complete",
    ),
    Unserved(
        _ALL,
        ("/execution",),
        "GET /api/v1/process-instances/{id} shows where the tokens stand; POST /message takes a processInstanceId",
    ),
    Unserved(
        _ALL,
        ("/event-subscription",),
        "GET /api/v1/awaited-messages has the names that something waits for",
    ),
    Unserved(
        _ALL,
        ("/variable-instance",),
        "GET /process-instance/{id}/variables",
    ),
    Unserved(
        _ALL,
        ("/condition", "/signal"),
        "POST /message to who waits for it; signals come with a later version",
    ),
    Unserved(
        _ALL,
        ("/incident",),
        "GET /api/v1/incidents; PUT /external-task/{id}/retries resolves one",
    ),
    Unserved(
        _ALL,
        ("/job", "/job-definition"),
        "there are no jobs, timers and messages need no workers: what has failed is in GET /api/v1/incidents",
    ),
    Unserved(
        _ALL,
        ("/history",),
        "GET /api/v1/process-instances, and of each GET /api/v1/process-instances/{id}/history and GET "
        "/api/v1/process-instances/{id}/trace",
    ),
    Unserved(
        _ALL,
        ("/batch",),
        "nothing is done in batches: ask for each, or for many with PUT /external-task/retries and stellwerk retry",
    ),
    Unserved(
        _ALL,
        ("/migration",),
        "instances stay in the version that they began in; new ones begin in the newest",
    ),
    Unserved(
        _ALL,
        (
            "/case-definition",
            "/case-execution",
            "/case-instance",
            "/decision-definition",
            "/decision-requirements-definition",
        ),
        "there is neither CMMN nor DMN; a decision becomes a task for a worker, with adopt_java at the deployment",
    ),
    Unserved(
        _ALL,
        ("/authorization", "/group", "/identity", "/tenant", "/user"),
        "who may do what is said by API keys: stellwerk keys, GET /api/v1/keys",
    ),
    Unserved(
        _ALL,
        ("/filter",),
        "the conditions go into the list itself: POST /task",
    ),
    Unserved(
        _ALL,
        ("/metrics", "/telemetry"),
        "GET /metrics, outside of /engine-rest, is for Prometheus",
    ),
    Unserved(
        _ALL,
        ("/version", "/schema"),
        "GET /api/v1/openapi.json has the version; the tables are the engine's own",
    ),
)
"""The first that covers a path counts."""


def instead_of(method: str, path: str) -> str:
    """:param path: behind the prefix, and behind the engine's name."""
    for one in UNSERVED:
        if method in one.methods.split() and any(_covers(each, path) for each in one.paths):
            return one.instead
    return _ELSEWHERE


def _covers(pattern: str, path: str) -> bool:
    """Whether the path is the pattern's, or lies below it."""
    parts = "/".join("[^/]+" if part.startswith("{") else re.escape(part) for part in pattern.split("/"))
    return re.match(rf"{parts}(?:/|$)", path) is not None
