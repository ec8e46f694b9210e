"""The recipes of docs/guide/trainers.md."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "trainers.md"
_RECIPE = re.compile(r"^## ([^\n]+)\n(?:(?!## )[^\n]*\n)*?```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def recipes() -> dict[str, str]:
    """By their headings."""
    return {match[1]: match[2] for match in _RECIPE.finditer(PAGE.read_text(encoding="utf-8"))}


def recipe(heading: str) -> str:
    """That of one trainer."""
    return recipes()[heading]
