"""What came through worker processes: a batch that was looked into was received, whoever's DataLoader is between."""

import copy
import random
from typing import Any

import pytest

from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderError

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from headrace.loader.state.received import Arrived  # noqa: E402
from headrace.loader.torch import TorchLoader, loader_state  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # torchdata 0.11 calls what torch 2.13 has given up
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

TIMEOUT_S = 300
#: of 1,003 rows
ROWS, STEPS = 100, 10


def made(uri: str, **arguments: Any) -> TorchLoader:
    return TorchLoader(Loader(uri, batch_size=ROWS, **arguments))


def stateful(loader: TorchLoader, **options: Any) -> Any:
    kind = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    return kind(loader, batch_size=None, timeout=TIMEOUT_S, **({"num_workers": 2} | options))


def plain(loader: TorchLoader, **options: Any) -> Any:
    return DataLoader(loader, batch_size=None, timeout=TIMEOUT_S, **({"num_workers": 2} | options))


def steps(batches: Any, count: int = STEPS) -> list[int]:
    """The numbers of the next steps, each behind a look into its batch."""
    return [int(batch["state"][2]) for _, batch in zip(range(count), batches, strict=False)]


@pytest.mark.parametrize("wrapper", [plain, stateful])
def test_the_state_is_behind_the_last_batch_that_was_looked_into(thousand_dataset: str, wrapper: Any):
    loader = made(thousand_dataset)
    batches = iter(wrapper(loader))
    assert steps(batches, 2) == [1, 2]
    assert loader.state_dict()["position"] == 200
    unseen = next(batches)
    assert loader.state_dict()["position"] == 200
    assert sorted(unseen) == sorted(made(thousand_dataset).__iter__().__next__())
    assert loader.state_dict()["position"] == 300
    assert loader.statistics().batches == 3


@pytest.mark.parametrize("left", [3, STEPS - 2, STEPS])
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("wrapper", [plain, stateful])
def test_a_loop_after_one_left_takes_the_next_batch(thousand_dataset: str, wrapper: Any, persistent: bool, left: int):
    loops = wrapper(made(thousand_dataset), persistent_workers=persistent)
    found = steps(iter(loops), left)
    while len(found) < 2 * STEPS:
        found += steps(loops, 2 * STEPS - len(found))
    assert found == list(range(1, 2 * STEPS + 1))


@pytest.mark.slow
def test_spawned_workers_tell_what_came_too(thousand_dataset: str):
    loader = made(thousand_dataset)
    assert steps(plain(loader, num_workers=1, multiprocessing_context="spawn"), 2) == [1, 2]
    assert loader.state_dict()["position"] == 200


class Walk:
    """Loops, saves and resumes in any order, through one kind of DataLoader."""

    def __init__(self, uri: str, kind: str, draw: random.Random) -> None:
        self.uri, self.kind, self.draw = uri, kind, draw
        self.found: list[int] = []
        self.begin(None)

    def begin(self, state: Any) -> None:
        """As a process that begins with a checkpoint does."""
        loader = made(self.uri)
        if state is not None and self.kind != "stateful":
            loader.load_state_dict(state)
        options = {"persistent_workers": self.draw.random() < 0.5}
        self.keeper: Any = loader
        if self.kind == "over_workers":
            self.keeper = self.loops = loader.over_workers(2, timeout=TIMEOUT_S)
        else:
            self.loops = {"plain": plain, "stateful": stateful}[self.kind](loader, **options)
        if self.kind == "stateful":
            self.keeper = self.loops
            if state is not None:
                self.loops.load_state_dict(state)

    def step(self) -> None:
        if self.found and self.draw.random() < 0.4:
            state = self.keeper.state_dict()
            assert self.keeper.state_dict() == state
            if self.draw.random() < 0.7:
                self.begin(state)
        count = self.draw.choice([1, 2, STEPS - 1, STEPS, STEPS + 1])
        self.found += steps(self.loops, count)


@pytest.mark.parametrize("kind", ["plain", "stateful", "over_workers"])
@pytest.mark.parametrize("seed", range(3))
def test_no_order_of_loops_saves_and_resumes_reads_twice_or_leaves_out(thousand_dataset: str, kind: str, seed: int):
    walk = Walk(thousand_dataset, kind, random.Random(seed))
    for _ in range(6):
        walk.step()
    assert walk.found == list(range(1, len(walk.found) + 1))


