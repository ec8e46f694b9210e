"""`--canary`: what a change of the graph makes otherwise of some fragments, before anything is decided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.cli.ui import CanaryOptions, number, percent, print_json, read_ledger, safe
from headrace.client import CliError, UsageError
from headrace.pipeline import Pipeline, Stage
from headrace.store import counted

#: Kinds of difference that are shown to people; `--json` gives all of them.
KINDS_SHOWN = 20
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%")


@dataclass(frozen=True, slots=True)
class GivenCode:
    """Stages and modules that the user gave with the command: what else runs is the word of the ledger."""

    stages: tuple[Stage, ...]
    modules: Mapping[str, str]


def share_of(text: str) -> float:
    """The share that "2%" says, above 0 and at most 1. Raises UsageError."""
    found = _SHARE.fullmatch(text.strip())
    share = float(found[1]) / 100 if found else 0.0
    if not 0 < share <= 1:
        raise UsageError(
            f"--canary {text[:40]!r}: give a share of the fragments, such as 2%, above 0% and at most 100%"
        )
    return share


def check_canary(options: CanaryOptions, *, dry_run: bool) -> None:
    """Raises UsageError for options that do not go together."""
    if options.share:
        share_of(options.share)
    if options.share and dry_run:
        raise UsageError("--canary runs both versions and --dry-run runs none: give one of them")
    if not options.share and (options.yes or options.trust_code):
        raise UsageError("--yes and --trust-code go with --canary")


def try_canary(
    dataset: str, after: Pipeline, given: GivenCode, options: CanaryOptions, *, as_json: bool
) -> dict[str, Any] | None:
    """Show what both versions say of some fragments; the facts as JSON if the change is to be made, else None.

    Raises UsageError where code of the ledger would run that is not trusted.
    """
    from headrace.worker.rebuild import compare_versions

    state = read_ledger(dataset)
    if not state.pipeline:
        raise CliError(f"{dataset} has no pipeline yet that a canary could compare with: apply without --canary")
    before = Pipeline.from_dict(state.pipeline)
    code = _code_not_given(before, given)
    if code and not options.trust_code:
        raise UsageError(
            f"{dataset}: a canary runs both versions on this machine with your rights. The ledger names code of the "
            "version in force that you did not give: read it, and add --trust-code if you trust it",
            [f"runs {safe(line)}" for line in code],
        )
    found = compare_versions(state, before, after, share_of(options.share))
    facts = asdict(found)
    facts["changed"] = sum(found.changed.values())
    facts["changes"] = [
        {"before": kind[0], "after": kind[1], "records": count, "samples": [asdict(one) for one in found.samples[kind]]}
        for kind, count in _ranked(found.changed)
    ]
    del facts["samples"]
    if not as_json:
        _show(after.name, facts, made=options.yes)
    elif not options.yes:
        print_json({"pipeline": after.name, "version": before.version(), "canary": facts})
    if not options.yes:
        return None
    if read_ledger(dataset).pipeline_version != state.pipeline_version:
        raise CliError(f"pipeline {after.name!r} was changed while the canary ran: try again")
    return facts


def _ranked(changed: Mapping[tuple[str, str], int]) -> list[tuple[tuple[str, str], int]]:
    return sorted(changed.items(), key=lambda item: (-item[1], item[0]))


def _code_not_given(before: Pipeline, given: GivenCode) -> list[str]:
    """What the version in force runs that is neither of this Headrace nor the user's word, a line each."""
    from headrace.worker.rebuild import code_of

    same = all(given.modules.get(name) == text for name, text in before.modules.items())
    mine = {stage.name: stage for stage in given.stages} if same else {}
    lines = [
        line for stage in before.stages if mine.get(stage.name) != stage for line in code_of(stage, before.modules)
    ]
    return [line for line in lines if not line.endswith(", of this Headrace")]


def _show(name: str, facts: dict[str, Any], *, made: bool) -> None:
    from rich.text import Text

    from headrace.cli.commands.preview import show_samples
    from headrace.cli.ui import console, title
    from headrace.stages.shipping import Sample

    out = console()
    whole = "" if facts["whole"] else ", the first of them"
    read = f"{counted(facts['records'], 'record')}{whole}, of {number(facts['fragments'])}"
    known = counted(facts["fragments_known"], "fragment")
    out.print(title(name, f"both versions judged {read} of {known}; nothing was written"))
    share = percent(facts["changed"], facts["records"])
    out.print(f"  {counted(facts['changed'], 'record')} would get another verdict, {share}", markup=False)
    for item in facts["changes"][:KINDS_SHOWN]:
        out.print_below(Text(f"  {safe(item['before'])} -> {safe(item['after'])}  {number(item['records'])}"))
        show_samples(out, [Sample(one["id"], one["text"]) for one in item["samples"]])
        if edited := [Sample("becomes", one["text_kept"]) for one in item["samples"] if one["text_kept"]]:
            show_samples(out, edited)
    if (more := len(facts["changes"]) - KINDS_SHOWN) > 0:
        out.print(f"  and {counted(more, 'more kind')}; `--json` gives all of them")
    if not made:
        out.print_below("  nothing is changed: the same command with --yes makes the change", markup=False)
