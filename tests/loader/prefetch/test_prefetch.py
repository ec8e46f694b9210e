import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest

from headrace.loader.order.errors import LoaderClosed, LoaderError
from headrace.loader.prefetch.batch_prefetcher import BatchPrefetcher, Job

PATIENCE_S = 120.0
DEPTH = 4


def each(items: Iterable[int]) -> Iterator[list[Job[int]]]:
    """A job an item, which only the thread may run."""
    for item in items:
        yield [Job(lambda item=item: [item])]  # type: ignore[misc]


def ready() -> bool:
    return True


def beside(second: Callable[[], Iterable[int]]) -> BatchPrefetcher[int]:
    """Of two jobs the first ends once the second was begun; it gives 1."""
    begun = threading.Event()

    def first() -> list[int]:
        assert begun.wait(PATIENCE_S)
        return [1]

    def then() -> Iterator[int]:
        begun.set()
        yield from second()

    return BatchPrefetcher(iter([[Job(first), Job(then, ready)]]), 4)


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
    prefetcher = BatchPrefetcher(each(range(100)), 3)
    assert [prefetcher.take() for _ in range(100)] == list(range(100))
    with pytest.raises(StopIteration):
        prefetcher.take()
    prefetcher.close()


def test_no_more_is_made_ahead_than_depth_and_one():
    gate = Gate()
    prefetcher = BatchPrefetcher(each(gate.items()), 2)
    for _ in range(3):
        assert gate.reached.acquire(timeout=PATIENCE_S)
    assert gate.made == 3
    assert prefetcher.take() == 1
    assert gate.reached.acquire(timeout=PATIENCE_S)
    assert gate.made == 4
    prefetcher.close()


def test_an_item_heavier_than_the_depth_comes_alone():
    prefetcher = BatchPrefetcher(each([7, 8]), 4, lambda item: item)
    assert [prefetcher.take(PATIENCE_S), prefetcher.take(PATIENCE_S)] == [7, 8]
    prefetcher.close()


def test_a_depth_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1 item, got 0"):
        BatchPrefetcher(each([]), 0)


def test_a_job_not_said_ready_runs_in_the_thread():
    assert not Job(list[int]).is_ready()


def test_an_error_of_the_source_comes_after_the_items_before_it():
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    prefetcher = BatchPrefetcher(each(source()), 4)
    assert prefetcher.take() == 1
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.take()
    prefetcher.close()


def test_closing_ends_a_thread_that_waits_for_room():
    prefetcher = BatchPrefetcher(each(range(100)), 1)
    prefetcher.take()
    prefetcher.close()
    assert not prefetcher._thread.is_alive()
    with pytest.raises(LoaderClosed):
        prefetcher.take()


def test_a_source_that_gives_nothing_is_reported_after_the_deadline():
    gate = Gate()
    prefetcher = BatchPrefetcher(each(gate.blocked()), 1)
    with pytest.raises(LoaderError, match="no batch came"):
        prefetcher.take(stall_s=0.01)
    gate.open.set()
    prefetcher.close()


def test_the_taker_runs_ready_jobs_while_the_thread_works():
    runners: list[threading.Thread] = []

    def second() -> list[int]:
        runners.append(threading.current_thread())
        return [2, 3]

    prefetcher = beside(second)
    assert [prefetcher.take() for _ in range(3)] == [1, 2, 3]
    assert runners == [threading.current_thread()]
    with pytest.raises(StopIteration):
        prefetcher.take()
    prefetcher.close()


def test_an_error_of_the_takers_job_comes_in_order():
    def second() -> Iterator[int]:
        yield 2
        raise OSError("the disk is gone")

    prefetcher = beside(second)
    assert [prefetcher.take(), prefetcher.take()] == [1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.take()
    prefetcher.close()


def test_an_interrupt_in_a_job_that_the_taker_runs_waits_for_nothing():
    def second() -> list[int]:
        raise KeyboardInterrupt

    prefetcher = beside(second)
    with pytest.raises(KeyboardInterrupt):
        prefetcher.take()
    prefetcher.close()


def test_behind_a_failed_job_no_other_is_run():
    failed, ran = threading.Event(), list[int]()

    def fail() -> list[int]:
        raise OSError("the disk is gone")

    def source() -> Iterator[list[Job[int]]]:
        yield [Job(lambda: [1]), Job(fail, ready)]
        assert failed.wait(PATIENCE_S)
        yield [Job(lambda: ran.append(2) or [2])]

    prefetcher = BatchPrefetcher(source(), 4)
    assert prefetcher.take() == 1
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.take()
    failed.set()
    prefetcher._thread.join(PATIENCE_S)
    assert not prefetcher._thread.is_alive()
    assert ran == []
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.take()
    prefetcher.close()


def test_a_closed_iteration_lets_go_of_all_items():
    class Item:
        pass

    made, waits = Item(), Item()
    seen, given = (weakref.ref(one) for one in (made, waits))
    jobs = deque([[Job(partial(list[Item], [made])), Job(partial(list[Item], [waits]))]])
    del made, waits
    prefetcher = BatchPrefetcher(iter(jobs.popleft, None), 1)  # type: ignore[arg-type]
    with prefetcher._changed:
        assert prefetcher._changed.wait_for(lambda: prefetcher._held == 1, PATIENCE_S)
    prefetcher.close()
    assert not prefetcher._thread.is_alive()
    assert seen() is given() is None


def test_the_taker_does_not_run_ahead_without_end():
    began, go_on, over = threading.Event(), threading.Event(), threading.Event()
    made: list[int] = []

    def first() -> list[int]:
        began.set()
        assert go_on.wait(PATIENCE_S)
        return [0]

    def later(number: int) -> list[int]:
        made.append(number)
        if len(made) == DEPTH:
            over.set()
        return [number]

    jobs = [Job(first), *(Job(lambda number=number: later(number), ready) for number in range(1, 50))]  # type: ignore[misc]
    prefetcher = BatchPrefetcher(iter([jobs]), DEPTH)
    assert began.wait(PATIENCE_S)
    taken: list[int] = []
    taker = threading.Thread(target=lambda: taken.append(prefetcher.take()))
    taker.start()
    assert over.wait(PATIENCE_S)
    with prefetcher._changed:
        # whoever waits here has made as much as it may, and makes no more until it has its item
        assert prefetcher._changed.wait_for(lambda: prefetcher._helped == DEPTH, PATIENCE_S)
        assert not prefetcher._may_help()
    go_on.set()
    taker.join(PATIENCE_S)
    assert taken == [0]
    assert [prefetcher.take() for _ in range(49)] == list(range(1, 50))
    assert prefetcher._helped == prefetcher._held == 0
    prefetcher.close()
