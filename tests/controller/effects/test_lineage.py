"""Events of OpenLineage: what they say of runs and versions, under names that a killed controller would give again."""

import asyncio
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openlineage.client.event_v2 import (
    InputDataset,
    Job,
    OutputDataset,
    Run as SpecRun,
    RunEvent,
    RunState as EventKind,
)
from openlineage.client.facet_v2 import (
    data_quality_assertions_dataset as assertions,
    dataset_version_dataset as versions,
    error_message_run as errors,
    output_statistics_output_dataset as statistics,
)
from openlineage.client.naming.dataset import GCS, S3, LocalFileSystem
from openlineage.client.serde import Serde

from headrace.controller.core.run import RunState
from headrace.controller.effects import lineage
from headrace.controller.effects.lineage import EVENTS_MAX, LINEAGE, PRODUCER, Lineage, named, run_event, run_id
from headrace.daemon import PostPlace, post
from headrace.pipeline import Pipeline
from headrace.pipeline.graph import Stage, StageKind
from headrace.store.ledger import Closed, Counts, LedgerState, StoredObject
from headrace.store.ledger.core.fold import ClosedShard, Published

AT = 1_700_000_000
PATIENCE_S = 120.0
INPUTS = ["/corpus/a b/*.jsonl", "s3://bucket/raw/x.jsonl?endpoint=http://h:1", "/corpus/a b/more/*.gz"]


def stand_in(dataset: str = "file:///data/out", state: RunState = RunState.RUNNING, gate: Any = None) -> Any:
    """A run, as far as lineage looks at it."""
    stages = [
        Stage("read", StageKind.SOURCE, "m:read", {"input": INPUTS}),
        Stage("write", StageKind.SINK, "m:write", {}),
    ]
    pipeline = SimpleNamespace(
        name="books",
        dataset=dataset,
        of_kind=lambda kind: [stage for stage in stages if stage.kind is kind],
    )
    request = SimpleNamespace(gate=gate or {})
    return SimpleNamespace(
        pipeline=pipeline, ledger=LedgerState(), state=state, reason="", request=request, ended=False
    )


def close(run: Any, number: int, kept: int = 10) -> None:
    objects = (StoredObject("tokens", f"{number}.tokens", "00", 100), StoredObject("documents", f"{number}.d", "00", 7))
    run.ledger.shards.append(ClosedShard(number, Closed("write", "v", 0, (), objects, Counts(kept=kept))))


def publish(run: Any, version: int, number: int) -> None:
    run.ledger.version = version
    run.ledger.published[version] = Published(number, number, True, "completed", AT + number)


def said(made: Lineage) -> list[tuple[str, str]]:
    found = [(event["eventType"], event["run"]["runId"]) for event in made._events]
    made._events.clear()
    return found


def of(*runs: Any) -> Lineage:
    return Lineage(Path("nowhere"), lambda: {f"{number}": run for number, run in enumerate(runs)})


def made_by_the_spec(event: dict[str, Any]) -> dict[str, Any]:
    """The same event, of the classes that the specification is generated into: each checks its fields."""

    def facet(kind: Any, given: dict[str, Any]) -> Any:
        facts = {key: value for key, value in given.items() if not key.startswith("_")}
        if kind is assertions.DataQualityAssertionsDatasetFacet:
            facts["assertions"] = [assertions.Assertion(**item) for item in facts["assertions"]]
        made = kind(**facts, producer=PRODUCER)
        assert made._schemaURL == given["_schemaURL"]
        return made

    kinds = {
        "version": versions.DatasetVersionDatasetFacet,
        "outputStatistics": statistics.OutputStatisticsOutputDatasetFacet,
        "errorMessage": errors.ErrorMessageRunFacet,
        "dataQualityAssertions": assertions.DataQualityAssertionsDatasetFacet,
    }
    outputs = [
        OutputDataset(
            namespace=item["namespace"],
            name=item["name"],
            facets={key: facet(kinds[key], each) for key, each in item.get("facets", {}).items()},
            outputFacets={key: facet(kinds[key], each) for key, each in item.get("outputFacets", {}).items()},
        )
        for item in event["outputs"]
    ]
    made = RunEvent(
        eventType=EventKind(event["eventType"]),
        eventTime=event["eventTime"],
        run=SpecRun(
            runId=event["run"]["runId"],
            facets={key: facet(kinds[key], each) for key, each in event["run"]["facets"].items()},
        ),
        job=Job(namespace=event["job"]["namespace"], name=event["job"]["name"]),
        inputs=[InputDataset(namespace=item["namespace"], name=item["name"]) for item in event["inputs"]],
        outputs=outputs,
        producer=PRODUCER,
    )
    found: dict[str, Any] = json.loads(Serde.to_json(made))
    return found


