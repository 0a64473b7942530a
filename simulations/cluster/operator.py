"""The operator: looks at the open incidents again and again, repairs what the workload says, and resolves them."""

from __future__ import annotations

from typing import Any

import trio

from simulations.cluster.calls import Caller
from simulations.cluster.surroundings import Surroundings
from simulations.world.hosts import Host

__all__ = ["OperatorProgram"]

_API = "/api/v1"
_ROUND_SECONDS = 1.0
_PAGE = 200
_RESOLVED = (200, 404, 409)


class OperatorProgram:
    """What runs on the operator's host: in the quiet phase, since an incident must never be needed to get on."""

    def __init__(self, surroundings: Surroundings, host: Host) -> None:
        self._surroundings = surroundings
        self._host = host
        self._specs = {spec.key: spec for spec in surroundings.plan.instances}
        self._repaired: set[str] = set()

    async def run(self) -> None:
        caller = Caller(self._surroundings, self._host)
        while True:
            for incident in await self._open(caller):
                await self._resolve(caller, incident)
            await trio.sleep(_ROUND_SECONDS)

    async def _open(self, caller: Caller) -> list[Any]:
        known = await caller.until_known("incidents", "GET", f"{_API}/incidents?limit={_PAGE}")
        assert isinstance(known.answer.json, dict), known.answer
        rows = known.answer.json["incidents"]
        assert isinstance(rows, list), rows
        return rows

    async def _resolve(self, caller: Caller, incident: Any) -> None:
        """One that is gone, or whose instance cannot go on from there, is seen in the next round."""
        incident_id = incident["incident_id"]
        await self._repair(caller, incident["instance_id"])
        path = f"{_API}/incidents/{incident_id}/resolve"
        known = await caller.until_known(f"resolve {incident_id}", "POST", path, {})
        properties, status = self._surroundings.simulation.properties, known.answer.status
        properties.sometimes("operator resolved an incident", status == 200)
        properties.always("P0", status in _RESOLVED, lambda: f"{path} was answered with {known.answer}")

    async def _repair(self, caller: Caller, instance_id: str) -> None:
        if instance_id in self._repaired:
            return
        path = f"{_API}/process-instances/{instance_id}"
        known = await caller.until_known(f"look {instance_id}", "GET", path)
        assert isinstance(known.answer.json, dict), known.answer
        spec = self._specs.get(str(known.answer.json.get("business_key")))
        repair = {} if spec is None else dict(self._surroundings.workloads[spec.kind].repair)
        if repair:
            await caller.until_known(f"repair {instance_id}", "POST", f"{path}/variables", {"variables": repair})
        self._repaired.add(instance_id)
