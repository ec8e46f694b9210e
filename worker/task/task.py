"""A task: one process that runs one attempt of a fused chain of stages, and dies with its worker.

The forkserver (worker/task/forkserver_main.py) forks it. It talks to its worker over the control channel alone. A loop
on one thread takes commands, reads or receives a batch, runs the stages, hands the result to a sink or a link, and
sleeps when there is nothing to do; only a sink's writes run beside it.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

import setproctitle

from headrace.daemon import about, caused_by, keep_log_files
from headrace.pipeline import Pipeline, PipelineError
from headrace.protos import codec, control_pb2 as pb
from headrace.stages.runtime import ENVIRONMENT_OF, Batch, InputError, StageContractError, giving_back, unlike
from headrace.store import StoreError, StoreRefused, open_store
from headrace.store.ledger import Fragment
from headrace.transport import LinkEnd, TransportError
from headrace.transport.core import Frame, FrameKind, body_view
from headrace.worker.task import consultation
from headrace.worker.task.batch import ConservationError, InFlightPage, Tracer, ranges_of
from headrace.worker.task.chain import Chain, StageStatistics, Watch
from headrace.worker.task.channel import Channel, ChannelClosed
from headrace.worker.task.codec import frame_to_batch
from headrace.worker.task.core import messages
from headrace.worker.task.core.task import TaskCore, TaskState, epoch_fault
from headrace.worker.task.dependencies import (
    DuplicateDependencies,
    KeyWriter,
    begin_dedup,
    decide,
    fits,
    match_of,
    names_from,
    question_of,
    role_of,
    serve_index,
)
from headrace.worker.task.sink import TaskSink, log_proposal, policy_of
from headrace.worker.task.source import TaskSource
from headrace.worker.task.task_links import TaskLinks

if TYPE_CHECKING:
    from headrace.worker.links import Remote

logger = logging.getLogger("headrace.task")

#: Seconds between two reports of progress.
PROGRESS_S = 0.2
#: Fragments in one page of a listing.
PAGE_FRAGMENTS = 512
#: Seconds that a task which ends gives its worker to take what it has said.
LAST_WORDS_S = 2.0
#: What a task says in answer to a command bears the command's cause.
_ANSWERS = {"ready": "start", "listed": "list", "swept": "sweep"}
#: Exit code of a task that was told to stop.
STOPPED = 0
#: Exit code of a task whose worker is gone.
ORPHANED = 75


class Task:
    """The shell of one attempt."""

    def __init__(self, channel: Channel, start: pb.TaskCommand, in_flight: InFlightPage) -> None:
        order = start.start
        self._channel = channel
        self._task, self._attempt = start.task, start.attempt
        self._epoch = order.epoch
        self._pipeline = pipeline = Pipeline.from_dict(json.loads(order.pipeline_json))
        #: The cause of the last command of each kind.
        self._causes = {"start": start.cause}
        self._in_flight = in_flight
        self._chain = Chain(
            pipeline, list(order.stages), in_flight, alone=order.alone, replica=order.replica, takes_over=True
        )
        if unlike_here := unlike(pipeline.environment):
            self._chain.facts[f"{ENVIRONMENT_OF}{self._task}"] = "; ".join(unlike_here)
        self._remote = _remote(order)
        self._links = TaskLinks(
            self._chain, self._epoch, channel, self._remote, self._do, lambda lost: self._say(lost=lost)
        )
        #: The frame that has arrived, and on which link.
        self._frame: Frame | None = None
        self._came_on = ""
        self._listing: Iterator[Fragment | None] = iter(())
        self._progress_at = 0.0
        self._has_read = False
        self._sink: TaskSink | None = None
        if self._chain.sink is not None:
            self._chain.sink.begin(pipeline.name, order.version)
            self._sink = TaskSink(
                self._chain.sink_name,
                self._chain.sink,
                open_store(pipeline.dataset),
                version=order.version,
                epoch=order.epoch,
                policy=policy_of(order, self._chain.sink),
                in_flight=in_flight,
                dependencies=DuplicateDependencies.of(pipeline, self._chain.sink_name),
                key_writer=KeyWriter.of(pipeline, self._chain.sink_name),
            )
        begin_dedup(self._chain, pipeline, order)
        self._core = TaskCore[Batch | bytes, pb.Decision](
            order.epoch,
            reads=self._chain.source is not None,
            sink=self._sink.core if self._sink is not None else None,
            outputs=bool(self._chain.downstream),
            dedup=role_of(order, self._chain),
            attempt=start.attempt,
            waits=order.waits,
        )
        self._source = TaskSource(self._chain, self._core.reading)
        self._consulted: consultation.ConsultedPartitions | None = None
        if (links := self._links.partitions) is not None:
            self._consulted = consultation.ConsultedPartitions(
                self._chain, links, self._epoch, in_flight, self._do, lambda made: self._say(decided=made)
            )

    def run(self) -> int:
        """Work until told to stop; the exit code."""
        self._chain.tracer = tracer = Tracer.of(self._task, self._attempt, self._chain.source_name)
        addresses = self._remote.addresses() if self._remote is not None else []
        with caused_by(self._causes["start"]):
            logger.info("is ready", extra=about(**self._chain.facts))
        self._say(ready=pb.TaskReady(facts=self._chain.facts, addresses=addresses))
        while self._state() is not TaskState.STOPPED:
            self._take_commands()
            moved = self._take_answers()
            moved = self._do(messages.Turned(unsent=self._links.unsent)) or moved
            self._finish_up()
            if not moved:
                self._sleep()
        self._links.finish()
        for other in (self._remote, tracer):
            if other is not None:
                other.close()
        return STOPPED

    # -- one turn of the loop --

    def _state(self) -> TaskState:
        return self._core.state(time.monotonic(), unsent=self._links.unsent)

    def _do(self, event: messages.Event) -> bool:
        """Give the core an event and carry out what follows; whether anything moved."""
        moved = False
        for command in self._core.handle(event, time.monotonic()):
            moved = self._carry_out(command) or moved
        return moved

    def _carry_out(self, command: messages.Command) -> bool:
        match command:
            case messages.ReceiveFrame():
                return self._links.inbox.receive(self._received)
            case messages.ReadNext():
                self._read()
            case messages.ListPage():
                self._list(command.listing)
            case messages.SendUnsent():
                return self._links.flush()
            case messages.SendMarkers():
                return self._links.mark(command.sweep) and self._do(messages.MarkersSent(command.sweep))
            case messages.DropInput():
                self._source.halt()
                return False
            case messages.AnswerSweep():
                self._swept(command)
            case messages.PutQuestion():
                self._say(asked=question_of(self._chain, command.number, command.batch))
                return False
            case messages.Decide():
                self._say(decided=decide(self._chain, self._in_flight, command.question))
            case _:
                self._process(command)
        return True

    def _process(self, command: messages.BatchCommand) -> None:
        match command:
            case messages.ReceiveBatch():
                self._do(messages.BatchReceived(self._batch_in()))
            case messages.RefuseFrame():
                raise TransportError(command.reason)
            case messages.RunStages():
                self._run(command.batch)
            case messages.ResumeStages() if self._consulted is not None:
                self._consulted.decided(command.batch, command.decision)
            case messages.ResumeStages():
                self._resume(command.batch, command.decision)
            case messages.AskDecider():
                (self._consulted or self._links).ask(command)
            case messages.LetThroughNone():
                if self._chain.share is not None:
                    self._links.answer(self._came_on, self._chain.share.refuse(command.batch))
                elif isinstance(command.batch, Batch):
                    self._links.answer(self._came_on, consultation.none_let_through(command.batch))
            case messages.HoldBatch():
                self._hold(command.batch)
            case messages.SendBatch():
                if self._chain.decides:
                    self._links.answer(self._came_on, command.batch)
                else:
                    self._links.send(command.batch, decided=command.decided)
            case _:
                assert_never(command)

    def _resume(self, batch: Batch, decision: Batch | pb.Decision) -> None:
        if isinstance(decision, Batch):
            batch = self._chain.past_decider(consultation.without_duplicates(batch, decision))
        else:
            batch = self._chain.from_dedup(batch, match_of(decision))
        # A solitary task may come to another dedup stage.
        again = self._chain.asked_next is not None
        self._do(messages.BatchProcessed(batch, kept=True) if again else messages.BatchDecided(batch))

    def _batch_in(self) -> Batch | bytes:
        """What the frame that has arrived holds: a batch, or a request to a partition of an index."""
        assert self._frame is not None
        if self._chain.share is not None:
            return bytes(body_view(self._frame))
        return frame_to_batch(self._frame, borrow=self._chain.borrows)

    def _run(self, batch: Batch | bytes) -> None:
        if isinstance(batch, bytes):
            assert self._chain.share is not None
            self._do(messages.BatchProcessed(self._chain.share.serve(batch), kept=True))
            return
        giving_back.meets(batch.rows.nbytes, time.monotonic())
        batch = self._chain.to_be_asked(batch)
        self._do(messages.BatchProcessed(batch, kept=batch.rows.num_rows > 0))

    def _take_answers(self) -> bool:
        """Take what was answered to this task, and send what it answers, whatever it is at: neither waits."""
        moved = self._links.flush_answers()
        if self._consulted is not None:
            moved = self._consulted.take_answers() or moved
        if self._links.questions is not None:
            while self._links.questions.receive(self._answered):
                moved = True
        return moved

    def _answered(self, link: str, frame: Frame) -> None:
        if fault := epoch_fault(link, frame.epoch, self._epoch):
            raise TransportError(fault)
        self._do(messages.AnswerArrived(*consultation.answer_from(frame)))

    def _swept(self, command: messages.AnswerSweep) -> None:
        self._report(time.monotonic())
        answer = pb.Swept(sweep=command.sweep, fenced=command.fenced)
        for fragment, gaps in command.pending:
            answer.pending.append(pb.PendingFragment(fragment=fragment, gaps=codec.gaps_to(gaps)))
        if self._sink is not None:
            answer.held.append(pb.HeldRanges(sink=self._sink.name, ranges=map(codec.range_to, command.held)))
        self._say(swept=answer)

    def _list(self, listing: int) -> None:
        page = pb.FragmentsListed(stage=self._chain.source_name, listing=listing, all_below=self._chain.all_below())
        last = False
        try:
            for fragment in self._listing:
                if fragment is None:
                    self._do(messages.ListingPaused())
                    if not page.fragments:
                        return
                    break
                page.fragments.append(codec.fragment_to(fragment))
                if len(page.fragments) == PAGE_FRAGMENTS:
                    break
            else:
                page.last = last = True
                page.skipped = self._chain.skipped()
        except InputError as error:
            page.error, last = str(error), True
        self._say(listed=page)
        self._do(messages.PageListed(last))

    def _read(self) -> None:
        batch = self._source.read()
        if batch is not None:
            if not self._has_read:
                # The first is told at once, and not with the others every PROGRESS_S: it ends the start of a run.
                self._has_read = True
                self._report(time.monotonic(), sum(item.count for item in ranges_of(batch)))
            self._do(messages.BatchRead(batch, None if batch.members else ranges_of(batch)[0]))
        self._tell_reads(all_of_them=False)

    def _tell_reads(self, *, all_of_them: bool) -> None:
        if (reads := self._source.take_reads(all_of_them=all_of_them)) is not None:
            self._send(reads=reads)

    def _received(self, link: str, frame: Frame) -> None:
        self._frame, self._came_on = frame, link
        sweep = frame.first if frame.kind is FrameKind.SWEEP else None
        self._do(messages.FrameArrived(link, frame.epoch, sweep))
        self._frame = None

    def _hold(self, batch: Batch) -> None:
        assert self._sink is not None
        batch = self._chain.probe(batch)
        watch = Watch()
        self._sink.add(batch)
        self._chain.gathered(batch, watch)

    def _finish_up(self) -> None:
        """Timers, proposals, progress."""
        now = time.monotonic()
        giving_back.tick(now)
        if self._sink is not None:
            self._sink.tick()
            for question in self._sink.take_questions():
                self._say(needs=question)
            if self._sink.take_let_go():
                self._say(let_go=pb.VerdictsLetGo())
            for proposal in self._sink.take_proposals():
                self._report(now)
                with caused_by(self._causes.pop("seal", "")):
                    log_proposal(proposal)
                self._say(proposed=proposal)
                if self._chain.tracer is not None:
                    self._chain.tracer.proposed(proposal)
        if now >= self._progress_at:
            self._report(now)

    def _sleep(self) -> None:
        """Until a command, a frame, credit, the writer or a timer."""
        now, state = time.monotonic(), self._state()
        if state in (TaskState.STOPPED, TaskState.READING):
            return
        wake_at = self._core.wake_at(now)
        deadline = self._progress_at if wake_at is None else min(self._progress_at, wake_at)
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN | (select.POLLOUT if self._channel.wants_to_write else 0))
        busy = (TaskState.SENDING, TaskState.SWEEPING, TaskState.FULL, TaskState.WAITING)
        ends = self._links.awaited(marks=state is TaskState.SWEEPING, receives=state not in busy)
        if self._sink is not None:
            poll.register(self._sink.wake_fd, select.POLLIN)
        armed: list[LinkEnd] = []
        try:
            for end in ends:
                if not end.arm():
                    return
                armed.append(end)
                poll.register(end.fileno(), select.POLLIN)
            poll.poll(max(0.0, deadline - now) * 1000)
        finally:
            for end in armed:
                end.disarm()
            if self._sink is not None:
                _drain(self._sink.wake_fd)

    # -- the control channel --

    def _take_commands(self) -> None:
        if self._channel.wants_to_write:
            self._channel.flush()
        for data in self._channel.receive():
            self._command(pb.TaskCommand.FromString(data))

    def _command(self, message: pb.TaskCommand) -> None:
        self._causes[message.WhichOneof("command") or ""] = message.cause
        with caused_by(message.cause):
            self._obey(message)

    def _obey(self, message: pb.TaskCommand) -> None:
        match message.WhichOneof("command"):
            case "list":
                assert self._chain.source is not None
                self._listing = self._chain.source.list()
                self._do(messages.ListAsked(message.list.listing))
            case "reads":
                for item in message.reads.reads:
                    if self._chain.isolation is not None:
                        self._chain.isolation.learn(item)
                    self._do(messages.ReadAsked(codec.fragment_from(item.fragment), codec.gaps_from(item.gaps)))
            case "sweep":
                self._do(messages.SweepAsked(message.sweep.sweep, message.sweep.halt))
            case "seal" | "answer" | "needs":
                if self._sink is not None:
                    self._sink.obey(message)
            case "release" | "decide" | "decision" | "serve":
                self._obey_about_duplicates(message)
            case "expelled":
                if self._remote is not None:
                    self._remote.expel(message.expelled)
            case "open":
                self._links.open(message.open)
            case "close":
                self._links.close(message.close.link)
            case "stop":
                logger.info("ends: %s", message.stop.reason)
                self._do(messages.StopAsked())
            case other:
                raise ValueError(f"a task knows no command {other!r}")

    def _obey_about_duplicates(self, message: pb.TaskCommand) -> None:
        kind = message.WhichOneof("command")
        if kind == "decide":
            if fits(self._chain, message.decide):
                self._do(messages.DecisionNeeded(message.decide))
        elif kind == "decision":
            self._do(messages.DecisionArrived(message.decision.number, message.decision))
        elif kind == "serve":
            serve_index(self._chain, self._pipeline, message.serve.position)
            self._do(messages.IndexServes())
        elif self._chain.dedup is not None:
            self._chain.dedup.release(names_from(message.release))

    def _report(self, now: float, in_hand: int = 0) -> None:
        """Report progress; `in_hand` are records that were read and that the sink is yet to hold."""
        self._progress_at = now + PROGRESS_S
        progress = self._chain.tracer.progress() if self._chain.tracer is not None else pb.Progress()
        ranges, records = self._sink.core.gathering.held_count if self._sink else (0, 0)
        writer = (self._sink.writer, self._sink.writing_s) if self._sink else (StageStatistics(), 0.0)
        progress.stages.extend(self._chain.progress(*writer))
        progress.held_bytes = self._sink.core.gathering.held_bytes if self._sink else 0
        progress.open_ranges = ranges
        progress.held_records = records + in_hand + self._source.ahead if self._sink else 0
        progress.pending_fragments = self._core.reading.fragments
        progress.trouble = self._sink.trouble if self._sink else ""
        progress.links.extend(self._links.progress())
        self._say(progress=progress)

    def _say(self, **event: object) -> None:
        # In the order in which it came to be: an answer to a sweep counts as pending only what is not read.
        self._tell_reads(all_of_them=True)
        self._send(**event)

    def _send(self, **event: object) -> None:
        cause = self._causes.get(_ANSWERS.get(next(iter(event)), ""), "")
        message = pb.TaskEvent(task=self._task, attempt=self._attempt, cause=cause, **event)  # type: ignore[arg-type]
        self._channel.send(message.SerializeToString())


def _remote(order: pb.StartTask) -> Remote | None:
    """The endpoint of a task that has links between workers; the others load nothing of QUIC."""
    if not order.listens or not order.HasField("network"):
        return None
    from headrace.worker.links import Remote

    return Remote(order.network)


def _drain(descriptor: int) -> None:
    try:
        os.eventfd_read(descriptor)
    except BlockingIOError:
        return


def _first_command(channel: Channel) -> pb.TaskCommand:
    """Wait for the order that this attempt starts with. The worker is alive or the channel closes."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while not (messages := channel.receive()):
        poll.poll(1000)
    channel.put_back(messages[1:])
    return pb.TaskCommand.FromString(messages[0])


