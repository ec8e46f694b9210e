"""The state through processes of PyTorch: it is that of the last batch the training loop received."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.dataset import verify
from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderError
from headrace.loader.state.state import unpacked

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from headrace.loader.torch import TorchLoader, loader_state  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    # torchdata 0.11 calls what torch 2.13 has given up
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

WORKERS = 4
#: of a worker that must not hang a test
TIMEOUT_S = 300


def made(uri: str, batch_size: int = 20, **arguments: Any) -> TorchLoader:
    return TorchLoader(Loader(uri, batch_size=batch_size, **arguments))


def positions(batch: dict[str, Any]) -> list[int]:
    return [position for position in batch["positions"].tolist() if position >= 0]


def plain(loader: TorchLoader, workers: int = WORKERS) -> Iterator[dict[str, Any]]:
    return iter(DataLoader(loader, batch_size=None, num_workers=workers, timeout=TIMEOUT_S if workers else 0))


def test_four_workers_give_what_one_process_gives(thousand_dataset: str):
    alone = [batch["tokens"].tolist() for batch in made(thousand_dataset, last="pad")]
    assert [batch["tokens"].tolist() for batch in plain(made(thousand_dataset, last="pad"))] == alone


@pytest.mark.parametrize("received", [1, 6])
def test_a_plain_data_loader_with_workers_resumes_after_the_last_batch_received(thousand_dataset: str, received: int):
    loader = made(thousand_dataset)
    batches = plain(loader)
    seen = [batch for _, batch in zip(range(received), batches, strict=False)]
    state = json.loads(json.dumps(loader.state_dict(seen[-1])))
    assert state["position"] == received * 20
    # another batch size, and no workers
    after = made(thousand_dataset, batch_size=7, last="pad")
    after.load_state_dict(state)
    assert [p for batch in after for p in positions(batch)] == list(range(received * 20, 1003))


def test_asking_for_a_state_that_only_the_loop_can_know_is_refused(thousand_dataset: str):
    loader = made(thousand_dataset)
    next(plain(loader))
    with pytest.raises(LoaderError, match=r"state_dict\(batch\)"):
        loader.state_dict()


class Between:
    """A memory that workers share, with `meanwhile` called after each write of one of them."""

    def __init__(self, memory: Any, meanwhile: Callable[[], None]) -> None:
        self.memory, self.meanwhile, self.writes = memory, meanwhile, 0

    def __getitem__(self, at: int) -> Any:
        return self.memory[at]

    def __setitem__(self, at: int, value: Any) -> None:
        self.memory[at] = value
        self.writes += 1
        self.meanwhile()

    def tolist(self) -> list[int]:
        return list(self.memory.tolist())


def test_workers_that_begin_together_are_one_loop(thousand_dataset: str):
    one, other = made(thousand_dataset), made(thousand_dataset)
    loop = (1 << 62) + 7
    other._uncounted = one._uncounted
    one._uncounted = between = Between(one._uncounted, lambda: other._enter_loop(1, loop))
    one._enter_loop(0, loop)
    assert between.writes == 1
    with pytest.raises(LoaderError, match="second loop"):
        other._enter_loop(1, loop + 1)


def test_a_second_loop_over_new_workers_needs_a_beginning(thousand_dataset: str):
    loader = made(thousand_dataset, batch_size=150)
    start = loader.state_dict()
    last = list(plain(loader, 2))[1]
    with pytest.raises(LoaderError, match=r"second loop over DataLoader workers .*persistent_workers=True"):
        next(plain(loader, 2))
    loader.load_state_dict(loader.state_dict(last))
    assert positions(next(plain(loader, 2))) == list(range(300, 450))
    loader.load_state_dict(start)
    assert positions(next(plain(loader, 2))) == list(range(150))


def test_a_second_loop_is_refused_where_both_were_seeded_alike(thousand_dataset: str):
    loader = made(thousand_dataset, batch_size=150)
    torch.manual_seed(7)
    next(plain(loader, 2))
    torch.manual_seed(7)
    with pytest.raises(LoaderError, match=r"second loop over DataLoader workers"):
        next(plain(loader, 2))


def test_persistent_workers_keep_what_a_left_loop_did_not_receive(thousand_dataset: str):
    loader = made(thousand_dataset, batch_size=20)
    loops = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True, timeout=TIMEOUT_S)
    for _ in zip(range(3), loops, strict=False):
        pass
    with pytest.raises(LoaderError, match=r"ended within its pass.*make a DataLoader anew"):
        next(iter(loops))


class Late(TorchLoader):
    """Its worker 1 begins when it is told to, and tells that it has."""

    def __init__(self, loader: Loader, told: Path, begun: Path) -> None:
        super().__init__(loader)
        self.told, self.begun = told, begun

    def _in_worker(self, number: int, of: int, loop: int) -> Iterator[dict[str, Any]]:
        if number == 1:
            until(self.told.exists)
        return super()._in_worker(number, of, loop)

    def _enter_loop(self, number: int, loop: int) -> None:
        super()._enter_loop(number, loop)
        if number == 1:
            self.begun.touch()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s"
        threading.Event().wait(0.01)


@pytest.mark.slow
def test_a_late_worker_does_not_reset_the_loops_count(thousand_dataset: str, tmp_path: Path):
    loader = Late(Loader(thousand_dataset, batch_size=20), tmp_path / "told", tmp_path / "begun")
    batches = iter(loader.over_workers(2, timeout=TIMEOUT_S))
    next(batches)
    loader.told.touch()
    until(loader.begun.exists)
    assert loader.state_dict()["position"] == 20
    next(batches)
    assert loader.state_dict()["position"] == 40


def test_over_workers_the_state_keeps_up_and_the_next_pass_follows(thousand_dataset: str):
    loader = made(thousand_dataset, batch_size=200)
    steps = [loader.state_dict()["position"] for _ in loader.over_workers(2)]
    assert steps == [200, 400, 600, 800, 1000]
    batches = iter(loader.over_workers(2))
    next(batches)
    state = loader.state_dict()
    assert (state["pass"], state["position"], state["step"]) == (1, 200, 6)


def test_after_workers_end_a_pass_the_state_takes_the_next(thousand_dataset: str):
    first, second = made(thousand_dataset, batch_size=200), made(thousand_dataset, batch_size=200)
    assert len(list(first.over_workers(2))) == 5
    second.load_state_dict(first.state_dict())
    assert [batch["state"].tolist()[0] for batch in second] == [1] * 5


def test_over_no_workers_is_the_same_in_one_process(thousand_dataset: str):
    loader = made(thousand_dataset, batch_size=200)
    for pass_ in range(2):
        states = [(loader.state_dict()["position"], positions(batch)[-1]) for batch in loader.over_workers(0)]
        assert states == [(at, at - 1) for at in (200, 400, 600, 800, 1000)], pass_


def test_batches_out_of_order_have_no_state_and_are_refused(thousand_dataset: str):
    with pytest.raises(ValueError, match="in order"):
        made(thousand_dataset).over_workers(2, in_order=False)


def test_workers_finish_the_old_dataset_and_then_read_all(make_dataset: Callable[..., str]):
    old, new = (make_dataset(sequences=counts, seq_len=8) for counts in ((40, 30), (40, 30, 26)))
    first = made(old)
    next(iter(first))
    loader = made(new)
    loader.load_state_dict(first.state_dict(), grown="finish")
    places: list[tuple[int, int, int]] = []
    for _ in range(2):
        for batch in loader.over_workers(2):
            state = loader.state_dict()
            assert batch["state"].tolist() == [state["pass"], state["position"], state["step"]]
            places.append((state["pass"], state["position"], state["samples"]))
    assert places == [(0, 40, 70), (0, 60, 70), *((1, at, 96) for at in (20, 40, 60, 80))]
    assert unpacked(loader.state_dict())["before"][0]["position"] == 60


def test_persistent_workers_go_over_to_the_grown_dataset(make_dataset: Callable[..., str]):
    old, new = (make_dataset(sequences=counts, seq_len=8) for counts in ((40, 30), (40, 30, 126)))
    first = made(old)
    next(iter(first))
    alone, through = made(new), made(new)
    for loader in (alone, through):
        loader.load_state_dict(first.state_dict(), grown="finish")
    loops = DataLoader(through, batch_size=None, num_workers=2, persistent_workers=True, timeout=TIMEOUT_S)
    states = [through.state_dict(batch) for _ in range(3) for batch in loops]
    assert states == [alone.state_dict() for _ in range(3) for _ in alone]
    assert [state["samples"] for state in states] == [70] * 2 + [196] * 18


def test_workers_that_persist_read_the_next_pass_in_the_next_loop(thousand_dataset: str):
    loader = made(thousand_dataset, batch_size=150)
    loops = DataLoader(loader, batch_size=None, num_workers=2, persistent_workers=True, timeout=TIMEOUT_S)
    for pass_ in range(3):
        found = [(batch["state"].tolist(), positions(batch)) for batch in loops]
        assert [state for state, _ in found] == [[pass_, at, 6 * pass_ + at // 150] for at in range(150, 1000, 150)]
        assert [p for _, batch in found for p in batch] == list(range(900))


@pytest.mark.parametrize("received", [1, 3, 9])
def test_a_stateful_data_loader_with_workers_goes_on_exactly(thousand_dataset: str, received: int):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    first = stateful(made(thousand_dataset), batch_size=None, num_workers=WORKERS)
    batches = iter(first)
    for _ in range(received):
        next(batches)
    state = first.state_dict()
    second = stateful(made(thousand_dataset), batch_size=None, num_workers=WORKERS)
    second.load_state_dict(state)
    got = [positions(batch) for batch in second]
    assert [p for batch in got for p in batch] == list(range(received * 20, 1000))


def test_a_stateful_data_loaders_state_loads_at_any_worker_count(thousand_dataset: str):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    first = stateful(made(thousand_dataset), batch_size=None, num_workers=WORKERS)
    batches = iter(first)
    for _ in range(7):
        next(batches)
    state = loader_state(first.state_dict())
    assert state["position"] == 140
    loader = made(thousand_dataset, batch_size=11, last="pad")
    loader.load_state_dict(state)
    second = stateful(loader, batch_size=None, num_workers=2)
    assert [p for batch in second for p in positions(batch)] == list(range(140, 1003))


@pytest.mark.parametrize("received", [0, 2, 3, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_looking_at_workers_sometimes_is_known_exactly(thousand_dataset: str, workers: int, received: int):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    loader = made(thousand_dataset)
    loader.loader.skip(30, 25)
    first = stateful(loader, batch_size=None, num_workers=workers, snapshot_every_n_steps=3)
    batches = iter(first)
    seen = [position for _ in range(received) for position in positions(next(batches))]
    # it may lie in a checkpoint beside other things
    state = loader_state({"step": 3, "data": {"train": first.state_dict()}})
    assert (state["step"], "ended" in state) == (received, False)
    after = made(thousand_dataset, batch_size=7, last="pad")
    after.load_state_dict(state)
    assert seen + [p for batch in after for p in positions(batch)] == [*range(30), *range(55, 1003)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_ended_stateful_data_loader_goes_on_with_the_next_pass(thousand_dataset: str, workers: int):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    first = stateful(made(thousand_dataset, batch_size=200), batch_size=None, num_workers=workers)
    assert len(list(first)) == 5
    after = made(thousand_dataset, batch_size=200)
    after.load_state_dict(loader_state(first.state_dict()))
    assert [batch["state"].tolist()[:2] for batch in after] == [[1, at] for at in (200, 400, 600, 800, 1000)]


@pytest.mark.parametrize("received", [0, 1, 2])
def test_workers_that_began_behind_the_end_of_a_loop_go_on_exactly(thousand_dataset: str, received: int):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    whole = made(thousand_dataset, batch_size=200)
    assert len(list(whole)) == 5

    def loops() -> Any:
        loader = made(thousand_dataset, batch_size=200)
        loader.load_state_dict(whole.state_dict())
        return stateful(loader, batch_size=None, num_workers=2, snapshot_every_n_steps=3)

    first, second = loops(), loops()
    batches = iter(first)
    seen = [next(batches)["state"].tolist() for _ in range(received)]
    second.load_state_dict(first.state_dict())
    seen += [batch["state"].tolist() for batch in second]
    assert seen == [[1, 200 * step, 5 + step] for step in range(1, 6)]


def test_an_ended_stateful_data_loader_has_no_second_loops_state(thousand_dataset: str):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    batches = stateful(made(thousand_dataset, batch_size=200), batch_size=None, num_workers=2)
    assert len(list(batches)) == 5
    with pytest.raises(LoaderError, match="second loop over DataLoader workers"):
        iter(batches)


def test_a_state_without_a_loader_in_it_is_refused():
    with pytest.raises(LoaderError, match="StatefulDataLoader"):
        loader_state({"epoch": 3})


KILLED = """
import json, os, signal, sys
import torch
from torch.utils.data import DataLoader
from headrace.loader.loader import Loader
from headrace.loader.torch import TorchLoader, loader_state

