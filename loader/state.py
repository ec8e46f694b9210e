"""What a checkpoint keeps of a loader, and the comparison that refuses a foreign one.

The state is a position in one global sequence of samples, and not a step: so it means the same at any world size
and any batch size.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.loader.errors import Difference, LoaderError, StateMismatch

STATE_FORMAT: Final = 1
#: the fields that fix the order of samples; `dataset` is a name only, since a dataset may be copied or moved
_BINDING: Final = ("layout_root", "samples", "tokenizer", "seq_len", "seed")


def check_state(state: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[int, int]:
    """(pass, position) of a saved state, or StateMismatch with each field that differs from `ours`.

    Raises LoaderError where it is no state, or one that only a newer version can follow.
    """
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
        found = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        raise LoaderError(f"a loader state of format {found!r}; this version of Headrace reads format {STATE_FORMAT}")
    differences = [
        Difference(field, state.get(field), ours[field]) for field in _BINDING if state.get(field) != ours[field]
    ]
    order = state.get("order")
    theirs: Mapping[str, Any] = order if isinstance(order, Mapping) else {}
    differences += [
        Difference(f"order.{field}", theirs.get(field), value)
        for field, value in ours["order"].items()
        if theirs.get(field) != value
    ]
    if differences:
        if state.get("dataset") != ours["dataset"]:
            differences.insert(0, Difference("dataset", state.get("dataset"), ours["dataset"]))
        raise StateMismatch(differences)
    journal = state.get("journal")
    if journal != []:
        raise LoaderError(f"the state's journal holds {journal!r}; this version of Headrace knows no journalled events")
    return _whole(state, "pass"), _whole(state, "position", ours["samples"])


def _whole(state: Mapping[str, Any], field: str, most: int = (1 << 64) - 1) -> int:
    value = state.get(field)
    if type(value) is not int or not 0 <= value <= most:
        raise LoaderError(f"the state's {field} is {value!r}; it must be a whole number from 0 to {most}")
    return value
