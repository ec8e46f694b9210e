"""The contract of a link, held against every transport."""

import threading

import pyarrow as pa
import pytest

from headrace.transport.core.errors import FrameOversizeError, LinkAborted, LinkClosed
from headrace.transport.core.frame import Frame, FrameKind, encoded_size
from headrace.transport.wait import wait_any
from tests.kits.transport.links import (
    PATIENCE_S,
    Later,
    MakePair,
    bare,
    becomes_readable,
    fill,
    frame_of,
    readable,
    take,
    take_frame,
)


def test_frames_arrive_whole_and_in_the_order_of_sending(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    sent = [frame_of(number, size) for number, size in enumerate([0, 1, 63, 64, 65, 4096, 30_000])]
    for frame in sent:
        assert sender.try_send(frame)
    assert [take_frame(receiver) for _ in sent] == sent


def test_a_body_yet_unwritten_arrives_like_a_written_one(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    for number, size in enumerate([0, 1, 63, 4096, 30_000]):
        frame = frame_of(number, size)
        unwritten = frame._replace(body=b"", unwritten=Later(bytes(frame.body)))
        assert encoded_size(unwritten) == encoded_size(frame)
        assert sender.try_send(unwritten)
        assert take_frame(receiver) == frame


def test_what_is_built_on_a_body_outlives_a_release_that_asks_first(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=10_000)
    assert sender.try_send(frame_of(1, 3000))
    first = take(receiver)
    kept = pa.py_buffer(first.frame.body)
    released = first.try_release()
    # As much again as the window has, so that what was given back is written over.
    for number in range(2, 12):
        if sender.try_send(frame_of(number, 3000)):
            take(receiver).release()
    assert kept.to_pybytes() == frame_of(1, 3000).body
    if not released:
        assert receiver.statistics().in_flight_bytes >= encoded_size(frame_of(1, 3000))
    del kept
    assert first.try_release()
    assert first.try_release()
    assert receiver.statistics().in_flight_bytes == 0
    assert sender.try_send(frame_of(12, 3000))
    assert take_frame(receiver) == frame_of(12, 3000)


def test_every_field_of_the_header_arrives(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    frame = Frame(FrameKind.SWEEP, 2**64 - 1, b"f" * 16, 2**63, 2**64 - 1, b"m", b"b", flags=0xFFFF)
    assert sender.try_send(frame)
    assert take_frame(receiver) == frame


def test_an_idle_link_gives_nothing_and_does_not_block(make_pair: MakePair) -> None:
    _, receiver = make_pair()
    assert receiver.try_receive() is None


def test_a_full_window_has_credit_for_all_of_it(make_pair: MakePair) -> None:
    sender, _ = make_pair(window_bytes=10_000)
    assert sender.credit_bytes() == 10_000
    assert sender.try_send(frame_of(0))
    assert sender.credit_bytes() == 10_000 - encoded_size(frame_of(0))


def test_what_is_in_flight_never_exceeds_the_window(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=10_000)
    for _ in range(5):
        fill(sender, lambda number: frame_of(number, 900))
        assert 9000 <= sender.statistics().in_flight_bytes <= 10_000
        while receiver.try_receive() is not None and receiver.statistics().in_flight_bytes < 5000:
            pass
        while (received := receiver.try_receive()) is not None:
            received.release()


def test_a_slow_receiver_stops_the_sender_which_goes_on_after_a_release(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=10_000)
    sent = fill(sender)
    assert not sender.try_send(frame_of(sent))
    assert sender.statistics().blocked == 2
    for number in range(sent):
        assert take_frame(receiver) == frame_of(number)
    assert sender.try_send(frame_of(sent))
    assert take_frame(receiver) == frame_of(sent)


def test_receiving_without_releasing_returns_no_credit(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=10_000)
    fill(sender)
    while receiver.try_receive() is not None:
        pass
    assert not sender.try_send(frame_of(0))


def test_a_frame_larger_than_the_window_passes_when_it_is_empty(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=1000)
    large = frame_of(0, 100_000)
    assert sender.try_send(large)
    assert not sender.try_send(frame_of(1, 0))
    assert take_frame(receiver) == large
    assert sender.try_send(frame_of(1, 0))


def test_a_frame_larger_than_the_window_waits_while_anything_is_in_flight(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=1000)
    assert sender.try_send(frame_of(0, 0))
    assert not sender.try_send(frame_of(1, 100_000))
    take(receiver).release()
    assert sender.try_send(frame_of(1, 100_000))


def test_frames_from_empty_to_the_limit_pass(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    room = sender.limit_bytes - encoded_size(Frame(FrameKind.DATA, 0, bytes(16), 0, 0, b"", b""))
    for size in (0, 1, room - 64, room - 1, room, 0, room):
        frame = Frame(FrameKind.DATA, 0, bytes(16), 0, 0, b"", b"x" * size)
        if not sender.try_send(frame):
            # A ring may have to move its receiver to the front first; that is no frame.
            assert receiver.try_receive() is None
            assert sender.try_send(frame)
        assert take_frame(receiver) == frame


def test_a_frame_over_the_limit_is_refused_and_the_link_stays_good(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    with pytest.raises(FrameOversizeError, match="the limit is"):
        sender.try_send(frame_of(0, sender.limit_bytes))
    assert sender.try_send(frame_of(1))
    assert take_frame(receiver) == frame_of(1)


def test_frames_released_out_of_order_all_return_their_credit(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=10_000)
    for lap in range(20):
        count = fill(sender)
        held = [take(receiver) for _ in range(count)]
        for index in [*range(1, count, 2), *range(0, count, 2)]:
            assert held[index].frame.body == frame_of(index).body, lap
            held[index].release()
        assert sender.credit_bytes() == 10_000


def test_credit_released_but_not_granted_makes_no_fraud(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=10_000)
    held = [take(receiver) for _ in range(fill(sender))]
    for received in held[: len(held) // 8]:
        received.release()
    for received in held[len(held) // 8 :]:
        fill(sender)
        while receiver.try_receive() is not None:
            pass
        received.release()


def test_a_second_release_changes_nothing(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    received = take(receiver)
    received.release()
    received.release()
    assert receiver.statistics().in_flight_bytes == 0


def test_a_released_frame_cannot_be_looked_at(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    received = take(receiver)
    received.release()
    with pytest.raises(RuntimeError, match="released"):
        _ = received.frame


def test_a_close_comes_after_all_that_was_sent(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    for number in range(3):
        assert sender.try_send(frame_of(number))
    sender.close()
    assert [take_frame(receiver).first for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(LinkClosed):
            receiver.try_receive()


def test_nothing_can_be_sent_after_a_close(make_pair: MakePair) -> None:
    sender, _ = make_pair()
    sender.close()
    with pytest.raises(LinkClosed):
        sender.try_send(frame_of(0))


def test_a_sender_sees_when_all_that_it_sent_has_been_released(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    sender.close()
    assert sender.statistics().in_flight_bytes > 0
    take(receiver).release()
    assert sender.statistics().in_flight_bytes == 0


def test_an_abort_by_the_sender_reaches_the_receiver_with_its_reason(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    sender.abort("the stage raised")
    with pytest.raises(LinkAborted, match="sender: the stage raised") as caught:
        receiver.try_receive()
    assert (caught.value.by, caught.value.reason) == ("sender", "the stage raised")


def test_an_abort_by_the_receiver_reaches_the_sender_with_its_reason(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    receiver.abort("disk full")
    with pytest.raises(LinkAborted, match="receiver: disk full"):
        sender.try_send(frame_of(0))
    with pytest.raises(LinkAborted):
        sender.credit_bytes()


def test_the_first_reason_of_an_abort_stays(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    sender.abort("first")
    sender.abort("second")
    with pytest.raises(LinkAborted, match="first"):
        receiver.try_receive()


def test_an_abort_after_a_close_still_cuts(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    sender.close()
    sender.abort("changed my mind")
    with pytest.raises(LinkAborted):
        receiver.try_receive()


def test_a_frame_may_be_released_after_the_abort(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    received = take(receiver)
    sender.abort("gone")
    received.release()


def test_an_armed_receiver_is_woken_by_a_frame(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert receiver.arm()
    assert not readable(receiver.fileno())
    assert sender.try_send(frame_of(0))
    assert becomes_readable(receiver.fileno())
    receiver.disarm()
    assert not readable(receiver.fileno())


def test_a_disarmed_end_is_left_in_peace(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert receiver.arm()
    receiver.disarm()
    assert sender.try_send(frame_of(0))
    assert not readable(receiver.fileno())


def test_a_receiver_does_not_arm_over_a_waiting_frame(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    assert not receiver.arm()


def test_a_refused_sender_is_woken_by_returned_credit(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=1000)
    fill(sender)
    assert sender.arm()
    assert not readable(sender.fileno())
    while (received := receiver.try_receive()) is not None:
        received.release()
    assert becomes_readable(sender.fileno())
    sender.disarm()
    assert sender.try_send(frame_of(0))


def test_a_sender_does_not_arm_over_credit_that_came_after_its_refusal(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=1000)
    fill(sender)
    while (received := receiver.try_receive()) is not None:
        received.release()
    assert not sender.arm()


def test_a_counter_takes_no_news_from_a_sender_falling_asleep(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=1000)
    fill(sender)
    while (received := receiver.try_receive()) is not None:
        received.release()
    # As a task does that reports its progress between a refused batch and its sleep.
    assert sender.statistics().in_flight_bytes == 0
    assert sender.has_news()
    assert not sender.arm()
    assert sender.try_send(frame_of(0))
    assert not sender.has_news()


def test_a_busy_link_wakes_nobody(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    for number in range(100):
        assert sender.try_send(frame_of(number))
        assert take_frame(receiver) == frame_of(number)
    assert sender.statistics().wakes == receiver.statistics().wakes == 0
    assert not readable(sender.fileno())
    assert not readable(receiver.fileno())


@pytest.mark.parametrize("end", ["close", "abort"])
def test_an_armed_receiver_is_woken_by_the_end(make_pair: MakePair, end: str) -> None:
    sender, receiver = make_pair()
    assert receiver.arm()
    sender.close() if end == "close" else sender.abort("gone")
    assert becomes_readable(receiver.fileno())
    receiver.disarm()
    assert not receiver.arm()


def test_an_armed_sender_is_woken_by_an_abort(make_pair: MakePair) -> None:
    sender, receiver = make_pair(window_bytes=1000)
    fill(sender)
    assert sender.arm()
    receiver.abort("gone")
    assert becomes_readable(sender.fileno())
    sender.disarm()
    assert not sender.arm()


def test_a_wait_ends_at_its_deadline(make_pair: MakePair) -> None:
    _, receiver = make_pair()
    assert not wait_any([receiver], 0.0)


def test_a_wait_on_several_links_ends_with_the_first_that_has_news(make_pair: MakePair) -> None:
    pairs = [make_pair() for _ in range(3)]
    pairs[1][0].try_send(frame_of(0))
    assert wait_any([receiver for _, receiver in pairs], PATIENCE_S)


def test_statistics_count_frames_and_bytes_at_both_ends(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    sizes = [encoded_size(frame_of(number, number * 100)) for number in range(5)]
    for number in range(5):
        assert sender.try_send(frame_of(number, number * 100))
    for _ in sizes:
        take_frame(receiver)
    for statistics in (sender.statistics(), receiver.statistics()):
        assert (statistics.frames, statistics.frame_bytes, statistics.in_flight_bytes) == (5, sum(sizes), 0)


def test_two_threads_that_sleep_and_wake_lose_no_frame(make_pair: MakePair) -> None:
    sender, receiver = bare(make_pair(window_bytes=2000))
    seen: list[int] = []

    def consume() -> None:
        try:
            while True:
                received = receiver.try_receive()
                if received is None:
                    assert wait_any([receiver], PATIENCE_S)
                else:
                    seen.append(received.frame.first)
                    received.release()
        except LinkClosed:
            pass

    thread = threading.Thread(target=consume)
    thread.start()
    for number in range(3000):
        while not sender.try_send(frame_of(number, number % 500)):
            assert wait_any([sender], PATIENCE_S)
    sender.close()
    thread.join(PATIENCE_S)
    assert seen == list(range(3000))


def test_detaching_while_a_view_is_still_in_use_is_quiet(make_pair: MakePair) -> None:
    sender, receiver = make_pair()
    assert sender.try_send(frame_of(0))
    view = memoryview(take(receiver).frame.body)[:1]
    receiver.detach()
    assert bytes(view) == frame_of(0).body[:1]


def test_several_senders_reach_one_receiving_task_and_it_answers_each(make_pair: MakePair) -> None:
    there = [make_pair() for _ in range(4)]
    back = [make_pair() for _ in range(4)]
    for number in range(5):
        for index, (sender, _) in enumerate(there):
            assert sender.try_send(frame_of(10 * index + number, 500))
    for number in range(5):
        for index, (_, receiver) in enumerate(there):
            frame = take_frame(receiver)
            assert frame == frame_of(10 * index + number, 500)
            assert back[index][0].try_send(frame)
    for index, (_, receiver) in enumerate(back):
        assert [take_frame(receiver).first for _ in range(5)] == [10 * index + number for number in range(5)]


@pytest.mark.parametrize(
    "step", ["before the first frame", "with a frame on its way", "with a frame held", "after all"]
)
@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_an_end_given_up_at_any_step_is_told_over(make_pair: MakePair, step: str, end: str) -> None:
    sender, receiver = make_pair()
    if step != "before the first frame":
        assert sender.try_send(frame_of(0))
    held = take(receiver) if step in ("with a frame held", "after all") else None
    if held is not None and step == "after all":
        held.release()
    (sender if end == "sender" else receiver).abort("it died")
    for verb in (sender.credit_bytes, receiver.try_receive):
        with pytest.raises(LinkAborted, match=f"{end}: it died"):
            verb()
    if held is not None:
        held.release()
