"""What must happen now and then, or a campaign without violations shows nothing.

Each name is reported by whoever can see it: `commits` (what the database did, `simulations.checks`), `workers` and
`clients` (what they saw), or a part of the world itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from stellwerk.values import frozen

__all__ = ["SOMETIMES", "Sometimes"]


@frozen
class Sometimes:
    name: str
    why: str
    """What would go untested without it."""
    reporter: str


_COMMITS: Mapping[str, str] = {
    # leases
    "lease: given at birth": "a new task goes to a worker in the step that creates it (rule 10)",
    "lease: never reached its worker": "a grant that got lost is taken back or runs out",
    "lease: expired": "the sweep reclaims",
    "lease: expired and reclaimed by another worker": "the whole point of a lease",
    "lease: two nodes swept at the same time": "the sweep is safe against itself",
    "lease: expiry left to the instance": "the last expiry is a step of the instance (rule 8)",
    "lease: renewed": "renewal is the engine's job",
    "lease: renewal refused": "a lease that is over is not revived",
    "lease: extended by request": "workers may ask for more time",
    "lease: extension refused": "and are refused when it is too late",
    "lease: released": "a task goes back without costing a retry",
    "lease: release refused": "a stale release changes nothing",
    "lease: wanted back by a session that has it no more": "an old session takes nothing from the next one (rule 17)",
    "lease: released by hello": "leases that a worker does not name are given back (rule 10)",
    "lease: moved to a later session": "work goes on over a reconnect (rule 17)",
    # tasks
    "task: failed with retries left": "the usual failure",
    "task: leased again after a failure": "and the attempt after it",
    "task: retries exhausted": "the last failure is a step of the instance (rule 8)",
    "task: BPMN error reported": "business failures take another path than technical ones",
    "task: expiry limit reached": "work that kills its workers comes to an end",
    "task: single-try lock expired": "single-try tasks end by one expiry",
    "task: cancelled while leased": "a boundary event or a cancellation takes work away under way",
    "task: completed within 100 ms of expiry": "the race of a completion with its deadline",
    "task: drained by its failing scope": "a leased sibling of a failing step (rule 15)",
    "task: completed while draining": "its work is accepted, and then compensated",
    # late requests
    "request: refused, another worker has the task": "a zombie's result meets the fence",
    "request: refused, stale fence": "the same, whoever has the task now",
    "request: refused, lock expired": "too late, though nobody else had it yet",
    "request: refused, cancelled": "work that nobody wants any more",
    "request: repeated complete got the same answer": "an answer got lost, and the repetition is harmless",
    "request: repeated fail got the same answer": "the same for failures, which cost a retry",
    "request: repeated after a later attempt": "the attempts remember more than the row does (rule 12)",
    # steps
    "step: taken over by another node": "an instance goes on where the other node left it",
    "step: refused for a stale version": "two nodes at one instance: the version is what fences a zombie",
    "step: batch with several steps": "many instances in one commit",
    "step: several commands in one": "two tasks completed in one changeset (rule 2)",
    "step: one command of several refused": "and one of them was late: the others must be decided again",
    "step: refused, a newer version was deployed meanwhile": "starting and deploying at once (rule 7)",
    "step: by a node whose wall clock is half an hour off": "leases do not care for wall clocks",
    # processes
    "process: cancelled while a task was leased": "the holder must hear of it",
    "process: redeployed while instances run": "instances stay with their version",
    "incident: opened": "the engine stands still and says so",
    "incident: resolved, task offered again": "an operator's retry (rule 9)",
    "error: caught by a boundary event": "the exception path of the model",
    "error: caught by nobody": "the failure policy decides",
    "gateway: token split": "parallel branches",
    "gateway: parallel branches joined": "and their end",
    "gateway: a message came first": "the race at an event-based gateway",
    "gateway: a timer came first": "and its other end",
    "saga: scope failed": "compensation because of a failure",
    "saga: activity compensated": "handlers run",
    "saga: two or more activities compensated": "their order matters only then",
    "saga: taken over by another node in the middle": "a crash between two handlers",
    "timer: fired": "timers",
    "timer: boundary timer fired": "deadlines of activities",
    "timer: boundary timer interrupted a leased task": "the race of a completion with a boundary event",
    "timer: fired more than two seconds late": "it came due while no node could fire it",
    "message: correlated": "messages",
    "message: started an instance": "an instance whose id is derived from a message (rule 6)",
    "message: published twice, kept once": "a publisher that repeats itself",
    "message: boundary event at a leased task": "a message takes work away under way",
    # sessions
    "session: leases kept by hello": "state, not counters: what is named lives on",
    "session: leases released by hello": "and what is not named goes back",
    "session: hello named a lease that was expired": "a worker that was away too long",
    "session: hello named a lease that was cancelled": "a cancellation during a disconnect is not missed",
    "session: hello named a lease that was finished": "the answer to its last request got lost",
}
_WORKERS: Mapping[str, str] = {
    "session: reconnected": "sessions end and begin",
    "session: reconnected with leases": "while work goes on",
    "session: sent away by a node that drains": "rolling restarts",
    "worker: answered ok": "work gets done",
    "worker: answered lease_lost": "work gets refused",
    "worker: answered cancelled": "a result for what was cancelled",
    "worker: answered unavailable": "a node that cannot reach its database says so",
    "worker: complete sent again": "results are repeated until they are answered",
    "worker: fail sent again": "failures too",
    "worker: complete acknowledged only when repeated": "the first answer got lost, or came late",
    "worker: fail acknowledged only when repeated": "the same for failures",
    "worker: lease revoked, cancelled": "cancellations are pushed",
    "worker: lease revoked, expired": "so is the end of a lease",
    "worker: handler completed": "handlers that work",
    "worker: handler failed": "that fail",
    "worker: handler bpmn_error": "that report business errors",
    "worker: handler aborted": "that are told to stop",
    "worker: handler began a task for a second time": "at least once means this",
    "worker: handler ended after its lease had expired": "a zombie at work",
    "worker: result sent after its lease had expired": "and at the engine's door",
    "worker: believed in a lease when it expired": "the worker's margin was put to the test",
    "worker: never heard of the last renewal": "it was pushed into a dead connection",
    "worker: gave up a lease at its deadline": "the worker aborts by itself",
    "worker: hello kept its leases": "it heard that its work goes on",
    "worker lost power with its result in hand": "done, and nobody knows",
    "worker got no token": "credentials that cannot be had",
}
_CLIENTS: Mapping[str, str] = {
    "client: request without an answer": "nobody knows whether it was done",
    "client: answered only when repeated": "and the repetition tells",
    "operator resolved an incident": "somebody cares for incidents",
}
_WORLD: Mapping[str, str] = {
    "database: crashed": "connections and unsynced commits are lost",
    "database: a commit was undone by a crash": "nobody may have heard of it",
    "database: committed, and the answer was lost": "the commit in doubt (rule 3)",
    "database: a batch submitted again had been committed": "and how the doubt ends",
    "database: did what nobody waits for any more": "a timeout, although it was committed",
    "database: transaction refused": "commits fail",
    "database: read-only": "a failover under way",
    "database: unavailable": "it is gone for a while",
    "database: slow": "it is there, and takes its time",
    "database: the clock was set forward": "another server took over (rule 19)",
    "database: a scan skipped a locked row": "the weaker isolation shows",
    "database: a batch was done in part": "what PostgreSQL's several transactions may leave",
    "hints: lost": "a poll stands behind each hint",
    "hints: doubled": "and acting on it twice does no harm",
    "disk: full": "the embedded store refuses to write",
    "disk: a file was opened as a dead node left it": "what SQLite keeps over a power cut",
    "network: a connection became half-open": "one side knows nothing of the end",
    "network: a link was cut one way": "requests arrive, answers do not",
    "network: a connection was reset by a fault": "in the middle of anything",
    "network: what a cut held back arrived after it was healed": "messages from long ago",
    "network: data arrived in pieces": "frames are put together again",
    "network: a dial was refused": "nobody listens",
    "network: a dial timed out": "nobody answers",
    "power cut at before-commit": "a node dies with decided steps in hand",
    "power cut at after-commit": "between a commit and its answers",
    "power cut at after-lease": "between a lease and its push",
    "lingered at before-commit": "a check and its write lie far apart",
}


def _named(names: Mapping[str, str], reporter: str) -> dict[str, Sometimes]:
    return {name: Sometimes(name, why, reporter) for name, why in names.items()}


SOMETIMES: Mapping[str, Sometimes] = {
    **_named(_COMMITS, "commits"),
    **_named(_WORKERS, "workers"),
    **_named(_CLIENTS, "clients"),
    **_named(_WORLD, "world"),
}
"""By name. A campaign in which one of them never happened has failed."""
