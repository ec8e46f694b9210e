"""What the loops are made from, by one name: setup.py asks too, so this imports the standard library alone."""

from __future__ import annotations

import hashlib
import pathlib
import unicodedata
from functools import cache

#: Folders of `stages` in which there are loops.
WITH_LOOPS = ("text", "quality", "dedup", "decontamination")
_STAGES = pathlib.Path(__file__).parents[2]


@cache
def digest() -> str:
    """What machine code of these sources is called. Tables of Unicode are compiled in, so its version counts too."""
    found = hashlib.blake2b(unicodedata.unidata_version.encode(), digest_size=8)
    for path in sorted(file for folder in WITH_LOOPS for file in (_STAGES / folder).rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
