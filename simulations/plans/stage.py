"""What faults act on: hosts, network, database and cluster, and which fault holds what.

Two faults may want the same thing at once: two cuts of one link, a crash within another. It then lasts until the last
of them ends, so that leaving one out never changes what another one does.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, assert_never, get_args

from simulations.plans.plan import Plan

__all__ = [
    "ClockActions",
    "ClusterActions",
    "DatabaseActions",
    "HostActions",
    "HostState",
    "NetworkActions",
    "Phase",
    "Stage",
]


Phase: TypeAlias = Literal["read_only", "unavailable", "slow", "refuses", "loses_answers"]
"""What can be wrong with the database for a while."""

_UNTIL_TOLD = 1e9
"""Seconds: this module says when a phase ends."""


class ClockActions(Protocol):
    def jump(self, milliseconds: int, /) -> None: ...


class HostState(Protocol):
    @property
    def is_up(self) -> bool: ...
    @property
    def is_frozen(self) -> bool: ...
    @property
    def clock(self) -> ClockActions: ...


class HostActions(Protocol):
    """`simulations.world.hosts.Hosts`."""

    def __getitem__(self, name: str, /) -> HostState: ...
    def stop(self, name: str, /) -> None: ...
    def power_cut(self, name: str, /) -> None: ...
    def freeze(self, name: str, /) -> None: ...
    def thaw(self, name: str, /) -> None: ...


class NetworkActions(Protocol):
    """`simulations.world.network.Network`."""

    def cut(self, a: str, b: str, /, *, both: bool = True) -> None: ...
    def heal(self, a: str | None = None, b: str | None = None, /) -> None: ...
    def reset(self, a: str, b: str, /) -> None: ...
    def slow(self, a: str, b: str, seconds: float, /) -> None: ...
    def unslow(self, a: str | None = None, b: str | None = None, /) -> None: ...
    def silence(self, a: str, b: str, /) -> None: ...
    def refuse(self, host: str, refuses: bool, /) -> None: ...


class DatabaseActions(Protocol):
    """`simulations.world.database.Database`, and what of it a SQLite file can do too.

    A phase lasts for so many seconds from now, and a later call has the last word: 0 seconds end it.
    """

    def crash(self, down_seconds: float, /) -> None: ...
    def read_only(self, seconds: float, /) -> None: ...
    def unavailable(self, seconds: float, /) -> None: ...
    def slow(self, seconds_each: float, for_seconds: float, /) -> None: ...
    def refuse(self, chance: float, for_seconds: float, /) -> None: ...
    def lose_answers(self, chance: float, for_seconds: float, /) -> None: ...
    def jump_clock(self, milliseconds: int, /) -> None: ...


class ClusterActions(Protocol):
    """`simulations.cluster.cluster.Cluster`. Nothing here waits: what takes time goes on at the host's own place."""

    def boot(self, host: str, /) -> None:
        """The host's program shall run: start it if it does not, as soon as it has ended if it is on its way out."""

    def leave(self, host: str, /) -> None:
        """The program drains, hands over and ends, and is not started again until `boot`."""

    def redeploy(self, version: int, /) -> None:
        """The client deploys some of the models once more, as versions that do the same."""

    def crash_at(self, host: str, site: str, passes: int, /) -> None:
        """Power cut when the host passes this pause point for the so-manieth time from now on."""

    def disarm(self, host: str, /) -> None:
        """No crash is planned for it any more."""

    def lose_hints(self, chance: float, /) -> None:
        """So likely is a hint lost now; 0: as the plan's options say."""


