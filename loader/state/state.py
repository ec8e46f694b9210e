"""What a checkpoint keeps of a loader, and the comparison that refuses a foreign one.

The state is a position in one global sequence of samples, and not a step: so it means the same at any world size
and any batch size. The journal beside it says what a user did on the way (`headrace.loader.order.plan`), as a list of
plain objects, and with it every step since the beginning can be computed.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.loader.order import (
    POSITION_MAX,
    POSITIONS_MAX,
    WEIGHT_MAX,
    Cut,
    Difference,
    Event,
    Grew,
    LastBatch,
    LoaderError,
    Offered,
    Recut,
    Revised,
    Reweighted,
    Skipped,
    StateMismatch,
    pass_max,
)

STATE_FORMAT: Final = 1
#: entries in a journal; a journal is edited by hand and by changes of the world size, not by steps
EVENTS_MAX: Final = 100_000
#: of these kept for what each resume may add, such as another world size
_EVENTS_OF_RESUMES: Final = 1000
#: lists and objects within each other
DEPTH_MAX: Final = 200
#: states of what a dataset was before it grew, one each time that it did
BEFORE_MAX: Final = 100_000
#: characters of what is wrong that are said again
_SHOWN: Final = 200
#: the fields that fix the order of samples; names and URIs do not, since a dataset may be copied or moved
_BINDING: Final = ("layout_root", "samples", "tokenizer", "seq_len", "seed", "weights")

#: in the state of a StatefulDataLoader: steps that the loop received since it looked where its workers stood
_SINCE: Final = "_steps_since_snapshot"
#: and whether the loop came to its end
_FINISHED: Final = "_iterator_finished"

#: the events of a journal, as the state names them; their fields have their own names there
_NAMES: Final[dict[type[Event], str]] = {
    Skipped: "skipped",
    Reweighted: "reweighted",
    Revised: "revised",
    Grew: "grew",
    Recut: "cut",
}

#: what tells the states of several loaders in one checkpoint apart
_LOADER: Final = ("uri", "seed", "order", "weights")


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Where a state stands: `position` in samples of pass `pass_`, before step `step`, after these events."""

    pass_: int
    position: int
    step: int
    events: tuple[Event, ...]


def check_state(state: Mapping[str, Any], ours: Mapping[str, Any]) -> StatePlace:
    """Where a saved state of this format stands, or StateMismatch with each field that differs from `ours`.

    Raises LoaderError where it is malformed, or one that only a newer version can follow.
    """
    differences = [
        Difference(field, state.get(field), ours.get(field))
        for field in _BINDING
        if state.get(field) != ours.get(field)
    ]
    differences += _nested("order", state.get("order"), ours["order"])
    theirs, mine = state.get("sources") or [], ours.get("sources") or []
    if not isinstance(theirs, list | tuple):
        raise LoaderError(f"the state's sources are {type(theirs).__name__}, and no list")
    if theirs and mine and state.get("schedule") != ours["schedule"]:
        differences.append(Difference("schedule", state.get("schedule"), ours["schedule"]))
    for number in range(max(len(theirs), len(mine))):
        pair = [sources[number] if number < len(sources) else None for sources in (theirs, mine)]
        differences += _nested(f"sources[{number}]", pair[0], {} if pair[1] is None else pair[1])
    if differences:
        # compared nowhere, since a dataset may be copied or moved; beside another layout they say which it was
        named = [Difference(field, state.get(field), ours[field]) for field in ("dataset", "uri")]
        if not (theirs or mine) and state.get("layout_root") != ours["layout_root"]:
            differences[:0] = [one for one in named if one.theirs != one.ours]
        raise StateMismatch(differences)
    return place_of(state)


def _nested(name: str, theirs: object, ours: Mapping[str, Any]) -> list[Difference]:
    held: Mapping[str, Any] = theirs if isinstance(theirs, Mapping) else {}
    fields = dict.fromkeys([*ours, *held])
    # where a dataset lies and how it is called count for nothing, but say which it was where it is another
    silent = ("name", "uri") if held.get("layout_root") == ours.get("layout_root") else ("name",)
    return [
        Difference(f"{name}.{field}", held.get(field), ours.get(field))
        for field in fields
        if field not in silent and held.get(field) != ours.get(field)
    ]


def require_format(state: Mapping[str, Any]) -> None:
    """Raise LoaderError unless `state` is one that this version reads."""
    if isinstance(state, Mapping) and "format" in state and "layout_root" in state:
        if state["format"] != STATE_FORMAT:
            raise LoaderError(
                f"a loader state of format {state['format']!r}; this version of Headrace reads format {STATE_FORMAT}"
            )
        return
    hint = "pass what state_dict() gave"
    if find_state(state) is not None:
        hint = "one lies in it: pass that, or what headrace.loader.torch.loader_state makes of the whole"
    raise LoaderError(f"this {type(state).__name__} is no state of a loader; {hint}")


def packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with the same fields whatever happened: what grows is JSON text, and `ended` is there or not.

    torch.distributed.checkpoint reads into the fields of a state that was just asked for, list by list: of a journal it
    would leave out what a new loader's lacks, and of a state a field that this has not.
    """
    before = state.get("before")
    return {
        **state,
        "journal": json.dumps(state["journal"]),
        "before": None if before is None else json.dumps(before),
        "ended": state.get("ended") is True,
    }


def unpacked(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state as `Loader.state_dict` gave it, from either form. Raises LoaderError for text that is no JSON."""
    plain = dict(state)
    try:
        plain |= {field: json.loads(plain[field]) for field in ("journal", "before") if type(plain.get(field)) is str}
    except (ValueError, RecursionError) as error:
        raise LoaderError(f"the state's journal is malformed: {error}") from error
    if plain.get("before") is not None:
        plain["before"] = _predecessors(plain["before"])
    _require_plain(plain)
    return {
        field: value for field, value in plain.items() if (field, value) not in (("before", None), ("ended", False))
    }


def _predecessors(before: object) -> list[Any]:
    """The states of what a dataset was before it grew, the oldest first. Each may hold that before it.

    Raises LoaderError for anything else.
    """
    found: list[Any] = []
    while isinstance(before, Mapping) and len(found) <= BEFORE_MAX:
        found.append({name: field for name, field in before.items() if name != "before"})
        before = before.get("before") or ()
    if not isinstance(before, list | tuple) or len(before) + len(found) > BEFORE_MAX:
        raise LoaderError(f"the state is malformed: before it are no states, or more than {BEFORE_MAX}")
    return [*before, *reversed(found)]


def place_of(state: Mapping[str, Any]) -> StatePlace:
    """Where a state stands; raises LoaderError where it is malformed."""
    samples = _whole(state, "samples")
    return StatePlace(
        _whole(state, "pass", pass_max(samples)),
        _whole(state, "position", samples),
        _whole(state, "step"),
        parse_journal(state.get("journal")),
    )


def _whole(state: Mapping[str, Any], field: str, most: int = POSITIONS_MAX) -> int:
    value = state.get(field)
    if type(value) is not int or not 0 <= value <= most:
        raise LoaderError(f"the state's {field} is {value!r}; it must be a whole number from 0 to {most}")
    return value


