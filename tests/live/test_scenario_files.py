"""What a scenario file may say, and what a seed makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.chaos.gates.namespaces import require_namespaces
from headrace.chaos.live.clusters.test_cluster import layout_options, places_in
from headrace.chaos.live.scenario.scenario import Cluster, Kind, Unit, draw
from headrace.chaos.live.scenario.scenario_file import FILE_BYTES_MAX, read_scenario, scenario_of
from headrace.client.errors import CliError, UsageError
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, tokenize, write_tokens

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "chaos"
KILL: dict[str, Any] = {"kind": "kill", "target": "task", "after_commits": [3, 9]}


def refusal(*faults: dict[str, Any], **rest: Any) -> str:
    with pytest.raises(UsageError) as caught:
        scenario_of({"fault": list(faults), **rest}, "x.toml")
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_seed_draws_the_same_schedule_each_time_and_another_seed_another(path: Path) -> None:
    scenario = read_scenario(path)
    assert draw(scenario, 7) == draw(scenario, 7)
    assert draw(scenario, 7) != draw(scenario, 8)
    json.dumps([planned.to_dict() for planned in draw(scenario, 7)])


def test_what_follows_an_optional_fault_is_optional_too_and_says_so() -> None:
    follower = {"kind": "kill", "target": "sink", "follows": 0, "after_s": 1}
    assert "fault 1: it follows fault 0, which is optional" in refusal({**KILL, "optional": True}, follower)
    scenario = scenario_of({"fault": [{**KILL, "optional": True}, {**follower, "optional": True}]}, "x.toml")
    assert [planned.optional for planned in draw(scenario, 1)] == [True, True]
    assert "optional is 1, expected true or false" in refusal({**KILL, "optional": 1})


def test_moments_lie_in_ranges_and_later_firings_count_onward() -> None:
    scenario = scenario_of({"fault": [{**KILL, "every_commits": 2, "count": 3}]}, "x.toml")
    first, *later = draw(scenario, 1)
    assert first.base is None
    assert first.unit is Unit.COMMITS
    assert 3 <= first.after <= 9
    assert [(item.base, item.after) for item in later] == [((0, 0), 2.0), ((0, 1), 2.0)]


def test_a_fault_that_follows_another_counts_from_its_firings() -> None:
    follower = {"kind": "kill", "target": "worker", "follows": 0, "after_s": 0.5, "count": 2}
    planned = draw(scenario_of({"fault": [{**KILL, "count": 2}, follower]}, "x.toml"), 1)
    assert [item.base for item in planned if item.fault == 1] == [(0, 0), (0, 1)]


def test_a_kind_that_lasts_has_a_length_of_its_own() -> None:
    (frozen,) = draw(scenario_of({"fault": [{**KILL, "kind": "freeze"}]}, "x.toml"), 1)
    assert frozen.kind is Kind.FREEZE
    assert frozen.for_s == 2.0


def test_what_is_not_understood_is_refused_by_table_and_key() -> None:
    assert "fault 1: kind is 'murder'; it is one of kill" in refusal(KILL, {**KILL, "kind": "murder"})
    assert "fault 0: target is 'tasks'" in refusal({**KILL, "target": "tasks"})
    assert "fault 0: target is 'stage:'" in refusal({**KILL, "target": "stage:"})
    assert "no key 'when'" in refusal({**KILL, "when": 3})
    assert "one of after_commits and after_s" in refusal({"kind": "kill", "target": "task"})
    assert "every_s does not go with after_commits" in refusal({**KILL, "every_s": 1})
    assert "expected 0 <= low <= high" in refusal({**KILL, "after_commits": [9, 3]})
    assert "for_s means nothing for 'kill'" in refusal({**KILL, "for_s": 1})
    assert "the limit is 1000" in refusal({**KILL, "count": 900}, {**KILL, "count": 900})
    assert "a fault further up" in refusal({**KILL, "follows": 0})
    assert "one [[fault]] or more" in refusal()
    assert "fuse is true or false" in refusal(KILL, run={"fuse": "no"})


def test_faults_are_read_with_their_shares_and_delays() -> None:
    loss = {"kind": "loss", "target": "links", "after_s": 1, "share": [0.1, 0.2]}
    slow = {"kind": "store_slow", "after_s": 1, "delay_s": 2}
    clocks = {"offset_s": [-5, 5], "rate": 1.5}
    scenario = scenario_of({"cluster": {"workers": 3}, "clocks": clocks, "fault": [loss, slow]}, "x.toml")
    assert scenario.cluster == Cluster(controllers=2, workers=3, cores=1)
    lost, slowed = draw(scenario, 3)
    assert 0.1 <= lost.share <= 0.2
    assert (slowed.share, slowed.delay_s, slowed.for_s) == (1.0, 2.0, 3.0)
    assert scenario.clocks is not None
    drawn = scenario.clocks.draw(3, ("c0", "w0"))
    assert drawn == scenario.clocks.draw(3, ("c0", "w0"))
    assert all(-5 <= offset_s <= 5 and rate == 1.5 for offset_s, rate in drawn.values())
    assert drawn["c0"] != drawn["w0"]


def test_what_a_fault_of_network_or_store_cannot_be_is_refused() -> None:
    cut = {"kind": "partition", "target": "links", "after_s": 1}
    assert "[clocks] needs a table [cluster]" in refusal(KILL, clocks={})
    assert "target is 'task'; it is one of links, control" in refusal({**cut, "target": "task"}, cluster={})
    assert "share means nothing for 'partition'" in refusal({**cut, "share": 0.5}, cluster={})
    assert "a part of what passes, from 0 to 1" in refusal({**cut, "kind": "loss", "share": 2}, cluster={})
    assert "delay_s means nothing for 'partition'" in refusal({**cut, "delay_s": 1}, cluster={})
    assert "target means nothing for 'store_outage'" in refusal({**cut, "kind": "store_outage"}, cluster={})
    assert "workers is 0, expected a whole number from 1 to 16" in refusal(KILL, cluster={"workers": 0})
    assert "rate is 0, expected 0.25 <= low <= high" in refusal(KILL, cluster={}, clocks={"rate": 0})


def test_a_scenario_places_stages_one_by_one_or_spreads_them() -> None:
    pipeline = plain("in", "out")
    first, *rest = [stage.name for stage in pipeline.stages]
    spread = scenario_of({"cluster": {"spread": True}, "fault": [KILL]}, "x.toml").cluster
    assert spread is not None
    assert list(places_in(spread, pipeline).values()) == ["w0", "w1", "w0"]
    assert [word for word in layout_options(spread, pipeline, fuse=True) if "=quic" in word] == [
        f"{name}=quic" for name in rest
    ]
    placed = scenario_of({"cluster": {"place": {first: "w1"}}, "fault": [KILL]}, "x.toml").cluster
    assert placed is not None
    assert layout_options(placed, pipeline, fuse=True) == ["--place", f"{first}=w1"]
    strange = scenario_of({"cluster": {"place": {"brew": "w1"}}, "fault": [KILL]}, "x.toml").cluster
    assert strange is not None
    with pytest.raises(UsageError, match="has no stage 'brew'; it has"):
        places_in(strange, pipeline)
    assert "place of 'read' is 'w2'; the workers are w0, w1" in refusal(KILL, cluster={"place": {"read": "w2"}})
    assert "spread needs two workers" in refusal(KILL, cluster={"workers": 1, "spread": True})
    assert "spread is true or false" in refusal(KILL, cluster={"spread": 1})


def test_a_cable_is_pulled_out_only_where_workers_have_namespaces() -> None:
    trip = {"kind": "unplug", "target": "worker", "after_s": 1}
    inside = {"namespaces": True}
    scenario = scenario_of({"cluster": inside, "fault": [trip]}, "x.toml")
    assert [(item.kind, item.for_s) for item in draw(scenario, 1)] == [(Kind.UNPLUG, 5.0)]
    assert "unplug needs a table [cluster] with namespaces" in refusal(trip, cluster={})
    assert "target is 'links'; it is one of worker" in refusal({**trip, "target": "links"}, cluster=inside)
    assert "there are no gates" in refusal({**trip, "kind": "loss"}, cluster=inside)


def test_without_root_namespaces_are_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CliError, match="run as root, with `ip` of iproute2") as caught:
        require_namespaces()
    assert "\n" not in str(caught.value)


def plain(source: str, output: str) -> Pipeline:
    tokens = tokenize("deepseek")
    return Pipeline.chain("small", output, read_jsonl(source), tokens, write_tokens(tokens, seq_len=256))


def test_a_file_that_is_no_toml_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("name = ")
    with pytest.raises(UsageError, match="not TOML"):
        read_scenario(tmp_path / "x.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        read_scenario(tmp_path / "y.toml")


_KILL = '[[fault]]\nkind = "kill"\ntarget = "task"\n'


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "9" * 10_000,
        '[[fault]]\nkind = "kill"\ntarget = ["task"]\nafter_s = 1',
        '[[fault]]\nkind = ["kill"]\ntarget = "task"\nafter_s = 1',
        _KILL + "after_s = inf",
        _KILL + "after_commits = [1, inf]",
        _KILL + "after_s = nan",
        _KILL + "after_s = 1" + "0" * 400,
        "# " + "x" * FILE_BYTES_MAX,
    ],
    ids=["nested", "digits", "targets", "kinds", "never", "some time", "no time", "a long number", "a long file"],
)
def test_a_file_that_no_number_of_fits_is_wrong_usage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"x\.toml"):
        read_scenario(path)
