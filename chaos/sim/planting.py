"""What a defect is made of: what is patched, and with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Whose attribute, and what takes its place.
Patch = tuple[Any, str, Any]


def says(answer: Any) -> Callable[..., Any]:
    """What gives this answer, whatever it is asked."""
    return lambda *_arguments, **_options: answer


def around(target: Any, attribute: str, changed: Callable[..., Any]) -> Patch:
    """A patch that is given what it takes the place of, before all else."""
    original = getattr(target, attribute)
    return target, attribute, lambda *arguments, **options: changed(original, *arguments, **options)
