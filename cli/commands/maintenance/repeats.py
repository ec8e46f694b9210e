"""`headrace dataset repeats`: an index of the lines, paragraphs or passages that many records of datasets have."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from headrace.cli.ui import FAINT, console, number, title
from headrace.client import CliError
from headrace.stages.decontamination import kept_texts
from headrace.stages.dedup.spans import SpanCounter
from headrace.store import counted
from headrace.store.datasets import Dataset


def write_repeats(
    uris: Sequence[str],
    out: str,
    *,
    unit: str,
    records_min: int,
    words_min: int,
    keeps_one: bool,
    tokenizer: str,
    as_json: bool,
) -> int:
    """Count the spans of the newest versions, and write the index; the exit code."""
    datasets = [Dataset.open(uri).of_version() for uri in uris]
    counter = SpanCounter(unit, words_min)
    for dataset in datasets:
        for ids, texts in kept_texts(dataset, tokenizer):
            counter.add(ids, texts)
    try:
        facts = counter.write(out, records_min, keeps_one=keeps_one)
    except OSError as error:
        raise CliError(f"the index cannot be written to {out}: {error}; name a file of a folder with room") from error
    size = Path(out).stat().st_size
    if as_json:
        print(
            json.dumps(
                {"datasets": [dataset.uri for dataset in datasets], "index": out, "bytes": size, **asdict(facts)}
            )
        )
        return 0
    page = console(sys.stdout)
    what = f"{counted(facts.spans, facts.unit)} of {number(facts.records_min)} records and more"
    page.print(title(out, f"{what}, in {counted(facts.records, 'record')}"))
    page.print(f'  a pipeline removes them by `dedup_{facts.unit}s("{out}")`', style=FAINT, markup=False)
    return 0
