"""``hunt``: seed after seed, until one fails or the time is over."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, TypeAlias

import attrs
from cyclopts import Parameter

from simulations.kernel.draws import chance
from simulations.plans.drawing import draw_plan
from simulations.plans.plan import Plan, to_json
from simulations.tools.campaigns import Campaign, append_campaign, commit_now
from simulations.tools.children import ChildFailed, Children, first_done
from simulations.tools.commands import PROGRAM, replay_command
from simulations.tools.mixing import Mix, mix_of
from simulations.tools.outcomes import Outcome
from simulations.tools.progress import Progress
from simulations.tools.sources import RESULTS, Jobs, Mutant, known_mutant, seeds_of
from simulations.tools.writing import write_file
from stellwerk.cli.mistakes import ENDED_BADLY
from stellwerk.cli.options import flag
from stellwerk.cli.output import say

__all__ = ["Hunt", "hunt"]

_TWINS_SHARE = 0.05
_DEFAULT_SECONDS = 60.0
_WAIT_SECONDS = 1.0
_SEED_SPAN = 1_000_000

Draw: TypeAlias = Callable[[int], tuple[str, Plan]]
"""Of a seed, what kind of run it is, and its plan."""


def hunt(
    *,
    minutes: Annotated[float, Parameter(help="Begin no run after that.")] = 0.0,
    seconds: Annotated[float, Parameter(help="Begin no run after that; both add up. Without either: 60.")] = 0.0,
    seeds: Annotated[str | None, Parameter(help="These, as in 0..4999, in place of new ones.")] = None,
    mix: Annotated[str, Parameter(help="Weights of sizes and modes.")] = "small=5,large=1,all=1,swarm=1",
    jobs: Jobs = 1,
    keep_going: Annotated[bool, flag(help="Go on when a seed fails.")] = False,
    mutant: Mutant = None,
    results: Annotated[Path, Parameter(help="Folder for campaigns.json and the plans that failed.")] = RESULTS,
) -> int:
    """Run new seeds until one fails or the time is over.

    Each run is small or large, with all kinds of faults or a few. One in twenty is done twice, in processes with
    different hash seeds, and must be the same. A plan that fails is written to a folder, with the commands to replay,
    shrink and explain it; then it is a file, and no change of how plans are drawn can lose it.

    What the campaign did (seeds, simulated time, faults by kind, what happened now and then) is added to
    campaigns.json: see coverage. Exit code 1 when a seed failed.
    """
    known_mutant(mutant)
    weights = mix_of(mix)
    numbers = seeds_of(seeds) if seeds is not None else None
    limit = minutes * 60 + seconds or (_DEFAULT_SECONDS if numbers is None else float("inf"))
    first = numbers[0] if numbers else int(time.time()) * _SEED_SPAN % 10**15
    campaign = Campaign(
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit_now(),
        python=platform.python_version(),
        mutant=mutant,
    )
    with Children(jobs) as children:
        hunting = Hunt(
            children,
            campaign,
            lambda seed: _drawn(seed, weights),
            jobs=jobs,
            failures=results / "failures",
            keep_going=keep_going,
        )
        try:
            hunting.run(numbers if numbers is not None else count(first), limit)
        finally:
            append_campaign(results / "campaigns.json", campaign)
    for line in _figures(campaign):
        say(line)
    return ENDED_BADLY if campaign.failures else 0


def _drawn(seed: int, weights: Mix) -> tuple[str, Plan]:
    size, mode = weights.kind(seed)
    return f"{size} {mode}", draw_plan(seed, size, mode)


def _name(kind: str, seed: int) -> str:
    return f"{kind.replace(' ', '-')}-{seed}"


@attrs.frozen
class _Order:
    kind: str
    plan: Plan
    traces: tuple[Path, ...] = ()
    """Of a run that is done twice."""


class Hunt:
    """Runs are begun in the order of the seeds, and counted in the order in which they end."""

    def __init__(
        self,
        children: Children,
        campaign: Campaign,
        draw: Draw,
        *,
        jobs: int,
        failures: Path,
        keep_going: bool,
    ) -> None:
        """:param campaign: where everything is added up.
        :param failures: the folder for plans that failed."""
        self.campaign = campaign
        self._children = children
        self._draw = draw
        self._jobs = jobs
        self._failures = failures
        self._keep_going = keep_going
        self._progress = Progress()
        self._orders: dict[Future[tuple[Outcome, ...]], _Order] = {}
        self._began = time.monotonic()

    def run(self, seeds: Iterable[int], seconds: float) -> None:
        """Until there are no more seeds, the time is over, or one failed (unless it is to go on)."""
        self._began = time.monotonic()
        begun: list[int] = []
        try:
            for seed in self._while_good(seeds, seconds):
                begun.append(seed)
                self._begin(seed)
                self._collect(self._jobs - 1)
            self._collect(0)
        finally:
            self._progress.clear()
            self.campaign.real_seconds = time.monotonic() - self._began
            if begun:
                self.campaign.seeds.append(f"{begun[0]}..{begun[-1]}")

    def _while_good(self, seeds: Iterable[int], seconds: float) -> Iterator[int]:
        for seed in seeds:
            if time.monotonic() - self._began >= seconds or self._is_enough:
                return
            yield seed

    @property
    def _is_enough(self) -> bool:
        return bool(self.campaign.failures) and not self._keep_going

    def _begin(self, seed: int) -> None:
        kind, plan = self._draw(seed)
        mutant = self.campaign.mutant
        if chance(seed, _TWINS_SHARE, "twin"):
            traces = tuple((self._failures / f"{_name(kind, seed)}.{twin}.trace").resolve() for twin in "ab")
            self._failures.mkdir(parents=True, exist_ok=True)
            self._orders[self._children.submit_twins(plan, traces, mutant=mutant)] = _Order(kind, plan, traces)
        else:
            self._orders[self._children.submit_twins(plan, (None,), mutant=mutant)] = _Order(kind, plan)

    def _collect(self, under_way_max: int) -> None:
        """Until no more than that are under way."""
        while len(self._orders) > under_way_max:
            for future in first_done(list(self._orders), _WAIT_SECONDS):
                self._ended(future, self._orders.pop(future))
            self._progress.show(self._status())

    def _ended(self, future: Future[tuple[Outcome, ...]], order: _Order) -> None:
        try:
            outcomes = future.result()
        except ChildFailed as error:
            self._failed(order, f"[broke] {str(error).strip().splitlines()[-1]}")
            return
        self.campaign.add(order.kind, outcomes[0])
        self.campaign.twins += bool(order.traces)
        if outcomes[0].invariant is not None:
            self._failed(order, outcomes[0].verdict)
        if len({outcome.digests for outcome in outcomes}) > 1:
            self._failed(order, "[not the same twice] see the traces beside its plan")
        else:
            for trace in order.traces:
                trace.unlink()

    def _failed(self, order: _Order, verdict: str) -> None:
        file = self._failures / f"{_name(order.kind, order.plan.seed)}.json"
        write_file(file, to_json(order.plan))
        self.campaign.failures.append(f"{file}: {verdict}")
        self._progress.clear()
        say(f"FAILED   seed {order.plan.seed} ({order.kind}): {verdict}")
        say(f"         {replay_command(file, self.campaign.mutant)}")
        bug = f" --mutant {self.campaign.mutant}" if self.campaign.mutant else ""
        say(f"         {PROGRAM} shrink {file}{bug}")
        say(f"         {PROGRAM} explain {file}{bug}")

    def _status(self) -> str:
        campaign = self.campaign
        spent = time.monotonic() - self._began
        return (
            f"{campaign.runs_count} runs in {spent:.0f} s, {campaign.simulated_seconds / 3600:.2f} h simulated "
            f"({campaign.simulated_seconds / max(spent, 1e-9):.0f} s each second), {len(campaign.failures)} failed"
        )


def _figures(campaign: Campaign) -> Iterator[str]:
    yield f"runs     {campaign.runs_count}: {', '.join(f'{n} {kind}' for kind, n in sorted(campaign.runs.items()))}"
    yield (
        f"time     {campaign.simulated_seconds / 3600:.2f} h simulated in {campaign.real_seconds:.0f} s "
        f"({campaign.speed:.0f} s each second; {campaign.cpu_seconds:.0f} s of CPU)"
    )
    yield f"faults   {sum(campaign.faults.values())} of {len(campaign.faults)} kinds"
    yield f"twins    {campaign.twins} runs were done twice"
    yield f"seeds    {', '.join(campaign.seeds)}"
    yield f"failed   {len(campaign.failures)}"
