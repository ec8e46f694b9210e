"""The facts of a host: kept whole, read with distrust."""

import json
from pathlib import Path

import pytest

from headrace.cli.commands.cluster import daemons
from headrace.cli.host import FACTS, LOOPBACK, Fact, facts_path, keep_facts, read_facts
from headrace.cli.host.facts import HostFacts
from headrace.worker.arguments import worker_parser


def facts() -> HostFacts:
    return read_facts(None).joined({"disk_sync_s": Fact(0.003, "/data", 1.0), "cores": Fact(2.0, "", 2.0)})


def test_facts_are_read_as_they_were_kept(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    assert keep_facts(path, facts()) == ""
    assert read_facts(path) == facts()


def test_newer_facts_take_the_place_of_older_ones() -> None:
    newer = facts().joined({"disk_sync_s": Fact(0.5, "/other", 3.0)}).facts
    assert (newer["disk_sync_s"].value, newer["cores"].value) == (0.5, 2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"host": "another"},
        {"facts": []},
        {"facts": {"cores": {"value": -1, "where": "", "at": 1.0}}},
        {"facts": {"cores": {"value": True, "where": "", "at": 1.0}}},
        {"facts": {"cores": {"value": 2.0, "where": "x" * 501, "at": 1.0}}},
        {"facts": {"cores": 2.0}},
    ],
)
def test_a_file_that_is_none_of_ours_holds_no_facts(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({**facts().plain(), **change}))
    assert read_facts(path).facts == {}


@pytest.mark.parametrize("text", ["", "{", "[" * 9000, '{"format": 1}', "null"])
def test_a_damaged_file_holds_no_facts(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    assert read_facts(path).facts == {}


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    assert "cannot write" in keep_facts(tmp_path / "missing" / "host.json", facts())
    assert "XDG_CACHE_HOME" in keep_facts(None, facts())


def test_the_file_lies_in_the_cache_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = facts_path()
    assert path is not None
    assert path.parent == tmp_path / "headrace" / "facts"
    (tmp_path / "headrace").chmod(0o777)
    assert facts_path() is None


def test_each_fact_has_a_unit_and_a_meaning() -> None:
    assert all(unit and said for unit, said in FACTS.values())


def test_a_worker_is_started_with_what_helps_to_place_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    told = {
        "filters_bytes_s": Fact(1e7, "standard library", 1.0),
        "net_bytes_s": Fact(5e9, LOOPBACK, 1.0),
        "disk_sync_s": Fact(0.003, "/data", 1.0),
    }
    assert keep_facts(facts_path(), read_facts(None).joined(told)) == ""
    assert daemons._facts_arguments() == ["--fact", "filters_bytes_s=10000000.0"]
    assert worker_parser().parse_args(daemons._facts_arguments()).fact == [("filters_bytes_s", 1e7)]
