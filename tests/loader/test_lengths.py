"""The length that trainers ask for: all batches of the pass that the next loop reads, wherever in it that begins."""

import subprocess
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from torch.utils.data import DataLoader

from headrace.loader.loader import Loader
from headrace.loader.torch import TorchLoader


def made(uri: str, batch_size: int = 4, **arguments: object) -> TorchLoader:
    return TorchLoader(Loader(uri, batch_size=batch_size, **arguments))  # type: ignore[arg-type]


def test_a_length_is_of_the_whole_pass_wherever_the_state_stands(tiny_dataset: str):
    loader = made(tiny_dataset)
    assert [len(loader) for _ in loader] == [4, 4, 4, 4]
    assert len(loader) == len(DataLoader(loader, batch_size=None)) == len(loader.over_workers(2)) == 4


def test_a_length_counts_what_was_read_in_steps_of_another_size(tiny_dataset: str):
    two = made(tiny_dataset, batch_size=2)
    batches = iter(two)
    for _ in range(3):
        next(batches)
    after = made(tiny_dataset, last="pad")
    after.load_state_dict(two.state_dict())
    assert len(after) == 3 + 3


def test_a_length_leaves_out_skips_and_follows_the_pass(tiny_dataset: str):
    loader = made(tiny_dataset)
    loader.loader.skip(5, 4)
    assert len(loader) == len(list(loader)) == 3
    assert len(loader) == 4
    assert len(list(loader)) == 4


def test_a_length_behind_a_grown_datasets_end_counts_all(make_dataset: Callable[..., str]):
    old, new = (make_dataset(sequences=counts, seq_len=8) for counts in ((40, 30), (40, 30, 26)))
    first, loader = made(old), made(new)
    next(iter(first))
    loader.load_state_dict(first.state_dict(), grown="finish")
    assert len(loader) == 17
    list(loader)
    assert len(loader) == len(list(loader)) == 24


def test_a_later_pass_is_reached_and_an_earlier_one_not(tiny_dataset: str):
    loader = made(tiny_dataset, pass_=5)
    loader.set_epoch(0)
    assert next(iter(loader))["state"].tolist() == [5, 4, 1]
    loader.set_epoch(2)
    assert next(iter(loader))["state"].tolist()[:2] == [7, 4]
    loader.set_epoch(1)
    assert next(iter(loader))["state"].tolist()[:2] == [7, 8]
    list(loader)
    loader.set_epoch(3)
    assert next(iter(loader))["state"].tolist()[:2] == [8, 4]


ENDS = """
import sys, threading, torch
from headrace.loader.loader import Loader
torch.set_num_threads(1)
large, inside = torch.ones(1800, 1800), threading.Event()
def slow(batch):
    inside.set()
    torch.mm(large, large)
    return batch
batches = Loader(sys.argv[1], batch_size=1).iterate(slow)
next(batches)
inside.clear()
assert inside.wait(60)
"""


def test_a_script_that_ends_while_a_batch_is_in_torch_ends_well(tiny_dataset: str):
    done = subprocess.run([sys.executable, "-c", ENDS, tiny_dataset], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