def journal_to_json(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The events as the state holds them."""
    return [_event_to_json(event) for event in events]


def _event_to_json(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": _NAMES[type(event)]}
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        fields[name] = list(value) if isinstance(value, tuple) else value
    if isinstance(event, Recut):
        cut = fields.pop("cut")
        fields |= {"batch_size": cut.batch_size, "world_size": cut.world_size, "last": cut.last.value}
    return fields


def require_room(events: Sequence[Event], more: int) -> None:
    """Raise LoaderError where a journal with `more` events could not be resumed from; a resume adds some itself."""
    if len(events) + more > EVENTS_MAX - _EVENTS_OF_RESUMES:
        raise LoaderError(
            f"the journal has {len(events)} events, and a state holds up to {EVENTS_MAX}: give weights less often"
        )


def parse_journal(journal: object) -> tuple[Event, ...]:
    """The events of a state's journal; raises LoaderError for one that this version cannot follow."""
    if not isinstance(journal, list) or len(journal) > EVENTS_MAX:
        raise LoaderError(f"the state's journal is no list of up to {EVENTS_MAX} events")
    return tuple(_parse_event(event) for event in journal)


def _parse_event(fields: Any) -> Event:
    try:
        match fields["event"]:
            case "skipped":
                return Skipped(_whole(fields, "first"), _whole(fields, "count"))
            case "reweighted":
                weights = tuple(_weight(weight) for weight in fields["weights"])
                return Reweighted(_whole(fields, "position"), weights)
            case "revised":
                versions = fields["versions"]
                if not all(type(version) is int and 0 <= version <= POSITIONS_MAX for version in versions):
                    raise ValueError("versions are whole numbers")
                return Revised(_whole(fields, "position"), tuple(versions))
            case "grew":
                place = _whole(fields, "position"), _whole(fields, "source"), _whole(fields, "samples")
                if not isinstance(fields["layout_root"], str):
                    raise TypeError("a layout has a root in words")
                return Grew(*place, fields["layout_root"])
            case "cut":
                cut = Cut(_whole(fields, "batch_size"), _whole(fields, "world_size"), LastBatch(fields["last"]))
                if not 1 <= cut.stride <= POSITIONS_MAX:
                    raise ValueError("a cut of no samples, or of more than there can be")
                return Recut(_whole(fields, "position"), _whole(fields, "step"), cut)
    except (KeyError, TypeError, ValueError, LoaderError) as error:
        reason = error if isinstance(error, LoaderError) else repr(error)
        raise LoaderError(f"the state's journal holds {_shown(fields)}, which is malformed: {reason}") from error
    raise LoaderError(f"the state's journal holds {_shown(fields)}; this version of Headrace knows no such event")


def _weight(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= WEIGHT_MAX:
        raise ValueError(f"a weight is a number from 0 to {WEIGHT_MAX:g}")
    return float(value)


def _shown(fields: Any) -> str:
    return repr(fields)[:_SHOWN]


def _require_plain(state: Any) -> None:
    """Raise LoaderError for what is named by no text, or so deeply nested that whoever writes or compares it fails."""
    level: list[Any] = [state]
    for _ in range(DEPTH_MAX):
        objects = [item for item in level if isinstance(item, Mapping)]
        strange = [name for item in objects for name in item if not isinstance(name, str)]
        if strange:
            raise LoaderError(f"the state is malformed: a field of it is called {_shown(strange[0])}, which is no text")
        lists = [item for item in level if isinstance(item, list | tuple)]
        level = [inner for item in (*lists, *(item.values() for item in objects)) for inner in item]
        if not level:
            return
    raise LoaderError(f"the state is malformed: lists and objects within each other, more than {DEPTH_MAX} deep")


def find_state(value: object) -> dict[str, Any] | None:
    """The loader's state somewhere in a checkpoint, also as JSON text; of several, as workers have, the furthest.

    Raises LoaderError where they are of several loaders, as of training and validation: either may be meant.
    """
    found: list[dict[str, Any]] = []
    try:
        _look(value, found)
    except RecursionError as error:
        raise LoaderError("it is nested too deeply for a state to be looked for in it") from error
    # not the layout, in which workers differ for a while when a dataset grew
    loaders = {json.dumps([one.get(field) for field in _LOADER], sort_keys=True, default=str): one for one in found}
    if len(loaders) > 1:
        each = "; ".join(
            f"of {one.get('uri')}, seed {one.get('seed')}, at step {one.get('step')}" for one in loaders.values()
        )
        raise LoaderError(
            f"the states of {len(loaders)} loaders lie in it ({each}): give that of one alone, in a file as JSON"
        )
    return max(found, key=_reached, default=None)


def _reached(state: Mapping[str, Any]) -> tuple[int, int]:
    """How far a state is; one that does not say it in numbers is nowhere."""
    pass_, position = state.get("pass", 0), state.get("position", 0)
    return (pass_, position) if type(pass_) is type(position) is int else (-1, -1)


def _look(value: object, found: list[dict[str, Any]]) -> None:
    if isinstance(value, str) and value.startswith("{") and '"layout_root"' in value:
        with suppress(ValueError):  # text that only looks like JSON
            _look(json.loads(value), found)
    elif isinstance(value, Mapping):
        if "format" in value and "layout_root" in value:
            found.append({name: field for name, field in unpacked(value).items() if name != "worker"})
        elif value.get(_SINCE) or value.get(_FINISHED):
            inside = find_state(list(value.values()))
            found.extend([] if inside is None else [_later(inside, value)])
        else:
            for inner in value.values():
                _look(inner, found)
    elif isinstance(value, list | tuple):
        for inner in value:
            _look(inner, found)


def _later(state: dict[str, Any], loop: Mapping[str, Any]) -> dict[str, Any]:
    """What a StatefulDataLoader says of its `loop`, as the state of a loader that came as far."""
    steps = loop.get(_SINCE, 0)
    if steps:
        place, samples = place_of(state), state["samples"]
        begin = place.pass_ * samples
        cuts = [event.cut for event in place.events if isinstance(event, Recut)]
        if not cuts or type(steps) is not int or not 0 < steps <= POSITION_MAX // cuts[-1].stride:
            raise LoaderError(f"the loop's state says {str(steps)[:_SHOWN]} steps, of a loader with {len(cuts)} cuts")
        cut = cuts[-1]
        skips = [event for event in place.events if isinstance(event, Skipped)]
        behind = Offered(begin + place.position, begin + samples, skips).after(np.array([steps * cut.stride]))
        state = {**state, "position": int(behind[0]) - begin, "step": place.step + steps}
    return state | ({"ended": True} if loop.get(_FINISHED) else {})
