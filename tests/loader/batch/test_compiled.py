"""Loading the compiled loops, beside processes that end and fork; that the loops are right is held elsewhere."""

import os
import threading

import pytest

from headrace.loader.batch.compiled import KERNELS

PATIENCE_S = 120.0


def test_a_process_forks_when_the_loops_are_loaded_and_not_meanwhile(monkeypatch: pytest.MonkeyPatch):
    loaded, ended = threading.Event(), list[int]()
    loading = threading.Thread(target=loaded.wait, args=(PATIENCE_S,))
    loading.start()
    monkeypatch.setattr(KERNELS, "_thread", loading)

    def fork() -> None:
        child = os.fork()
        if not child:
            # a thread of the parent's is none of the child's
            os._exit(KERNELS._thread is not None)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    forking = threading.Thread(target=fork)
    forking.start()
    forking.join(0.2)
    assert ended == []
    loaded.set()
    forking.join(PATIENCE_S)
    assert ended == [0]
    loading.join(PATIENCE_S)


def test_the_thread_that_loads_the_loops_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(KERNELS, "_thread", threading.current_thread())
    KERNELS.wait_loading()
