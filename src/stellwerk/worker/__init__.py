"""The worker SDK: handlers for external tasks that the engine pushes over WebSocket.

::

    from stellwerk.worker import Worker

    worker = Worker("http://127.0.0.1:10560")

    @worker.task("payment")
    def charge(payload: dict) -> dict:
        return {"receipt": payload["order"]}

    worker.run()
"""

from stellwerk.worker.errors import (
    BpmnError,
    ConnectionLost,
    ErrorKind,
    Operation,
    Refused,
    TaskFailure,
    TaskLost,
    WorkerGaveUp,
)
from stellwerk.worker.loading import load_worker
from stellwerk.worker.task import CancelSignal, Task
from stellwerk.worker.worker import Health, Worker

__all__ = [
    "BpmnError",
    "CancelSignal",
    "ConnectionLost",
    "ErrorKind",
    "Health",
    "Operation",
    "Refused",
    "Task",
    "TaskFailure",
    "TaskLost",
    "Worker",
    "WorkerGaveUp",
    "load_worker",
]
