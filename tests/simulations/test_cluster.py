"""Nodes, workers and clients as programs on simulated hosts: the product's own code over a simulated network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import pytest
import trio

from simulations.cluster.balancing import Balancer
from simulations.cluster.calls import ClientCall
from simulations.cluster.cluster import Cluster
from simulations.cluster.http_client import Answer, HttpClient, Unanswered
from simulations.cluster.logs import EngineLog, WorkerLog
from simulations.collecting import outcomes_of
from simulations.kernel.draws import sub_seed
from simulations.kernel.scheduling import PLACE
from simulations.kernel.simulation import Simulation
from simulations.kernel.trace import Row
from simulations.plans.plan import Fault, InstanceSpec, Options, Plan
from simulations.workloads.judging import judge
from simulations.workloads.registry import WORKLOADS
from simulations.world.backends import Backend, open_backend
from simulations.world.hosts import Hosts
from simulations.world.network import Network, NetworkSettings
from stellwerk.ports import InstanceSummary
from stellwerk.wire.messages import Complete, EngineMessage, Fail, Tasks, WorkerMessage
from stellwerk.worker.task import Task

SECONDS_MAX = 120.0


@attrs.define
class World:
    """One run, and what is left of it."""

    simulation: Simulation
    plan: Plan
    cluster: Cluster = attrs.field(init=False)
    hosts: Hosts = attrs.field(init=False)
    network: Network = attrs.field(init=False)
    backend: Backend = attrs.field(init=False)
    ended_at: float | None = None
    """When every instance had ended."""
    problems: list[tuple[str, str]] = attrs.field(factory=list)
    instances: Sequence[InstanceSummary] = attrs.field(factory=list)

    def rows(self, kind: str, **data: object) -> list[Row]:
        return [
            row
            for row in self.simulation.trace.rows
            if row.kind == kind and all(row.data.get(name) == value for name, value in data.items())
        ]

    def holds(self) -> None:
        """Everything ended, as the workloads promise, and nothing broke."""
        assert self.simulation.properties.violations == []
        assert self.ended_at is not None
        assert self.problems == []
        assert len(self.instances) == len(self.plan.instances)


Happening = Callable[[World], Awaitable[None]]


def plan_of(*kinds: str, seed: int = 1, apart: float = 0.2, **options: Any) -> Plan:
    """An instance of each kind, one after the other."""
    specs = (
        InstanceSpec(key=f"i{number}", kind=kind, at=0.5 + apart * number, seed=sub_seed(seed, number))
        for number, kind in enumerate(kinds)
    )
    settings: dict[str, Any] = {"nodes": 2, "workers": 3, "chaos_seconds": 8.0, **options}
    return Plan(seed=seed, options=Options(**settings), instances=tuple(specs))


def run(plan: Plan, happens: Happening | None = None, **observers: Any) -> World:
    """The safety phase as long as the plan says, then the quiet phase until every instance has ended."""
    world = World(Simulation(plan.seed, keep_trace=True), plan)

    async def main() -> None:
        options = plan.options
        world.network = Network(world.simulation, NetworkSettings(latency=options.latency, slow=options.slow))
        async with trio.open_nursery() as nursery:
            world.hosts = Hosts(world.simulation, world.network, nursery)
            with open_backend(world.simulation, plan, world.hosts, world.network) as world.backend:
                world.cluster = _cluster(world, nursery, observers)
                with world.cluster.tapped():
                    await _play(world, nursery, happens)
            world.simulation.abort()

    world.simulation.run(main)
    return world


def _cluster(world: World, nursery: trio.Nursery, observers: dict[str, Any]) -> Cluster:
    return Cluster(
        world.simulation,
        world.plan,
        hosts=world.hosts,
        network=world.network,
        stores=world.backend,
        workloads=WORKLOADS,
        nursery=nursery,
        **observers,
    )


async def _play(world: World, nursery: trio.Nursery, happens: Happening | None) -> None:
    world.backend.start()
    world.cluster.start()
    if happens is not None:
        nursery.start_soon(happens, world)
    await trio.sleep(world.plan.options.chaos_seconds)
    world.cluster.calm()
    for host in world.plan.program_hosts:
        world.cluster.boot(host)
    await _wait_for_end(world)
    world.problems = list(judge(WORKLOADS, world.plan.instances, outcomes_of(world.backend, world.cluster)))


async def _wait_for_end(world: World) -> None:
    while world.simulation.now() < SECONDS_MAX:
        await trio.sleep(0.25)
        world.instances = world.backend.all_instances()
        if world.cluster.client.is_done and all(instance.status != "RUNNING" for instance in world.instances):
            world.ended_at = world.simulation.now()
            return


# --- everything ends -----------------------------------------------------------------------------------------------


def test_instances_started_over_http_are_worked_on_over_websockets_and_end() -> None:
    world = run(plan_of("sequence", "saga", "parallel", "messages", "user_task", "cancelled", "redeployed"))
    world.holds()
    to_nodes = {(row.place.partition("#")[0], row.data["target"]) for row in world.rows("dial")}
    assert {source for source, _ in to_nodes} == {"client", "operator", *world.plan.worker_hosts}
    assert {target for _, target in to_nodes} == {"node-1", "node-2"}
    assert world.rows("sent", type="Complete")


def test_same_plan_runs_the_same_way_twice() -> None:
    plan = plan_of("sequence", "saga", "retries", pause_seconds=0.3, slow=0.05, clocks={"worker-2": (-5000, 1.01)})
    first, second = run(plan, _power_cut_of_node_1), run(plan, _power_cut_of_node_1)
    assert first.simulation.trace.digest() == second.simulation.trace.digest()
    assert first.simulation.scheduler.digest() == second.simulation.scheduler.digest()


def test_clocks_that_are_wrong_do_no_harm() -> None:
    clocks = {"node-1": (3_600_000, 1.02), "node-2": (-60_000, 0.98), "worker-1": (5_000, 1.02), "worker-2": (0, 0.98)}
    run(plan_of("sequence", "boundary_timer", "slow", "retries", clocks=clocks)).holds()


def test_storm_of_workers_and_two_processes_with_one_worker_id() -> None:
    twins = {"worker-2": "worker-1"}
    world = run(plan_of("storm", "sequence", "storm", workers=2, storm_workers=8, twin_workers=twins))
    world.holds()
    assert {row.data["worker"] for row in world.rows("ready") if "worker" in row.data} == {
        "worker-1",
        *(f"storm-{number}" for number in range(1, 9)),
    }
    topics = {row.data["topic"] for row in world.rows("sent", type="Subscribe") if row.place == "storm-1#1"}
    assert topics == {"storm"}


# --- nodes ---------------------------------------------------------------------------------------------------------


async def _power_cut_of_node_1(world: World) -> None:
    await trio.sleep(1.2)
    world.hosts.power_cut("node-1")
    await trio.sleep(2.0)
    world.cluster.boot("node-1")


def test_power_cut_of_a_node_in_the_middle_loses_nothing() -> None:
    world = run(plan_of(*["sequence", "saga"] * 3), _power_cut_of_node_1)
    world.holds()
    assert [row.place for row in world.rows("ready") if row.place.startswith("node-1")] == ["node-1#1", "node-1#2"]
    crash = world.rows("crash")[0]
    assert crash.place == "node-1#1"
    assert [row for row in world.simulation.trace.rows if row.place == "node-1#1" and row.us > crash.us] == []


def test_node_that_lost_its_power_is_another_node_afterwards() -> None:
    world = run(plan_of("sequence"), _power_cut_of_node_1)
    nodes = [row.data["node"] for row in world.rows("ready") if "node" in row.data]
    assert len(nodes) == len(set(nodes)) == 3


@pytest.mark.parametrize("seed", [2, 4])
def test_rolling_restart_fails_no_request(seed: int) -> None:
    """One node drains and the other one hands over, in either order."""

    async def restart_all(world: World) -> None:
        await trio.sleep(1.2)
        for node in ("node-1", "node-2"):
            world.cluster.leave(node)
            world.cluster.boot(node)
            await trio.sleep(4.0)

    world = run(plan_of(*["sequence"] * 12, seed=seed, apart=0.4, chaos_seconds=13.0), restart_all)
    world.holds()
    assert {row.data["how"] for row in world.rows("leave")} == {"drain", "hand over"}
    left = [row.place for row in world.rows("leave")]
    assert left == ["node-1#1", "node-2#1"]
    assert [row.place for row in world.rows("exit") if row.place.startswith("node")] == left
    assert {row.place for row in world.rows("ready")} >= {"node-1#2", "node-2#2"}
    assert [row for row in world.rows("answer") if row.data.get("was_sent")] == []
    assert world.rows("got", type="Goaway")


def test_node_that_leaves_stays_away_until_it_is_booted() -> None:
    async def leave(world: World) -> None:
        await trio.sleep(1.0)
        world.cluster.leave("node-2")
        await trio.sleep(6.0)
        assert not world.hosts["node-2"].is_up

    world = run(plan_of("sequence", "sequence"), leave)
    world.holds()
    assert world.hosts["node-2"].incarnation == 2


def test_power_cut_at_a_named_point_of_the_engine() -> None:
    async def plan_crash(world: World) -> None:
        await trio.sleep(0.5)
        for site, node in (("before-commit", "node-1"), ("after-commit", "node-2")):
            world.cluster.crash_at(node, site, 2)
        await trio.sleep(4.0)
        for node in ("node-1", "node-2"):
            world.cluster.disarm(node)
            world.cluster.boot(node)

    world = run(plan_of(*["saga"] * 4), plan_crash)
    world.holds()
    assert sorted(str(row.data["site"]) for row in world.rows("pause", crash=True)) == ["after-commit", "before-commit"]


def test_planned_crash_that_is_disarmed_does_not_come() -> None:
    async def plan_crash(world: World) -> None:
        world.cluster.crash_at("node-1", "before-commit", 1)
        world.cluster.disarm("node-1")
        await trio.sleep(0)

    world = run(plan_of("sequence"), plan_crash)
    world.holds()
    assert world.rows("crash") == []


def test_nodes_linger_at_named_points_and_no_more_in_the_quiet_phase() -> None:
    world = run(plan_of(*["saga"] * 6, seed=3, pause_seconds=0.5))
    world.holds()
    pauses = world.rows("pause")
    assert pauses
    assert all(0 < row.data["seconds"] <= 0.5 and row.us < 8_000_000 for row in pauses)  # type: ignore[operator]


def test_node_waits_for_a_database_that_is_not_there_yet() -> None:
    async def away(world: World) -> None:
        world.backend.unavailable(2.0)
        await trio.sleep(0)

    world = run(plan_of("sequence"), away)
    world.holds()
    assert min(row.us for row in world.rows("ready") if "node" in row.data) > 2_000_000


# --- workers -------------------------------------------------------------------------------------------------------


def test_task_of_a_frozen_worker_goes_to_another_and_its_late_result_does_not_count() -> None:
    async def freeze(world: World) -> None:
        while not (begun := world.rows("handler", phase="begin")):
            await trio.sleep(0.01)
        frozen = begun[0].place.partition("#")[0]
        world.hosts.freeze(frozen)
        await trio.sleep(5.0)
        assert world.hosts[frozen].is_frozen
        world.hosts.thaw(frozen)

    world = run(plan_of("sequence"), freeze)
    world.holds()
    first = world.rows("handler", phase="begin")[0]
    again = world.rows("handler", phase="begin", task=first.data["task"])[1]
    assert again.place != first.place
    assert again.data["fence"] > first.data["fence"]  # type: ignore[operator]
    taken = world.rows("sent", type="Complete", task=first.data["task"], fence=again.data["fence"])
    assert taken
    assert {row.data["outcome"] for row in world.rows("handler", phase="end", fence=first.data["fence"])} == {"aborted"}


def test_worker_that_dies_with_its_result_in_hand_is_switched_on_again() -> None:
    async def crash(world: World) -> None:
        while not (begun := world.rows("handler", phase="begin")):
            await trio.sleep(0.01)
        world.hosts.power_cut(begun[0].place.partition("#")[0])

    world = run(plan_of("sequence", "sequence", workers=1), crash)
    world.holds()
    assert world.hosts["worker-1"].incarnation == 2


def test_handler_may_take_its_worker_with_it_but_not_in_the_quiet_phase() -> None:
    """As workloads wish now and then: the power goes when the work is done and nobody knows of it yet."""
    kinds = ["sequence"] * 6
    shaken, calm = run(plan_of(*kinds)), run(plan_of(*kinds, chaos_seconds=0.4))
    shaken.holds()
    assert shaken.simulation.properties.hits["worker lost power with its result in hand"] > 0
    for crash in shaken.rows("crash"):
        host = crash.place.partition("#")[0]
        assert shaken.hosts[host].incarnation > 1
        assert shaken.hosts[host].is_up
    calm.holds()
    assert calm.rows("crash") == []


def test_worker_without_a_token_gives_up_and_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.cluster.workers._NO_TOKEN", 0.75)
    world = run(plan_of("sequence", "sequence", token_seconds=3.0))
    world.holds()
    assert world.simulation.properties.hits["worker gave up and was started again"] > 0
    assert world.simulation.properties.hits["worker got no token"] > 0


def test_worker_that_leaves_gives_back_what_it_has() -> None:
    async def leave(world: World) -> None:
        while not (begun := world.rows("handler", phase="begin")):
            await trio.sleep(0.01)
        world.cluster.leave(begun[0].place.partition("#")[0])

    world = run(plan_of("slow", "slow"), leave)
    world.holds()
    first = world.rows("handler", phase="begin")[0]
    assert world.rows("sent", type="Release", fence=first.data["fence"])
    assert [row.place for row in world.rows("exit")] == [first.place]


# --- what is seen of workers from outside --------------------------------------------------------------------------


class Notes:
    """A `WorkerObserver`."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.offered: set[tuple[str, int]] = set()
        self.believed: dict[tuple[str, str, int], float] = {}
        self.let: set[tuple[str, str, int]] = set()
        self.begun: dict[tuple[str, str, int], bool] = {}
        self.completed: set[tuple[str, int]] = set()
        self.failures: list[str] = []

    def sent(self, place: str, message: WorkerMessage) -> None:
        self.told[f"{place} {type(message).__name__}"] += 1
        if isinstance(message, Complete):
            self.completed.add((message.task_id, message.fence))
        if isinstance(message, Fail):
            self.failures.append(bytes(message.details).decode())

    def received(self, place: str, message: EngineMessage) -> None:
        self.told[f"{place} {type(message).__name__}"] += 1
        if isinstance(message, Tasks):
            self.offered.update((offer.task_id, offer.fence) for offer in message.tasks)

    def believes(self, place: str, task_id: str, fence: int, until: float) -> None:
        self.believed[(place, task_id, fence)] = until

    def let_go(self, place: str, task_id: str, fence: int) -> None:
        assert (place, task_id, fence) not in self.let
        self.let.add((place, task_id, fence))

    def handler_began(self, place: str, task: Task) -> None:
        assert PLACE.get() == place
        self.begun[(place, task.id, task.fence)] = (place, task.id, task.fence) in self.believed

    def handler_ended(self, place: str, task: Task, outcome: str) -> None:
        self.told[outcome] += 1


