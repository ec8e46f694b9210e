"""The ends of links that a task has: inputs, outputs, and where it asks a decider or is one, questions and answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import Batch
from headrace.transport import LinkEnd, Receiver, Sender, TransportError
from headrace.transport.core import Frame
from headrace.worker.links import DESCRIPTORS, Attached, Inbox, Outbox, attach
from headrace.worker.task.chain import Chain
from headrace.worker.task.channel import Channel
from headrace.worker.task.codec import batch_to_frame, sweep_frame
from headrace.worker.task.consultation import Answers, PartitionRequests, Questions
from headrace.worker.task.core import messages

if TYPE_CHECKING:
    from headrace.worker.links import Remote

logger = logging.getLogger("headrace.task")


class TaskLinks:
    """Opens and closes ends as the worker says, and tells `do` of inputs and `lost` of links that were cut."""

    def __init__(
        self,
        chain: Chain,
        epoch: int,
        channel: Channel,
        remote: Remote | None,
        do: Callable[[messages.Event], object],
        lost: Callable[[pb.LinkLost], None],
    ) -> None:
        self._epoch, self._channel, self._remote, self._do, self._lost = epoch, channel, remote, do, lost
        self._direct = chain.direct
        self._past_decider = tuple(stage for stage in chain.downstream if stage not in chain.direct)
        self.inbox = Inbox[Frame](self._input_closed, self._cut)
        self._outbox = Outbox[Frame](chain.downstream, self._cut)
        self.questions = Questions(chain.asks, chain.asks_number, epoch, self._cut) if chain.asks else None
        self._answers = Answers(epoch, self._cut) if chain.decides else None
        #: In a task that decides: the partitions of its index, if it has any.
        self.partitions = PartitionRequests[Frame, bytes](chain.partitions, self._cut) if chain.partitions else None
        self._decides = chain.dedup.name if chain.dedup is not None else ""
        #: In a task that decides: the task at the other end of each link with questions.
        self._askers: dict[str, str] = {}
        self._links: dict[str, Attached] = {}
        #: Links between workers, and which making of each this task has an end of.
        self._generations: dict[str, int] = {}

    @property
    def unsent(self) -> bool:
        """Whether a frame waits for credit, and no batch may be taken before it is sent."""
        asks = self.questions is not None and self.questions.unsent
        return asks or not self._outbox.empty or (self._answers is not None and self._answers.unsent)

    def send(self, batch: Batch, *, decided: bool = False) -> None:
        """Send a batch to the stages that follow; `decided`: only to those past the decider."""
        self._outbox.put(batch_to_frame(batch, self._epoch), self._past_decider if decided else None)

    def ask(self, question: messages.AskDecider[Batch]) -> None:
        """Ask the decider; stages that follow and are not past it have the batch as it is."""
        assert self.questions is not None
        if self._direct and not question.again:
            self._outbox.put(batch_to_frame(question.batch, self._epoch), self._direct)
        self.questions.ask(question.number, question.batch)

    def answer(self, link: str, batch: Batch | bytes) -> None:
        """Answer the question, or request, that came on a link."""
        assert self._answers is not None
        if link in self._askers:
            self._answers.put(self._askers[link], batch)

    def mark(self, sweep: int) -> bool:
        """Send the marker of a sweep; False if a link had no room."""
        return self._outbox.mark(sweep_frame(sweep, self._epoch), sweep)

    def flush(self) -> bool:
        """Send batches and questions that wait for credit; whether anything moved."""
        moved = self._outbox.flush()
        return (self.questions is not None and self.questions.flush()) or moved

    def flush_answers(self) -> bool:
        """Send answers and requests that wait for credit; whether anything moved."""
        moved = self._answers is not None and self._answers.flush()
        return (self.partitions is not None and self.partitions.flush()) or moved

    def finish(self) -> None:
        """Close in order what this task sends on."""
        for part in (self._outbox, self.questions, self._answers, self.partitions):
            if part is not None:
                part.finish()

    def awaited(self, *, marks: bool, receives: bool) -> list[LinkEnd]:
        """The ends to wait on: what waits for credit or, if it `marks`, all outputs; inputs if it `receives`."""
        ends: list[object] = []
        if marks or not self._outbox.empty:
            ends += self._outbox.awaited()
        if receives:
            ends += self.inbox.receivers()
        for part in (self.questions, self._answers, self.partitions):
            ends += part.awaited() if part is not None else ()
        return cast("list[LinkEnd]", ends)

    def progress(self) -> list[pb.LinkProgress]:
        """A row a link."""
        rows: list[pb.LinkProgress] = []
        for name, attached in self._links.items():
            seen = attached.end.statistics()
            row = pb.LinkProgress(link=name, frames=seen.frames, bytes=seen.frame_bytes, blocked=seen.blocked)
            row.in_flight_bytes = seen.in_flight_bytes
            row.via = self._remote.via(name) if self._remote is not None else ""
            rows.append(row)
        return rows

    def open(self, message: pb.OpenLink) -> None:
        """The worker brings an end of a link."""
        name = message.link.link
        if message.transport == "quic":
            self.close(name)
            if self._remote is None:
                raise TransportError(f"link {name}: this task was started without a certificate, and cannot be reached")
            attached = Attached(self._remote.attach(message))
        else:
            descriptors = [self._channel.descriptors.popleft() for _ in range(DESCRIPTORS[message.transport])]
            attached = attach(message, tuple(descriptors))
            self.close(name)
        self._links[name] = attached
        if message.far or message.transport == "quic":
            self._generations[name] = message.link.generation
        logger.info("%s link %s of %s", "sends on" if message.link.sends else "receives on", name, message.transport)
        self._place(message.link, attached.end)

    def _place(self, link: pb.LinkEnd, end: Sender | Receiver) -> None:
        if self.questions is not None and link.stage == self.questions.stage:
            self.questions.open(link.link, end, sends=link.sends)
            self._do(messages.DeciderJoined())
        elif self.partitions is not None and link.stage == self._decides:
            self.partitions.open(link.peer, link.link, end, sends=link.sends)
            self._do(messages.DeciderJoined())
        elif self._answers is not None and link.sends:
            self._answers.open(link.peer, link.link, cast("Sender", end))
        elif link.sends:
            self._outbox.open(link.stage, link.link, cast("Sender", end))
        else:
            self.inbox.open(link.link, cast("Receiver", end))
            if self._answers is not None:
                # A question is with its asking task: no marker comes on this link.
                self._askers[link.link] = link.peer
            else:
                self._do(messages.LinkOpened(link.link))

    def close(self, name: str) -> None:
        """The worker says that a link is gone."""
        if name in self._links:
            for part in (self.inbox, self._outbox, self.questions, self._answers, self.partitions):
                if part is not None:
                    part.close(name)
            self._generations.pop(name, None)
            self._links.pop(name).detach()
            if self._remote is not None:
                self._remote.detach(name)

    def _input_closed(self, link: str) -> None:
        self._do(messages.InputClosed(link))

    def _cut(self, name: str, reason: str) -> None:
        """A link between workers is cut while both tasks live: the controller has it made again."""
        generation = self._generations.get(name)
        if generation is not None:
            unreachable = self._remote is not None and self._remote.unreachable(name)
            self.close(name)
            logger.warning("link %s is cut: %s", name, reason)
            self._lost(pb.LinkLost(link=name, generation=generation, reason=reason, unreachable=unreachable))
