"""Pipelines as JSON of somebody else: read with a limit, and only what can be written again everywhere.

A pipeline goes as JSON to the workers and as msgpack into the ledger. What one of them cannot hold (half a surrogate
pair, an integer of a hundred digits, a thousand lists within each other) is refused where it enters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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


def shape_problem(pipeline: Mapping[str, Any]) -> str:
    """What in a pipeline as JSON is of another kind than pipelines have there, or no plain data; "" if nothing is.

    Who reads one of a ledger leans on this. It may lack anything, as those of before do.
    """
    if problem := plain_problem(pipeline) or _misshapen(pipeline, _PIPELINE):
        return problem
    return next((problem for stage in pipeline.get("stages", ()) if (problem := _misshapen(stage, _STAGE))), "")


def _misshapen(held: Any, kinds: Mapping[str, Callable[[Any], bool]]) -> str:
    if not isinstance(held, Mapping):
        return f"a stage is {held!r:.80}"
    fields = cast("Mapping[str, Any]", held)
    wrong = (name for name, is_sound in kinds.items() if name in fields and not is_sound(fields[name]))
    return next((f"{name} is {fields[name]!r:.80}" for name in wrong), "")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _are_texts(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _is_object_of_texts(value: Any) -> bool:
    return _is_object(value) and all(map(_is_text, value.values()))


#: What each field of a pipeline and of a stage is, where it stands.
_PIPELINE: Mapping[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "dataset": _is_text,
    "stages": _is_list,
    "modules": _is_object_of_texts,
    "environment": _is_object_of_texts,
    "base": lambda value: value is None or _is_object(value),
}
_STAGE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("name", "kind", "target", "on", "near"), _is_text),
    **dict.fromkeys(("parameters", "identity"), _is_object),
    **dict.fromkeys(("volatile", "after"), _are_texts),
}


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