def test_observers_hear_what_workers_say_hear_believe_and_do() -> None:
    notes = Notes()
    world = run(plan_of("sequence", "retries", "errors"), worker_observers=[notes])
    world.holds()
    assert all(notes.told[f"worker-{number}#1 {kind}"] for number in (1, 2, 3) for kind in ("Hello", "Welcome"))
    assert all(notes.begun.values())
    assert {(task_id, fence) for _, task_id, fence in notes.begun} == notes.offered
    crashed = {row.place for row in world.rows("crash")}
    assert {lease for lease in notes.believed if lease[0] not in crashed} == {
        lease for lease in notes.let if lease[0] not in crashed
    }
    assert 0 < notes.told["completed"] <= len(notes.completed)
    assert notes.told["failed"] + notes.told["bpmn_error"] > 0


def test_no_failure_tells_where_the_code_is() -> None:
    """Else a plan would run in another way in another folder."""
    notes = Notes()
    run(plan_of("retries", "sequence", "retries"), worker_observers=[notes]).holds()
    assert notes.failures
    assert all("was to fail" in details and ".py" not in details for details in notes.failures)


def test_belief_is_told_in_true_seconds_whatever_the_workers_clock_shows() -> None:
    notes = Notes()
    clocks = {f"worker-{number}": (0, 0.98) for number in (1, 2, 3)}
    world = run(plan_of("sequence", lock_ms=2_000, clocks=clocks), worker_observers=[notes])
    for row in world.rows("lease"):
        until = row.data["until"]
        if until is not None:
            assert isinstance(until, float)
            # The engine takes its own clock for the worker's since it last heard of it.
            assert 0 < until - row.us / 1e6 <= 2.0 / 0.98 * 1.02


