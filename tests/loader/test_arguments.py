"""What a loader says of arguments and states that make no sense, and that it takes what means the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.loader.dataset.dataset import open_dataset
from headrace.loader.loader import Loader, Source
from headrace.loader.order.errors import LoaderError, StateMismatch
from headrace.store.contract.errors import FormatError
from headrace.store.ledger.log import Log
from headrace.store.open import open_store


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"batch_size": 2.0}, TypeError, "batch_size is a whole number, got 2.0"),
        ({"batch_size": 0}, ValueError, "batch_size is at least 1, got 0"),
        ({"rank": 0, "world_size": 0}, ValueError, "world_size is at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, ValueError, "got rank 2 of 2"),
        ({"rank": -1, "world_size": 1}, ValueError, "rank is at least 0, got -1"),
        ({"rank": 1}, ValueError, "rank and world_size are passed both or neither, got rank=1 and world_size=None"),
        ({"rank": 0, "world_size": 2, "alone": True}, ValueError, "alone=True is a world of one, and 2 ranks"),
        ({"seed": None}, TypeError, "seed is a whole number, got None"),
        ({"seed": 1 << 64}, ValueError, "seed must lie in"),
        ({"prefetch": -1}, ValueError, "prefetch is at least 0, got -1"),
        ({"pass_": -1}, ValueError, "pass_ is at least 0, got -1"),
        ({"pass_": (1 << 62) // 17}, ValueError, "pass_ is at most 271275648142787522 for passes of 17 samples"),
        ({"window_blocks": 0}, ValueError, "window_blocks is at least 1, got 0"),
        ({"order": "random"}, ValueError, "order is one of 'sequential', 'windowed', 'full'; got 'random'"),
        ({"last": "keep"}, ValueError, "last is one of 'drop', 'pad'; got 'keep'"),
        ({"pass_samples": 10}, ValueError, "pass_samples is for mixtures"),
        ({"fields": ["label"]}, ValueError, "got 'label'"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused_with_what_would(
    tiny_dataset: str, arguments: dict[str, Any], kind: type[Exception], message: str
):
    with pytest.raises(kind, match=message.replace("(", r"\(")):
        Loader(tiny_dataset, **{"batch_size": 2, **arguments})


@pytest.mark.parametrize("wrong", [["a", "b"], 7, None, {"a": 1.0}])
def test_what_is_no_dataset_is_refused_with_what_one_is(wrong: Any):
    with pytest.raises(TypeError, match=r"a URI, a path, a TokenDataset or a list of Source\(dataset, weight\)"):
        Loader(wrong, batch_size=2)


@pytest.mark.parametrize("count", [0, -3])
def test_a_pass_of_a_mixture_has_samples(tiny_dataset: str, count: int):
    with pytest.raises(ValueError, match="pass_samples is at least 1"):
        Loader([Source(tiny_dataset), Source(tiny_dataset)], batch_size=2, pass_samples=count)


def test_numbers_of_numpy_and_paths_give_a_state_that_is_plain_json(tiny_dataset: str):
    plain = Loader(tiny_dataset, batch_size=2, seed=3, world_size=2, rank=1, window_blocks=4)
    other = Loader(
        Path(tiny_dataset),
        batch_size=np.int64(2),
        seed=np.uint32(3),
        world_size=np.int32(2),
        rank=np.int64(1),
        window_blocks=np.int64(4),
    )
    other.skip(np.int64(4), np.int64(2))  # type: ignore[arg-type]
    plain.skip(4, 2)
    assert json.dumps(other.state_dict()) == json.dumps(plain.state_dict())
    assert Loader([Source(Path(tiny_dataset))], batch_size=2).dataset.layout.root == plain.dataset.layout.root


def test_a_skip_ends_with_the_pass(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=2)
    with pytest.raises(ValueError, match=r"skip\(10, 8\): the pass ends at position 17"):
        loader.skip(10, 8)
    loader.skip(10, 7)
    assert [batch["positions"].tolist() for batch in loader] == [[at, at + 1] for at in range(0, 10, 2)]
    assert next(iter(loader))["positions"].tolist() == [0, 1]
    loader.close()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "this NoneType is no state of a loader; pass what state_dict"),
        ({}, "this dict is no state of a loader; pass what state_dict"),
        ({"format": 2, "layout_root": ""}, "a loader state of format 2; this version of Headrace reads format 1"),
    ],
)
def test_what_is_no_state_is_said_so(tiny_dataset: str, state: Any, message: str):
    with pytest.raises(LoaderError, match=message):
        Loader(tiny_dataset, batch_size=2).load_state_dict(state)


def test_a_state_that_lies_in_what_was_given_is_pointed_at(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=2)
    for whole in ({"loader": loader.state_dict()}, json.dumps(loader.state_dict()), [loader.state_dict()]):
        with pytest.raises(LoaderError, match=r"one lies in it: .*loader_state"):
            loader.load_state_dict(whole)  # type: ignore[arg-type]


def test_another_dataset_is_named_and_a_moved_one_accepted(tiny_dataset: str, thousand_dataset: str, tmp_path: Path):
    state = Loader(tiny_dataset, batch_size=2).state_dict()
    with pytest.raises(StateMismatch) as caught:
        Loader(thousand_dataset, batch_size=2).load_state_dict(state)
    fields = [one.field for one in caught.value.differences]
    assert fields[:2] == ["uri", "layout_root"]
    assert tiny_dataset in str(caught.value)
    (tmp_path / "moved").symlink_to(tiny_dataset)
    Loader(tmp_path / "moved", batch_size=2).load_state_dict(state)


def test_other_datasets_of_a_mixture_are_named_moved_ones_not(
    tiny_dataset: str, make_dataset: Callable[..., str], tmp_path: Path
):
    second, third = (make_dataset(seed=seed) for seed in (1, 2))
    (tmp_path / "moved").symlink_to(tiny_dataset)

    def mixed(*uris: str | Path) -> Loader:
        return Loader([Source(uri) for uri in uris], batch_size=2, pass_samples=20)

    state = mixed(tiny_dataset, second).state_dict()
    mixed(tmp_path / "moved", second).load_state_dict(state)
    for others, fields in (
        ((tmp_path / "moved", third), ["sources[1].uri", "sources[1].layout_root"]),
        ((tiny_dataset,), ["samples", "weights", *_of(0), *_of(1)]),
        ((tiny_dataset, second, third), ["weights", *_of(2)]),
    ):
        loader = mixed(*others) if len(others) > 1 else Loader(*others, batch_size=2)
        with pytest.raises(StateMismatch) as caught:
            loader.load_state_dict(state)
        assert [one.field for one in caught.value.differences] == fields


def _of(number: int) -> list[str]:
    return [f"sources[{number}].{field}" for field in ("uri", "layout_root", "samples")]


def test_where_the_order_alone_differs_the_dataset_is_not_named(tiny_dataset: str, tmp_path: Path):
    (tmp_path / "moved").symlink_to(tiny_dataset)
    with pytest.raises(StateMismatch) as caught:
        Loader(tmp_path / "moved", batch_size=2, seed=1).load_state_dict(
            Loader(tiny_dataset, batch_size=2).state_dict()
        )
    assert [one.field for one in caught.value.differences] == ["seed"]


def test_a_state_at_a_passs_end_is_taken_not_beyond(tiny_dataset: str):
    loader = Loader(tiny_dataset, batch_size=17)
    next(iter(loader))
    state = loader.state_dict()
    assert state["position"] == 17
    again = Loader(tiny_dataset, batch_size=17)
    again.load_state_dict(state)
    assert again.steps_left == 0
    for field, value in (("position", 18), ("pass", (1 << 62) // 17), ("step", 1 << 63)):
        with pytest.raises(LoaderError, match=f"the state's {field} is {value}; it must be a whole number from 0 to"):
            again.load_state_dict({**state, field: value})


@pytest.mark.parametrize(
    ("rows", "arguments", "what"),
    [
        ((0,), {"batch_size": 1}, "no samples: its input was empty, or no record was kept"),
        ((0,), {"batch_size": 1, "last": "pad"}, "no samples: its input was empty, or no record was kept"),
        ((1,), {"batch_size": 8}, "a pass of 1 sample .* lower batch_size, or pass last='pad'"),
        (
            (1, 2),
            {"batch_size": 1, "rank": 0, "world_size": 4},
            "; train with at most 3 ranks and batch_size 1, or pass last='pad'",
        ),
        ((1, 2), {"batch_size": 2, "rank": 0, "world_size": 3}, "; lower batch_size, or pass last='pad'"),
    ],
)
def test_too_few_samples_for_a_step_are_said_with_what_would_do(
    make_dataset: Callable[..., str], rows: tuple[int, ...], arguments: dict[str, Any], what: str
):
    with pytest.raises(LoaderError, match=what):
        Loader(make_dataset(sequences=rows), **arguments)


def test_of_a_mixture_the_datasets_without_samples_are_named(make_dataset: Callable[..., str]):
    full, empty = make_dataset(), make_dataset(sequences=(0,))
    with pytest.raises(LoaderError, match=rf"file://{empty}, 0 samples>\] of the mixture"):
        Loader([Source(full), Source(empty)], batch_size=1)


def test_one_row_is_a_pass_of_one_batch_for_each_rank(make_dataset: Callable[..., str]):
    uri = make_dataset(sequences=(1,), seq_len=128)
    seen = [list(Loader(uri, batch_size=3, rank=rank, world_size=2, last="pad")) for rank in range(2)]
    assert [[one["positions"].tolist() for one in rank] for rank in seen] == [[[0, -1, -1]], [[-1, -1, -1]]]


def test_a_first_version_being_written_is_told_from_nothing(tmp_path: Path):
    with pytest.raises(FormatError, match="no dataset was finished here; check the URI"):
        open_dataset(str(tmp_path))
    log = Log(open_store(str(tmp_path)))
    (tmp_path / log.key(0)).parent.mkdir()
    (tmp_path / log.key(0)).touch()
    with pytest.raises(FormatError, match=r"a run has begun here: .* `headrace dataset show file://.*` says which"):
        open_dataset(str(tmp_path))
