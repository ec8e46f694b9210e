"""Messages of workers and requests as the core has them, and its commands as messages. It decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, assert_never

from headrace.controller.core.cluster import TEXT_MAX
from headrace.controller.core.messages import Allowance, TaskEvent, dedup, messages as core
from headrace.controller.membership import Introduction
from headrace.protos import codec, control_pb2 as pb
from headrace.store.ledger import CHECKSUM_BYTES

#: Fragments that a task is told to read in one message.
READS_MAX = 64
#: Seconds, bytes, records and cores that an apply may name, and characters of its own name.
ASKED_MAX, TOKEN_MAX = 1 << 53, 256


def task_event(message: pb.TaskEvent) -> TaskEvent | None:
    """What a task reported, as an event of the core; None for progress, which decides nothing."""
    task, attempt = message.task, message.attempt
    match message.WhichOneof("event"):
        case "ready":
            return core.TaskReady(task, attempt, dict(message.ready.facts), tuple(message.ready.addresses))
        case "exited":
            return _exited(task, attempt, message.exited)
        case "failed":
            return core.TaskFailed(task, attempt, message.failed.error[:TEXT_MAX], message.failed.final)
        case "listed":
            listed = message.listed
            fragments = tuple(codec.fragment_from(item) for item in listed.fragments)
            error, skipped, place = listed.error[:TEXT_MAX], listed.skipped[:TEXT_MAX], listed.all_below[:TEXT_MAX]
            return core.SourceListed(
                task, attempt, listed.stage, fragments, listed.last, error, listed.listing, skipped, place
            )
        case "reads":
            reads = tuple(_read(task, attempt, item) for item in message.reads.reads)
            return reads[0] if len(reads) == 1 else core.FragmentsWereRead(task, attempt, reads)
        case "proposed":
            return _proposed(task, attempt, message.proposed)
        case "needs":
            needs = message.needs
            return core.NeedsAsked(task, attempt, needs.proposal, needs.sink, codec.records_from(needs.records))
        case "let_go":
            return core.VerdictsLetGo(task, attempt)
        case "asked":
            return dedup.DecisionAsked(task, attempt, _question(message.asked))
        case "decided":
            return _decided(task, attempt, message.decided)
        case "swept":
            return _swept(task, attempt, message.swept)
        case "lost":
            lost = message.lost
            return core.LinkLost(
                task, attempt, lost.link, lost.generation, lost.reason[:TEXT_MAX], lost.apart, lost.unreachable
            )
        case _:
            return None


def _question(m: pb.DecisionAsked) -> dedup.Question:
    return dedup.Question(m.number, m.fragment, m.row, m.keys, m.stage)


def _decided(task: str, attempt: int, m: pb.DecisionMade) -> dedup.DecisionMade:
    target = (m.decision.fragment, m.decision.row) if m.decision.duplicate else None
    made = dedup.Decision(m.decision.number, target, m.decision.near, m.decision.settled)
    return dedup.DecisionMade(task, attempt, m.asking_task, m.asking_attempt, made)


def _exited(task: str, attempt: int, m: pb.TaskExited) -> core.TaskExited:
    in_hand = tuple(core.InHand(item.stage, *codec.ranges_from((item.range,))) for item in m.in_hand)
    return core.TaskExited(task, attempt, m.code, m.story[-TEXT_MAX:], in_hand, m.killed_for[:TEXT_MAX])


def _read(task: str, attempt: int, m: pb.FragmentRead) -> core.FragmentWasRead:
    checksum = m.checksum if len(m.checksum) == CHECKSUM_BYTES else b""
    compared = m.compared if m.HasField("compared") else None
    said = m.error[:TEXT_MAX], m.changed, m.unreadable, checksum, m.continues, compared, m.prefix
    return core.FragmentWasRead(task, attempt, m.fragment, m.count, *said)


def _proposed(task: str, attempt: int, m: pb.Proposed) -> core.ShardProposed:
    return core.ShardProposed(
        task=task,
        attempt=attempt,
        proposal=m.proposal,
        sink=m.sink,
        version=m.version,
        epoch=m.epoch,
        ranges=codec.ranges_from(m.ranges),
        coverage=tuple(core.Coverage(item.kept, item.verdicts) for item in m.ranges),
        objects=codec.objects_from(m.objects),
        counts=codec.counts_from(m.counts),
        needs=codec.records_from(m.needs),
        released=codec.records_from(m.released),
    )


def _swept(task: str, attempt: int, m: pb.Swept) -> core.TaskSwept:
    pending = tuple((item.fragment, codec.gaps_from(item.gaps)) for item in m.pending)
    held = tuple((item.sink, codec.ranges_from(item.ranges)) for item in m.held)
    return core.TaskSwept(task, attempt, m.sweep, pending, held, m.fenced)


_OUTCOMES: dict[core.Outcome, Any] = {
    core.Outcome.ACCEPTED: pb.Answer.ACCEPTED,
    core.Outcome.OVERLAPS: pb.Answer.OVERLAPS,
    core.Outcome.REFUSED: pb.Answer.REFUSED,
}


def to_worker(
    command: core.WorkerCommand,
    term: int,
    seal: pb.SealPolicy | None = None,
    limits: pb.Limits | None = None,
    introduction: Introduction | None = None,
) -> pb.ToWorker | None:
    """A command of the core for the worker that it names; None for a link without an introduction.

    `seal` and `limits` go with the start of a task, `introduction` with a link and with a relay of one.
    """
    match command:
        case core.MakeLink():
            return pb.ToWorker(term=term, link=_link(command, introduction)) if introduction is not None else None
        case core.OpenRelay(_, link):
            if introduction is None:
                return None
            relay = pb.OpenRelay(link=link.link, generation=link.generation)
            relay.sender_ticket, relay.receiver_ticket = (
                introduction.sender_rendezvous,
                introduction.receiver_rendezvous,
            )
            return pb.ToWorker(term=term, relay=relay)
        case core.KillTask():
            kill = pb.KillTask(task=command.task, attempt=command.attempt, reason=command.reason)
            return pb.ToWorker(term=term, kill=kill)
        case _:
            message = pb.TaskCommand(task=command.task, attempt=command.attempt, term=term)
            _fill(message, command)
            if seal is not None and isinstance(command, core.StartTask):
                message.start.seal.CopyFrom(seal)
            if limits is not None and isinstance(command, core.StartTask):
                message.start.limits.CopyFrom(limits)
            return pb.ToWorker(term=term, task=message)


def said_together(commands: Iterable[core.Command]) -> Iterator[list[core.Command]]:
    """The commands in their order, with those in one that may go in one message: to read, of one attempt."""
    alike: list[core.Command] = []
    for command in commands:
        if alike and not (len(alike) < READS_MAX and _reader_of(alike[0]) == _reader_of(command) is not None):
            yield alike
            alike = []
        alike.append(command)
    if alike:
        yield alike


def _reader_of(command: core.Command) -> tuple[str, str, int] | None:
    """The attempt that is told to read; None for any other command."""
    if isinstance(command, core.ReadFragment):
        return command.worker, command.task, command.attempt
    return None


def add_reads(message: pb.ToWorker, commands: Iterable[core.Command]) -> None:
    """Add to the message of the first what else that attempt is told to read."""
    for command in commands:
        assert isinstance(command, core.ReadFragment)
        _add_read(message.task.reads, command)


def _fill(message: pb.TaskCommand, command: core.TaskCommand) -> None:
    match command:
        case core.StartTask():
            message.start.pipeline_json = json.dumps(command.pipeline)
            message.start.stages.extend(command.stages)
            message.start.epoch, message.start.version = command.epoch, command.version
            message.start.replica, message.start.listens = command.replica, command.listens
            message.start.alone, message.start.fenced = command.alone, command.fenced
            message.start.waits = command.waits
        case core.StopTask():
            message.stop.reason = command.reason
        case core.ListSource():
            message.list.stage, message.list.listing = command.stage, command.listing
        case core.ReadFragment():
            _add_read(message.reads, command)
        case core.SweepTask():
            message.sweep.sweep, message.sweep.halt = command.sweep, command.halt
        case core.SealSink():
            message.seal.reason = command.reason
        case core.AnswerProposal():
            message.answer.proposal = command.proposal
            message.answer.outcome = _OUTCOMES[command.outcome]
            message.answer.overlaps.extend(codec.range_to(item) for item in command.overlaps)
            message.answer.reason = command.reason
        case core.AnswerNeeds():
            message.needs.proposal = command.proposal
            message.needs.open.extend(codec.records_to(command.open))
            message.needs.gone.extend(codec.records_to(command.gone))
        case core.ReleaseClaims():
            message.release.records.extend(codec.records_to(command.records))
        case dedup.ServeIndex():
            message.serve.position = command.position
        case dedup.AskDecision(question=asked):
            message.decide.asking_task, message.decide.asking_attempt = command.asking_task, command.asking_attempt
            question = pb.DecisionAsked(number=asked.number, fragment=asked.fragment, row=asked.row, keys=asked.keys)
            question.stage = asked.stage
            message.decide.question.CopyFrom(question)
        case dedup.AnswerDecision(decision=made):
            message.decision.number, message.decision.near = made.number, made.near
            message.decision.settled = made.settled
            message.decision.duplicate = made.duplicate_of is not None
            if made.duplicate_of is not None:
                message.decision.fragment, message.decision.row = made.duplicate_of
        case _:
            assert_never(command)


def _add_read(message: pb.ReadFragments, command: core.ReadFragment) -> None:
    read = message.reads.add(
        fragment=codec.fragment_to(command.fragment), gaps=codec.gaps_to(command.gaps), trial=command.trial
    )
    for item in command.poison:
        read.poison.add(ordinal=item.ordinal, stage=item.stage, story=item.story)


def _link(command: core.MakeLink, introduction: Introduction) -> pb.MakeLink:
    message = pb.MakeLink(
        link=command.link,
        transport=command.transport,
        sender=command.sender,
        sender_attempt=command.sender_attempt,
        receiver=command.receiver,
        receiver_attempt=command.receiver_attempt,
        sender_end=pb.LinkEnd(stage=command.receiver_stage, peer=command.receiver, sends=True),
        receiver_end=pb.LinkEnd(stage=command.sender_stage, peer=command.sender, sends=False),
        generation=command.generation,
        door=introduction.door,
    )
    message.sender_end.addresses.extend(command.addresses)
    message.sender_end.peer_worker = command.receiver_worker
    message.receiver_end.peer_worker = command.sender_worker
    for end in (message.sender_end, message.receiver_end):
        end.link, end.generation, end.ticket = command.link, command.generation, introduction.ticket
        for worker, addresses in introduction.relays:
            end.relays.add(worker=worker, addresses=addresses)
    message.sender_end.rendezvous, message.receiver_end.rendezvous = (
        introduction.sender_rendezvous,
        introduction.receiver_rendezvous,
    )
    return message


def out_of_bounds(request: pb.ApplyRequest) -> str:
    """Which number of a request is none that can be meant; empty if all are. NaN is between no two numbers."""
    numbers: dict[str, float] = {
        "seconds for a record": request.limits.record_s,
        "bytes of a task": request.limits.task_bytes,
        "seconds until a shard is sealed": request.seal.age_s,
        "bytes of a shard": request.seal.target_bytes,
        "bytes that a sink holds": request.seal.held_bytes_max,
        "quarantined records": request.quarantined_max,
        "cores": request.cores,
    }
    for what, number in numbers.items():
        if not 0 <= number <= ASKED_MAX:
            return f"{number:g} {what} are asked for; give a number from 0 to {ASKED_MAX:,}"
    if not 0 <= request.quarantined_share_max <= 1:
        return f"a share of {request.quarantined_share_max:g} quarantined is asked for; give one from 0 to 1"
    if len(request.token) > TOKEN_MAX:
        return f"a request whose own name has {len(request.token):,} characters; the limit is {TOKEN_MAX}"
    return ""


def allowance_of(request: pb.ApplyRequest) -> Allowance:
    """Quarantined records that a request allows."""
    return Allowance(
        records=request.quarantined_max if request.HasField("quarantined_max") else None,
        share=request.quarantined_share_max if request.HasField("quarantined_share_max") else None,
    )


def seal_of(request: pb.ApplyRequest) -> dict[str, float]:
    """When sinks seal, as a request has it; empty where it does not say."""
    if not request.HasField("seal"):
        return {}
    seal = request.seal
    return {"target_bytes": seal.target_bytes, "held_bytes_max": seal.held_bytes_max, "age_s": seal.age_s}
