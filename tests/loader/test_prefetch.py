import threading
from collections.abc import Iterator

import pytest

from headrace.loader.errors import LoaderClosed, LoaderError
from headrace.loader.prefetch import Prefetcher

PATIENCE_S = 60.0


class Gate:
    """A source whose items come when they are let through."""

    def __init__(self) -> None:
        self.made = 0
        self.reached = threading.Semaphore(0)
        self.open = threading.Event()

    def items(self) -> Iterator[int]:
        while True:
            self.made += 1
            self.reached.release()
            yield self.made

    def blocked(self) -> Iterator[int]:
        self.open.wait(PATIENCE_S)
        yield 1


def test_items_come_in_order_and_then_the_end():
    prefetcher = Prefetcher(iter(range(100)), 3)
    assert [prefetcher.take() for _ in range(100)] == list(range(100))
    with pytest.raises(StopIteration):
        prefetcher.take()
    prefetcher.close()


def test_no_more_is_made_ahead_than_the_depth_and_the_one_in_hand():
    gate = Gate()
    prefetcher = Prefetcher(gate.items(), 2)
    for _ in range(3):
        assert gate.reached.acquire(timeout=PATIENCE_S)
    assert gate.made == 3
    assert prefetcher.take() == 1
    assert gate.reached.acquire(timeout=PATIENCE_S)
    assert gate.made == 4
    prefetcher.close()


def test_an_error_of_the_source_comes_after_the_items_before_it():
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    prefetcher = Prefetcher(source(), 4)
    assert prefetcher.take() == 1
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.take()
    prefetcher.close()


def test_closing_ends_a_thread_that_waits_for_room():
    prefetcher = Prefetcher(iter(range(100)), 1)
    prefetcher.take()
    prefetcher.close()
    assert not prefetcher.alive
    with pytest.raises(LoaderClosed):
        prefetcher.take()


def test_a_source_that_gives_nothing_is_reported_after_the_deadline():
    gate = Gate()
    prefetcher = Prefetcher(gate.blocked(), 1)
    with pytest.raises(LoaderError, match="no batch came"):
        prefetcher.take(stall_s=0.01)
    gate.open.set()
    prefetcher.close()
