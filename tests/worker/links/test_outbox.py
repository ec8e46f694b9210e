"""Which replica gets a batch."""

from typing import cast

from headrace.transport.contract import Sender
from headrace.transport.core.frame import Frame, FrameKind
from headrace.worker.links.ends import Outbox
from tests.kits.transport.inline import InlineReceiver, InlineSender, create_inline

FRAME = Frame(kind=FrameKind.DATA, epoch=1, fragment=bytes(16), first=0, count=1, metadata=b"", body=b"")


class Link:
    """A link whose receiver gives its credit back at once, or never."""

    def __init__(self, credit: int, *, returns: bool = True) -> None:
        self.credit, self.returns, self.frames = credit, returns, 0

    def credit_bytes(self) -> int:
        return self.credit

    def try_send(self, frame: Frame) -> bool:
        if self.credit <= 0:
            return False
        self.frames += 1
        self.credit -= 0 if self.returns else 1
        return True


def outbox_of(**links: Link) -> Outbox:
    outbox = Outbox(("write",), lambda _link, _reason: None)
    for name, link in links.items():
        outbox.open("write", name, cast("Sender", link))
    return outbox


def test_replicas_that_keep_up_share_the_batches() -> None:
    links = {"a": Link(8), "b": Link(8), "c": Link(8)}
    outbox = outbox_of(**links)
    for _ in range(12):
        outbox.put(FRAME)
    assert [link.frames for link in links.values()] == [4, 4, 4]


def test_a_batch_goes_where_the_most_credit_is() -> None:
    links = {"slow": Link(3, returns=False), "quick": Link(8)}
    outbox = outbox_of(**links)
    for _ in range(5):
        outbox.put(FRAME)
    assert [link.frames for link in links.values()] == [0, 5]


def test_a_replica_that_comes_back_is_served_first() -> None:
    links = {"a": Link(8), "b": Link(8)}
    outbox = outbox_of(**links)
    outbox.put(FRAME)
    outbox.put(FRAME)
    outbox.close("b")
    again = Link(8)
    outbox.open("write", "b", cast("Sender", again))
    outbox.put(FRAME)
    assert again.frames == 1


def test_a_batch_without_credit_anywhere_waits() -> None:
    outbox = outbox_of(a=Link(0))
    outbox.put(FRAME)
    assert not outbox.empty


def filled(name: str) -> tuple[InlineSender, InlineReceiver]:
    """A link whose window one frame fills, with that frame in it."""
    sender, receiver = create_inline(name, 1)
    assert sender.try_send(FRAME)
    return sender, receiver


def give_back(receiver: InlineReceiver) -> None:
    received = receiver.try_receive()
    assert received is not None
    received.release()


def sleeps(outbox: Outbox) -> bool:
    """Whether a task that waits for this outbox does sleep."""
    armed = [sender.arm() for sender in outbox.awaited()]
    for sender in outbox.awaited():
        sender.disarm()
    return all(armed)


def test_a_task_waiting_for_one_stage_sleeps_through_others_credit() -> None:
    outbox = Outbox(("write", "count"), lambda _link, _reason: None)
    (busy, far_busy), (idle, far_idle) = filled("busy"), filled("idle")
    outbox.open("write", "busy", busy)
    outbox.open("count", "idle", idle)
    outbox.put(FRAME)
    give_back(far_idle)
    assert not outbox.flush()
    assert sleeps(outbox)
    give_back(far_busy)
    assert not sleeps(outbox)
    assert outbox.flush()
    assert outbox.empty


def test_a_task_whose_marker_waits_has_sent_the_others() -> None:
    outbox = Outbox(("write",), lambda _link, _reason: None)
    links = {name: filled(name) for name in ("a", "b", "c")}
    for name, (sender, _) in links.items():
        outbox.open("write", name, sender)
    give_back(links["b"][1])
    assert not outbox.mark(FRAME, 1)
    # The marker is on its way to b, and gives its credit back.
    give_back(links["b"][1])
    assert not outbox.mark(FRAME, 1)
    assert sleeps(outbox)
    for name in ("a", "c"):
        give_back(links[name][1])
    assert not sleeps(outbox)
    assert outbox.mark(FRAME, 1)
    assert [link.try_receive() is None for _, link in links.values()] == [False, True, False]
