"""The Control service: each RPC becomes events for the core, and the core's commands become answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
from msgspec import structs

from headrace.controller.convert import allowance_of, out_of_bounds, seal_of, task_event
from headrace.controller.core.cluster import Controller, registration_fault
from headrace.controller.core.messages import ChangedInput, PipelineRequested, messages as core
from headrace.controller.core.plan import Plan, TaskPlan
from headrace.controller.core.run import NotYetError, why_an_epoch
from headrace.controller.core.scaling import ScalingMode
from headrace.controller.effects import ReportedProgress
from headrace.controller.membership import Act, act_of, why_not
from headrace.controller.session import Session
from headrace.controller.shell import Shell
from headrace.controller.status import reply
from headrace.daemon import Effects, apart
from headrace.pipeline import Pipeline, PipelineError, parse_pipeline
from headrace.protos import codec, control_pb2 as pb, control_pb2_grpc as rpc
from headrace.protos.protocol import Spoken, spoken_here, why_foreign
from headrace.store import StoreError, one_name, release

#: Whether a run scales by itself; empty: it does not.
AUTOSCALE = ("", *(mode.value for mode in ScalingMode))
logger = logging.getLogger("headrace.controller")

#: Seconds that a worker may be silent before its session is dropped.
SILENCE_S = 10.0
HEARTBEAT_S = 1.0
#: Seconds that an apply waits for the dataset's log before it is answered.
APPLY_S = 60.0
#: The same where a graph is changed while records flow: tasks start and others become empty first.
AMEND_S = 600.0
#: Seconds that a file system has to tell the one name of a dataset's place.
PLACE_S = 5.0
#: Seconds that a request has to be judged, and to be taken by the cluster's log where there is one.
STEER_S = 10.0
#: What is said where the log does not.
_NOT_TAKEN = f"the cluster's log did not take it within {STEER_S:.0f} s; it may be done yet: see `headrace status`"
#: Seconds for which a question may be held back until workers have come.
COME_S_MAX = 10.0
#: Seconds between two replies to a watcher where nothing changes.
WATCH_S_MAX = 3600.0
#: Characters of a fault in words.
NAMED_MAX = 200
#: Characters of a user's name by his own word.
USER_MAX = 64
#: Seconds between two replies to a watcher, but for the one that says that a run has ended.
BETWEEN_S = 0.05
#: What a reply took, times this, is left to others before the next one.
REST_TIMES = 20.0


class Servicer(rpc.ControlServicer):
    """The Control service."""

    # ruff: noqa: ARG002

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._version = release()
        #: Set, and replaced, when a worker has come.
        self._came, self._effects = asyncio.Event(), Effects()

    async def Attend(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.FromWorker], context: Any
    ) -> AsyncIterator[pb.ToWorker]:
        """A worker's session."""
        try:
            first = await asyncio.wait_for(anext(request_iterator), SILENCE_S)
        except (StopAsyncIteration, TimeoutError):
            yield pb.ToWorker(refusal=pb.Refusal(reason=f"nothing was said within {SILENCE_S:.0f} s", elsewhere=True))
            return
        register = first.register
        if not self._shell.core.leads:
            yield pb.ToWorker(refusal=self._elsewhere())
            return
        refusal = self._refusal(register)
        if refusal:
            yield pb.ToWorker(refusal=pb.Refusal(reason=refusal))
            return
        older = self._shell.sessions.pop(register.worker, None)
        if older is not None:
            # The same process is back before its broken session was noticed.
            older.outbox.put_nowait(None)
            self._shell.post(core.WorkerLost(register.worker, "it opened a new session"))
        # A worker that reads nothing lets no stream end in order.
        own = asyncio.current_task()
        assert own is not None
        session = Session(register.worker, own.cancel, allows_chaos=register.allows_chaos)
        self._shell.sessions[register.worker] = session
        welcome = pb.Welcome(term=self._shell.term, controller=str(os.getpid()), heartbeat_s=HEARTBEAT_S)
        welcome.expelled.CopyFrom(codec.expulsions_to(self._shell.core.expelled))
        reader: asyncio.Task[None] | None = None
        try:
            yield pb.ToWorker(term=self._shell.term, welcome=welcome)
            # Meanwhile the worker may have opened another session, or this controller have stepped down.
            if self._shell.sessions.get(register.worker) is session:
                event = _registered(register)
                self._shell.post(structs.replace(event, request=self._leaves(session)) if event.leaves else event)
                self._shell.note_facts(register.worker, register.tasks)
                self._came.set()
                self._came = asyncio.Event()
                reader = self._effects.start("a worker's session", self._listen(session, request_iterator))
            while (message := await self._next(session)) is not None:
                yield message
        finally:
            if reader is not None:
                reader.cancel()
            if self._shell.sessions.get(register.worker) is session:
                del self._shell.sessions[register.worker]
                self._shell.refused.forget(register.worker)
                self._shell.post(core.WorkerLost(register.worker, "its session ended"))

    async def Apply(self, request: pb.ApplyRequest, context: Any) -> pb.ApplyReply:  # noqa: N802
        """Take up a pipeline; answered once it is known whether it may write its dataset."""
        try:
            pipeline = parse_pipeline(request.pipeline_json)
            Pipeline.from_dict(pipeline)
        except PipelineError as error:
            return pb.ApplyReply(accepted=False, reason=str(error))
        if request.changed_input not in ("", *(choice.value for choice in ChangedInput)):
            return pb.ApplyReply(accepted=False, reason=f"changed_input {request.changed_input!r} is not known here")
        if request.autoscale not in AUTOSCALE:
            return pb.ApplyReply(accepted=False, reason=f"autoscale {request.autoscale!r} is not known here")
        try:
            gate = _gate(request.gate_json)
        except ValueError as error:
            return pb.ApplyReply(accepted=False, reason=str(error))
        if wrong := out_of_bounds(request):
            return pb.ApplyReply(accepted=False, reason=wrong)
        name, place = str(pipeline.get("name", "")), await _place_of(str(pipeline.get("dataset", "")))
        # From here on nothing is waited for until the core has it: it is still his when it is changed.
        if wrong := self._why_not(context, Act.APPLY, name):
            return pb.ApplyReply(accepted=False, reason=wrong)
        requested = core.PipelineRequested(
            0,
            pipeline,
            amend=request.amend,
            fuse=request.fuse,
            replicas=request.replicas,
            allowance=allowance_of(request),
            places=dict(request.places),
            transports=dict(request.transports),
            seal=seal_of(request),
            limits={"record_s": request.limits.record_s, "task_bytes": request.limits.task_bytes},
            changed_input=ChangedInput(request.changed_input or ChangedInput.HALT.value),
            gate=gate,
            gate_pauses=request.gate_pauses,
            autoscale=request.autoscale,
            token=request.token,
            was=request.was,
            place=place,
            by=_who(context, request.user),
            queue=request.queue,
            cores=request.cores,
            priority=request.priority,
        )
        run = self._shell.core.runs.get(name)
        if request.keep:
            if run is None or run.ended:
                return pb.ApplyReply(accepted=False, reason=f"pipeline {name!r} is not running here")
            requested = _kept(run.request, requested)
        if request.dry_run:
            return dry_run(self._shell.core, requested)
        if name not in self._shell.core.runs or self._shell.core.runs[name].over:
            self._shell.progress[name] = ReportedProgress()
        number, answered = self._shell.expect_answer()
        self._shell.post(replace(requested, request=number))
        try:
            answer = await asyncio.wait_for(answered, AMEND_S if requested.amend else APPLY_S)
        except TimeoutError:
            if requested.amend and run is not None and not run.ended:
                words = f"the graph is being changed still after {AMEND_S:.0f} s: see `headrace status {name}`"
                return pb.ApplyReply(accepted=False, reason=words)
            return pb.ApplyReply(accepted=False, reason=f"no answer from the dataset's ledger after {APPLY_S:.0f} s")
        return pb.ApplyReply(
            accepted=answer.accepted,
            reason=answer.reason,
            differences=answer.differences,
            warnings=answer.warnings,
            standby=answer.passes or (not answer.accepted and self._shell.core.gathers(name, "")),
            waits=answer.waits,
        )

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: N802
        """Everything as it stands, once as many workers attend as are asked for, or behind the time that is given."""
        if request.workers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_bounded(request.within_s, COME_S_MAX)):
                    while len(self._shell.core.workers) < request.workers:
                        await self._came.wait()
        return reply(self._shell, self._version, request.pipeline)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.StatusReply]:  # noqa: N802
        """The status again and again, at least each `interval_s`, and at once when a run ends."""
        interval = max(BETWEEN_S, _bounded(request.interval_s, WATCH_S_MAX) or 1.0)
        while True:
            changed, over = self._shell.changed, self._over(request.pipeline)
            began = time.monotonic()
            answer = reply(self._shell, self._version, request.pipeline)
            pause_s = max(min(interval, BETWEEN_S), REST_TIMES * (time.monotonic() - began))
            yield answer
            earliest = time.monotonic() + pause_s
            await _within(changed, interval)
            while (over or not self._over(request.pipeline)) and (left := earliest - time.monotonic()) > 0:
                await _within(self._shell.changed, left)

    def _over(self, pipeline: str) -> bool:
        run = self._shell.core.runs.get(pipeline)
        return run is not None and run.over

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopReply:  # noqa: N802
        """Stop a pipeline, with what is held committed, or cancel it; answered once that is durable."""
        if not self._shell.core.leads:
            return pb.StopReply(accepted=False, reason=self._elsewhere().reason, standby=True)
        if wrong := self._why_not(context, Act.STOP, request.pipeline):
            return pb.StopReply(accepted=False, reason=wrong)
        number, answered = self._shell.expect_answer()
        self._shell.post(core.StopRequested(request.pipeline, request.cancel, number))
        try:
            answer = await asyncio.wait_for(answered, STEER_S)
        except TimeoutError:
            return pb.StopReply(accepted=False, reason=_NOT_TAKEN, standby=not self._shell.core.leads)
        standby = not answer.accepted and not self._shell.core.leads
        return pb.StopReply(accepted=answer.accepted, reason=answer.reason, standby=standby)

    async def _next(self, session: Session) -> pb.ToWorker | None:
        """What to say next to a worker: a command, or a sign of life."""
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                return await session.outbox.get()
        except TimeoutError:
            return pb.ToWorker(term=self._shell.term, heartbeat=pb.Heartbeat(sent=time.monotonic_ns()))

    def _elsewhere(self) -> pb.Refusal:
        leader = str(self._shell.core.leader.get("address", ""))
        who = f"the one at {leader} leads" if leader else "nobody leads yet"
        return pb.Refusal(reason=f"this controller is on standby: {who}", elsewhere=True, leader=leader)

    async def Steer(self, request: pb.SteerRequest, context: Any) -> pb.SteerReply:  # noqa: N802
        """Pause, resume or change a run, clear those that have ended, drain a worker, or expel a member; answered once
        it is known whether a plan can hold it, or it is durable.
        """
        if wrong := self._why_not(context, act_of(request), request.pipeline):
            return pb.SteerReply(accepted=False, reason=wrong)
        number, answered = self._shell.expect_answer()
        if request.expel:
            if request.expel == _who(context, ""):
                return pb.SteerReply(reason="nobody expels himself: another operator has to")
            await self._shell.expel(number, request.expel)
        else:
            self._shell.post(_steered(number, request))
        try:
            answer = await asyncio.wait_for(answered, STEER_S)
        except TimeoutError:
            return pb.SteerReply(accepted=False, reason=_NOT_TAKEN, again=not self._shell.core.leads)
        if answer.accepted and request.clear:
            self._shell.forget(answer.warnings)
        again = answer.passes or (not answer.accepted and self._shell.core.gathers(request.pipeline, request.worker))
        return pb.SteerReply(accepted=answer.accepted, reason=answer.reason, changes=answer.warnings, again=again)

    async def Queue(self, request: pb.QueueRequest, context: Any) -> pb.QueueReply:  # noqa: N802
        """Set or remove a queue; answered once that is durable."""
        if wrong := self._why_not(context, Act.QUEUE, ""):
            return pb.QueueReply(accepted=False, reason=wrong)
        number, answered = self._shell.expect_answer()
        asked = core.QueueRequested(
            number,
            request.queue,
            request.weight,
            request.cores_max,
            request.priority,
            remove=request.remove,
            by=_who(context, ""),
        )
        self._shell.post(asked)
        try:
            answer = await asyncio.wait_for(answered, STEER_S)
        except TimeoutError:
            words = f"the cluster's log did not take it within {STEER_S:.0f} s: see `headrace queue list`"
            return pb.QueueReply(reason=words, again=not self._shell.core.leads)
        again = not answer.accepted and not self._shell.core.leads
        return pb.QueueReply(accepted=answer.accepted, reason=answer.reason, again=again)

    async def Logs(self, request: pb.LogSearch, context: Any) -> AsyncIterator[pb.LogPage]:  # noqa: N802
        """Lines of this controller, of its workers and of their tasks."""
        request.lines_max = max(0, request.lines_max)
        async for page in self._shell.searches.search(request, list(self._shell.sessions)):
            yield page

    async def Fault(self, request: pb.FaultAsked, context: Any) -> pb.FaultTold:  # noqa: N802
        """Have a worker do a fault, or this controller to itself, if that is allowed; the answer."""
        whose = request.task or request.worker or f"controller {request.controller}"
        words = f"{'end of ' if request.end else ''}{request.kind} {whose} ({request.fault})"
        self._shell.fault_words.append(words[:NAMED_MAX])
        if request.controller:
            return self._shell.own_faults.asked(request)
        if not self._shell.core.leads:
            return pb.FaultTold(fault=request.fault, reason=self._elsewhere().reason, again=True)
        return await self._shell.faults.request(request, self._shell.sessions)

    def _why_not(self, context: Any, act: Act, pipeline: str) -> str:
        """Why who calls may not do that; empty if he may."""
        return why_not(_who(context, ""), act, pipeline, self._shell.core.owner(pipeline))

    def _refusal(self, register: pb.Register) -> str:
        if wrong := registration_fault(_registered(register)):
            return f"no worker registers so: {wrong}"
        theirs = Spoken(register.version, register.protocol, register.protocol_oldest)
        if wrong := why_foreign(f"worker {register.worker}", theirs, spoken_here(self._version)):
            return wrong
        known = self._shell.core.workers.get(register.worker)
        other = known is not None and (known.host, known.pid) != (register.host, register.pid)
        if register.worker in self._shell.sessions and other:
            return f"a worker named {register.worker!r} is attended already: give this one another --name"
        return ""

    def _leaves(self, session: Session) -> int:
        """A worker is about to end: the number of its request to be drained until it comes again, or as others want."""
        number, answered = self._shell.expect_answer()
        session.leaves = True
        self._effects.start("a worker that leaves", self._hand_on(session, answered))
        return number

    async def _hand_on(self, session: Session, answered: asyncio.Future[core.AnswerRequest]) -> None:
        """Have a worker stay that nobody can have the tasks of; where another leads by now, it asks that one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STEER_S):
                session.leaves = (answer := await answered).accepted
                if not session.leaves and self._shell.core.leads:
                    session.outbox.put_nowait(pb.ToWorker(term=self._shell.term, stay=pb.Stay(reason=answer.reason)))

    async def _listen(self, session: Session, messages: AsyncIterator[pb.FromWorker]) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE_S):
                    message = await anext(messages)
                match message.WhichOneof("message"):
                    case "task":
                        self._shell.task_event(session.worker, message.task, task_event(message.task))
                    case "logs":
                        self._shell.searches.told(session.worker, message.logs)
                    case "fault":
                        self._shell.faults.told(session.worker, message.fault)
                    case "leaving" if not session.leaves:
                        self._shell.post(core.DrainRequested(self._leaves(session), session.worker, leaves=True))
                    case _:
                        pass
        except (StopAsyncIteration, TimeoutError, grpc.RpcError, asyncio.CancelledError) as error:
            logger.info("worker %s: session over (%s)", session.worker, type(error).__name__)
        except Exception:
            # Part from it: when it comes back, it says again what matters.
            logger.exception("worker %s said what cannot be taken: its session is over", session.worker)
        finally:
            session.outbox.put_nowait(None)


def _kept(before: PipelineRequested, asked: PipelineRequested) -> PipelineRequested:
    """A request for another graph with the options that the run has, of the stages that are still there."""
    stages = {str(stage.get("name")) for stage in asked.pipeline["stages"]}
    places = {stage: place for stage, place in before.places.items() if stage in stages}
    transports = {stage: kind for stage, kind in before.transports.items() if stage in stages}
    own: dict[str, Any] = {name: getattr(asked, name) for name in ("request", "pipeline", "token", "was")}
    return replace(before, **own, amend=True, places=places, transports=transports)


def _who(context: Any, said: str) -> str:
    """Who asks, as role/name by his certificate; where nobody has one, by his own word."""
    from headrace.controller.membership import caller

    member = caller(context) if context is not None else ""  # the page asks without one
    return member or "".join(letter for letter in said if letter.isprintable())[:USER_MAX]


async def _within(happened: asyncio.Event, seconds: float) -> None:
    """Wait for it, or for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await happened.wait()


