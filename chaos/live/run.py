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
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from headrace.chaos.live.checker import Finding, check_dataset, check_run
from headrace.chaos.live.conductor import Conductor, Outcome
from headrace.chaos.live.disk import Disk, enter_namespace
from headrace.chaos.live.processes import Marked
from headrace.chaos.live.report import ChaosReport
from headrace.chaos.live.scenario import Planned, Scenario, draw, read_scenario
from headrace.cli.errors import EXIT_FAULT, CliError, UsageError
from headrace.cli.load import load
from headrace.pipeline.graph import Pipeline, StageKind
from headrace.store.dataset import Dataset

#: The run with faults may take this many times the time of the one without, and beside that the seconds below.
LIMIT_TIMES = 20.0
LIMIT_S_MIN = 60.0
#: Seconds that each firing may cost: deaths in a row make a task wait, and a new leader waits for an old one.
LIMIT_S_A_FIRING = 20.0
#: Seconds that the run without faults may take, unless told otherwise.
REFERENCE_S_MAX = 24 * 3600.0
_SHM = pathlib.Path("/dev/shm")  # noqa: S108 - looked at, never written


@dataclass(frozen=True, slots=True)
class Request:
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
    id_key: str = "id"

    def replay(self) -> tuple[str, ...]:
        """The command line that does it again."""
        parameters = [part for pair in self.parameters for part in ("-p", pair)]
        given = ["--seed", str(self.seed), "--rebuilds", str(self.rebuilds)]
        for name, value, usual in (("output", self.output, "output"), ("id-key", self.id_key, "id")):
            given += [f"--{name}", value] if value != usual else []
        return ("headrace", "chaos", "run", str(self.scenario), str(self.pipeline), *parameters, *given)


def chaos_run(request: Request, *, as_json: bool) -> int:
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


def carry_out(request: Request, scenario: Scenario, folder: pathlib.Path, *, say: Any) -> ChaosReport:
    """Run without faults and with them below `folder`, and check. Raises CliError where the first run fails."""
    dataset, schedule = folder / "faulted", draw(scenario, request.seed)
    pipeline = load(request.pipeline, (*request.parameters, f"{request.output}={dataset}"))
    if pathlib.Path(pipeline.dataset.removeprefix("file://")) != dataset.resolve():
        raise UsageError(
            f"{request.pipeline.name} writes to {pipeline.dataset} whatever its parameter {request.output!r} says; "
            "name the parameter that is the output with --output"
        )
    started = time.monotonic()
    reference = request.reference or _reference(request, scenario, folder, say)
    reference_s = 0.0 if request.reference else time.monotonic() - started
    _same_pipeline(reference, pipeline)
    say(f"{len(schedule)} faults are planned (seed {request.seed})")
    before = _shared_memory()
    disk = Disk(dataset) if scenario.fills_disk else None
    checked = False
    try:
        outcome = Conductor(
            marked=Marked(_command(request, scenario, dataset), pathlib.Path.cwd(), _logs(folder / "logs")),
            dataset=dataset,
            logs=folder / "logs",
            schedule=schedule,
            ways=ways_of(pipeline, fuse=scenario.fuse),
            limit_s=_limit_s(reference_s, schedule),
            disk=disk,
        ).run()
        say(f"{len(outcome.fired)} faults were fired, {len(outcome.starts)} starts, {outcome.seconds:.1f} s; checking")
        findings = [*check_run(outcome), _memory_left(before)]
        findings += _findings(request, reference, dataset, outcome)
        checked = all(finding.passed is not False for finding in findings)
    finally:
        if disk is not None:
            disk.close(keep=request.keep or not checked)
    return ChaosReport(
        scenario=scenario,
        seed=request.seed,
        replay=request.replay(),
        pipeline_version=pipeline.version(),
        facts=_facts(),
        reference_s=reference_s,
        schedule=schedule,
        outcome=outcome,
        findings=tuple(findings),
    )


def ways_of(pipeline: Pipeline, *, fuse: bool) -> dict[str, tuple[str, ...]]:
    """For `sink` and each `stage:NAME` the stages that may head the task which runs it, the nearest first."""
    found = {
        f"stage:{stage.name}": _upstream(pipeline, stage.name) if fuse else (stage.name,) for stage in pipeline.stages
    }
    sinks = [found[f"stage:{stage.name}"] for stage in pipeline.of_kind(StageKind.SINK)]
    return {**found, "sink": tuple(name for way in zip(*sinks, strict=False) for name in way)}


def _upstream(pipeline: Pipeline, name: str) -> tuple[str, ...]:
    way = [name]
    for known in way:
        way += [
            stage.name
            for stage in pipeline.stages
            if known in pipeline.downstream(stage.name) and stage.name not in way
        ]
    return tuple(way)


def _findings(request: Request, reference: pathlib.Path, dataset: pathlib.Path, outcome: Outcome) -> list[Finding]:
    if outcome.problem:
        return []
    return check_dataset(
        reference,
        dataset,
        dict(outcome.answer),
        id_key=request.id_key,
        rebuilds=request.rebuilds,
        seed=request.seed,
    )


def _reference(request: Request, scenario: Scenario, folder: pathlib.Path, say: Any) -> pathlib.Path:
    say("a run without faults")
    dataset = folder / "reference"
    command = _command(request, scenario, dataset)
    with open(folder / "reference.out", "wb") as out, open(folder / "reference.err", "w+b") as errors:
        done = subprocess.run(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, timeout=REFERENCE_S_MAX, check=False
        )
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip().splitlines()
    if done.returncode:
        raise CliError(f"the run without faults ended with exit code {done.returncode}", said[-5:])
    return dataset


def _command(request: Request, scenario: Scenario, dataset: pathlib.Path) -> list[str]:
    parameters = [part for pair in request.parameters for part in ("-p", pair)]
    options = [] if scenario.fuse else ["--no-fuse"]
    options += ["--replicas", str(scenario.replicas)] if scenario.replicas else []
    command = [sys.executable, "-P", "-m", "headrace.cli.main", "run", str(request.pipeline), *parameters]
    return [*command, "-p", f"{request.output}={dataset}", *options, "--json"]


def _logs(folder: pathlib.Path) -> dict[str, str]:
    """Where controller and worker write; each start of the command writes over the files of the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"HEADRACE_LOGS": str(folder)}


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


def _memory_left(before: frozenset[str]) -> Finding:
    """Rings are memory without a name, which goes with its last process; so a name is all that can stay behind."""
    left = sorted(_shared_memory() - before)
    said = f"{len(left)} names in {_SHM}" if left else "no name in /dev/shm, and no process that could hold a ring"
    return Finding("no shared memory is left", not left, said, tuple(left))


def _facts() -> Mapping[str, str]:
    cores = len(os.sched_getaffinity(0))
    return {"headrace": version("headrace"), "python": platform.python_version(), "cores": str(cores)}


@contextlib.contextmanager
def _folder(request: Request) -> Iterator[tuple[pathlib.Path, Any]]:
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
    print(f"{report.scenario.name}: {facts['verdict']}, report in {page}")
    if not report.passed:
        print(f"again: {facts['replay']}")
    if folder is not None:
        print(f"datasets and logs: {folder}")
