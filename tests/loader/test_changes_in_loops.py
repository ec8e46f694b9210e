"""What a caller changes while batches come through worker processes: as in one process, the loop is ended."""

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from headrace.loader.dataset.sources import Source
from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderClosed, LoaderError
from headrace.loader.order.plan import Reweighted, Skipped

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from headrace.loader.torch import TorchLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

#: of a worker that must not hang a test
TIMEOUT_S = 300


def made(uri: str, **arguments: Any) -> TorchLoader:
    return TorchLoader(Loader(uri, batch_size=20, **arguments))


def options(workers: int) -> dict[str, Any]:
    return {"timeout": TIMEOUT_S} if workers else {}


def first(batch: dict[str, Any]) -> int:
    return int(batch["positions"][0])


def through(loader: TorchLoader, workers: int = 2, **more: Any) -> "DataLoader[Any]":
    return DataLoader(loader, batch_size=None, num_workers=workers, **options(workers), **more)


def until_ended(batches: Iterable[dict[str, Any]], at: int, change: Callable[[], object]) -> list[int]:
    """What came, with `change` made behind that many batches; fails unless the loop was ended."""
    seen: list[int] = []
    try:
        for batch in batches:
            seen.append(first(batch))
            if len(seen) == at:
                change()
    except LoaderClosed:
        return seen
    pytest.fail(f"the loop went on to its end: {seen}")


CHANGES: dict[str, Callable[[TorchLoader], object]] = {
    "skip": lambda loader: loader.loader.skip(500, 100),
    "a state": lambda loader: loader.load_state_dict(loader.state_dict()),
    "a state of what it wraps": lambda loader: loader.loader.load_state_dict(loader.loader.state_dict()),
    "next pass": lambda loader: loader.set_epoch(1),
    "close": lambda loader: loader.close(),
    "newer loop": lambda loader: next(iter(loader.over_workers(0))),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_within_a_loop_ends_it(thousand_dataset: str, name: str, workers: int) -> None:
    loader = made(thousand_dataset)
    loop = loader.over_workers(workers, **options(workers))
    assert until_ended(loop, 10, lambda: CHANGES[name](loader)) == list(range(0, 200, 20))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_skipped_within_a_loop_is_not_read_by_the_next(thousand_dataset: str, workers: int) -> None:
    loader = made(thousand_dataset)
    loop = loader.over_workers(workers, **options(workers))
    until_ended(loop, 10, lambda: loader.loader.skip(500, 100))
    assert [first(batch) for batch in loop] == [*range(200, 500, 20), *range(600, 1000, 20)]
    assert Skipped(500, 100) in loader.loader.journal


def test_a_change_within_a_loop_of_a_data_loader_ends_it_soon(thousand_dataset: str) -> None:
    loader = made(thousand_dataset)
    seen = until_ended(through(loader), 4, lambda: loader.loader.skip(500, 100))
    assert seen == list(range(0, 20 * len(seen), 20))
    assert len(seen) < 20, "it gives no more than its workers had made ahead"
    state = loader.state_dict()
    assert state["position"] == 80, "what came behind the change counts for nothing"
    assert [event["event"] for event in json.loads(state["journal"])] == ["revised", "cut", "skipped"]
    assert [first(batch) for batch in through(loader)] == [*range(80, 500, 20), *range(600, 1000, 20)]


def test_workers_that_persist_refuse_what_was_changed_between_their_loops(
    tiny_dataset: str, make_dataset: Callable[..., str]
) -> None:
    mixture = [Source(tiny_dataset, 0.5, "web"), Source(make_dataset(sequences=(30, 20), seed=3), 0.5, "code")]
    loader = TorchLoader(Loader(mixture, batch_size=5))
    batches = through(loader, persistent_workers=True)
    assert len([first(batch) for batch in batches]) == len(loader)
    loader.loader.reweight([1.0, 0.0])
    with pytest.raises(LoaderError, match="make the DataLoader anew"):
        next(iter(batches))
    assert isinstance(loader.loader.journal[-1], Reweighted)
    assert {source for batch in through(loader) for source in batch["sources"].tolist()} == {0}


def test_workers_that_persist_go_on_where_an_epoch_is_set(thousand_dataset: str) -> None:
    loader = made(thousand_dataset)
    batches = through(loader, persistent_workers=True)
    passes = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        passes.append({int(batch["state"][0]) for batch in batches})
    assert passes == [{0}, {1}, {2}]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_left_at_its_last_batch_is_over(thousand_dataset: str, workers: int) -> None:
    loader = made(thousand_dataset)
    loop = loader.over_workers(workers, **options(workers))
    for number, _ in enumerate(loop):
        if number == len(loop) - 1:
            state = loader.state_dict()
            break
    assert {int(batch["state"][0]) for batch in loop} == {1}
    resumed = made(thousand_dataset)
    resumed.load_state_dict(state)
    # its state says that the loop has still to end
    for passes in ([], [1]):
        loop = resumed.over_workers(workers, **options(workers))
        assert sorted({int(batch["state"][0]) for batch in loop}) == passes


def test_batches_of_which_nobody_knows_the_place_are_refused(thousand_dataset: str) -> None:
    loop = made(thousand_dataset).over_workers(2, timeout=TIMEOUT_S, collate_fn=_tokens)
    with pytest.raises(LoaderError, match="leave them in it in collate_fn"):
        next(iter(loop))


def _tokens(batch: dict[str, Any]) -> tuple[Any]:
    return (batch["tokens"],)


def test_workers_read_a_copy_of_a_loader_that_was_told_a_state(thousand_dataset: str) -> None:
    loader = made(thousand_dataset)
    loader.load_state_dict(loader.state_dict())
    assert len(list(through(copy.deepcopy(loader)))) == 50