async def _place_of(dataset: str) -> str:
    """The one name of where a dataset is; empty where that cannot be told, and its URI must do."""
    try:
        return await asyncio.wait_for(apart("the name of a place", lambda: one_name(dataset)), PLACE_S)
    except (StoreError, OSError, TimeoutError, ValueError):
        return ""


def _bounded(seconds: float, most: float) -> float:
    """Seconds that somebody asked for, between 0 and so many; 0 for what is no number."""
    return min(seconds, most) if seconds > 0 else 0.0


def _steered(number: int, request: pb.SteerRequest) -> core.SteerRequested | core.DrainRequested | core.ClearRequested:
    if request.clear:
        return core.ClearRequested(number, request.pipeline)
    if request.worker:
        return core.DrainRequested(number, request.worker, request.back)
    return core.SteerRequested(
        number,
        request.pipeline,
        pause=request.pause if request.HasField("pause") else None,
        replicas=dict(request.replicas),
        places=dict(request.places),
        transports=dict(request.transports),
    )


def _registered(register: pb.Register) -> core.WorkerRegistered:
    return core.WorkerRegistered(
        worker=register.worker,
        host=register.host,
        cores=register.cores,
        memory_bytes=register.memory_bytes,
        pid=register.pid,
        tasks=tuple(
            core.RunningTask(
                task=item.task,
                attempt=item.attempt,
                version=item.version,
                epoch=item.epoch,
                ready=item.ready,
                addresses=tuple(item.addresses),
                fenced=item.fenced,
                linked=item.linked,
                stages=tuple(item.stages),
                waits=item.waits,
            )
            for item in register.tasks
        ),
        links=tuple(
            core.RunningLink(item.link, item.sender_attempt, item.receiver_attempt, item.generation)
            for item in register.links
        ),
        host_id=register.host_id,
        addresses=tuple(register.addresses),
        labels=tuple(register.labels),
        door=register.door,
        relay_addresses=tuple(register.relay_addresses),
        measured=tuple(sorted(register.measured.items())),
        leaves=register.leaving,
    )


