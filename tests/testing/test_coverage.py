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
