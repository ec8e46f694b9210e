"""`headrace dataset show --samples`: some of the records that each stage removed, for each reason."""

from __future__ import annotations

import sys
from typing import Any

from rich.text import Text

from headrace.cli.page import ACCENT, FAINT, console, number, safe
from headrace.cli.preview import show_samples
from headrace.stages.batch import reason_class
from headrace.stages.preview import SAMPLE_CHARACTERS_MAX, Sample
from headrace.stages.samples import merge
from headrace.store.dataset import Dataset
from headrace.store.shards import read_table


def read_samples(dataset: Dataset, sink: str) -> dict[str, list[dict[str, Any]]]:
    """The samples of a dataset by `stage/reason`, as one of its sinks wrote them."""
    objects = [shard.object("samples") for shard in dataset.shards if shard.closed.sink == sink]
    rows = merge([read_table(dataset.store, item.key) for item in objects if item is not None]).to_pylist()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(f"{row['stage']}/{reason_class(row['reason'])}", []).append(row)
    return found


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