def dry_run(core: Controller, request: PipelineRequested) -> pb.ApplyReply:
    """What an apply of this request would start, or why it would not."""
    try:
        made = core.applications.planned(request)
    except PipelineError as error:
        return pb.ApplyReply(accepted=False, reason=str(error), standby=isinstance(error, NotYetError))
    reply = _reply(made, len(core.workers))
    run = core.runs.get(str(request.pipeline.get("name", "")))
    if run is not None and not run.ended and run.tasks is not None:
        reply.stops.extend(map(_planned, run.tasks.plan.tasks))
        reply.shared_s = max((task.ready_at - task.start_at for task in run.tasks if task.ready_at), default=0.0)
        reply.another_index = why_an_epoch(run.pipeline, Pipeline.from_dict(request.pipeline))
    return pb.ApplyReply(accepted=True, plan=reply)


def _planned(task: TaskPlan) -> pb.PlannedTask:
    return pb.PlannedTask(
        task=task.name,
        stages=task.stages,
        worker=task.worker,
        cores=task.need.cores,
        memory_bytes=task.need.memory_bytes,
    )


def _reply(made: Plan, workers: int) -> pb.PlanReply:
    links = [
        pb.LinkStatus(link=link.name, sender=link.sender, receiver=link.receiver, transport=link.transport)
        for link in made.links
    ]
    chains = [pb.PlannedChain(chain=chain, reason=reason) for chain, reason in made.reasons.items()]
    return pb.PlanReply(tasks=map(_planned, made.tasks), links=links, chains=chains, workers=workers)


def _gate(text: str) -> dict[str, Any]:
    """The tables of a gate. Raises ValueError for what is none."""
    if not text:
        return {}
    # Here, since numpy and Arrow come with it.
    from headrace.store.history import gate_of

    return gate_of(text)
