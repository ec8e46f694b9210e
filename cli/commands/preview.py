"""Previews: `headrace run --limit`, and the samples that `headrace dataset show --samples` prints."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.cli.commands.run import text_of
from headrace.cli.ui import ACCENT, FAINT, console, number, preview_page, print_json, safe, sample_lines
from headrace.client import UsageError, load, users_code
from headrace.pipeline import Pipeline
from headrace.stages.library import Compiling
from headrace.stages.shipping import SAMPLE_CHARACTERS_MAX, Preview, Sample, preview

#: Records of a preview; more is a run.
LIMIT_MAX = 100_000


def preview_file(path: Path, given: list[str], limit: int, *, follow_links: bool = False, as_json: bool) -> int:
    """Show what a pipeline file does to the first `limit` records; the exit code."""
    if limit > LIMIT_MAX:
        raise UsageError(f"--limit is {limit}, at most {LIMIT_MAX} can be previewed; leave it out to run the pipeline")
    with Compiling() as compiling:
        compiling.begin(text_of(path))
        _tell(compiling.news())
        pipeline = load(path, given, follow_links=follow_links)
        with users_code(path):
            result = preview_ready(pipeline, limit, compiling)
    if as_json:
        return print_json(_to_dict(pipeline, result))
    console().print(preview_page(pipeline.name, result))
    return 0


def preview_ready(pipeline: Pipeline, limit: int, compiling: Compiling, *, told: bool = True) -> Preview:
    """A preview, once the loops of its stages are compiled; what is compiled is said on standard error where `told`."""
    compiling.begin(" ".join(stage.target for stage in pipeline.stages), certain=True)
    compiling.finish(lambda line: _tell([line] if told else []))
    return preview(pipeline, limit)


def _tell(lines: list[str]) -> None:
    for line in lines:
        print(f"headrace: {line}", file=sys.stderr, flush=True)


def _to_dict(pipeline: Pipeline, result: Preview) -> dict[str, Any]:
    removed = {key: asdict(item) for key, item in result.removed.items()}
    lost = result.filtered + result.duplicate + result.quarantined
    balanced = result.records_read == result.kept + lost and lost == sum(item.count for item in result.removed.values())
    return {"pipeline": pipeline.name, "preview": True, **asdict(result), "removed": removed, "balanced": balanced}


def show_samples(out: Console, samples: list[Sample]) -> None:
    """Each sample on one line: its id, and as much of its text as fits behind it."""
    for line in sample_lines(samples):
        out.print(line)


def print_samples(samples: dict[str, list[dict[str, Any]]], counts: dict[str, int]) -> None:
    """Print them below the page of their dataset; `counts` are all records by `stage/reason`."""
    out = console()
    for key, rows in sorted(samples.items(), key=lambda item: (-counts.get(item[0], 0), item[0])):
        out.print()
        count = f"  {number(counts[key])}" if key in counts else ""
        out.print(Text.assemble(f"  {rows[0]['verdict']} ", (safe(key), ACCENT), (count, FAINT)))
        show_samples(out, [Sample(row["id"], row["text"][:SAMPLE_CHARACTERS_MAX]) for row in rows])
    if not samples:
        out.print_below(Text("  no samples: nothing was filtered", style=FAINT))
