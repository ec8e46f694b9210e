"""Previews: `headrace run --limit`, and the samples that `headrace dataset show --samples` prints."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.cli.ui import ACCENT, FAINT, GOOD, console, number, percent, safe, title
from headrace.client import UsageError, load
from headrace.pipeline import Pipeline
from headrace.stages.shipping import SAMPLE_CHARACTERS_MAX, Preview, RemovedRecords, Sample, preview
from headrace.store import counted

#: Records of a preview; more is a run.
LIMIT_MAX = 100_000
#: Reasons that are shown with samples.
REASONS_SHOWN = 20
#: Characters of an id: the end of one that is made of a long URI.
ID_SHOWN = 28


def preview_file(path: Path, given: list[str], limit: int, *, follow_links: bool = False, as_json: bool) -> int:
    """Show what a pipeline file does to the first `limit` records; the exit code."""
    if limit > LIMIT_MAX:
        raise UsageError(f"--limit is {limit}, at most {LIMIT_MAX} can be previewed; leave it out to run the pipeline")
    pipeline = load(path, given, follow_links=follow_links)
    result = preview(pipeline, limit)
    if as_json:
        print(json.dumps(_to_dict(pipeline, result)))
        return 0
    _show(console(sys.stdout), pipeline, result)
    return 0


def _to_dict(pipeline: Pipeline, result: Preview) -> dict[str, Any]:
    removed = {key: asdict(item) for key, item in result.removed.items()}
    lost = result.filtered + result.duplicate + result.quarantined
    balanced = result.records_read == result.kept + lost and lost == sum(item.count for item in result.removed.values())
    return {"pipeline": pipeline.name, "preview": True, **asdict(result), "removed": removed, "balanced": balanced}


def _show(out: Console, pipeline: Pipeline, result: Preview) -> None:
    out.print(title(pipeline.name, f"preview of {counted(result.records_read, 'record')}; nothing is written"))
    out.print()
    share = percent(result.kept, result.records_read)
    tokens = f", {counted(result.tokens, 'token')}" if result.tokens else ""
    out.print(Text.assemble(("  kept ", GOOD), f"{number(result.kept)}  ", (share + tokens, FAINT)))
    show_samples(out, result.samples)
    ranked = sorted(result.removed.items(), key=lambda item: (-item[1].count, item[0]))
    for key, item in ranked[:REASONS_SHOWN]:
        _show_reason(out, key, item, result.records_read)
    if len(ranked) > REASONS_SHOWN:
        out.print(
            Text(
                f"  and {counted(len(ranked) - REASONS_SHOWN, 'more reason')}; `--json` gives all of them", style=FAINT
            )
        )
    for stage, count in sorted(result.edited.items()):
        out.print(Text(f"  edited by {safe(stage)}  {number(count)}"))
    for name, count in sorted(result.counters.items()):
        out.print(Text(f"  counted {safe(name)}  {number(count)}"))


def _show_reason(out: Console, key: str, item: RemovedRecords, read: int) -> None:
    out.print()
    share = percent(item.count, read)
    share += f", {counted(item.parts, 'part')} of split records" if item.parts else ""
    out.print(Text.assemble(f"  {item.verdict} ", (safe(key), ACCENT), f"  {number(item.count)}  ", (share, FAINT)))
    show_samples(out, item.samples)


def show_samples(out: Console, samples: list[Sample]) -> None:
    """Each sample on one line: its id, and as much of its text as fits behind it."""
    for sample in samples:
        text = safe(" ".join(sample.text.split()))
        name = sample.id if len(sample.id) <= ID_SHOWN else "…" + sample.id[1 - ID_SHOWN :]
        out.print(
            Text.assemble(f"    {safe(name)}  ", (text, FAINT)), no_wrap=True, overflow="ellipsis", soft_wrap=False
        )


def print_samples(samples: dict[str, list[dict[str, Any]]], counts: dict[str, int]) -> None:
    """Print them below the page of their dataset; `counts` are all records by `stage/reason`."""
    out = console(sys.stdout)
    for key, rows in sorted(samples.items(), key=lambda item: (-counts.get(item[0], 0), item[0])):
        out.print()
        count = f"  {number(counts[key])}" if key in counts else ""
        out.print(Text.assemble(f"  {rows[0]['verdict']} ", (safe(key), ACCENT), (count, FAINT)))
        show_samples(out, [Sample(row["id"], row["text"][:SAMPLE_CHARACTERS_MAX]) for row in rows])
    if not samples:
        out.print()
        out.print(Text("  no samples: nothing was filtered", style=FAINT))
