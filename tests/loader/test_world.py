"""Which rank a loader is: as it was passed, as torch.distributed or torchrun says, and never a guess."""

import copy
import multiprocessing
import socket
from typing import Any

import pytest

from headrace.loader.loader import Loader
from headrace.loader.order.errors import LoaderError
from headrace.loader.trace import trace_step
from headrace.loader.world import ALONE, World, told_world

NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMI_RANK", "PMI_SIZE",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def told(**environ: str) -> tuple[int, int]:
    world = told_world(environ)
    return world.rank, world.size


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        # torchrun within a step of srun
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (5, 8)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        # a batch script is one process, however many tasks its steps have
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, (0, 1)),
        ({"LOCAL_RANK": "1"}, (0, 1)),
    ],
)
def test_the_environment_says_which_rank_of_how_many(environ: dict[str, str], expected: tuple[int, int]):
    assert told(**environ) == expected


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "says WORLD_SIZE=2 and no RANK: initialise torch.distributed"),
        ({"RANK": "1"}, "says RANK=1 and no WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2, which is no rank below a number of ranks"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK=one and WORLD_SIZE=2, which is no rank"),
        ({"RANK": "0", "WORLD_SIZE": "9" * 30}, "which is no rank"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, "srun says task 3 of 8, and not whether"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "Open MPI says task 1 of 2"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "MPICH says task 1 of 2"),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, "MVAPICH2 says task 1 of 2"),
    ],
)
def test_what_would_be_a_guess_is_refused_with_what_to_pass(environ: dict[str, str], said: str):
    with pytest.raises(LoaderError, match=said) as raised:
        told(**environ)
    assert "alone=True" in str(raised.value)


def rows(loader: Loader) -> list[int]:
    return [position for batch in loader for position in batch["positions"].tolist() if position >= 0]


def test_two_ranks_of_torchrun_share_the_rows(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        found.append(rows(Loader(tiny_dataset, batch_size=4)))
    assert sorted(found[0] + found[1]) == list(range(16))


def test_a_rank_is_asked_for_again_when_the_first_batch_is_made(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    loader = Loader(tiny_dataset, batch_size=4, last="pad")
    assert (loader.stride, loader.steps_left, len(loader)) == (4, 5, 5)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LoaderError, match="no RANK"):
        next(iter(loader))
    monkeypatch.setenv("RANK", "1")
    assert rows(loader) == [4, 5, 6, 7, 12, 13, 14, 15]
    assert (loader.rank, loader.stride, len(loader)) == (1, 8, 3)


def test_the_journal_knows_only_the_world_that_read(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    early = Loader(tiny_dataset, batch_size=4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    late = Loader(tiny_dataset, batch_size=4, rank=1, world_size=2)
    next(iter(early)), next(iter(late))
    assert early.state_dict() == late.state_dict()
    assert trace_step(early.state_dict(), 0).world_size == 2


def test_a_state_that_was_loaded_before_the_rank_is_known_goes_on(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    two = Loader(tiny_dataset, batch_size=4, rank=0, world_size=2)
    next(iter(two))
    loader = Loader(tiny_dataset, batch_size=2)
    loader.load_state_dict(two.state_dict())
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert next(iter(loader))["positions"].tolist() == [10, 11]
    assert trace_step(loader.state_dict(), 1).batch_size == 2


def test_a_world_of_one_beside_a_larger_is_refused_unless_meant(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1", None):
        monkeypatch.setenv("RANK", rank) if rank else monkeypatch.delenv("RANK")
        with pytest.raises(LoaderError, match=r"rank=0 and world_size=1 were passed.*alone=True"):
            next(iter(Loader(tiny_dataset, batch_size=4, rank=0, world_size=1)))
        assert len(rows(Loader(tiny_dataset, batch_size=4, alone=True))) == 16


def test_passed_ranks_stand_beside_a_process_group_of_another_size(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    # two ranks a tensor-parallel group
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    loader = Loader(tiny_dataset, batch_size=4, rank=1, world_size=2)
    assert next(iter(loader))["positions"].tolist() == [4, 5, 6, 7]


def test_a_rank_that_changes_behind_the_first_batch_is_refused(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    loader = Loader(tiny_dataset, batch_size=4)
    assert len(rows(loader)) == 16
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(LoaderError, match=r"has read as rank 0 of 1, and now .* says rank 1 of 2"):
        next(iter(loader))


def test_a_copy_in_another_process_is_of_the_same_rank(tiny_dataset: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    sent = copy.copy(Loader(tiny_dataset, batch_size=4))
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    assert next(iter(sent))["positions"].tolist() == [4, 5, 6, 7]


def in_group(rank: int, port: int, uri: str, found: Any) -> None:
    import torch.distributed as dist

    early = Loader(uri, batch_size=4)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    refused = ""
    try:
        next(iter(Loader(uri, batch_size=4, rank=0, world_size=1)))
    except LoaderError as error:
        refused = str(error)
    found.put((rank, rows(early), rows(Loader(uri, batch_size=4)), refused))
    dist.destroy_process_group()


def test_two_ranks_of_a_process_group_share_the_rows(tiny_dataset: str):
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    ranks = [context.Process(target=in_group, args=(rank, port, tiny_dataset, found)) for rank in range(2)]
    for one in ranks:
        one.start()
    answers = sorted(found.get(timeout=300) for _ in ranks)
    for one in ranks:
        one.join(60)
    for at in (1, 2):
        assert sorted(answers[0][at] + answers[1][at]) == list(range(16))
    assert all("the process group of torch.distributed says rank" in answer[3] for answer in answers)


def test_nobody_is_a_world_of_one():
    assert told_world({}) == ALONE == World(0, 1, "nobody")
