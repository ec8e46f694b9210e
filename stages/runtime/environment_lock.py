"""The environment lock: names and versions of what is installed and decides what a record becomes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

#: Distributions that decide the bytes of a dataset beside Headrace's own code.
DISTRIBUTIONS = ("headrace", "gigatoken", "numpy", "orjson", "pyarrow", "safetensors", "tokenizers", "xxhash")
#: Begins the name of the fact in which a task tells what is unlike its pipeline's lock; the task's name follows.
ENVIRONMENT_OF = "environment of task "
_ABSENT = "(absent)"
_SUFFIX = ".dist-info"


def environment(*, everything: bool) -> dict[str, str]:
    """Names and versions of what is installed in this process's reach.

    Headrace's own stages depend on a known few; the user's code may import anything.
    """
    found = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    wanted = set(DISTRIBUTIONS)
    for folder in sys.path:
        for entry in _names(folder or "."):
            if not entry.endswith(_SUFFIX):
                continue
            name, _, version = entry.removesuffix(_SUFFIX).rpartition("-")
            name = name.lower().replace("_", "-")
            if name and (everything or name in wanted):
                found.setdefault(name, version)
    return dict(sorted(found.items()))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # sys.path may name an archive, or nothing


def unlike(lock: Mapping[str, str]) -> list[str]:
    """What this process has in another version than the lock says, or not at all: `name 2.0, not 1.26`, by name."""
    here = environment(everything=True)
    return [
        f"{name} {here.get(name, _ABSENT)}, not {version}"
        for name, version in sorted(lock.items())
        if here.get(name) != version
    ]