def without_nothing(value: Any) -> Any:
    """Without what is empty, which the specification's classes write and we leave out."""
    if isinstance(value, dict):
        plain = {key: without_nothing(each) for key, each in value.items()}
        return {key: each for key, each in plain.items() if each not in ({}, [], None)}
    return [without_nothing(each) for each in value] if isinstance(value, list) else value


def test_events_are_what_the_specification_makes_of_them() -> None:
    run = stand_in(gate={"records": {"min": 5, "max": 9}, "drift": {}})
    close(run, 3)
    publish(run, 1, 4)
    for event in (
        run_event("START", run, 1, AT),
        run_event("COMPLETE", run, 1, AT),
        run_event("FAIL", run, 2, AT, "the store is full"),
        run_event("ABORT", run, 2, AT, "stopped"),
    ):
        assert without_nothing(event) == without_nothing(made_by_the_spec(event))


def test_a_version_says_its_entry_its_size_and_its_gate() -> None:
    run = stand_in(gate={"records": {"min": 5}})
    close(run, 3, kept=10)
    close(run, 5, kept=4)
    publish(run, 1, 4)
    (output,) = run_event("COMPLETE", run, 1, AT)["outputs"]
    assert output["facets"]["version"]["datasetVersion"] == "4"
    facts = output["outputFacets"]["outputStatistics"]
    assert (facts["rowCount"], facts["size"], facts["fileCount"]) == (10, 107, 2), "not of shards that came later"
    (row,) = output["facets"]["dataQualityAssertions"]["assertions"]
    assert row == {"assertion": "records min", "success": True, "severity": "error", "expected": "5"}
    run.ledger.held = ("records: min 5, and it is 4",)
    (held,) = run_event("FAIL", run, 2, AT, "held")["outputs"]
    (row,) = held["facets"]["dataQualityAssertions"]["assertions"]
    assert (row["success"], row["description"]) == (False, "records: min 5, and it is 4")


def test_names_are_those_of_the_specification() -> None:
    for uri, naming in (
        ("file:///data/a b", LocalFileSystem("/data/a b")),
        ("/data/x/", LocalFileSystem("/data/x")),
        ("s3://bucket/a/b?endpoint=http://h:1", S3("bucket", "a/b")),
        ("gs://bucket/a", GCS("bucket", "a")),
    ):
        assert named(uri) == (naming.get_namespace(), naming.get_name())
    inputs = run_event("START", stand_in(), 1, AT)["inputs"]
    assert [(item["namespace"], item["name"]) for item in inputs] == [
        ("file", "/corpus/a b"),
        ("file", "/corpus/a b/more"),
        ("s3://bucket", "raw/x.jsonl"),
    ]


def test_a_run_is_what_makes_a_version_whatever_happened_on_the_way() -> None:
    assert run_id("file:///data/out", 1) == run_id("/data/out/", 1) == "65613bb7-0cf4-5ec8-b82e-2a8bdd11e92b"
    assert run_id("/data/out", 2) != run_id("/data/out", 1) != run_id("/data/other", 1)


def test_a_run_starts_with_its_first_shard_and_completes_with_a_version() -> None:
    run = stand_in(state=RunState.OPENING)
    made = of(run)
    first, second = run_id(run.pipeline.dataset, 1), run_id(run.pipeline.dataset, 2)
    made.look(AT)
    run.state = RunState.RUNNING
    made.look(AT)
    assert said(made) == [], "it may have nothing to do"
    close(run, 3)
    made.look(AT)
    made.look(AT)
    assert said(made) == [("START", first)]
    publish(run, 1, 4)
    run.state, run.ended = RunState.COMPLETED, True
    made.look(AT)
    made.look(AT)
    assert said(made) == [("COMPLETE", first)]
    # Another run of the same pipeline: nobody knows what was written of the last one.
    again = stand_in()
    again.ledger = run.ledger
    other = of(again)
    other.look(AT)
    assert said(other) == [("COMPLETE", first)]
    close(again, 6)
    publish(again, 2, 7)
    other.look(AT)
    assert said(other) == [("START", second), ("COMPLETE", second)]


@pytest.mark.parametrize(
    ("state", "closes", "expected"),
    [
        (RunState.FAILED, False, ["START", "FAIL"]),
        (RunState.FAILED, True, ["START", "FAIL"]),
        (RunState.CANCELLED, True, ["START", "ABORT"]),
        (RunState.STOPPED, False, []),
    ],
)
def test_an_end_without_a_version_is_said_once(state: RunState, closes: bool, expected: list[str]) -> None:
    run = stand_in()
    made = of(run)
    made.look(AT)
    if closes:
        close(run, 3)
    run.state, run.ended, run.reason = state, True, "why"
    made.look(AT)
    made.look(AT)
    assert [kind for kind, _ in said(made)] == expected


