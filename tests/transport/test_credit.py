"""Credit. Invariant of the fuzzer: in flight is at most the window or one frame, and no credit is lost."""

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.transport.core.credit import GRANT_FRACTION, CreditReceiver, CreditSender
from headrace.transport.core.errors import CreditError

WINDOW_BYTES = 1000
SIZES = st.integers(1, 2 * WINDOW_BYTES)


class CreditPair(RuleBasedStateMachine):
    """A sender and a receiver with frames and grants on their way between them, in order each."""

    def __init__(self) -> None:
        super().__init__()
        self.sender = CreditSender(WINDOW_BYTES)
        self.receiver = CreditReceiver(WINDOW_BYTES)
        self.frames: list[int] = []
        self.held: list[int] = []
        self.grants: list[int] = []

    @rule(size=SIZES)
    def send(self, size: int) -> None:
        if self.sender.can_send(size):
            self.sender.sent(size)
            self.frames.append(size)
        else:
            with pytest.raises(CreditError):
                self.sender.sent(size)

    @precondition(lambda self: self.frames)
    @rule()
    def receive(self) -> None:
        size = self.frames.pop(0)
        self.receiver.received(size)
        self.held.append(size)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_any(self, data: st.DataObject) -> None:
        size = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        if grant := self.receiver.released(size):
            self.grants.append(grant)

    @precondition(lambda self: self.grants)
    @rule()
    def deliver_grant(self) -> None:
        self.sender.granted(self.grants.pop(0))

    @invariant()
    def in_flight_is_at_most_the_window_or_one_frame(self) -> None:
        outstanding = self.sender.in_flight_bytes
        alone = len(self.frames) + len(self.held) <= 1 or max([0, *self.frames, *self.held]) <= WINDOW_BYTES
        assert outstanding <= WINDOW_BYTES or (alone and outstanding <= 2 * WINDOW_BYTES)

    @invariant()
    def every_byte_of_credit_is_somewhere(self) -> None:
        assert self.sender.in_flight_bytes == (
            sum(self.frames) + sum(self.held) + self.receiver.withheld_bytes + sum(self.grants)
        )

    @invariant()
    def less_than_a_quarter_is_withheld_and_nothing_at_rest(self) -> None:
        assert self.receiver.withheld_bytes * GRANT_FRACTION < WINDOW_BYTES
        if not self.held:
            assert self.receiver.withheld_bytes == 0


TestCreditPair = CreditPair.TestCase


def test_a_new_window_is_all_available() -> None:
    sender = CreditSender(WINDOW_BYTES)
    assert (sender.available, sender.in_flight_bytes) == (WINDOW_BYTES, 0)


def test_one_frame_is_always_allowed_into_an_empty_window() -> None:
    sender, receiver = CreditSender(WINDOW_BYTES), CreditReceiver(WINDOW_BYTES)
    sender.sent(WINDOW_BYTES * 50)
    receiver.received(WINDOW_BYTES * 50)
    assert sender.available == 0
    assert not sender.can_send(1)
    sender.granted(receiver.released(WINDOW_BYTES * 50))
    assert sender.available == WINDOW_BYTES


def test_a_frame_that_fills_the_window_exactly_may_go() -> None:
    sender = CreditSender(WINDOW_BYTES)
    sender.sent(1)
    assert sender.can_send(WINDOW_BYTES - 1)
    assert not sender.can_send(WINDOW_BYTES)


def test_grants_are_batched_to_a_quarter_of_the_window() -> None:
    receiver = CreditReceiver(WINDOW_BYTES)
    for _ in range(10):
        receiver.received(100)
    assert [receiver.released(100) for _ in range(10)] == [0, 0, 300, 0, 0, 300, 0, 0, 300, 100]


def test_more_than_the_credit_is_refused_at_the_receiver() -> None:
    receiver = CreditReceiver(WINDOW_BYTES)
    receiver.received(600)
    with pytest.raises(CreditError, match="sends without credit"):
        receiver.received(500)


def test_what_is_released_and_not_granted_yet_is_no_credit() -> None:
    receiver = CreditReceiver(WINDOW_BYTES)
    receiver.received(300)
    receiver.received(100)
    assert receiver.released(100) == 0
    with pytest.raises(CreditError, match="with 400 of a window of 1000 in use"):
        receiver.received(601)
    receiver.received(600)


@given(st.integers(1, WINDOW_BYTES), st.integers(1, WINDOW_BYTES))
def test_a_grant_of_more_than_is_in_flight_is_refused(sent: int, extra: int) -> None:
    sender = CreditSender(WINDOW_BYTES)
    sender.sent(sent)
    with pytest.raises(CreditError, match="in flight"):
        sender.granted(sent + extra)
    assert sender.in_flight_bytes == sent


def test_a_release_of_more_than_is_held_is_refused() -> None:
    with pytest.raises(CreditError, match="only 0 held"):
        CreditReceiver(WINDOW_BYTES).released(1)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_that_no_frame_has_are_refused_everywhere(size: int) -> None:
    sender, receiver = CreditSender(WINDOW_BYTES), CreditReceiver(WINDOW_BYTES)
    for verb in (sender.sent, sender.granted, receiver.received, receiver.released):
        with pytest.raises(CreditError, match=f"{size} bytes .*: a frame has at least 1"):
            verb(size)


def test_a_window_is_of_one_byte_at_least() -> None:
    assert CreditSender(1).can_send(1)
    with pytest.raises(CreditError):
        CreditSender(0)
    with pytest.raises(CreditError):
        CreditReceiver(-1)


def test_the_receiver_takes_the_window_to_its_last_byte() -> None:
    receiver = CreditReceiver(WINDOW_BYTES)
    receiver.received(WINDOW_BYTES - 10)
    with pytest.raises(CreditError, match="sends without credit"):
        receiver.received(11)
    receiver.received(10)
    assert receiver.held_bytes == WINDOW_BYTES
