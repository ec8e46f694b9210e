"""A state comes from a file that anybody may have written: what is none is refused in words, wherever it is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.maintenance.checkpoints import loader_state_in
from headrace.client.errors import CliError
from headrace.loader.order.errors import LoaderError
from headrace.loader.order.plan import POSITIONS_MAX, Revised
from headrace.loader.state.resumption import _revised
from headrace.loader.state.state import DEPTH_MAX, find_state, parse_journal, place_of, unpacked

CUT = {"event": "cut", "position": 0, "step": 0, "batch_size": 2, "world_size": 1, "last": "drop"}
STATE: dict[str, Any] = {
    "format": 1,
    "uri": "file:///x",
    "dataset": "tiny",
    "layout_root": "r",
    "samples": 17,
    "pass": 0,
    "position": 6,
    "step": 3,
    "journal": [CUT],
}


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_whole_state_has_a_place() -> None:
    place = place_of(unpacked(STATE))
    assert (place.pass_, place.position, place.step) == (0, 6, 3)


@pytest.mark.parametrize(
    "event",
    [
        {"event": "reweighted", "position": 0, "weights": [10**400]},
        {"event": "reweighted", "position": 0, "weights": ["1"]},
        {"event": "reweighted", "position": 0, "weights": [float("nan")]},
        {"event": "reweighted", "position": 0, "weights": [-1.0]},
        {"event": "reweighted", "position": 0, "weights": 7},
        {"event": "revised", "position": 0, "versions": [POSITIONS_MAX + 1]},
        {"event": "grew", "position": 0, "source": 1, "samples": 5, "layout_root": ["r"]},
        {**CUT, "batch_size": POSITIONS_MAX, "world_size": 2},
        {**CUT, "batch_size": 0},
        {**CUT, "last": ["drop"]},
        {"event": ["cut"]},
        "cut",
        ["cut"],
        7,
        None,
    ],
)
def test_a_journal_with_an_event_that_cannot_be_is_refused(event: Any) -> None:
    with pytest.raises(LoaderError, match="the state's journal holds"):
        parse_journal([CUT, event])


@pytest.mark.parametrize("versions", [(1, 1), ()])
def test_a_journal_with_versions_of_other_datasets_is_refused(versions: tuple[int, ...]) -> None:
    with pytest.raises(LoaderError, match=f"the journal names {len(versions)} versions of 1 datasets"):
        _revised(6, (Revised(0, versions),), (2,))


@pytest.mark.parametrize("text", ["[" * 100_000, "{", ""])
def test_a_journal_as_text_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(LoaderError, match="malformed"):
        unpacked({**STATE, "journal": text})


def test_a_state_that_is_nested_beyond_what_can_be_written_is_refused() -> None:
    with pytest.raises(LoaderError, match=f"more than {DEPTH_MAX} deep"):
        unpacked({**STATE, "before": nested(DEPTH_MAX)})


@pytest.mark.parametrize("field", ["pass", "position"])
@pytest.mark.parametrize("value", [None, "6", [6], 6.5, {}])
def test_a_state_without_a_numeric_place_is_not_the_furthest(field: str, value: Any) -> None:
    assert find_state([{**STATE, field: value}, STATE, {**STATE, field: value}]) == STATE


def test_a_state_with_names_that_are_no_text_is_refused() -> None:
    order = {**STATE.get("order", {}), "mode": "windowed", 1: 2}
    for state in ({**STATE, "order": order}, {**STATE, "weights": [{(1, 2): 3}]}):
        with pytest.raises(LoaderError, match="which is no text"):
            find_state({"loader": state, 3: [STATE]})
    assert find_state({"loader": STATE, 3: [STATE]}) == STATE


@pytest.mark.parametrize("steps", ["1", [1], 1.5, -1, 1 << 63, True])
def test_steps_of_a_loop_that_cannot_be_are_refused(steps: Any) -> None:
    with pytest.raises(LoaderError, match="the loop's state says"):
        find_state({"_steps_since_snapshot": steps, "loader": STATE})


def test_steps_of_a_loop_whose_loader_was_never_cut_are_refused() -> None:
    with pytest.raises(LoaderError, match="0 cuts"):
        find_state({"_steps_since_snapshot": 1, "loader": {**STATE, "journal": []}})


def test_a_file_that_is_nested_without_end_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("[" * 100_000 + json.dumps(STATE) + "]" * 100_000)
    with pytest.raises(CliError, match="neither JSON"):
        loader_state_in(str(path))
    with pytest.raises(LoaderError, match="too deeply"):
        find_state(nested(5_000))