# --- clients -------------------------------------------------------------------------------------------------------


class Calls:
    """A `ClientObserver`."""

    def __init__(self) -> None:
        self.asked_keys: list[str] = []
        self.ends: Counter[str] = Counter()

    def asked(self, call: ClientCall) -> None:
        self.asked_keys.append(call.key)

    def answered(self, call: ClientCall, answer: Answer) -> None:
        self.ends[str(answer.status)] += 1

    def unanswered(self, call: ClientCall, was_sent: bool) -> None:
        self.ends["sent" if was_sent else "not sent"] += 1


def test_client_repeats_a_start_until_it_is_known_and_gets_one_instance() -> None:
    async def silent(world: World) -> None:
        while not world.rows("request", key="i0 start"):
            await trio.sleep(0.001)
        for node in ("node-1", "node-2"):
            world.network.silence("client", node)

    calls = Calls()
    world = run(plan_of("sequence"), silent, client_observers=[calls])
    world.holds()
    record = world.cluster.client.records["i0"]
    assert record.instance_id == world.instances[0].instance_id
    assert calls.ends["sent"] > 0
    assert calls.asked_keys.count("i0 start") > 1
    assert sum(calls.ends.values()) == len(calls.asked_keys)


def test_client_that_is_started_again_goes_on_where_it_was() -> None:
    async def crash(world: World) -> None:
        await trio.sleep(1.5)
        world.hosts.power_cut("client")
        await trio.sleep(1.0)
        world.cluster.boot("client")

    world = run(plan_of(*["sequence", "messages", "cancelled"] * 2), crash)
    world.holds()


