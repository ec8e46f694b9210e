"""How tasks ask a decider which of their records are duplicates, and how it asks the partitions of its index.

A question is a batch without its texts. The decider takes it as any batch, and its answer holds the verdicts alone.
The number of a question stands where a batch has its offset, which neither needs. An answer of no record says that
the decider is fenced: it has let nothing through, and the batch is read again in the next epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from headrace.protos import control_pb2 as pb
from headrace.stages.dedup import KEYS, SKETCH, numbered_column, partitions as core
from headrace.stages.runtime import PART, ROW, Batch, join_verdicts, no_verdicts, ordinals_of
from headrace.transport import FrameError, LinkAborted, Receiver, Sender, TransportError
from headrace.transport.core import Frame, FrameKind, body_view
from headrace.worker.links import Inbox, Outbox
from headrace.worker.task.batch import InFlightPage
from headrace.worker.task.chain import Chain
from headrace.worker.task.codec import FRAGMENT_BYTES, batch_to_frame, frame_to_batch
from headrace.worker.task.core import messages
from headrace.worker.task.core.asked import WAITING_MAX
from headrace.worker.task.core.task import epoch_fault
from headrace.worker.task.dependencies import decide

#: Answers that wait for credit of one asking task, behind which the decider takes no question.
ANSWERS_MAX = 2 * WAITING_MAX


class Questions:
    """The links of a task that asks: questions go out, answers come in, whatever else the task is at."""

    def __init__(self, stage: str, number: int, epoch: int, cut: Callable[[str, str], None]) -> None:
        self.stage, self._number, self._epoch = stage, number, epoch
        self._out = Outbox[Frame]((stage,), cut)
        self._in = Inbox[Frame](lambda _link: None, cut)

    @property
    def unsent(self) -> bool:
        """Whether a question waits for credit."""
        return not self._out.empty

    def open(self, link: str, end: Sender | Receiver, *, sends: bool) -> None:
        """A link stands. What waits is dropped: it is asked again."""
        if sends:
            self._out.clear()
            self._out.open(self.stage, link, end)  # type: ignore[arg-type]
        else:
            self._in.open(link, end)  # type: ignore[arg-type]

    def close(self, link: str) -> None:
        """A link is gone."""
        self._out.close(link)
        self._in.close(link)

    def ask(self, number: int, batch: Batch) -> None:
        """Send a question."""
        self._out.put(batch_to_frame(_question(batch, number, self._number), self._epoch))

    def flush(self) -> bool:
        """Send what waits; whether anything moved."""
        return self._out.flush()

    def receive(self, take: Callable[[str, Frame], None]) -> bool:
        """Give the next answer to `take`; False if there is none."""
        return self._in.receive(take)

    def awaited(self) -> list[Any]:
        """The ends to wait on."""
        return [*self._in.receivers(), *(self._out.awaited() if self.unsent else ())]

    def finish(self) -> None:
        """Close what it sends on."""
        self._out.finish()


class Answers:
    """The links on which a decider answers, by the task that asked."""

    def __init__(self, epoch: int, cut: Callable[[str, str], None]) -> None:
        self._epoch, self._cut = epoch, cut
        self._links: dict[str, tuple[str, Sender]] = {}
        self._waiting: dict[str, deque[Frame]] = {}
        #: Answers to questions that came before the link to their asking task stood: that one does not ask again.
        self._early: dict[str, deque[Frame]] = {}

    @property
    def unsent(self) -> bool:
        """Whether a task does not take its answers: no question is taken meanwhile."""
        return any(len(waiting) >= ANSWERS_MAX for waiting in self._waiting.values())

    def open(self, asking_task: str, link: str, sender: Sender) -> None:
        """The link to an asking task stands. What it was not told before this link was made, it asks again."""
        self._links[asking_task], self._waiting[asking_task] = (
            (link, sender),
            self._early.pop(asking_task, deque[Frame]()),
        )
        self.flush()

    def close(self, link: str) -> None:
        """A link is gone."""
        for asking_task in [asking_task for asking_task, (name, _) in self._links.items() if name == link]:
            del self._links[asking_task], self._waiting[asking_task]

    def put(self, asking_task: str, batch: Batch | bytes) -> None:
        """Answer a question, or a request, when the link to the asking task stands."""
        frame = (
            frame_of(batch, self._epoch) if isinstance(batch, bytes) else batch_to_frame(_answer(batch), self._epoch)
        )
        if asking_task in self._waiting:
            self._waiting[asking_task].append(frame)
            self.flush()
        else:
            self._early.setdefault(asking_task, deque(maxlen=ANSWERS_MAX)).append(frame)

    def flush(self) -> bool:
        """Send what waits; whether anything moved."""
        moved = False
        for asking_task, waiting in list(self._waiting.items()):
            link, sender = self._links[asking_task]
            try:
                while waiting and sender.try_send(waiting[0]):
                    waiting.popleft()
                    moved = True
            except LinkAborted as end:
                self.close(link)
                self._cut(link, end.reason)
        return moved

    def awaited(self) -> list[Any]:
        """The ends to wait on."""
        return [self._links[asking_task][1] for asking_task, waiting in self._waiting.items() if waiting]

    def finish(self) -> None:
        """Close every link in order."""
        for _, sender in self._links.values():
            sender.close()


def _question(batch: Batch, number: int, dedup: int) -> Batch:
    """What dedup stage `dedup` has to know of a batch."""
    wanted = (ROW, PART, "id", numbered_column(KEYS, dedup), numbered_column(SKETCH, dedup))
    columns = [name for name in wanted if name in batch.rows.schema.names]
    lean = replace(batch, rows=batch.rows.select(columns), verdicts=no_verdicts(), offset=number)
    return replace(lean, edits={}, counters={}, scratch=None)


def none_let_through(question: Batch) -> Batch:
    """The answer of a fenced decider."""
    return replace(question, count=0, verdicts=no_verdicts())


def _answer(decided: Batch) -> Batch:
    return replace(decided, rows=decided.rows.select([ROW]).slice(0, 0))


def frame_of(message: bytes, epoch: int) -> Frame:
    """The frame of a request to a partition, or of its answer."""
    return Frame(
        FrameKind.DATA, epoch=epoch, fragment=bytes(FRAGMENT_BYTES), first=0, count=0, metadata=b"", body=message
    )


def answer_from(frame: Frame) -> tuple[int, Batch | None]:
    """The number of the question that a frame answers, and the answer; None from a fenced decider. FrameError."""
    batch = frame_to_batch(frame)
    return batch.offset, batch if batch.count else None


def without_duplicates(batch: Batch, answer: Batch) -> Batch:
    """A batch less the records that the answer to it calls duplicates. FrameError for an answer of another batch."""
    if (answer.fragment, answer.first, answer.count) != (batch.fragment, batch.first, batch.count):
        raise FrameError(f"the answer to a question about records {batch.first} on is of records {answer.first} on")
    if not answer.verdicts.num_rows:
        return batch
    # Here, since Arrow's functions take longer to import than all else that a task needs.
    from headrace.stages.runtime import with_samples

    lost = np.isin(ordinals_of(batch.rows.column(ROW)), ordinals_of(answer.verdicts.column("row")))
    rows = batch.rows.filter(pa.array(~lost))
    return with_samples(replace(batch, rows=rows, verdicts=join_verdicts(batch.verdicts, answer.verdicts)), batch)


F = TypeVar("F")
A = TypeVar("A")


def partition_of(task: str, partitions: int) -> int:
    """Which of so many partitions a task is, by its name (`roles_of`). ValueError for the one that decides."""
    role = int(task.rpartition(".")[2]) % (partitions + 1)
    if not role:
        raise ValueError(f"task {task} is no partition of an index")
    return role - 1


class PartitionRequests(Generic[F, A]):
    """The links of a decider with its partitions. A frame holds a request, or an answer."""

    def __init__(self, partitions: int, cut: Callable[[str, str], None]) -> None:
        self._partitions = partitions
        self._open = core.OpenRequests[F, A](partitions)
        self._out = [Outbox[F]((str(at),), cut) for at in range(partitions)]
        self._in = Inbox[F](lambda _link: None, cut)
        self._partition: dict[str, int] = {}

    def open(self, task: str, link: str, end: Any, *, sends: bool) -> None:
        """A link with a task stands. What waits for it is dropped: it is asked again."""
        partition = partition_of(task, self._partitions)
        if sends:
            self._out[partition].clear()
            self._out[partition].open(str(partition), link, end)
        else:
            self._partition[link] = partition
            self._in.open(link, end)

    def close(self, link: str) -> None:
        """A link is gone."""
        self._in.close(link)
        self._partition.pop(link, None)
        for outbox in self._out:
            outbox.close(link)

    def ask(self, requests: list[F]) -> None:
        """Send each partition its request."""
        self._open.ask(requests)
        self.ask_again()

    def ask_again(self) -> None:
        """Send the requests that have no answer: they may have been lost, or their answers."""
        for partition, request in self._open.unanswered():
            self._out[partition].clear()
            self._out[partition].put(request)

    def flush(self) -> bool:
        """Send what waits for credit; whether anything moved."""
        moved = False
        for outbox in self._out:
            moved = outbox.flush() or moved
        return moved

    def receive(self, read: Callable[[str, F], tuple[int, A]], take: Callable[[list[A]], None]) -> bool:
        """Take the next answer, which is `read`; give all to `take` when they are there. False if there is none."""
        return self._in.receive(lambda link, frame: self._received(link, *read(link, frame), take))

    def _received(self, link: str, number: int, answer: A, take: Callable[[list[A]], None]) -> None:
        answers = self._open.answered(self._partition[link], number, answer)
        if answers is not None:
            take(answers)

    def awaited(self) -> list[Any]:
        """The ends to wait on."""
        return [*self._in.receivers(), *(end for outbox in self._out if not outbox.empty for end in outbox.awaited())]

    def finish(self) -> None:
        """Close what it sends on."""
        for outbox in self._out:
            outbox.finish()


class ConsultedPartitions:
    """What a decider does about the partitions of its index: ask them, and decide with their answers.

    A question is a batch, or the record of a solitary task.
    """

    def __init__(
        self,
        chain: Chain,
        links: PartitionRequests[Frame, bytes],
        epoch: int,
        in_flight: InFlightPage,
        do: Callable[[messages.Event], object],
        say: Callable[[pb.DecisionMade], None],
    ) -> None:
        assert chain.dedup is not None
        self._chain, self._dedup, self._links, self._epoch = chain, chain.dedup, links, epoch
        self._in_flight, self._do, self._say = in_flight, do, say
        self._asked = 0

    def ask(self, command: messages.AskDecider[Batch | pb.AskDecision]) -> None:
        """Ask all of them, or again those that have not answered."""
        if command.again:
            self._links.ask_again()
            return
        self._asked = command.number
        requests = self._dedup.requests(_keys_in(command.batch))
        self._links.ask([frame_of(request, self._epoch) for request in requests])

    def take_answers(self) -> bool:
        """Take what they have answered; whether anything came. ValueError for what is no answer."""
        moved = False
        while self._links.receive(self._read, self._answered):
            moved = True
        return moved

    def decided(self, question: Batch | pb.AskDecision, answers: list[bytes]) -> None:
        """All have answered: decide."""
        self._dedup.answered(_keys_in(question), answers)
        if isinstance(question, Batch):
            self._do(messages.BatchDecided(self._chain.decided(question)))
        else:
            self._say(decide(self._chain, self._in_flight, question))

    def _read(self, link: str, frame: Frame) -> tuple[int, bytes]:
        if fault := epoch_fault(link, frame.epoch, self._epoch):
            raise TransportError(fault)
        answer = bytes(body_view(frame))
        return core.decode_answer(answer)[0], answer

    def _answered(self, answers: list[bytes]) -> None:
        fenced = any(core.decode_answer(answer)[1] is None for answer in answers)
        if fenced:
            self._dedup.forbid()
        self._do(messages.AnswerArrived(self._asked, None if fenced else answers))


def _keys_in(question: Batch | pb.AskDecision) -> Batch | bytes:
    return question if isinstance(question, Batch) else question.question.keys
