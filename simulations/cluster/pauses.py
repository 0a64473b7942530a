"""The engine's named pause points: a node lingers there, or loses its power, where it hurts most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from simulations.kernel.draws import between, chance
from simulations.kernel.simulation import Simulation
from stellwerk.ports import PausePoint

__all__ = ["PausePoints"]

_ACTIVE = 0.25
_FIRES = 0.25


class PausePoints:
    """For all nodes of a run. Which sites are active is drawn once for the run, then each passage for itself."""

    def __init__(self, simulation: Simulation, seconds_max: float, power_cut: Callable[[str], None]) -> None:
        """:param seconds_max: of one pause; 0: there are none. :param power_cut: of the host of this name."""
        self._simulation = simulation
        self._seconds_max = seconds_max
        self._power_cut = power_cut
        self._passages: Counter[tuple[str, str]] = Counter()
        self._to_crash: dict[tuple[str, str], int] = {}
        """At which passage from now on, by host and site."""

    def crash_at(self, host: str, site: str, passes: int) -> None:
        """The host loses its power when it passes this site for the so-manieth time from now on."""
        self._to_crash[(host, site)] = passes

    def disarm(self, host: str) -> None:
        for key in [key for key in self._to_crash if key[0] == host]:
            del self._to_crash[key]

    def calm(self) -> None:
        """No more pauses, and no crashes."""
        self._seconds_max = 0.0
        self._to_crash.clear()

    def of(self, host: str, place: str) -> PausePoint:
        """For the process that runs there."""

        async def pause(name: str) -> None:
            if not self._simulation.is_over:
                await self._pass(host, place, name)

        return pause

    async def _pass(self, host: str, place: str, site: str) -> None:
        if self._must_crash(host, site):
            self._simulation.trace(place, "pause", site=site, crash=True)
            self._simulation.properties.sometimes(f"power cut at {site}")
            self._power_cut(host)
            await trio.sleep_forever()
        seconds = self._seconds(place, site)
        if seconds > 0:
            self._simulation.trace(place, "pause", site=site, seconds=seconds)
            self._simulation.properties.sometimes(f"lingered at {site}")
            await trio.sleep(seconds)

    def _must_crash(self, host: str, site: str) -> bool:
        left = self._to_crash.get((host, site))
        if left is None:
            return False
        if left > 1:
            self._to_crash[(host, site)] = left - 1
            return False
        del self._to_crash[(host, site)]
        return True

    def _seconds(self, place: str, site: str) -> float:
        seed = self._simulation.seed
        if self._seconds_max <= 0 or not chance(seed, _ACTIVE, "pause", site):
            return 0.0
        self._passages[(place, site)] += 1
        key = ("pause", place, site, self._passages[(place, site)])
        return between(seed, 0, self._seconds_max, *key, "seconds") if chance(seed, _FIRES, *key) else 0.0