def test_messages_outlive_what_faults_do_to_the_clock_of_a_file() -> None:
    """It starts from the node's wall clock, here an hour ahead, which is the time that messages have to live."""
    jump = Fault(key="jump", at=3.0, kind="wall_jump", host="node-1", amount=3_600_000.0)
    plan = attrs.evolve(plan_of("messages", nodes=1, backend="sqlite"), faults=(jump,))

    async def stay_away_for_an_hour(world: World) -> None:
        await trio.sleep(0.4)
        for host in plan.worker_hosts:
            world.hosts.power_cut(host)  # so nobody waits for the messages yet
        await trio.sleep(jump.at - 0.4)
        assert [row.data["status"] for row in world.rows("answer") if " event " in str(row.data["key"])] == [201, 201]
        world.hosts.power_cut("node-1")
        world.hosts["node-1"].clock.jump(round(jump.amount))
        world.cluster.boot("node-1")

    run(plan, stay_away_for_an_hour).holds()


def test_operator_repairs_and_resolves_incidents_in_the_quiet_phase() -> None:
    world = run(plan_of("poison"))
    world.holds()
    resolved = [row for row in world.rows("request") if str(row.data["path"]).endswith("/resolve")]
    assert resolved
    assert all(row.place == "operator#1" and row.us > 8_000_000 for row in resolved)


