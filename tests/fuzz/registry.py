"""All targets: those of each module beside this one that is named for its area and `_targets`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.harness import Target

HERE = Path(__file__).parent


def areas() -> list[str]:
    """The modules that hold targets."""
    return sorted(path.stem for path in HERE.glob("*_targets.py"))


def areas_of(names: Iterable[str]) -> list[str]:
    """The modules that may hold these targets, by their text: to import the others takes longer than a short run."""
    texts = {area: (HERE / f"{area}.py").read_text(encoding="utf-8") for area in areas()}
    return [area for area, text in texts.items() if any(f'"{name}"' in text for name in names)]


def targets_of(area: str) -> list[Target]:
    """The targets of one of them."""
    found: list[Target] = importlib.import_module(f"tests.fuzz.{area}").TARGETS
    return found


def all_targets(found_in: Iterable[str] = ()) -> list[Target]:
    """Every target of these modules, or of all, each under a name of its own."""
    found = [target for area in found_in or areas() for target in targets_of(area)]
    names = [target.name for target in found]
    assert len(set(names)) == len(names), f"two targets of one name: {sorted(names)}"
    return found
