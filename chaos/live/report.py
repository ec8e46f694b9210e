"""The report of a chaos run: one object for programs, one page for people, both to attach to a release."""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.chaos.live.checks import CheckResult, unaffected_ways
from headrace.chaos.live.scenario import NETWORK, Fired, Planned, Scenario, ScenarioOutcome

#: Characters of a victim list that a table cell shows.
CELL_MAX = 60
_WORDS = {True: "yes", False: "NO", None: "not asked"}


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """Everything that a chaos run found out."""

    scenario: Scenario
    seed: int
    #: The command that does it again.
    replay: tuple[str, ...]
    pipeline_version: str
    facts: Mapping[str, str]
    #: Seconds of the run without faults; 0 where an earlier one was given.
    reference_s: float
    schedule: tuple[Planned, ...]
    outcome: ScenarioOutcome
    findings: tuple[CheckResult, ...]
    #: How often it was run with faults, until all that was planned had been done.
    rounds: int = 1

    @property
    def passed(self) -> bool:
        """Whether no question was answered with no."""
        return all(finding.passed is not False for finding in self.findings)

    @property
    def unasked(self) -> tuple[str, ...]:
        """Findings without an answer: they prove nothing."""
        return tuple(finding.name for finding in self.findings if finding.passed is None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: the object of `headrace chaos run --json`."""
        outcome = self.outcome
        return {
            "verdict": "passed" if self.passed else "failed",
            "not_asked": list(self.unasked),
            "scenario": self.scenario.name,
            "seed": self.seed,
            "replay": shlex.join(self.replay),
            "pipeline_version": self.pipeline_version,
            "facts": dict(self.facts),
            "reference_s": round(self.reference_s, 3),
            "seconds": round(outcome.seconds, 3),
            "rounds": self.rounds,
            "records": outcome.answer.get("records_read", 0),
            "tokens": outcome.answer.get("tokens", 0),
            "shards": outcome.answer.get("shards", 0),
            "epochs": outcome.epochs,
            "schedule": [item.to_dict() for item in self.schedule],
            "fired": [_fired(item) for item in outcome.fired],
            "not_fired": [item.to_dict() for item in outcome.waiting],
            "starts": [
                asdict(item) | {"at_s": round(item.at_s, 3), "ended_s": round(item.ended_s, 3)}
                for item in outcome.starts
            ],
            "findings": [item.to_dict() for item in self.findings],
        }

    def write(self, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
        """Write report.json and report.md into the folder; their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        as_json, as_page = folder / "report.json", folder / "report.md"
        as_json.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        as_page.write_text(page(self.to_dict(), self.scenario.about), encoding="utf-8")
        return as_json, as_page


def page(facts: Mapping[str, Any], about: str = "") -> str:
    """The report as Markdown."""
    lines = [f"# Chaos: {facts['scenario']}: {facts['verdict']}", ""]
    lines += [about.strip(), ""] if about.strip() else []
    lines += ["```", facts["replay"], "```", ""]
    lines += _table(
        ("", ""),
        [
            ("seed", facts["seed"]),
            ("pipeline", facts["pipeline_version"]),
            *facts["facts"].items(),
            ("records, tokens, shards", f"{facts['records']}, {facts['tokens']}, {facts['shards']}"),
            ("epochs", facts["epochs"]),
            ("without faults", f"{facts['reference_s']:.1f} s" if facts["reference_s"] else "a dataset made before"),
            ("with faults", f"{facts['seconds']:.1f} s, the command started {len(facts['starts'])} times"),
            ("rounds", facts["rounds"]),
        ],
    )
    lines += ["", "## Verdict", ""]
    if facts["not_asked"]:
        lines += [f"Nothing is proved of what was not asked: {'; '.join(facts['not_asked'])}.", ""]
    lines += _table(
        ("question", "", "answer"), [(f["name"], _WORDS[f["passed"]], f["said"]) for f in facts["findings"]]
    )
    details = [f"- {detail}" for finding in facts["findings"] for detail in finding["details"]]
    lines += ["", *details] if details else []
    lines += ["", "## What was done to it", ""]
    lines += _table(
        ("at", "commits", "fault", "to", "affected", "lasted", "next close after"),
        [
            (
                f"{f['at_s']:.2f} s",
                f["commits"],
                f["kind"],
                _cell(f["victims"]),
                ", ".join(f"{count} {what}" for what, count in f["affected"].items()),
                f"{f['lasted_s']:.2f} s" if f["lasted_s"] else "",
                "none was left" if f["recovered_s"] is None else f"{f['recovered_s']:.2f} s",
            )
            for f in facts["fired"]
        ],
    )
    if facts["not_fired"]:
        lines += ["", f"{len(facts['not_fired'])} more were planned, and not fired: see the verdict."]
    lines += ["", "## Starts of the command", ""]
    lines += _table(
        ("", "at", "until", "exit code", "said"),
        [(s["number"], f"{s['at_s']:.2f} s", f"{s['ended_s']:.2f} s", s["code"], s["said"]) for s in facts["starts"]],
    )
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(head), ["---"] * len(head), *cells)]