def test_files_are_deployed_once_more_when_told() -> None:
    async def redeploy(world: World) -> None:
        await trio.sleep(2.0)
        world.cluster.redeploy(1)
        world.cluster.redeploy(2)

    world = run(plan_of("sequence", "saga", "parallel", apart=1.5), redeploy)
    world.holds()
    keys = {str(row.data["key"]) for row in world.rows("answer", status=201)}
    assert any("revision" in key for key in keys)


def test_node_that_could_not_be_reached_is_tried_last_for_a_while() -> None:
    simulation = Simulation(1)
    orders: list[list[str]] = []

    async def main() -> None:
        balancer = Balancer(simulation, lambda: ["node-1", "node-2", "node-3"])
        orders.append(balancer.order("first"))
        balancer.failed(orders[0][0])
        orders.append(balancer.order("first"))
        await trio.sleep(10.0)
        orders.append(balancer.order("first"))

    simulation.run(main)
    first = orders[0]
    assert orders == [first, [first[1], first[2], first[0]], first]


async def _serve_slowly(listener: trio.abc.Listener[Any], answer: bytes, seconds: float) -> None:
    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await trio.sleep(seconds)
        await stream.send_all(answer)
        await trio.aclose_forcefully(stream)

    await trio.serve_listeners(serve, [listener])


