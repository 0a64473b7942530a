"""Coverage: what of which process was visited, over many tests."""

from __future__ import annotations

from pathlib import Path

from stellwerk.testing import Coverage, open_process_test, run_in_virtual_time


def _measure(coverage: Coverage, xml: bytes, *, completes: bool = False) -> None:
    async def main() -> None:
        async with open_process_test(coverage=coverage) as test:
            await test.deploy(("process.bpmn", xml))
            instance = await test.start("p")
            if completes:
                await instance.complete("work")

    run_in_virtual_time(main)


def test_visits_of_several_engines_are_summed_up(one_task: bytes) -> None:
    coverage = Coverage()
    _measure(coverage, one_task)
    _measure(coverage, one_task, completes=True)
    [found] = coverage
    assert found.nodes == {"start": 2, "work": 2, "done": 1}
    assert found.flows == {"start-work": 2, "work-done": 1}
    assert (found.fraction, found.missed_nodes, found.missed_flows) == (1.0, [], [])


def test_what_was_only_deployed_counts_as_not_visited(one_task: bytes) -> None:
    async def main() -> None:
        async with open_process_test(coverage=coverage) as test:
            await test.deploy(("process.bpmn", one_task))

    coverage = Coverage()
    run_in_virtual_time(main)
    [found] = coverage
    assert found.missed_nodes == ["start", "work", "done"]
    assert coverage.text().splitlines()[1] == "p               0/3             0/2      0 %"


def test_another_wording_of_a_process_is_counted_by_itself(one_task: bytes, tmp_path: Path) -> None:
    coverage = Coverage()
    _measure(coverage, one_task)
    _measure(coverage, one_task.replace(b"Do it", b"Do it well"), completes=True)
    assert [found.fraction for found in coverage] == [3 / 5, 1.0]
    written = coverage.write_svgs(tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["p.svg", "p-2.svg"]
    assert "Do it well" in written[1].read_text(encoding="utf-8")


def test_what_other_processes_measured_is_added(one_task: bytes) -> None:
    here, there = Coverage(), Coverage()
    _measure(here, one_task)
    _measure(there, one_task, completes=True)
    _measure(there, one_task.replace(b"Do it", b"Do it well"))
    here.add_exported(there.exported())
    assert [dict(found.nodes) for found in here] == [{"start": 2, "work": 2, "done": 1}, {"start": 1, "work": 1}]


def test_nearly_all_is_not_all(bpmn) -> None:  # type: ignore[no-untyped-def]
    tasks = "".join(f'<task id="t{number}"/>' for number in range(150))
    path = " ".join(f"t{number}" for number in range(150))
    body = f'<startEvent id="start"/>{tasks}<serviceTask id="work" stellwerk:topic="w"/><endEvent id="done"/>'
    coverage = Coverage()
    _measure(coverage, bpmn(body, f"start {path} work done"))
    assert coverage.text().splitlines()[1].endswith(" 99 %")


def _saga(coverage: Coverage, xml: bytes, *, fails: bool) -> None:
    async def main() -> None:
        async with open_process_test(coverage=coverage) as test:
            await test.deploy(("saga.bpmn", xml))
            instance = await test.start("p")
            await instance.complete("reserve")
            if not fails:
                await instance.complete("pay")
                instance.assert_not_visited("undo", "cancel")
                return
            await instance.fail("pay", "no money", retries=0)
            await instance.complete("cancel")
            instance.assert_ended("FAILED")
            instance.assert_path("start", "reserve", "pay", "undo", "cancel")

    run_in_virtual_time(main)


def test_a_saga_can_be_covered_whole(saga: bytes) -> None:
    coverage = Coverage()
    _saga(coverage, saga, fails=False)
    [found] = coverage
    assert (found.missed_nodes, found.missed_flows) == (["undo", "cancel"], [])
    assert '<g class="missed"><polyline' in found.svg()
    _saga(coverage, saga, fails=True)
    assert (found.missed_nodes, found.fraction) == ([], 1.0)
    assert found.nodes["undo"] == found.nodes["cancel"] == 1
    assert '<g class="visited"><polyline' in found.svg()
    assert '"missed' not in found.svg().replace('class="missed"><rect', "")


def test_associations_are_no_flows(bpmn) -> None:  # type: ignore[no-untyped-def]
    body = """<startEvent id="start"/><serviceTask id="work" stellwerk:topic="w"><dataInputAssociation id="reads">
      <sourceRef>order</sourceRef><targetRef>work</targetRef></dataInputAssociation></serviceTask><endEvent id="done"/>
      <dataObject id="data"/><dataObjectReference id="order" dataObjectRef="data"/><textAnnotation id="note"/>
      <association id="about" sourceRef="work" targetRef="note"/>"""
    coverage = Coverage()
    _measure(coverage, bpmn(body, "start work done"), completes=True)
    [found] = coverage
    assert (set(found.process.nodes), set(found.process.flows)) == (
        {"start", "work", "done"},
        {"start-work", "work-done"},
    )
    assert coverage.text().splitlines()[1].split() == ["p", "3/3", "2/2", "100", "%"]
