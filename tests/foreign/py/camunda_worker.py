"""A worker with the genuine camunda-external-task-client-python3, or Operaton's, which is the same under another name.

Arguments: the package (``camunda`` or ``operaton``), the base URL, the worker id, and settings as JSON:
``{config, topics, handler, …}``.
"""

import importlib
import json
import sys
from typing import Any

package, base_url, worker_id, text = sys.argv[1:]
settings = json.loads(text)


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def handle(task: Any) -> Any:
    say(
        "task",
        id=task.get_task_id(),
        topic=task.get_topic_name(),
        values=task.get_variables(),
        properties=task.get_extension_properties(),
        business_key=task.get_business_key(),
        retries=task._context["retries"],
    )
    match settings["handler"]:
        case "complete":
            return task.complete(settings.get("result", {}), settings.get("local", {}))
        case "fail":
            return task.failure("it broke", "line 1\nline 2", max_retries=settings["retries"], retry_timeout=0)
        case "bpmn_error":
            return task.bpmn_error(settings["code"], "it is lost", settings.get("result", {}))
        case "hold_until_unlocked":
            sys.stdin.readline()
            return task.complete()
        case other:
            raise ValueError(other)


worker_module = importlib.import_module(f"{package}.external_task.external_task_worker")
worker = worker_module.ExternalTaskWorker(worker_id=worker_id, base_url=base_url, config=settings["config"])
say("ready")
while True:
    try:
        worker.fetch_and_execute(settings["topics"], handle, settings.get("process_variables"))
    except worker_module.NoExternalTaskFound:
        say("none")
    except Exception as error:
        say("error", message=str(error))
    else:
        say("done")
