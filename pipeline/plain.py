"""Pipelines as JSON of somebody else: read with a limit, and only what can be written again everywhere.

A pipeline goes as JSON to the workers and as msgpack into the ledger. What one of them cannot hold (half a surrogate
pair, an integer of a hundred digits, a thousand lists within each other) is refused where it enters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace.pipeline.errors import PipelineError

#: Lists and objects within each other.
DEPTH_MAX = 64
#: What an integer of msgpack holds.
_INTEGERS = range(-(1 << 63), 1 << 64)
_SHOWN = 80


def parse_pipeline(text: str) -> dict[str, Any]:
    """The JSON object in a text. Raises PipelineError for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"the pipeline is not JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(found, dict):
        raise PipelineError("the pipeline is no JSON object")
    return cast("dict[str, Any]", found)


def check_plain(value: Any, what: str) -> None:
    """Raise PipelineError unless JSON and msgpack both hold this value of `what`, to a depth of DEPTH_MAX."""
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [inner for item in level for inner in _within(item, what)]
        if not level:
            return
    raise PipelineError(f"{what}: lists and objects within each other, more than {DEPTH_MAX} deep")


def _within(item: Any, what: str) -> Sequence[Any]:
    """What a list or an object holds, names included; nothing for any other value."""
    if isinstance(item, Mapping):
        inner = cast("Mapping[object, object]", item)
        if not all(isinstance(name, str) for name in inner):
            raise PipelineError(f"{what}: a name in an object is no text")
        return [*inner, *inner.values()]
    if isinstance(item, (list, tuple)):
        return cast("Sequence[Any]", item)
    if isinstance(item, str):
        try:
            item.encode()
        except UnicodeEncodeError as error:
            raise PipelineError(f"{what}: {item[:_SHOWN]!r} is not UTF-8") from error
    elif isinstance(item, int) and item not in _INTEGERS:
        raise PipelineError(f"{what}: an integer of {item.bit_length()} bits, the limit is 64")
    elif item is not None and not isinstance(item, (int, float)):
        raise PipelineError(f"{what}: a value of type {type(item).__name__}, which JSON has not")
    return ()