uri, out, kind = sys.argv[1:4]
loader = TorchLoader(Loader(uri, batch_size=20))
if kind == "stateful":
    from torchdata.stateful_dataloader import StatefulDataLoader
    batches = StatefulDataLoader(loader, batch_size=None, num_workers=4)
elif kind == "plain":
    batches = DataLoader(loader, batch_size=None, num_workers=4)
else:
    batches = loader
with open(out, "a") as file:
    for number, batch in enumerate(batches):
        state = loader_state(batches.state_dict()) if kind == "stateful" else loader.state_dict(batch)
        file.write(json.dumps([batch["positions"].tolist(), state]) + "\\n")
        file.flush()
        if number == 9:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "kind", ["threads", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("plain", "stateful"))]
)
def test_after_a_kill_nothing_is_read_twice_or_left_out(thousand_dataset: str, tmp_path: Path, kind: str):
    if kind == "stateful":
        pytest.importorskip("torchdata.stateful_dataloader")
    out = tmp_path / "seen.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, thousand_dataset, str(out), kind], timeout=300)
    assert done.returncode == -9
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    seen = [position for line in lines for position in line[0]]
    after = made(thousand_dataset, batch_size=9, last="pad")
    after.load_state_dict(lines[-1][1])
    assert seen + [p for batch in after for p in positions(batch)] == list(range(1003))


