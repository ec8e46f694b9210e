"""What becomes of a link of which one end alone could be handed out."""

import asyncio
import errno
import os
from collections.abc import Sequence

import msgpack
import pytest

from headrace.protos import control_pb2 as pb
from headrace.transport import LinkAborted
from headrace.transport.pipe.pipe import PipeHandles, PipeSender
from headrace.transport.ring.memory import RingHandles
from headrace.transport.ring.ring import RingSender
from headrace.worker.links import handoff
from headrace.worker.links.host import PIPE, HostLinks
from tests.kits.host.descriptors import open_count


class Ends:
    """Links of whose ends the sender's task takes its own; nothing can be passed to the receiver's."""

    def __init__(self) -> None:
        self.links = HostLinks(self._send, lambda *told: self.lost.append(told))
        self.lost: list[tuple[object, ...]] = []
        self.sender: RingSender | PipeSender | None = None

    def _send(self, task: str, _attempt: int, command: pb.TaskCommand, descriptors: Sequence[int]) -> None:
        if task == "p/b.0":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        own = [os.dup(descriptor) for descriptor in descriptors]
        description = msgpack.unpackb(command.open.handles)
        if command.open.transport == PIPE:
            write, control = own
            pipe = PipeHandles.from_description(description).with_descriptors(-1, write, -1, control)
            self.sender = PipeSender(pipe)
        else:
            self.sender = RingSender(RingHandles.from_description(description).with_descriptors(*own))

    def make(self, transport: str, *, receives: bool) -> None:
        message = pb.MakeLink(link="p/a.0->b.0", transport=transport, generation=2)
        message.sender, message.sender_attempt, message.receiver, message.receiver_attempt = "p/a.0", 1, "p/b.0", 1
        message.sender_end.sends = True
        self.links.make(message, sends=True, receives=receives)


@pytest.mark.parametrize("transport", ["ring", PIPE])
@pytest.mark.parametrize("here", [True, False])
def test_a_link_without_its_receiver_is_cut_at_its_sender(
    transport: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def scenario() -> Ends:
        ends, before = Ends(), open_count()
        # The way to the receiver, where that is a task of another worker.
        monkeypatch.setattr(handoff, "_packets", no_socket)
        ends.make(transport, receives=here)
        assert ends.sender is not None
        with pytest.raises(LinkAborted):
            ends.sender.credit_bytes()
        ends.sender.detach()
        held = 3 if transport == "ring" else 0
        assert open_count() - before == held, "but for those of the sender itself"
        return ends

    [(end, name, generation, reason, apart)] = asyncio.run(scenario()).lost
    assert (end, name, generation, apart) == (("p/a.0", 1), "p/a.0->b.0", 2, False)
    assert "could not make it" in str(reason)
