"""OpenLineage: events of runs and of each version that they publish, if HEADRACE_LINEAGE names a folder or a server.

A look, four times a second, makes them of what the ledger says; a thread writes them. So no commit waits for an event.
A run is what makes one version of a dataset, however often it is killed and begun again: its id is a hash of both, and
an event that is sent again is the same event. After a start the newest version's is sent again, since nobody knows
whether it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.controller.core.run import Run, RunState
from headrace.daemon import Effects, PostPlace, threads
from headrace.page.core import written
from headrace.pipeline import StageKind
from headrace.store.ledger import LedgerState

logger = logging.getLogger("headrace.controller")

#: A folder, or http[s]://HOST[:PORT] of a server such as Marquez.
LINEAGE, USUAL_PORT = "HEADRACE_LINEAGE", 5000
#: Seconds between two looks, and for the last events at the end.
LOOK_S, END_S = 0.25, 1.0
#: Events that wait to be written, inputs and assertions of one, and characters of a text in it.
EVENTS_MAX, INPUTS_MAX, ASSERTIONS_MAX, TEXT_MAX = 256, 100, 100, 2000
PRODUCER = "https://github.com/headrace/headrace"
_SPEC = "https://openlineage.io/spec"
_RUNS = uuid.uuid5(uuid.NAMESPACE_URL, PRODUCER)
_WILD = re.compile(r"[*?\[{]")
Event = dict[str, Any]


def named(uri: str) -> tuple[str, str]:
    """A place as the specification names datasets: namespace and name. Secrets in it are refused before."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        path = rest if separator else os.path.abspath(uri)
        return "file", path.rstrip("/") or "/"
    authority, _, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{authority}", path.strip("/") or "/"


def run_id(dataset: str, version: int) -> str:
    """The run that makes a version of a dataset."""
    return str(uuid.uuid5(_RUNS, "\n".join((*named(dataset), str(version)))))


def run_event(kind: str, run: Run, version: int, at: float, reason: str = "") -> Event:
    """An event of the run that makes a version; with a reason it says why it is no more."""
    facets = {}
    if reason:
        words = {"message": reason[:TEXT_MAX], "programmingLanguage": "Python"}
        facets["errorMessage"] = _facet("facets/1-0-1/ErrorMessageRunFacet", words)
    pipeline = run.pipeline
    patterns = [str(each) for stage in pipeline.of_kind(StageKind.SOURCE) for each in _inputs(stage.parameters)]
    inputs = sorted({named(_folder(pattern)) for pattern in patterns})[:INPUTS_MAX]
    namespace, name = named(pipeline.dataset)
    output: Event = {"namespace": namespace, "name": name}
    if kind == "COMPLETE":
        output |= _published(run.ledger, version)
    if kind in ("COMPLETE", "FAIL") and (assertions := _assertions(run.request.gate, run.ledger, version)):
        asserted = _facet("facets/1-1-0/DataQualityAssertionsDatasetFacet", {"assertions": assertions})
        output.setdefault("facets", {})["dataQualityAssertions"] = asserted
    return {
        "eventType": kind,
        "eventTime": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
        "run": {"runId": run_id(pipeline.dataset, version), "facets": facets},
        "job": {"namespace": "headrace", "name": pipeline.name, "facets": {}},
        "inputs": [{"namespace": space, "name": path} for space, path in inputs],
        "outputs": [output],
        "producer": PRODUCER,
        "schemaURL": f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent",
    }


def _published(ledger: LedgerState, version: int) -> Event:
    """What a version holds: its facets, and those of an output."""
    shown = ledger.published[version]
    shards = [shard.closed for shard in ledger.shards if shown.shows_entry(shard.number)]
    objects = [item for closed in shards for item in closed.objects]
    sizes = {
        "rowCount": sum(closed.counts.kept for closed in shards),
        "size": sum(item.size for item in objects),
        "fileCount": len(objects),
    }
    return {
        "facets": {"version": _facet("facets/1-0-1/DatasetVersionDatasetFacet", {"datasetVersion": str(shown.number)})},
        "outputFacets": {"outputStatistics": _facet("facets/1-0-2/OutputStatisticsOutputDatasetFacet", sizes)},
    }


def _assertions(gate: Mapping[str, Any], ledger: LedgerState, version: int) -> list[Event]:
    """The rows of the gate, and which of them hold the version back."""
    broken = ledger.held if version not in ledger.published else ()
    found: list[Event] = []
    for name, row in gate.items():
        for limit, wanted in row.items() if name != "drift" else [("", "")]:
            said = next((words for words in broken if words.startswith(f"{name}: {limit}")), "")
            if name == "drift":
                said = next((words for words in broken if words.startswith("drift")), "")
            item = {"assertion": f"{name} {limit}".strip(), "success": not said, "severity": "error"}
            item |= {"expected": str(wanted)} if limit else {}
            found.append(item | ({"description": said[:TEXT_MAX]} if said else {}))
    return found[:ASSERTIONS_MAX]


def _facet(schema: str, facts: Mapping[str, Any]) -> Event:
    name = schema.rpartition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/{schema}.json#/$defs/{name}", **facts}


