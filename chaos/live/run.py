"""`headrace chaos run`: a run without faults, the same run with faults, and the checker's verdict on the second.

Both runs are the command that a user would give, with an output in a folder of this one; the user's own dataset is
never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from headrace.chaos.gates import NetworkGates, NetworkNamespaces, require_namespaces
from headrace.chaos.live.checks import CheckResult, check_dataset, check_run, felt_on_network
from headrace.chaos.live.clusters import (
    OWNER,
    AttachedCluster,
    LocalCluster,
    Place,
    layout_options,
    living,
    permit,
    place_for,
    places_in,
)
from headrace.chaos.live.conductor import Conductor
from headrace.chaos.live.faults import Disk, HostReach, Marked, Tools, enter_namespace
from headrace.chaos.live.report import ChaosReport, joined, left_over, of_all_rounds
from headrace.chaos.live.scenario import (
    NETWORK,
    NOTHING_YET,
    STORE,
    Cluster,
    Planned,
    Scenario,
    ScenarioOutcome,
    draw,
    read_scenario,
)
from headrace.client import EXIT_FAULT, CliError, UsageError, controller_at, load
from headrace.daemon import ending_with_this
from headrace.pipeline import Pipeline, StageKind
from headrace.store import open_store
from headrace.store.datasets import Dataset

#: The run with faults may take this many times the time of the one without, and beside that the seconds below.
LIMIT_TIMES = 20.0
LIMIT_S_MIN = 60.0
#: Seconds that each firing may cost: deaths in a row make a task wait, and a new leader waits for an old one.
LIMIT_S_A_FIRING = 20.0
#: Default limit on the run without faults, in seconds.
REFERENCE_S_MAX = 24 * 3600.0
#: Default number of rounds.
ROUNDS_MAX = 5
_SHM = pathlib.Path("/dev/shm")  # noqa: S108 - looked at, never written


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """What `headrace chaos run` is asked to do. `output` is the name of the parameter that says where to write."""

    scenario: pathlib.Path
    pipeline: pathlib.Path
    parameters: tuple[str, ...]
    seed: int = 0
    output: str = "output"
    reference: pathlib.Path | None = None
    folder: pathlib.Path | None = None
    report: pathlib.Path = pathlib.Path("chaos-report")
    keep: bool = False
    rebuilds: int = 3
    #: How often at most it is run with faults, each time on a fresh output, until all that was planned is done.
    rounds: int = ROUNDS_MAX
    id_key: str = "id"
    #: An S3 store for the dataset of the run with faults; "": a folder.
    store: str = ""
    #: A cluster that lives: its controllers, and its folder where it has one; "": a run of its own.
    controller: str = ""
    cluster: str = ""
    #: Of a cluster that lives, only what runs on this host is hit.
    here: bool = False

    @property
    def attaches(self) -> bool:
        """Whether the run is given to a cluster that lives."""
        return bool(self.controller or self.cluster)

    def replay(self) -> tuple[str, ...]:
        """The command line that does it again."""
        parameters = [part for pair in self.parameters for part in ("-p", pair)]
        given = ["--seed", str(self.seed), "--rebuilds", str(self.rebuilds)]
        given += ["--rounds", str(self.rounds)] if self.rounds != ROUNDS_MAX else []
        for name, value, usual in (
            ("output", self.output, "output"),
            ("id-key", self.id_key, "id"),
            ("store", self.store, ""),
            ("controller", self.controller, ""),
            ("cluster", self.cluster, ""),
        ):
            given += [f"--{name}", value] if value != usual else []
        given += ["--here"] if self.here else []
        return ("headrace", "chaos", "run", str(self.scenario), str(self.pipeline), *parameters, *given)


def chaos_run(request: ChaosRequest, *, as_json: bool) -> int:
    """Do it, write the report, and say how it went; 0 if no question was answered with no."""
    scenario = read_scenario(request.scenario)
    if scenario.fills_disk:
        enter_namespace()
    with _folder(request) as (folder, forget):
        report = carry_out(request, scenario, folder, say=lambda line: print(f"chaos: {line}", file=sys.stderr))
        files = report.write(request.report)
        if report.passed and not request.keep:
            forget()
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _show(report, files[1], None if report.passed and not request.keep else folder)
    return 0 if report.passed else EXIT_FAULT


def carry_out(request: ChaosRequest, scenario: Scenario, folder: pathlib.Path, *, say: Any) -> ChaosReport:
    """Run without faults and with them below `folder`, and check. Raises CliError where the first run fails."""
    _refuse(request, scenario)
    schedule = draw(scenario, request.seed)
    before = _shared_memory()
    work = _Work(request, scenario, folder, say)
    left, outcome = schedule, NOTHING_YET
    while left and not outcome.problem and len(work.findings) < request.rounds:
        if not work.findings:
            say(f"{len(schedule)} faults are planned (seed {request.seed})")
        else:
            say(f"the run was over before {len(left)} of them: another round, on a fresh output")
        outcome = joined(outcome, work.round(left, outcome))
        left = left_over(outcome)
    rounds = len(work.findings)
    findings = [*check_run(outcome, rounds), *_felt(outcome, work.affected)]
    findings += [] if request.attaches else [_memory_left(before)]
    return ChaosReport(
        scenario=scenario,
        seed=request.seed,
        replay=request.replay(),
        pipeline_version=work.pipeline_version,
        facts=work.facts,
        reference_s=work.reference_s,
        schedule=schedule,
        outcome=outcome,
        findings=(*findings, *of_all_rounds(work.findings)),
        rounds=rounds,
    )


def _refuse(request: ChaosRequest, scenario: Scenario) -> None:
    """Raises UsageError for what does not go together."""
    if scenario.cluster is not None and request.attaches:
        raise UsageError("this scenario brings a cluster of its own: leave --controller and --cluster out")
    if scenario.place and not request.attaches:
        raise UsageError("[run.place] is for a cluster that lives: give --controller or --cluster, or leave it out")
    if scenario.has(NETWORK) and scenario.cluster is None and (request.here or not request.attaches):
        raise UsageError(
            "faults of the network need gates: those of a table [cluster] in the scenario, or of the workers of a "
            "living cluster that allow chaos (--controller or --cluster, and no --here)"
        )
    if scenario.has(STORE) and not request.store:
        raise UsageError("this scenario has faults of the store: give an S3 store with --store s3://...?endpoint=...")
    if scenario.cluster is not None and scenario.cluster.namespaces:
        require_namespaces()
        if request.store:
            raise UsageError("[cluster] namespaces = true: workers reach no store from there; leave --store out")
    if request.attaches:
        permit(controller_at(request.controller, request.cluster), scenario, here=request.here)


@dataclass(slots=True)
class _Work:
    """The rounds of one request, with what comes of them: the findings of each, and requests that a fault affected."""

    request: ChaosRequest
    scenario: Scenario
    folder: pathlib.Path
    say: Any
    findings: list[list[CheckResult]] = field(default_factory=list[list[CheckResult]])
    affected: int = 0
    reference: pathlib.Path | None = None
    reference_s: float = 0.0
    pipeline_version: str = ""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    def round(self, schedule: Sequence[Planned], earlier: ScenarioOutcome) -> ScenarioOutcome:
        """Run it with these faults on an output of its own, and judge the dataset. The first makes the reference."""
        request, scenario = self.request, self.scenario
        number = len(self.findings) + 1
        folder = self.folder if number == 1 else self.folder / f"{self.folder.name}-{number}"
        folder.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(place_for(request.store, folder, request.seed))
            pipeline = load(request.pipeline, (*request.parameters, f"{request.output}={place.uri}"))
            _writes_there(request, pipeline, place)
            if scenario.cluster is not None:
                places_in(scenario.cluster, pipeline)  # refused before anything is run
            reference = self._measured(pipeline)
            stage = stack.enter_context(_stage(request, scenario, place, pipeline, folder))
            outcome = self._conducted(stage, place, pipeline, folder, schedule, earlier)
            found: list[CheckResult] = []
            if not outcome.problem:
                found = check_dataset(
                    reference,
                    place.fetch(folder / "faulted"),
                    dict(outcome.answer),
                    id_key=request.id_key,
                    rebuilds=request.rebuilds,
                    seed=request.seed,
                    pipeline=pipeline,
                )
            self.findings.append(found)
            self.affected += stage.tools.store.affected if stage.tools.store else 0
            self.facts = _facts(scenario, request, stage.local)
            stage.good = not outcome.problem and all(finding.passed is not False for finding in found)
            if stage.good and not request.keep:
                place.remove()
        return outcome

    def _measured(self, pipeline: Pipeline) -> pathlib.Path:
        """The dataset without faults; it is made once."""
        self.pipeline_version = pipeline.version()
        if self.reference is None:
            started = time.monotonic()
            given = self.request.reference
            self.reference = given or _reference(self.request, self.scenario, self.folder, self.say)
            self.reference_s = 0.0 if given else time.monotonic() - started
            _same_pipeline(self.reference, pipeline)
        return self.reference

    def _conducted(
        self,
        stage: _Stage,
        place: Place,
        pipeline: Pipeline,
        folder: pathlib.Path,
        schedule: Sequence[Planned],
        earlier: ScenarioOutcome,
    ) -> ScenarioOutcome:
        outcome = Conductor(
            marked=stage.marked,
            dataset=open_store(place.direct) if place.gate else pathlib.Path(place.direct),
            logs=folder / "logs",
            schedule=schedule,
            ways=ways_of(pipeline, fuse=self.scenario.fuse),
            limit_s=_limit_s(self.reference_s, schedule),
            tools=stage.tools,
            local=stage.local,
            subjects=stage.attached,
            reach=stage.reach,
            earlier=earlier,
        ).run()
        fired, starts = len(outcome.fired), len(outcome.starts)
        self.say(f"faults fired: {fired}; starts: {starts}; {outcome.seconds:.1f} s; checking")
        return outcome


@dataclass(slots=True)
class _Stage:
    """What the run with faults is run by and in; `good` says at its end whether nothing has to be kept."""

    marked: Marked
    tools: Tools
    local: LocalCluster | None = None
    attached: AttachedCluster | None = None
    reach: HostReach | None = None
    good: bool = False


@contextlib.contextmanager
def _stage(
    request: ChaosRequest, scenario: Scenario, place: Place, pipeline: Pipeline, folder: pathlib.Path
) -> Iterator[_Stage]:
    """The daemons, gates and disk that the scenario asks for, and the command."""
    logs = folder / "logs"
    # Where controller and worker of an embedded run write; each start of the command writes over what was before.
    marked = Marked((), pathlib.Path.cwd(), {"HEADRACE_LOGS": str(logs)})
    logs.mkdir(parents=True, exist_ok=True)
    disk = Disk(pathlib.Path(place.direct)) if scenario.fills_disk else None
    stage = _Stage(marked, Tools(disk=disk, store=place.gate))
    try:
        if scenario.cluster is None:
            marked.command = _own_command(request, scenario, place.uri)
            with contextlib.ExitStack() as stack:
                if request.attaches:
                    at = controller_at(request.controller, request.cluster)
                    stage.attached, stage.reach = stack.enter_context(living(at, here=request.here))
                yield stage
            return
        with NetworkNamespaces() if scenario.cluster.namespaces else NetworkGates(request.seed, OWNER) as gates:
            local = LocalCluster(
                folder, scenario.cluster, marked, gates, place.root, clocks=scenario.clocks, seed=request.seed
            )
            marked.command = _apply_command(request, scenario, place.uri, local, pipeline)
            stage.local = local
            cut, carry = (None, gates) if isinstance(gates, NetworkNamespaces) else (gates, None)
            stage.tools = Tools(disk, cut, carry, place.gate, local.workers, local.controllers)
            local.open()
            yield stage
    finally:
        marked.kill()
        if disk is not None:
            disk.close(keep=request.keep or not stage.good)


def _felt(outcome: ScenarioOutcome, affected: int) -> list[CheckResult]:
    """Whether the faults of network and store affected anything, where there were any."""
    found = felt_on_network(outcome.fired)
    if any(item.planned.kind in STORE for item in outcome.fired):
        said = f"{affected} requests met one" if affected else "no requests came while one went on: nothing is proved"
        found.append(CheckResult("the faults of the store were felt", affected > 0 or None, said))
    return found


def ways_of(pipeline: Pipeline, *, fuse: bool) -> dict[str, tuple[str, ...]]:
    """For `sink` and each `stage:NAME` the stages that may head the task which runs it, the nearest first."""
    found = {
        f"stage:{stage.name}": _upstream(pipeline, stage.name) if fuse else (stage.name,) for stage in pipeline.stages
    }
    sinks = [found[f"stage:{stage.name}"] for stage in pipeline.of_kind(StageKind.SINK)]
    return {**found, "sink": tuple(name for way in zip(*sinks, strict=False) for name in way)}


def _upstream(pipeline: Pipeline, name: str) -> tuple[str, ...]:
    way = [name]
    if pipeline.stage(name).kind is StageKind.STATEFUL:
        return (name,)
    for known in way:
        way += [
            stage.name for stage in pipeline.stages if known in pipeline.flows_to(stage.name) and stage.name not in way
        ]
    return tuple(way)


def _writes_there(request: ChaosRequest, pipeline: Pipeline, place: Place) -> None:
    if place.gate:
        there = open_store(pipeline.dataset).uri == open_store(place.uri).uri
    else:
        there = pathlib.Path(pipeline.dataset.removeprefix("file://")) == pathlib.Path(place.uri).resolve()
    if not there:
        raise UsageError(
            f"{request.pipeline.name} writes to {pipeline.dataset} whatever its parameter {request.output!r} says; "
            "name the parameter that is the output with --output"
        )


def _reference(request: ChaosRequest, scenario: Scenario, folder: pathlib.Path, say: Any) -> pathlib.Path:
    say("a run without faults")
    dataset = folder / "reference"
    command = _own_command(request, scenario, str(dataset))
    with open(folder / "reference.out", "wb") as out, open(folder / "reference.err", "w+b") as errors:
        done = subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            timeout=REFERENCE_S_MAX,
            check=False,
            env={**os.environ, **ending_with_this()},
        )
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip().splitlines()
    if done.returncode:
        raise CliError(f"the run without faults ended with exit code {done.returncode}", said[-5:])
    return dataset


def _own_command(request: ChaosRequest, scenario: Scenario, output: str) -> list[str]:
    """The command as a user would give it: a run on this machine, or one for the cluster that lives."""
    if not request.attaches:
        return _headrace("run", request, scenario, output)
    where = ["--controller", request.controller] if request.controller else []
    where += ["--cluster", request.cluster] if request.cluster else []
    where += [part for stage, place in scenario.place.items() for part in ("--place", f"{stage}={place}")]
    return [*_headrace("apply", request, scenario, output), *where, "--wait"]


def _apply_command(
    request: ChaosRequest, scenario: Scenario, output: str, local: LocalCluster, pipeline: Pipeline
) -> list[str]:
    """The command for a cluster of our own, with its places and links."""
    where = ["--controller", local.address, "--cluster", str(local.folder), "--wait"]
    where += layout_options(scenario.cluster or Cluster(), pipeline, fuse=scenario.fuse)
    return [*_headrace("apply", request, scenario, output), *where]


def _headrace(verb: str, request: ChaosRequest, scenario: Scenario, output: str) -> list[str]:
    parameters = [part for pair in request.parameters for part in ("-p", pair)]
    options = [] if scenario.fuse else ["--no-fuse"]
    options += ["--replicas", str(scenario.replicas)] if scenario.replicas else []
    command = [sys.executable, "-P", "-m", "headrace.cli", verb, str(request.pipeline), *parameters]
    return [*command, "-p", f"{request.output}={output}", *options, "--json"]


def _limit_s(reference_s: float, schedule: Sequence[Planned]) -> float:
    lasting = sum(item.for_s for item in schedule)
    return max(LIMIT_S_MIN, LIMIT_TIMES * reference_s) + LIMIT_S_A_FIRING * len(schedule) + lasting


def _same_pipeline(reference: pathlib.Path, pipeline: Pipeline) -> None:
    made = Dataset.open(str(reference)).state.pipeline_version
    if made != pipeline.version():
        raise UsageError(
            f"the reference {reference} was made by pipeline {made}, this one is {pipeline.version()}; leave "
            "--reference out to have a new one made"
        )


def _shared_memory() -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(name for name in os.listdir(_SHM) if "headrace" in name)
    return frozenset()


def _memory_left(before: frozenset[str]) -> CheckResult:
    """Rings are memory without a name, which goes with its last process; so a name is all that can stay behind."""
    left = sorted(_shared_memory() - before)
    said = f"{len(left)} names in {_SHM}" if left else "no name in /dev/shm, and no process that could hold a ring"
    return CheckResult("no shared memory is left", not left, said, tuple(left))


def _facts(scenario: Scenario, request: ChaosRequest, local: LocalCluster | None) -> Mapping[str, str]:
    cores = len(os.sched_getaffinity(0))
    facts = {"headrace": version("headrace"), "python": platform.python_version(), "cores": str(cores)}
    if scenario.cluster is not None:
        shape = scenario.cluster
        facts["cluster"] = f"{shape.controllers} controllers, {shape.workers} workers, on this host"
        facts["cluster"] += ", each worker in a network namespace" if shape.namespaces else ""
    if local is not None and local.clocks:
        clocks = (f"{name} {offset_s:+.0f} s, times {rate:.3f}" for name, (offset_s, rate) in local.clocks.items())
        facts["clocks"] = "; ".join(clocks)
    if request.attaches:
        facts["cluster"] = f"one that lives, {request.controller or request.cluster}"
    if request.store:
        facts["store"] = request.store
    return facts


@contextlib.contextmanager
def _folder(request: ChaosRequest) -> Iterator[tuple[pathlib.Path, Any]]:
    """The folder of both datasets and the logs, and what removes it. It stays where anything goes wrong."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="headrace-chaos-", dir=request.folder)).resolve()
    forgotten: list[bool] = []
    try:
        yield folder, lambda: forgotten.append(True)
    finally:
        if forgotten:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # what failed before it wrote anything leaves nothing


def _show(report: ChaosReport, page: pathlib.Path, folder: pathlib.Path | None) -> None:
    words = {True: "ok  ", False: "FAIL", None: "-   "}
    for finding in report.findings:
        print(f"{words[finding.passed]} {finding.name}: {finding.said}", *finding.details, sep="\n       ")
    facts = report.to_dict()
    unasked = f"; not asked: {', '.join(report.unasked)}" if report.unasked else ""
    print(f"{report.scenario.name}: {facts['verdict']}{unasked}, report in {page}")
    if not report.passed:
        print(f"again: {facts['replay']}")
    if folder is not None:
        print(f"datasets and logs: {folder}")
