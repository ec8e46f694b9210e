"""The checker: a finding for each question, answered from the dataset's own files or by commands that users have."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.chaos.gates import Affected
from headrace.chaos.live.checks.evidence import Fates, Servers, SourceDamaged, compare, read_fates, read_source
from headrace.chaos.live.scenario import NETWORK, Fired, ScenarioOutcome
from headrace.daemon import ending_with_this
from headrace.pipeline import Pipeline
from headrace.store import StoreError
from headrace.store.datasets import Dataset
from headrace.worker.rebuild import own_key

#: Seconds that making one shard again may take.
REBUILD_S_MAX = 600.0
#: Problems of one kind that a finding lists.
LISTED_MAX = 20
#: What a fault of each target has to affect: one of each group.
_LINKS, _BETWEEN, _SESSIONS = (Affected.BETWEEN, Affected.INSIDE), (Affected.BETWEEN,), (Affected.CONTROL,)
_ASKED = {
    "links": (_LINKS,),
    "control": (_SESSIONS,),
    "worker": (_BETWEEN, _SESSIONS),
    "controller": (_SESSIONS,),
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The answer to one question. `passed` is None where it could not be asked, and `details` say why."""

    name: str
    passed: bool | None
    said: str
    details: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name, "passed": self.passed, "said": self.said, "details": list(self.details)}


def check_run(outcome: ScenarioOutcome, rounds: int = 1) -> list[CheckResult]:
    """Whether the run came to its end, all that was planned was done to it, and nothing of it is left."""
    starts = len(outcome.starts)
    ended = f"the command was started {starts} times and ended complete after {outcome.seconds:.1f} s"
    return [
        CheckResult("the run came to its end", not outcome.problem, outcome.problem or ended),
        _all_fired(outcome, rounds),
        CheckResult(
            "no process is left",
            not outcome.left,
            f"{len(outcome.left)} processes live on" if outcome.left else "all ended with their command",
            outcome.left,
        ),
    ]


def _all_fired(outcome: ScenarioOutcome, rounds: int) -> CheckResult:
    """Whether each fault that was planned was fired, but for those that the scenario calls optional."""
    done = len({(item.planned.fault, item.planned.nth) for item in outcome.fired})
    missing = [item for item in outcome.waiting if not item.optional]
    excused = len(outcome.waiting) - len(missing)
    said = f"{done} of {done + len(outcome.waiting)} planned{f', in {rounds} rounds' if rounds > 1 else ''}"
    said += f"; {excused} that were not are optional" if excused else ""
    if missing or not done:
        early = "was over before the rest" if done else "was over before the first"
        said += f": the run {early}; give it more input or --rounds, or let faults come earlier"
    return CheckResult(
        "all planned faults were fired",
        bool(done) and not missing,
        said,
        tuple(f"not fired: {item.words()}{' (optional)' if item.optional else ''}" for item in outcome.waiting),
    )


def unaffected_ways(target: str, affected: Counter[Affected]) -> list[tuple[Affected, ...]]:
    """Of what a fault of the network with this target has to affect, what it did not: one of each group is enough."""
    return [ways for ways in _ASKED[target] if not any(affected[what] for what in ways)]


def felt_on_network(fired: Sequence[Fired]) -> list[CheckResult]:
    """For each target of the network's faults what they affected; none where there were no such faults."""
    affected: dict[str, Counter[Affected]] = {}
    for item in fired:
        if item.planned.kind in NETWORK:
            affected.setdefault(item.planned.target, Counter()).update(item.affected)
    if not affected:
        return []
    name = "the faults of the network were felt"
    unaffected = [
        f"{' or '.join(what.value for what in ways)} by a fault of {target}"
        for target in affected
        for ways in unaffected_ways(target, affected[target])
    ]
    if unaffected:
        between = any("link" in item for item in unaffected)
        advice = "; for links between workers give [cluster] spread = true" if between else ""
        said = f"none of these was affected, so nothing is proved of it: {'; '.join(unaffected)}{advice}"
        return [CheckResult(name, None, said)]
    told = (
        f"{target}: {', '.join(f'{counts[what]} {what.value}' for what in Affected if counts[what])}"
        for target, counts in affected.items()
    )
    return [CheckResult(name, True, "; ".join(told))]


def check_dataset(
    reference: pathlib.Path,
    dataset: pathlib.Path,
    answer: dict[str, Any],
    *,
    id_key: str,
    rebuilds: int,
    seed: int,
    pipeline: Pipeline | None = None,
) -> list[CheckResult]:
    """Compare the dataset with the reference and with its source, and hold each object against the ledger.

    `pipeline` says at which servers the objects of a source are.
    """
    before, after = read_fates(reference), read_fates(dataset)
    opened = Dataset.open(str(dataset))
    return [
        _same_fates(before, after),
        _each_once(after, answer),
        _against_source(after, opened, id_key, Servers(pipeline)),
        _sound(opened),
        _rebuilt(opened, dataset, random.Random(seed), rebuilds),
    ]