def test_a_run_that_was_over_before_a_look_is_said_whole() -> None:
    run = stand_in(state=RunState.COMPLETED)
    close(run, 3)
    publish(run, 1, 4)
    run.ended = True
    made = of(run)
    made.look(AT)
    assert [kind for kind, _ in said(made)] == ["START", "COMPLETE"]


def written(made: Lineage, runs: dict[str, Any]) -> None:
    async def live() -> None:
        made.begin()
        await made.close()

    asyncio.run(live())


def test_a_folder_holds_an_event_once_whoever_writes_it_again(tmp_path: Path) -> None:
    run = stand_in()
    close(run, 3)
    publish(run, 1, 4)
    folder = tmp_path / "a folder" / "events"
    for _ in range(2):
        written(Lineage(folder, lambda: {"books": run}), {})
    (file,) = folder.iterdir()
    assert file.name == f"{run_id(run.pipeline.dataset, 1)}.complete.json"
    assert json.loads(file.read_bytes())["eventTime"] == "2023-11-14T22:13:24.000+00:00"


def test_a_name_that_is_no_utf8_is_an_escape_in_an_event(tmp_path: Path) -> None:
    run = stand_in(state=RunState.FAILED)
    run.ended, run.reason = True, "/corpus/caf\udce9.jsonl vanished"
    written(Lineage(tmp_path, lambda: {"books": run}), {})
    (event,) = (json.loads(path.read_bytes()) for path in tmp_path.glob("*.fail.json"))
    assert event["run"]["facets"]["errorMessage"]["message"] == "/corpus/caf\\udce9.jsonl vanished"


def test_events_are_written_through_no_link(tmp_path: Path) -> None:
    run = stand_in()
    close(run, 3)
    publish(run, 1, 4)
    victim, folder = tmp_path / "victim", tmp_path / "events"
    victim.write_text("mine")
    folder.mkdir()
    name = f"{run_id(run.pipeline.dataset, 1)}.complete.json"
    (folder / f".{name}.{os.getpid()}").symlink_to(victim)
    written(Lineage(folder, lambda: {"books": run}), {})
    assert victim.read_text() == "mine"
    assert json.loads((folder / name).read_bytes())["eventType"] == "COMPLETE"


def test_a_server_is_posted_the_events() -> None:
    taken: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=lambda: server.serve_forever(0.01), daemon=True).start()
        run = stand_in()
        publish(run, 1, 4)
        written(Lineage(PostPlace("127.0.0.1", server.server_address[1]), lambda: {"books": run}), {})
        server.shutdown()
    assert [(path, event["eventType"]) for path, event in taken] == [("/api/v1/lineage", "COMPLETE")]


def test_a_place_that_takes_nothing_delays_an_end_by_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "END_S", 0.1)
    monkeypatch.setattr(post, "REQUEST_S", 2 * PATIENCE_S)
    run = stand_in()
    publish(run, 1, 4)
    (tmp_path / "file").write_text("no folder")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for place in (tmp_path / "file", PostPlace("127.0.0.1", silent.getsockname()[1])):
            began = time.monotonic()
            written(Lineage(place, lambda: {"books": run}), {})
            assert time.monotonic() - began < PATIENCE_S
    assert "an event of lineage is lost" in caplog.text


def test_events_that_nobody_takes_are_bounded() -> None:
    made = of()
    for _ in range(EVENTS_MAX + 5):
        made._put({})
    assert (len(made._events), made.dropped) == (EVENTS_MAX, 5)


def test_the_environment_says_where_events_go() -> None:
    assert Lineage.of({}, dict) is None
    made = Lineage.of({LINEAGE: "http://marquez"}, dict)
    assert made is not None
    assert made._place == PostPlace("marquez", 5000)
    with pytest.raises(ValueError, match="HEADRACE_LINEAGE: give http") as caught:
        Lineage.of({LINEAGE: "http://me:secret@marquez"}, dict)
    assert "secret" not in str(caught.value)
    for host in ("a..b", ".", "a" * 64):
        with pytest.raises(ValueError, match="HEADRACE_LINEAGE: give http"):
            Lineage.of({LINEAGE: f"http://{host}"}, dict)


def test_a_fault_of_lineage_is_a_line_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    made = Lineage(Path("nowhere"), lambda: {"books": None})  # type: ignore[dict-item]
    made._look()
    assert "lineage has a gap" in caplog.text
    assert Pipeline is not None