ORPHANED = """
import functools, os, sys, threading
from torch.utils.data import DataLoader
from headrace.loader.loader import Loader
from headrace.loader.torch import TorchLoader

def begin_late(pid_file, parent, _worker):
    with open(pid_file + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(pid_file + ".part", pid_file)
    while os.getppid() == parent:
        threading.Event().wait(0.01)

if __name__ == "__main__":
    begin = functools.partial(begin_late, sys.argv[2], os.getpid())
    loader = TorchLoader(Loader(sys.argv[1], batch_size=20))
    next(iter(DataLoader(loader, batch_size=None, num_workers=1, worker_init_fn=begin,
                         multiprocessing_context=sys.argv[3])))
"""


def is_running(pid: int) -> bool:
    """Whether a process is there, and is no zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_that_begins_after_its_script_was_killed_ends(thousand_dataset: str, tmp_path: Path, context: str):
    pid_file, script_file = tmp_path / "pid", tmp_path / "train.py"
    script_file.write_text(ORPHANED)
    script = subprocess.Popen([sys.executable, str(script_file), thousand_dataset, str(pid_file), context])
    try:
        until(pid_file.exists)
    finally:
        script.kill()
        script.wait(TIMEOUT_S)
    worker = int(pid_file.read_text())
    try:
        until(lambda: not is_running(worker))
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_statistics_count_what_came_through_workers(thousand_dataset: str):
    loader = made(thousand_dataset, batch_size=150, last="pad")
    assert len(list(loader.over_workers(2, timeout=TIMEOUT_S))) == 7
    statistics = loader.statistics()
    assert (statistics.batches, statistics.samples, statistics.tokens) == (7, 1003, 1003 * 8)
    assert 0 < statistics.data_wait_s <= statistics.elapsed_s


def test_a_worker_gives_no_batch_of_an_unchecked_shard(
    make_dataset: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    uri = make_dataset(sequences=(40,))
    # a shard that is checked behind the reader; its damage lies behind all rows
    monkeypatch.setattr(verify, "FIRST_BYTES_MAX", 0)
    (path,) = (Path(uri) / "shards/0").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    for batches in (
        plain(made(uri, batch_size=1), 2),
        iter(made(uri, batch_size=1).over_workers(2, timeout=TIMEOUT_S)),
    ):
        with pytest.raises(RuntimeError, match="Caught ChecksumMismatch in DataLoader worker"):
            next(batches)
