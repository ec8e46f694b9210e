"""Deduplication as a pipeline file declares it. Light: nothing is compiled or loaded here."""

from __future__ import annotations

from typing import Any

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.dedup import PERMUTATIONS_MAX, best_bands
from headrace.stages.runtime import check_integer, check_number, check_text

_NGRAM_MAX = 64
_MODULE = "headrace.stages.dedup.stage"


def dedup(
    *,
    near: bool = True,
    ngram: int = 5,
    bands: int = 14,
    rows: int = 8,
    threshold: float | None = None,
    num_perm: int = 128,
    name: str = "dedup",
) -> tuple[Stage, Stage]:
    """Keep the first of several duplicates: two stages for a pipeline, `*dedup()`, to make keys and to decide.

    Duplicates are texts that are equal but for white space, and with `near` those that share one of `bands` bands of
    `rows` MinHash values each over shingles of `ngram` words. With a `threshold` of Jaccard similarity the bands and
    rows are those, of at most `num_perm` values, that err least about it. Stages behind it must keep each record.
    """
    check_text(name, "name", name)
    if type(near) is not bool:
        raise PipelineError(f'stage "{name}": near is {near!r}; it must be True or False')
    check_integer(name, "ngram", ngram, 1, _NGRAM_MAX)
    if threshold is not None:
        check_number(name, "threshold", threshold, 0.05, 0.99)
        check_integer(name, "num_perm", num_perm, 1, PERMUTATIONS_MAX)
        bands, rows = best_bands(float(threshold), num_perm)
    check_integer(name, "bands", bands, 1, PERMUTATIONS_MAX)
    check_integer(name, "rows", rows, 1, PERMUTATIONS_MAX)
    if bands * rows > PERMUTATIONS_MAX:
        raise PipelineError(
            f'stage "{name}": {bands} bands of {rows} rows are {bands * rows} MinHash values; the limit is '
            f"{PERMUTATIONS_MAX}"
        )
    parameters: dict[str, Any] = {"ngram": ngram, "bands": bands if near else 0, "rows": rows}
    return (
        Stage(f"{name}-keys", StageKind.TRANSFORM, f"{_MODULE}:KeyMaker", parameters, keeps=True),
        Stage(name, StageKind.STATEFUL, f"{_MODULE}:Dedup", parameters, replicas=1),
    )