def live(control: int, in_flight: int) -> int:
    """Run the task that the worker asks for over the control channel; the exit code. Both are descriptors."""
    channel = Channel(socket.socket(fileno=control))
    task = attempt = None
    try:
        start = _first_command(channel)
        task, attempt = start.task, start.attempt
        keep_log_files(task, memory=False)
        setproctitle.setproctitle(f"headrace task {task} attempt {attempt}")
        code = Task(channel, start, InFlightPage(in_flight)).run()
        channel.write_out(LAST_WORDS_S)
        return code
    except ChannelClosed:
        return ORPHANED
    except Exception as error:  # noqa: BLE001 (whatever ends a task is told to the controller)
        traceback.print_exc(file=sys.stderr)
        _say_failure(channel, task or "", attempt or 0, error)
        return 1


def _say_failure(channel: Channel, task: str, attempt: int, error: Exception) -> None:
    # What a stage does to a batch it does to it again: another attempt would end the same way.
    final = isinstance(error, (PipelineError, InputError, StageContractError, ConservationError, StoreRefused))
    text = str(error) if final or isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
    failed = pb.TaskFailed(error=text if final else f"task {task}: {text}", final=final)
    try:
        channel.send(pb.TaskEvent(task=task, attempt=attempt, failed=failed).SerializeToString())
        channel.write_out(LAST_WORDS_S)
    except ChannelClosed:
        return
