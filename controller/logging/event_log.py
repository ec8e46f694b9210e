"""What the controller writes into its log: a line for what it learns, and one for what it commands."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from headrace.controller.core.messages import ExpelRequested, ServeIndex, messages as core
from headrace.daemon import about
from headrace.store import counted
from headrace.store.ledger import Beat, Entry

logger = logging.getLogger("headrace.controller")

#: What there is many of, and is told at `debug` alone: no words are made for it otherwise. What is wrong with it ends
#: the run, or a task, and that is told.
_OFTEN = (
    core.FragmentWasRead,
    core.FragmentsWereRead,
    core.ShardProposed,
    core.TaskSwept,
    core.TimePassed,
    core.ReadFragment,
    core.SweepTask,
    core.AnswerProposal,
)
#: A line: its level, its words, and its fields.
_Told = tuple[int, str, dict[str, Any]]


def tell_event(event: object) -> None:
    """A line for an event that says something to people."""
    if isinstance(event, _OFTEN) and not logger.isEnabledFor(logging.DEBUG):
        return
    told = _of_people(event) or _of_workers(event) or _of_tasks(event)
    if told is not None:
        logger.log(told[0], told[1], extra=about(**told[2]))


def tell_command(command: object) -> None:
    """A line for a command."""
    if isinstance(command, _OFTEN) and not logger.isEnabledFor(logging.DEBUG):
        return
    told = _of_command(command)
    if told is not None:
        logger.log(told[0], told[1], extra=about(**told[2]))


def tell_entry(log: str, number: int, entry: Entry, seconds: float) -> None:
    """A line for an entry that has become durable; a heartbeat alone is not worth one."""
    kinds = Counter(type(change).__name__ for change in entry.changes)
    level = logging.DEBUG if set(kinds) <= {Beat.__name__} else logging.INFO
    words = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items())
    facts = about(log=log, entry=number, seconds=round(seconds, 4))
    logger.log(level, "entry %d of %s is durable after %.0f ms: %s", number, log, seconds * 1000, words, extra=facts)


def _of_people(event: object) -> _Told | None:
    match event:
        case core.PipelineRequested():
            name = str(event.pipeline.get("name", ""))
            words = f"{event.by or 'somebody'} applies the pipeline"
            return logging.INFO, words, {"pipeline": name, "amend": event.amend or None}
        case core.StopRequested():
            words = "somebody cancels it" if event.cancel else "somebody stops it"
            return logging.INFO, words, {"pipeline": event.pipeline}
        case core.SteerRequested():
            return logging.INFO, f"reconfiguration requested: {_asked_for(event)}", {"pipeline": event.pipeline}
        case core.DrainRequested():
            words = f"somebody lets worker {event.worker} have tasks again" if event.back else ""
            return logging.INFO, words or f"somebody drains worker {event.worker}", {"worker": event.worker}
        case core.ClearRequested():
            which = {"pipeline": event.pipeline} if event.pipeline else {}
            return logging.INFO, f"somebody clears {'it' if which else 'all that have ended'}", which
        case core.QueueRequested():
            words = "removes" if event.remove else "sets"
            return logging.INFO, f"{event.by or 'somebody'} {words} queue {event.name}", {}
        case ExpelRequested():
            return logging.WARNING, f"somebody expels {event.member.replace('/', ' ')}", {"member": event.member}
        case core.ShutdownAsked():
            return logging.INFO, "is told to end", {}
        case _:
            return None


def _asked_for(event: core.SteerRequested) -> str:
    words = [] if event.pause is None else ["pause" if event.pause else "resume"]
    words += [f"{counted(count, 'task')} of {stage}" for stage, count in event.replicas.items()]
    words += [f"{stage} on {place}" for stage, place in event.places.items()]
    words += [f"{stage} joined by {transport}" for stage, transport in event.transports.items()]
    return ", ".join(words) or "nothing"


def _of_workers(event: object) -> _Told | None:
    match event:
        case core.WorkerRegistered():
            words = f"worker {event.worker} is registered: {event.cores} cores on {event.host}"
            words += f", and has {counted(len(event.tasks), 'task')} still" if event.tasks else ""
            return logging.INFO, words, {"worker": event.worker}
        case core.WorkerLost():
            return logging.WARNING, f"worker {event.worker} is lost: {event.reason}", {"worker": event.worker}
        case _:
            return None


def _of_tasks(event: object) -> _Told | None:
    match event:
        case core.TaskReady():
            return logging.INFO, f"task {event.task} is ready", _task(event)
        case core.TaskExited():
            level = logging.INFO if event.code == 0 else logging.WARNING
            return level, f"task {event.task} ended by {event.words()}", {**_task(event), "code": event.code}
        case core.TaskFailed():
            return logging.ERROR, f"task {event.task} failed: {event.error}", _task(event)
        case core.LinkLost():
            return logging.WARNING, f"link {event.link} was cut: {event.reason}", _task(event)
        case core.SourceListed():
            level = logging.ERROR if event.error else logging.INFO if event.last else logging.DEBUG
            words = f"source {event.stage} lists {counted(len(event.fragments), 'fragment')}"
            return level, f"{words}{': ' + event.error if event.error else ''}", {**_task(event), "last": event.last}
        case core.FragmentWasRead():
            words = f"fragment {event.fragment.hex()} was read: {event.error or counted(event.count, 'record')}"
            return logging.DEBUG, words, _task(event)
        case core.FragmentsWereRead():
            return logging.DEBUG, f"{counted(len(event.reads), 'fragment')} were read", _task(event)
        case core.ShardProposed():
            return (
                logging.DEBUG,
                f"task {event.task} proposes a shard of {counted(len(event.ranges), 'range')}",
                _task(event),
            )
        case _:
            return None


def _of_command(command: object) -> _Told | None:
    match command:
        case core.StartTask():
            words = f"start task {command.task} on worker {command.worker}"
            return logging.INFO, words, {**_task(command), "stages": "+".join(command.stages)}
        case core.StopTask():
            return logging.INFO, f"stop task {command.task}: {command.reason}", _task(command)
        case core.KillTask():
            return logging.WARNING, f"kill task {command.task}: {command.reason}", _task(command)
        case core.SealSink():
            return logging.INFO, f"seal what task {command.task} holds: {command.reason}", _task(command)
        case core.MakeLink():
            words = f"join {command.sender} to {command.receiver} by {command.transport}"
            facts = {"task": command.sender, "link": command.link, "generation": command.generation}
            return logging.INFO, words, {**facts, "worker": command.worker}
        case core.ReadFragment():
            return logging.DEBUG, f"have task {command.task} read {command.fragment.uri}", _task(command)
        case core.SweepTask():
            return logging.DEBUG, f"sweep {command.sweep} through task {command.task}", _task(command)
        case core.AnswerProposal():
            words = f"proposal {command.proposal} of task {command.task}: {command.outcome.value}"
            return logging.DEBUG, f"{words}{': ' + command.reason if command.reason else ''}", _task(command)
        case core.ReleaseClaims():
            words = f"release claims in {counted(len(command.records), 'fragment')} at task {command.task}"
            return logging.INFO, words, _task(command)
        case ServeIndex():
            return logging.INFO, f"have task {command.task} serve its index", _task(command)
        case core.ReportRun():
            level = logging.ERROR if command.outcome == "failed" else logging.INFO
            words = f"the pipeline is {command.outcome}{': ' + command.reason if command.reason else ''}"
            return level, words, {"pipeline": command.pipeline}
        case core.StepDown():
            return logging.WARNING, f"leads no more: {command.reason}", {}
        case _:
            return None


def _task(item: Any) -> dict[str, Any]:
    return {"task": item.task, "attempt": item.attempt}