def _same_fates(before: Fates, after: Fates) -> CheckResult:
    difference = compare(before, after)
    lines = difference.lines()
    if {fragment for fragment, _ in before.found} - {fragment for fragment, _ in after.found} and difference.added:
        lines.append("fragments have other names, so the input changed between the two runs (a new mtime is enough)")
    tokens = sum(fate.tokens for fate in after.found.values())
    said = f"{len(after.found)} records and {tokens} tokens, as in the run without faults"
    if difference.swapped:
        said += f"; {difference.swapped} pairs of duplicates changed places"
    return CheckResult("each record has the fate it has without faults", not lines, "; ".join(lines) or said)


def _each_once(fates: Fates, answer: dict[str, Any]) -> CheckResult:
    read, found, still = int(answer.get("records_read", 0)), len(fates.found), int(answer.get("records_open", 0))
    lost = read - still - found
    good = not fates.twice and not lost and not still and bool(answer.get("balanced"))
    said = f"lost {lost}, twice {len(fates.twice)} of {read} records that the run counted"
    said += f"; {still} of them are open" if still else ""
    return CheckResult("each record stands in the dataset once", good, said)


def _against_source(fates: Fates, dataset: Dataset, id_key: str, servers: Servers) -> CheckResult:
    name = "the source's records are those of the dataset"
    uris = sorted({state.fragment.uri for state in dataset.state.fragments.values()})
    files = [servers.file_of(uri) for uri in uris]
    unknown = [uri for uri, file in zip(uris, files, strict=True) if file is None]
    if unknown:
        return CheckResult(
            name, None, f"{unknown[0]} is neither on this machine nor in an S3 store that the input names"
        )
    try:
        source = read_source([file for file in files if file is not None], id_key)
    except (StoreError, FileNotFoundError, SourceDamaged) as error:
        return CheckResult(name, None, f"the source cannot be read: {error}")
    if source.unread:
        return CheckResult(name, None, f"{source.unread[0]} is of no format that the checker reads")
    uri_of = {fragment.hex(): state.fragment.uri for fragment, state in dataset.state.fragments.items()}
    held = Counter(uri_of.get(fragment, "") for fragment, _ in fates.found)
    others = tuple(
        f"{uri}: {count} records in the file, {held[uri]} in the dataset"
        for uri, count in zip(uris, source.counts, strict=True)
        if count != held[uri]
    )
    missing = source.ids - fates.ids
    said = f"{source.records} records in {len(files)} files, {source.ids.total()} of them with an id of their own"
    if source.records != len(fates.found) or others:
        said = f"the files hold {source.records} records, the dataset {len(fates.found)}"
    elif missing:
        said = f"{missing.total()} ids of the files are not in the dataset: {', '.join(sorted(missing)[:LISTED_MAX])}"
    good = source.records == len(fates.found) and not others and not missing
    return CheckResult(name, good, said, others[:LISTED_MAX])


def _sound(dataset: Dataset) -> CheckResult:
    report = dataset.verify()
    said = f"{report.objects} objects of {report.shards} shards, {report.size / 1e6:.1f} MB"
    problems = report.problems
    return CheckResult(
        "each object has its checksum and accounts for its records",
        report.sound,
        said if report.sound else f"{len(problems)} problems",
        problems[:LISTED_MAX],
    )


def _rebuilt(opened: Dataset, dataset: pathlib.Path, chance: random.Random, count: int) -> CheckResult:
    """Make a sample of shards again from the source, by the command, in a process of its own."""
    name = "a sample of shards can be made again byte for byte"
    shards = [shard for shard in opened.state.shards if shard.closed.objects]
    chosen = chance.sample(shards, min(count, len(shards)))
    if not chosen:
        return CheckResult(name, None, "no shard was asked for")
    wrong = [said for said in (_rebuild(dataset, own_key(opened.state, shard)) for shard in chosen) if said]
    return CheckResult(name, not wrong, f"{len(chosen) - len(wrong)} of {len(chosen)} identical", tuple(wrong))


def _rebuild(dataset: pathlib.Path, shard: str) -> str:
    """What is wrong with one shard; "" if nothing."""
    command = [sys.executable, "-P", "-m", "headrace.cli", "dataset", "rebuild", str(dataset), shard, "--trust-code"]
    command += ["--json"]
    try:
        done = subprocess.run(  # noqa: S603
            command,
            capture_output=True,
            text=True,
            timeout=REBUILD_S_MAX,
            check=False,
            env={**os.environ, **ending_with_this()},
        )
    except subprocess.TimeoutExpired:
        return f"{shard}: not made again within {REBUILD_S_MAX:.0f} s"
    if done.returncode == 0:
        return ""
    lines: Sequence[str] = done.stderr.strip().splitlines() or ["not the same bytes"]
    return f"{shard}: {lines[-1]}"
