"""Checkpoints of a training: the state of a loader in them, and where its datasets lie now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.cli.ui import safe
from headrace.client import CliError, UsageError
from headrace.store import open_store

if TYPE_CHECKING:
    from headrace.loader.dataset import Source


def refuse_servers(path: str, state: dict[str, Any], uri: str) -> None:
    """Raise UsageError where a state of several datasets names servers besides that of the dataset at `uri`."""
    listed = _listed(state)
    _refuse_servers(path, listed if len(listed) > 1 else [], uri, ())


def sources_here(state: dict[str, Any], uri: str) -> list[Source] | None:
    """The one dataset of a state, which lies at `uri`; None for a mixture, whose state says where each lies."""
    return _moved_to(uri, (), state) if len(_listed(state)) == 1 else None


def sources_of(
    path: str, state: dict[str, Any], uri: str, moved: Sequence[str], *, trusted: bool
) -> list[Source] | None:
    """The datasets of a state where they lie now; None where the state itself says. Raises UsageError, CliError."""
    sources = _moved_to(uri, moved, state)
    if not trusted:
        _refuse_servers(path, [str(source.dataset) for source in sources] if sources else _listed(state), uri, moved)
    return sources


def _listed(state: dict[str, Any]) -> list[str]:
    """Where the datasets of a state lie, by its own word."""
    try:
        return [str(one["uri"]) for one in state.get("sources") or [_alone(state)]]
    except (KeyError, TypeError) as error:
        raise CliError(f"the state is malformed: {error!r}") from error


def _refuse_servers(path: str, uris: Sequence[str], uri: str, moved: Sequence[str]) -> None:
    """Whoever wrote the file would say which servers are asked, with this user's keys. Raises UsageError."""
    given = {uri, *(one for item in moved for one in _ends(item))}
    named = [place for place in uris if place not in given and open_store(place).is_remote]
    if named:
        raise UsageError(
            f"{path!r} names servers that would be asked with your keys; add --trust-uris if you trust the writer of "
            "it, or say by --moved NAME=URI where its datasets lie",
            [safe(place) for place in named],
        )


def _ends(moved: str) -> list[str]:
    """What may be the URI in NAME=URI: names may hold "=", too."""
    parts = moved.split("=")
    return ["=".join(parts[at:]) for at in range(1, len(parts))]


def _moved_to(uri: str, moved: Sequence[str], state: dict[str, Any]) -> list[Source] | None:
    if not uri and not moved:
        return None
    from headrace.loader.dataset import Source

    try:
        listed = [(str(one["name"]), str(one["uri"])) for one in state.get("sources") or [_alone(state)]]
        weights = state.get("weights") or [1.0] * len(listed)
        lies = where_now(listed, uri, moved)
        return [Source(where, weight, name) for (name, _), where, weight in zip(listed, lies, weights, strict=True)]
    except (KeyError, TypeError) as error:
        raise CliError(f"the state is malformed: {error!r}") from error


def _alone(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": state["dataset"], "uri": state["uri"]}


def where_now(listed: Sequence[tuple[str, str]], uri: str, moved: Sequence[str]) -> list[str]:
    """Where each dataset of `listed`, (name, where it lay), lies now: what `moved` ("name=URI") does not name is still
    there. Raises CliError for a name that none or several have, or that is given twice.
    """
    names = [name for name, _ in listed]
    if uri and len(listed) > 1:
        raise CliError(
            "the checkpoint is of a mixture: leave out the URI, and say by --moved NAME=URI where a dataset lies now; "
            f"it has {', '.join(map(safe, names))}"
        )
    lies = {name: uri or where for name, where in listed}
    given: set[str] = {names[0]} if uri else set()
    for one in moved:
        # names may hold "=", as URIs do: the longest name counts
        found = max((name for name in names if one.startswith(f"{name}=")), key=len, default="")
        if not found or len(one) == len(found) + 1:
            raise CliError(
                f"--moved {safe(one)}: want NAME=URI with the name of a dataset of the checkpoint, which has "
                f"{', '.join(map(safe, names))}"
            )
        if found in given or names.count(found) > 1:
            why = "it is said twice where it lies" if found in given else "several datasets have this name"
            raise CliError(f"--moved {safe(one)}: {why}")
        given.add(found)
        lies[found] = one[len(found) + 1 :]
    # of several datasets with one name none can be named, so each lies where it lay
    return [where if names.count(name) > 1 else lies[name] for name, where in listed]


def loader_state_in(path: str) -> dict[str, Any]:
    """The loader's state in a file: JSON or a checkpoint that torch wrote, the state itself or somewhere in it."""
    from headrace.loader.order import LoaderError
    from headrace.loader.state import find_state

    try:
        with open(path, "rb") as file:
            data = file.read(_HEAD_BYTES)
            is_torch = data.startswith(_ZIP)
            data += b"" if is_torch else file.read(STATE_BYTES_MAX + 1)
        if len(data) > STATE_BYTES_MAX:
            raise CliError(f"{path!r}: not of torch, and more than {STATE_BYTES_MAX} bytes: no state of a loader")
    except OSError as error:
        raise CliError(f"cannot read the checkpoint {path!r}: {error.strerror}") from error
    try:
        state = find_state(_of_torch(path) if is_torch else _of_json(path, data))
    except LoaderError as error:
        raise CliError(f"{path!r}: {error}") from error
    if state is None:
        raise CliError(f"{path!r} holds no state of a loader: save loader.state_dict() in it, as it is or as JSON")
    return state


_ZIP = b"PK\x03\x04"
_HEAD_BYTES = 64
#: Bytes of a state as JSON, at most.
STATE_BYTES_MAX = 256 << 20


def _of_json(path: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path!r} is neither JSON nor a checkpoint that torch.save wrote: {error}") from error


def _of_torch(path: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise CliError(f"{path!r} is a checkpoint of torch, and torch is not here: pip install torch") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # what torch says at such length is that the file may run code, and how to let it
        raise CliError(
            f"{path!r} cannot be read as tensors and plain values ({type(error).__name__}): it is damaged, or holds "
            "other objects; save loader.state_dict() as JSON in a file of its own"
        ) from error
