"""Parts of records: one number for each (row, part), and which records are not whole. Pure.

A record that no stage split has no part; one that was split has the parts 0, 1, ... and none besides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Parts that one record may have.
PARTS_MAX = 1 << 20
#: Verdicts, the gravest first: that of a record whose parts were lost for several reasons.
GRAVITY = ("quarantined", "duplicate", "filtered")

Ordinals = npt.NDArray[np.int64]
_STEP = 2 * PARTS_MAX


def keys_of(rows: Ordinals, parts: Any | None) -> Ordinals:
    """`[rows]`: a number for each (row, part), ordered as they are.

    `parts` is an Arrow column, null where a record was not split, or None where none was; such a row comes before
    any part of it.
    """
    keys = rows * _STEP
    if parts is None or parts.null_count == len(parts):
        return keys
    return keys + np.asarray(parts.fill_null(-1), dtype=np.int64) + 1


def rows_of(keys: Ordinals) -> Ordinals:
    """The rows of these keys."""
    return keys // _STEP


def broken_rows(keys: Ordinals) -> Ordinals:
    """The rows, ascending, that stand there twice, or whole and in parts, or whose parts are not 0, 1, ... once each.

    A row that is not there at all, or whose last parts are missing, is nothing that the keys can tell.
    """
    if not len(keys):
        return keys
    ordered = np.sort(keys)
    rows, part = ordered // _STEP, ordered % _STEP
    starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
    sizes = np.diff(np.append(starts, len(rows)))
    place = np.arange(len(rows)) - np.repeat(starts, sizes)
    whole = np.repeat(part[starts] == 0, sizes)
    wrong = np.where(whole, place > 0, part != place + 1)
    # They are in order; np.unique would import what knows of masked arrays.
    found = rows[wrong]
    return found[np.flatnonzero(np.diff(found, prepend=-1))]
