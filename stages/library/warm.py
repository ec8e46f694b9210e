"""Compiles the loops of filters, dedup and decontamination: `python -m headrace.stages.library.warm`."""

from __future__ import annotations

import sys
import time

from headrace.stages.decontamination import compile_search
from headrace.stages.library.filters import c4_quality, dedup, fineweb_quality, gopher_quality, gopher_repetition
from headrace.stages.runtime import build_stage


def compile_loops() -> None:
    """Compile what is not in the cache, as the stages do."""
    for stage in (gopher_repetition(), gopher_quality(), c4_quality(), fineweb_quality(), *dedup()):
        build_stage(stage, {})
    compile_search()


def main() -> None:
    """Compile, and say how long it took."""
    begun = time.monotonic()
    compile_loops()
    print(f"the loops are compiled ({time.monotonic() - begun:.1f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
