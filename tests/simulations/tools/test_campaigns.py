"""What campaigns add up to, and what never happened in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulations.tools.campaigns import Campaign, append_campaign, load_campaigns, total
from simulations.tools.coverage import tell_coverage
from simulations.tools.mixing import mix_of
from simulations.tools.outcomes import Outcome
from simulations.tools.sources import seeds_of
from stellwerk.cli.mistakes import Mistake


def _campaign(**sometimes: int) -> Campaign:
    campaign = Campaign(began="2026-01-01T00:00:00+00:00", seeds=["0..1"], real_seconds=2.0)
    campaign.add("small all", Outcome(sometimes=sometimes, faults={"cut": 2}, simulated_seconds=60.0, cpu_seconds=0.5))
    campaign.add("large swarm", Outcome(sometimes={"lost": 0}, simulated_seconds=40.0, cpu_seconds=1.5))
    return campaign


def test_runs_faults_and_properties_add_up() -> None:
    added = total([_campaign(expired=3, lost=1), _campaign(expired=1)])
    assert added.runs == {"large swarm": 2, "small all": 2}
    assert added.faults == {"cut": 4}
    assert added.sometimes == {"expired": 4, "lost": 1}
    assert added.sometimes_runs == {"expired": 2, "lost": 1}
    assert (added.simulated_seconds, added.speed) == (200.0, 50.0)


def test_campaigns_are_appended_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "campaigns.json"
    assert load_campaigns(file) == []
    append_campaign(file, _campaign(expired=1))
    append_campaign(file, _campaign(lost=1))
    assert [campaign.sometimes.get("lost", 0) for campaign in load_campaigns(file)] == [0, 1]
    assert json.loads(file.read_text())[0]["seeds"] == ["0..1"]


def test_a_file_with_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "campaigns.json"
    file.write_text('{"not": "a list"}')
    with pytest.raises(Mistake, match=r"campaigns\.json: holds no campaigns"):
        append_campaign(file, _campaign())
    assert file.read_text() == '{"not": "a list"}'


def test_coverage_fails_where_something_never_happened(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"expired": "leases must run out", "lost": "answers must get lost"}
    assert tell_coverage([_campaign(expired=1, lost=2)], expected) == 0
    capsys.readouterr()
    assert tell_coverage([_campaign(expired=1, surprise=1)], expected) == 1
    output = capsys.readouterr().out
    assert "NEVER    lost: answers must get lost" in output
    assert "1 of 2 happened" in output
    assert "surprise" in output, "what nobody expects is shown too"
    assert tell_coverage([_campaign(expired=1, lost=2)], expected, ("cut", "reset")) == 1
    assert "NEVER    fault reset" in capsys.readouterr().out


def test_a_seed_is_of_the_same_kind_each_time_and_weights_hold() -> None:
    mix = mix_of("small=3,large=1,all=1,swarm=0")
    kinds = [mix.kind(seed) for seed in range(2_000)]
    assert kinds == [mix.kind(seed) for seed in range(2_000)]
    assert {mode for _, mode in kinds} == {"all"}
    assert sum(size == "large" for size, _ in kinds) == pytest.approx(500, abs=80)
    assert {mix_of("small").kind(seed)[1] for seed in range(50)} == {"all", "swarm"}


@pytest.mark.parametrize("text", ["tiny=1", "small=x", "small=-1"])
def test_strange_weights_are_refused(text: str) -> None:
    with pytest.raises(Mistake, match="--mix"):
        mix_of(text)


def test_seeds_are_one_or_a_range_with_both_ends() -> None:
    assert list(seeds_of("7")) == [7]
    assert list(seeds_of("3..5")) == [3, 4, 5]
    for text in ("5..3", "a", "1..", "-1", "0..99999999"):
        with pytest.raises(Mistake):
            seeds_of(text)
