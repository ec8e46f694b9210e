"""`headrace dataset show --samples`: some of the records that each stage removed, for each reason."""

from __future__ import annotations

import sys
from typing import Any

from rich.text import Text

from headrace.cli.commands.preview import show_samples
from headrace.cli.ui import ACCENT, FAINT, console, number, safe
from headrace.stages.shipping import SAMPLE_CHARACTERS_MAX, Sample


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
