"""How a decider asks the partitions of its index: a request to each at a time, and none before all have answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from headrace.protos import control_pb2 as pb
from headrace.stages.dedup import partitions as core
from headrace.stages.runtime import Batch
from headrace.transport import TransportError
from headrace.transport.core import Frame
from headrace.worker.links import Inbox, Outbox
from headrace.worker.task.batch import InFlightPage
from headrace.worker.task.chain import Chain
from headrace.worker.task.consultation import frame_of, message_of
from headrace.worker.task.core import messages
from headrace.worker.task.core.task import epoch_fault
from headrace.worker.task.dependencies import decide

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
        answer = message_of(frame)
        return core.decode_answer(answer)[0], answer

    def _answered(self, answers: list[bytes]) -> None:
        fenced = any(core.decode_answer(answer)[1] is None for answer in answers)
        if fenced:
            self._dedup.forbid()
        self._do(messages.AnswerArrived(self._asked, None if fenced else answers))


def _keys_in(question: Batch | pb.AskDecision) -> Batch | bytes:
    return question if isinstance(question, Batch) else question.question.keys
