"""A server that does not answer: when that is said, and when it is given up."""

from __future__ import annotations

import logging

import pytest

from headrace.store import StoreUnavailable
from headrace.store.remote.retrier import FIRST_TROUBLE_S, TROUBLE_S, RemoteRetrier, TryAgain


class Server:
    """Fails `failures` times, and notes at which time of a false clock it is asked."""

    def __init__(self, failures: int) -> None:
        self.now, self.left = 0.0, failures
        self.retrier = RemoteRetrier("https://host", clock=lambda: self.now, sleep=self.wait)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def answer(self) -> str:
        if self.left:
            self.left -= 1
            raise TryAgain("no route")
        return "found"


def test_silence_before_the_first_answer_is_said_soon(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(failures=1000)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreUnavailable, match="no route"):
        server.retrier.ask("get 'a'", server.answer)
    assert caplog.messages == ["https://host: cannot get 'a': no route; it is asked again"]
    assert server.now > FIRST_TROUBLE_S


def test_a_server_that_has_answered_may_pause(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(failures=0)
    server.retrier.ask("get 'a'", server.answer)
    server.left = 3
    with caplog.at_level(logging.WARNING):
        assert server.retrier.ask("get 'a'", server.answer) == "found"
    assert caplog.messages == []
    assert server.now < TROUBLE_S