class Stage:
    """What faults do, each under its `key`. True is returned where something changed: a crash of a host that is down
    already did not happen."""

    def __init__(
        self,
        plan: Plan,
        hosts: HostActions,
        network: NetworkActions,
        database: DatabaseActions,
        cluster: ClusterActions,
    ) -> None:
        self.plan = plan
        self._database = database
        self._cluster = cluster
        self._hosts = hosts
        self._network = network
        self._holds: dict[tuple[str, ...], dict[str, float]] = {}
        """What is wrong: the keys of the faults that want it so, and how much."""

    # --- hosts -----------------------------------------------------------------------------------------------------

    def stop(self, key: str, host: str) -> bool:
        """The process is killed; its machine lives and tells its peers."""
        was_up = self._goes_down(key, host)
        if was_up:
            self._hosts.stop(host)
        return was_up

    def power_cut(self, key: str, host: str) -> bool:
        was_up = self._goes_down(key, host)
        if was_up:
            self._hosts.power_cut(host)
        return was_up

    def leave(self, key: str, host: str) -> bool:
        """The program ends as it should."""
        self._take(key, "down", host)
        was_up = self._hosts[host].is_up
        self._cluster.leave(host)
        return was_up

    def boot(self, key: str, host: str) -> bool:
        """Ends a `stop`, a `power_cut` or a `leave`; the key of none of them: the host shall be up from now on."""
        self._give(key, "down", host)
        return self.revive(host)

    def revive(self, host: str) -> bool:
        """Boot what is down, unless a fault wants it so."""
        if self._is_held("down", host):
            return False
        was_up = self._hosts[host].is_up
        self._cluster.boot(host)
        return not was_up

    def freeze(self, key: str, host: str) -> bool:
        if not self._hosts[host].is_up:
            return False
        first = self._take(key, "frozen", host)
        if first:
            self._hosts.freeze(host)
        return first

    def thaw(self, key: str, host: str) -> bool:
        last = self._give(key, "frozen", host)
        if last:
            self._hosts.thaw(host)
        return last

    def jump(self, host: str, ms: int) -> bool:
        self._hosts[host].clock.jump(ms)
        return True

    def arm(self, key: str, host: str, site: str, passes: int) -> bool:
        """Of two that are planned for one site at once, the later counts."""
        self._take(key, "armed", host)
        self._cluster.crash_at(host, site, passes)
        return True

    def disarm(self, key: str, host: str) -> bool:
        """Ends an `arm`: what crashed is up again."""
        if self._give(key, "armed", host):
            self._cluster.disarm(host)
        return self.revive(host)

    def _goes_down(self, key: str, host: str) -> bool:
        self._take(key, "down", host)
        was_up = self._hosts[host].is_up
        was_frozen = self._is_held("frozen", host)
        if was_up and was_frozen:
            # Who is started anew is not frozen, whatever befell the process before.
            self._holds["frozen", host].clear()
            self._hosts.thaw(host)
        return was_up

    # --- network ---------------------------------------------------------------------------------------------------

    def cut(self, key: str, source: str, target: str, *, both: bool = True) -> bool:
        first = self._take(key, "cut", source, target)
        if both:
            first = self._take(key, "cut", target, source) or first
        if first:
            self._network.cut(source, target, both=both)
        return first

    def join(self, key: str, source: str, target: str) -> bool:
        """Ends a `cut`. A direction that another fault cuts stays cut."""
        forth = self._give(key, "cut", source, target)
        back = self._give(key, "cut", target, source)
        if not forth and not back:
            return False
        self._network.heal(source, target)
        for a, b in ((source, target), (target, source)):
            if self._is_held("cut", a, b):
                self._network.cut(a, b, both=False)
        return True

    def slow(self, key: str, a: str, b: str, seconds: float) -> bool:
        """The slowest fault counts."""
        self._take(key, "slow", a, b, amount=seconds)
        self._network.slow(a, b, self._worst("slow", a, b))
        return True

    def hurry(self, key: str, a: str, b: str) -> bool:
        """Ends a `slow`."""
        if self._give(key, "slow", a, b):
            self._network.unslow(a, b)
            return True
        self._network.slow(a, b, self._worst("slow", a, b))
        return False

    def reset(self, a: str, b: str) -> bool:
        self._network.reset(a, b)
        return True

    def silence(self, a: str, b: str) -> bool:
        """The connections that there are now carry nothing any more, and nobody is told."""
        self._network.silence(a, b)
        return True

    def refuse(self, key: str, host: str) -> bool:
        first = self._take(key, "refusing", host)
        if first:
            self._network.refuse(host, True)
        return first

    def accept(self, key: str, host: str) -> bool:
        """Ends a `refuse`."""
        last = self._give(key, "refusing", host)
        if last:
            self._network.refuse(host, False)
        return last

    # --- database and cluster --------------------------------------------------------------------------------------

    def crash_database(self, seconds: float) -> bool:
        self._database.crash(seconds)
        return True

    def jump_database(self, ms: int) -> bool:
        self._database.jump_clock(ms)
        return True

    def begin_phase(self, key: str, phase: Phase, amount: float) -> bool:
        """Of two at once, the worse counts."""
        first = self._take(key, phase, amount=amount)
        self._set_phase(phase, self._worst(phase), _UNTIL_TOLD)
        return first

    def end_phase(self, key: str, phase: Phase) -> bool:
        last = self._give(key, phase)
        self._set_phase(phase, self._worst(phase), _UNTIL_TOLD if self._is_held(phase) else 0.0)
        return last

    def _set_phase(self, phase: Phase, amount: float, seconds: float) -> None:
        match phase:
            case "read_only":
                self._database.read_only(seconds)
            case "unavailable":
                self._database.unavailable(seconds)
            case "slow":
                self._database.slow(amount, seconds)
            case "refuses":
                self._database.refuse(amount, seconds)
            case "loses_answers":
                self._database.lose_answers(amount, seconds)
            case _:
                assert_never(phase)

    def lose_hints(self, key: str, chance: float) -> bool:
        first = self._take(key, "hints", amount=chance)
        self._cluster.lose_hints(self._worst("hints"))
        return first

    def keep_hints(self, key: str) -> bool:
        """Ends a `lose_hints`."""
        last = self._give(key, "hints")
        self._cluster.lose_hints(self._worst("hints"))
        return last

    def redeploy(self, version: int) -> bool:
        self._cluster.redeploy(version)
        return True

    # --- the quiet phase -------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing is wrong any more but that `stays_dead` is down."""
        self._holds.clear()
        self._heal_network()
        for phase in get_args(Phase):
            self._set_phase(phase, 0.0, 0.0)
        self._cluster.lose_hints(0.0)
        for host in self.plan.program_hosts:
            self._heal_host(host)

    def _heal_network(self) -> None:
        self._network.heal()
        self._network.unslow()
        for host in self.plan.node_hosts:
            self._network.refuse(host, False)

    def _heal_host(self, host: str) -> None:
        self._cluster.disarm(host)
        if self._hosts[host].is_frozen:
            self._hosts.thaw(host)
        if host in self.plan.options.stays_dead:
            self._bury(host)
        elif host not in self.plan.spare_hosts:
            self._cluster.boot(host)

    def _bury(self, host: str) -> None:
        self._take("quiet", "down", host)
        if self._hosts[host].is_up:
            self._hosts.power_cut(host)

    # --- who holds what --------------------------------------------------------------------------------------------

    def _take(self, key: str, *what: str, amount: float = 0.0) -> bool:
        """True: nobody held it."""
        holders = self._holds.setdefault(what, {})
        holders[key] = amount
        return len(holders) == 1

    def _give(self, key: str, *what: str) -> bool:
        """True: this was the last one to hold it. Who did not hold it (a crash ends a freeze) gives nothing."""
        holders = self._holds.get(what, {})
        if key not in holders:
            return False
        del holders[key]
        return not holders

    def _is_held(self, *what: str) -> bool:
        return bool(self._holds.get(what))

    def _worst(self, *what: str) -> float:
        return max(self._holds.get(what, {}).values(), default=0.0)