def _cell(victims: Sequence[str]) -> str:
    text = ", ".join(victims) if len(victims) < 3 else f"{len(victims)} processes"
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _fired(item: Fired) -> dict[str, Any]:
    return {
        "fault": item.planned.fault,
        "nth": item.planned.nth,
        "kind": item.planned.kind.value,
        "target": item.planned.target,
        "at_s": round(item.at_s, 3),
        "commits": item.commits,
        "victims": list(item.victims),
        "affected": {
            what.value: count for what, count in sorted(item.affected.items(), key=lambda pair: pair[0].value)
        },
        "lasted_s": round(item.ended_s - item.at_s, 3),
        "recovered_s": None if item.recovered_s is None else round(item.recovered_s, 3),
    }


def left_over(outcome: ScenarioOutcome) -> tuple[Planned, ...]:
    """What another round is for: firings that still wait, and those of the network that met nothing, once more each."""
    often = [(item.planned.fault, item.planned.nth) for item in outcome.fired]
    unaffected = (
        item.planned
        for item in outcome.fired
        if item.planned.kind in NETWORK
        and often.count((item.planned.fault, item.planned.nth)) == 1
        and unaffected_ways(item.planned.target, item.affected)
    )
    return (*outcome.waiting, *unaffected)


def joined(earlier: ScenarioOutcome, later: ScenarioOutcome) -> ScenarioOutcome:
    """Both as one: what was done, and what is left after the later one."""
    return replace(
        later,
        fired=(*earlier.fired, *later.fired),
        starts=(*earlier.starts, *later.starts),
        commits=(*earlier.commits, *later.commits),
        left=(*earlier.left, *later.left),
        seconds=earlier.seconds + later.seconds,
        problem=earlier.problem or later.problem,
        epochs=max(earlier.epochs, later.epochs),
    )


def of_all_rounds(rounds: Sequence[Sequence[CheckResult]]) -> list[CheckResult]:
    """The answers to the same questions in each round as one answer each: no if it was no once."""
    if len(rounds) == 1:
        return list(rounds[0])
    by_name: dict[str, list[tuple[int, CheckResult]]] = {}
    for number, findings in enumerate(rounds, 1):
        for finding in findings:
            by_name.setdefault(finding.name, []).append((number, finding))
    return [_of_rounds(name, answers) for name, answers in by_name.items()]


def _of_rounds(name: str, answers: Sequence[tuple[int, CheckResult]]) -> CheckResult:
    passed = {finding.passed for _, finding in answers}
    said: dict[str, list[int]] = {}
    for number, finding in answers:
        said.setdefault(finding.said, []).append(number)
    return CheckResult(
        name,
        False if False in passed else None if None in passed else True,
        "; ".join(f"{_named(numbers)}: {words}" for words, numbers in said.items()),
        tuple(f"round {number}: {detail}" for number, finding in answers for detail in finding.details),
    )


def _named(numbers: Sequence[int]) -> str:
    """`round 3`, `rounds 1 to 5`, or `rounds 1, 2 and 4`."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"round {first}"
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"rounds {first} to {last}"
    return f"rounds {', '.join(map(str, numbers[:-1]))} and {last}"
