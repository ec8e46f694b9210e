"""All targets: those of each module beside this one that is named for its area and `_targets`."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.fuzz.harness import Target

HERE = Path(__file__).parent


def areas() -> list[str]:
    """The modules that hold targets."""
    return sorted(path.stem for path in HERE.glob("*_targets.py"))


def targets_of(area: str) -> list[Target]:
    """The targets of one of them."""
    found: list[Target] = importlib.import_module(f"tests.fuzz.{area}").TARGETS
    return found


def all_targets() -> list[Target]:
    """Every target, each under a name of its own."""
    found = [target for area in areas() for target in targets_of(area)]
    names = [target.name for target in found]
    assert len(set(names)) == len(names), f"two targets of one name: {sorted(names)}"
    return found