def test_the_state_of_new_workers_has_the_journal_of_those_before(thousand_dataset: str):
    first = made(thousand_dataset)
    first.loader.skip(500, 100)
    saved = stateful(first)
    batches = iter(saved)
    steps(batches, 2)
    again = made(thousand_dataset)
    loops = stateful(again)
    loops.load_state_dict(saved.state_dict())
    assert steps(loops, 1) == [3]
    # as a trainer does that lets go of its workers before it saves
    state = loader_state(stateful(again).state_dict())
    after = made(thousand_dataset)
    after.load_state_dict(state)
    assert [int(batch["state"][1]) for batch in after] == [400, 500, 700, 800, 900, 1000]


def test_a_batch_from_before_a_state_was_loaded_moves_nothing(thousand_dataset: str):
    loader = made(thousand_dataset)
    start = loader.state_dict()
    late = next(iter(plain(loader)))
    loader.load_state_dict(start)
    assert late["state"].tolist() == [0, 100, 1]
    assert loader.state_dict()["position"] == 0


def test_workers_that_persist_are_refused_once_another_state_was_loaded(thousand_dataset: str):
    loader = made(thousand_dataset)
    start, loops = loader.state_dict(), plain(loader, persistent_workers=True)
    steps(iter(loops), 1)
    loader.load_state_dict(start)
    with pytest.raises(LoaderError, match="make the DataLoader anew"):
        next(iter(loops))


@pytest.mark.slow
def test_a_copy_of_a_loader_has_loops_of_its_own(thousand_dataset: str):
    loader = made(thousand_dataset)
    twin = copy.deepcopy(loader)
    assert steps(plain(twin), 2) == [1, 2]
    assert (twin.state_dict()["position"], loader.state_dict()["position"]) == (200, 0)


READINGS = (
    lambda batch: batch["one"],
    lambda batch: batch.get("one"),
    lambda batch: batch.pop("one"),
    lambda batch: batch.popitem(),
    lambda batch: list(batch.items()),
    lambda batch: list(batch.values()),
    lambda batch: list(batch.keys()),
    lambda batch: batch.copy(),
    lambda batch: {**batch},
    lambda batch: batch | {},
    lambda batch: dict(**batch),
    lambda batch: batch.__reduce_ex__(4),
    list,
    dict,
    copy.copy,
    {}.update,
)


@pytest.mark.parametrize("read", READINGS)
def test_every_look_into_a_batch_counts_once(read: Any):
    noted: list[Any] = []
    batch = Arrived({"one": torch.ones(1)}, lambda: noted.append(1))
    assert not noted
    read(batch)
    list(batch)
    assert len(noted) == 1


def test_memory_that_is_pinned_on_the_way_is_no_look(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    noted: list[Any] = []
    batch = torch.utils.data._utils.pin_memory.pin_memory(
        Arrived({"one": torch.ones(1), "two": 2}, lambda: noted.append(1))
    )
    assert not noted
    assert (batch["one"].tolist(), batch["two"], len(noted)) == ([2.0], 2, 1)


def end_of_pass(uri: str) -> Any:
    """The state of a StatefulDataLoader that was saved in the loop, behind its last batch."""
    loader = made(uri)
    loader.loader.skip(0, 300)
    loops = stateful(loader)
    assert steps(iter(loops), 7) == list(range(1, 8))
    return loops.state_dict()


@pytest.mark.parametrize("persistent", [True, False])
def test_a_loop_dropped_behind_a_pass_precedes_the_next_pass(thousand_dataset: str, persistent: bool):
    loops = stateful(made(thousand_dataset), persistent_workers=persistent)
    loops.load_state_dict(end_of_pass(thousand_dataset))
    iter(loops)
    assert [batch["state"].tolist() for batch in loops] == [[1, at, 7 + at // 100] for at in range(100, 1001, 100)]


def test_a_loop_dropped_within_a_pass_precedes_none(thousand_dataset: str):
    first, second = stateful(made(thousand_dataset)), stateful(made(thousand_dataset))
    steps(iter(first), 2)
    second.load_state_dict(first.state_dict())
    iter(second)
    with pytest.raises(LoaderError, match="second loop over DataLoader workers"):
        next(iter(second))