def _inputs(parameters: Mapping[str, Any]) -> list[Any]:
    given = parameters.get("input", ())
    return [given] if isinstance(given, str) else list(given)


def _folder(pattern: str) -> str:
    """The folder of what stands before a pattern's first wildcard; a place without one as it is."""
    plain = pattern.partition("?")[0] if "://" in pattern else pattern
    found = _WILD.search(plain)
    return plain if found is None else plain[: found.start()].rpartition("/")[0]


@dataclass(slots=True)
class _Seen:
    """What was said of a run."""

    run: Run
    #: The newest version, and the shards, when it was seen first.
    version: int
    shards: int
    started: bool = False
    ended: bool = False


class Lineage:
    """Looks at the runs of a controller, and says what became of them."""

    def __init__(self, place: Path | PostPlace, runs: Callable[[], Mapping[str, Run]]) -> None:
        self._place, self._runs = place, runs
        self._seen: dict[str, _Seen] = {}
        self._events: deque[Event] = deque()
        self._some, self._closing, self._written = threading.Event(), threading.Event(), threading.Event()
        self._effects = Effects()
        self.dropped = 0

    @staticmethod
    def of(environ: Mapping[str, str], runs: Callable[[], Mapping[str, Run]]) -> Lineage | None:
        """The events of these runs, if anybody wants them. Raises ValueError with the variable and what it takes."""
        place = environ.get(LINEAGE, "")
        if not place:
            return None
        if "://" not in place:
            return Lineage(Path(place), runs)
        try:
            return Lineage(PostPlace.of(place, USUAL_PORT), runs)
        except ValueError as error:
            raise ValueError(f"{LINEAGE}: {error}, or a folder") from None

    def begin(self) -> None:
        """Look from now on."""
        threads.start("lineage", self._write_all, died=self._written.set)
        self._effects.start("lineage", self._keep_looking())

    async def close(self) -> None:
        """Look a last time, and give the last events a moment."""
        self._effects.cancel()
        self._look()
        self._closing.set()
        self._some.set()
        await asyncio.to_thread(self._written.wait, END_S)

    async def _keep_looking(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        try:
            self.look(time.time())
        except Exception:
            logger.exception("lineage has a gap; only lineage is affected")

    def look(self, now: float) -> None:
        """Say what happened since the last look."""
        runs = self._runs()
        for gone in self._seen.keys() - runs.keys():
            del self._seen[gone]
        for name, run in runs.items():
            if run.state is RunState.OPENING:
                continue
            seen, ledger = self._seen.get(name), run.ledger
            if seen is None or seen.run is not run:
                quick = run.state in (RunState.PUBLISHING, RunState.COMPLETED)
                newest = ledger.version - 1 if quick and ledger.version else ledger.version
                seen = self._seen[name] = _Seen(run, newest, len(ledger.shards))
                if ledger.version and not quick:
                    self._complete(run, ledger.version, now)
            self._of(run, seen, now)

    def _of(self, run: Run, seen: _Seen, now: float) -> None:
        ledger = run.ledger
        for version in sorted(version for version in ledger.published if version > seen.version):
            if not seen.started:
                self._put(run_event("START", run, version, ledger.published[version].at or now))
            self._complete(run, version, now)
            seen.version, seen.shards, seen.started = version, len(ledger.shards), False
        failed = run.ended and run.state is RunState.FAILED and not seen.ended
        if not seen.started and (len(ledger.shards) > seen.shards or failed):
            seen.started = True
            self._put(run_event("START", run, ledger.version + 1, now))
        if run.ended and not seen.ended:
            seen.ended = True
            if failed or seen.started:
                kind = "FAIL" if failed else "ABORT"
                self._put(run_event(kind, run, ledger.version + 1, now, run.reason or run.state.value))

    def _complete(self, run: Run, version: int, now: float) -> None:
        self._put(run_event("COMPLETE", run, version, run.ledger.published[version].at or now))

    def _put(self, event: Event) -> None:
        if len(self._events) >= EVENTS_MAX:
            self._drop("there are too many")
            return
        self._events.append(event)
        self._some.set()

    def _drop(self, why: object) -> None:
        self.dropped += 1
        logger.warning("an event of lineage is lost: %s", why)

    def _write_all(self) -> None:
        """Write what waits until the controller ends."""
        while not (self._closing.is_set() and not self._events):
            self._some.wait()
            self._some.clear()
            while self._events:
                event = self._events.popleft()
                try:
                    self._write(event)
                except OSError as error:
                    self._drop(error)
        self._written.set()

    def _write(self, event: Event) -> None:
        data = written(event)
        if isinstance(self._place, PostPlace):
            self._place.post("/api/v1/lineage", "application/json", data)
            return
        self._place.mkdir(parents=True, exist_ok=True)
        file = self._place / f"{event['run']['runId']}.{event['eventType'].lower()}.json"
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        with draft.open("xb") as made:  # and through no link
            made.write(data)
        try:
            with contextlib.suppress(FileExistsError):  # said before, by this process or one that was killed
                os.link(draft, file)
        finally:
            draft.unlink()
