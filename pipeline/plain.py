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
#: What a pipeline has around the parameters of a stage.
_AROUND = 4
#: What an integer of msgpack holds.
_INTEGERS = range(-(1 << 63), 1 << 64)
_SHOWN = 80
#: Characters of a pipeline as JSON: some ten thousand inputs by name, and code. Whoever parses it does nothing else.
PIPELINE_CHARACTERS_MAX = 8 << 20


def parse_pipeline(text: str) -> dict[str, Any]:
    """The JSON object in a text, of plain data. Raises PipelineError, also for more than PIPELINE_CHARACTERS_MAX."""
    if len(text) > PIPELINE_CHARACTERS_MAX:
        raise PipelineError(
            f"the pipeline has {len(text):,} characters as JSON, the limit is {PIPELINE_CHARACTERS_MAX:,}: "
            "name folders and patterns in the place of files"
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"the pipeline is not JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(found, dict):
        raise PipelineError("the pipeline is no JSON object")
    check_plain(found, "the pipeline", DEPTH_MAX + _AROUND)
    return cast("dict[str, Any]", found)


def check_plain(value: Any, what: str, depth: int = DEPTH_MAX) -> None:
    """Raise PipelineError unless JSON and msgpack both hold this value of `what`."""
    if problem := plain_problem(value, depth=depth):
        raise PipelineError(f"{what}: {problem}")


def plain_problem(value: Any, *, binary: bool = False, depth: int = DEPTH_MAX) -> str:
    """Why a value is no plain data: lists and objects of text, numbers and None, so deep at most; "" if it is.

    `binary` allows bytes, which msgpack holds and JSON does not.
    """
    level: list[Any] = [value]
    for _ in range(depth + 1):
        inner: list[Any] = []
        for item in level:
            if problem := _problem(item, inner, binary):
                return problem
        if not inner:
            return ""
        level = inner
    return f"lists and objects within each other, more than {depth} deep"


def _problem(item: Any, inner: list[Any], binary: bool) -> str:
    """Why an item is not plain; what it holds, names included, is added to `inner`."""
    if isinstance(item, Mapping):
        held = cast("Mapping[object, object]", item)
        if not all(isinstance(name, str) for name in held):
            return "a name in an object is no text"
        inner += [*held, *held.values()]
    elif isinstance(item, (list, tuple)):
        inner += cast("Sequence[Any]", item)
    elif isinstance(item, str):
        try:
            item.encode()
        except UnicodeEncodeError:
            return f"{item[:_SHOWN]!r} is not UTF-8"
    elif isinstance(item, int):
        return "" if item in _INTEGERS else f"an integer of {item.bit_length()} bits, the limit is 64"
    elif not (item is None or isinstance(item, float) or (binary and isinstance(item, bytes))):
        return f"a value of type {type(item).__name__}, which JSON has not"
    return ""
