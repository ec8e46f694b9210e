"""Compiles the loops of the filters ahead of their first use: `python -m headrace.stages.quality.warm`."""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from headrace.stages.quality.c4 import clean_lines
from headrace.stages.quality.fineweb import fineweb_scores
from headrace.stages.quality.gopher import gopher_scores
from headrace.stages.quality.repetition import repetition_shares


def compile_loops() -> None:
    """Compile what is not in the cache, for both widths of Arrow's strings."""
    for kind in (pa.string(), pa.large_string()):
        column = pa.array(["Two words."], kind)
        repetition_shares(column)
        gopher_scores(column)
        clean_lines(column, (3, 1000, 0, False, 5))
        fineweb_scores(column, 30)


def main() -> None:
    """Compile, and say how long it took."""
    begun = time.monotonic()
    compile_loops()
    print(f"the filters' loops are compiled ({time.monotonic() - begun:.1f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