@pytest.mark.parametrize(
    ("answer", "seconds", "target", "outcome"),
    [
        (b'HTTP/1.1 201 Created\r\ncontent-length: 7\r\n\r\n{"a":1}', 0.1, "server", Answer(201, {"a": 1})),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 0.1, "server", Answer(200, None)),
        (b"HTTP/1.1 201 Created\r\ncontent-length: 7\r\n\r\n{", 0.1, "server", True),
        (b"nonsense\r\n\r\n", 0.1, "server", True),
        (b"", 0.1, "server", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 60.0, "server", True),
        (b"", 0.1, "nobody", False),
    ],
    ids=["json", "text", "cut off", "nonsense", "closed", "too late", "refused"],
)
def test_request_is_answered_or_nobody_knows(answer: bytes, seconds: float, target: str, outcome: object) -> None:
    """An outcome of True or False: unanswered, and whether it was sent."""
    simulation = Simulation(1)
    outcomes: list[object] = []

    async def main() -> None:
        network = Network(simulation)
        client = HttpClient(network, "client")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_slowly, network.listen("server"), answer, seconds)
            try:
                outcomes.append(await client.request(target, "POST", "/orders", {"n": 1}, timeout=5.0))
            except Unanswered as error:
                outcomes.append(error.was_sent)
            await client.close()
            nursery.cancel_scope.cancel()

    simulation.run(main)
    assert simulation.properties.violations == []
    assert outcomes == [outcome]


# --- logs ----------------------------------------------------------------------------------------------------------


def _fail() -> None:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (lambda simulation: EngineLog(simulation, "node-1#1").exception("service failed"), "KeyError: 'lost', in"),
        (lambda simulation: EngineLog(simulation, "node-1#1").error("an operation failed", operation="X"), "operation"),
        (lambda simulation: WorkerLog(simulation, "worker-1#1").exception("unexpected: %s", "x"), "unexpected: x"),
    ],
)
def test_P0_what_nobody_expected_breaks_the_run(log: Callable[[Simulation], object], said: str) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        try:
            _fail()
        except KeyError:
            log(simulation)

    simulation.run(main)
    (violation,) = simulation.properties.violations
    assert violation.invariant == "P0"
    assert said in violation.message


def test_failures_of_handlers_are_only_traced() -> None:
    simulation = Simulation(1, keep_trace=True)

    async def main() -> None:
        WorkerLog(simulation, "worker-1#1").exception("handler failed: %s", "as the workload wants")
        WorkerLog(simulation, "worker-1#1").warning("not connected: %s", "refused")
        await trio.sleep(0)

    simulation.run(main)
    assert simulation.properties.violations == []
    assert [row.data["level"] for row in simulation.trace.rows] == ["error", "warning"]
