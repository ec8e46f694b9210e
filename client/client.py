"""The controller as commands see it: a synchronous client of the Control service."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

import grpc

from headrace.client.errors import CliError, UsageError, check_without_cluster
from headrace.daemon import INSECURE, AddressError, to_call, usual_address
from headrace.pipeline import REPLICAS_MAX, TAKEN_MAX, Pipeline
from headrace.protos import control_pb2 as pb, control_pb2_grpc as rpc

if TYPE_CHECKING:
    from headrace.cluster import Credentials

#: Seconds for the answer to a request.
ANSWER_S = 15.0
#: Seconds to accept a pipeline: the controller reads the dataset's whole ledger first.
APPLY_S = 90.0
#: Seconds to change a graph while records flow: tasks start, and others become empty.
AMEND_S = 630.0
#: Seconds to look for the leader, for each attempt, and between two.
FAILOVER_S = 20.0
LOOK_S = 2.0
BETWEEN_S = 0.1
#: Seconds that a controller waits for a worker before this process checks both.
WORKER_S = 0.1
#: Seconds between two readings of a run that is watched.
WATCH_S = 0.25
MESSAGE_BYTES_MAX = 64 << 20
#: The largest whole number of most fields of a request.
NUMBER_MAX = (1 << 31) - 1
#: States in which a run stays.
ENDED = ("completed", "stopped", "cancelled", "failed")
#: States of a run that an apply of the same pipeline joins.
JOINABLE = ("queued", "opening", "running", "pausing", "paused", "publishing")
#: No pipeline: a status of it is short.
_NOBODY = "/"


class ApplyRefused(CliError):  # noqa: N818 - named after what is so
    """The controller refused the pipeline; `details` are the differences, a line each."""


class ControllerSilent(CliError):  # noqa: N818 - named after what is so
    """The controller did not answer, or answered with an error."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a pipeline is run, apart from what it is."""

    amend: bool = False
    fuse: bool = True
    replicas: int = 0
    #: Quarantined records, and the share of all, above which the run is ended.
    quarantined_max: int | None = None
    quarantined_share_max: float | None = None
    #: Seconds that a stage may be at one record, and bytes of memory that a task may have; 0: the defaults.
    record_s: float = 0.0
    task_bytes: int = 0
    #: What becomes of input that changed or vanished while it was open: halt, drop or reread.
    changed_input: str = "halt"
    #: Seconds after which a sink seals what it holds; 0: as usual.
    seal_age_s: float = 0.0
    #: What a version must meet to be published, as the file of the gate has it, and whether the run pauses for it.
    gate: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gate_pauses: bool = False
    #: Whether the run scales by itself: off, advise or on.
    autoscale: str = "off"
    #: Stage to place, and stage to the transport of the links that lead to it.
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    transports: Mapping[str, str] = field(default_factory=dict[str, str])
    #: The queue that it waits in, for how many cores (0: all that the queue may have), and its priority there.
    queue: str = ""
    cores: int = 0
    priority: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError for numbers that no request holds, and for options that mean nothing by themselves."""
        check_numbers({"--replicas": self.replicas}, REPLICAS_MAX)
        check_numbers({"--cores": self.cores, "--priority": self.priority})
        check_numbers({"--max-quarantined": self.quarantined_max}, TAKEN_MAX)
        memory = self.task_bytes >> 20 if type(self.task_bytes) is int else self.task_bytes
        check_numbers({"--task-memory, in MiB,": memory}, TAKEN_MAX >> 20)
        if self.gate_pauses and not self.gate:
            raise UsageError("--gate-pauses needs --gate: without a limit there is nothing to pause for")


#: Options that a request has by the same names.
_AS_THEY_ARE = RunOptions.__dataclass_fields__.keys() & pb.ApplyRequest.DESCRIPTOR.fields_by_name.keys()


@dataclass(frozen=True, slots=True)
class Applied:
    """A pipeline that a controller runs, and the controller's warnings."""

    pipeline: str
    dataset: str
    version: str
    warnings: tuple[str, ...] = ()
    #: Its place in its queue, in words, if it has to wait.
    waits: str = ""


@dataclass(frozen=True, slots=True)
class ControllerAt:
    """Where a controller is, and what to show it: None without a cluster."""

    address: str
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class StreamBroke:
    """A watched stream ended with this error."""

    error: ControllerSilent


class Client:
    """A connection to the leader among controllers named with commas; it follows a change of leader.

    Every call raises ControllerSilent if no controller answers.
    """

    def __init__(self, at: ControllerAt | str) -> None:
        at = at if isinstance(at, ControllerAt) else ControllerAt(at)
        self.addresses = [address.strip() for address in at.address.split(",") if address.strip()]
        self.address = ""
        self._credentials = at.credentials
        self._channel: Any = None
        self._stub: Any = None
        self.connect(self.addresses[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def apply(self, pipeline: Pipeline, options: RunOptions) -> tuple[str, ...]:
        """Start the pipeline; the controller's warnings. Raises ApplyRefused."""
        return tuple(self._apply(pipeline, options, dry_run=False).warnings)

    def apply_or_join(self, pipeline: Pipeline, options: RunOptions) -> Applied:
        """Apply, or join the run of the same pipeline, so that an interrupted command can be repeated.

        Raises ApplyRefused.
        """
        version, waits = pipeline.version(), ""
        try:
            reply = self._apply(pipeline, options, dry_run=False)
            warnings, waits = tuple(reply.warnings), reply.waits
        except ApplyRefused:
            found = pipeline_of(self.status(pipeline.name), pipeline.name)
            if found is None or options.amend or found.state not in JOINABLE:
                raise
            if (found.version, found.dataset) != (version, pipeline.dataset):
                raise
            warnings = (f"pipeline {pipeline.name} is {found.state} already; it keeps its first settings",)
            waits = next(iter(found.waits), "") if found.state == "queued" else ""
        return Applied(pipeline.name, pipeline.dataset, version, warnings, waits)

    def plan(self, pipeline: Pipeline, options: RunOptions) -> pb.PlanReply:
        """The plan that `apply` would make; nothing is started. Raises ApplyRefused."""
        return self._apply(pipeline, options, dry_run=True).plan

    def amend(self, pipeline: Pipeline, *, was: str, dry_run: bool = False) -> pb.ApplyReply:
        """Change the graph of a running pipeline from version `was`, with the options that it has, or say how.

        Raises ApplyRefused, also where another version is in force by now.
        """
        return self._apply(pipeline, RunOptions(), dry_run=dry_run, was=was)

    def _apply(self, pipeline: Pipeline, options: RunOptions, *, dry_run: bool, was: str = "") -> pb.ApplyReply:
        self.status(pipeline.name)  # finds the leader, or fails at once
        request = pb.ApplyRequest(
            **{name: getattr(options, name) for name in _AS_THEY_ARE},
            dry_run=dry_run,
            pipeline_json=json.dumps(pipeline.to_dict()),
            gate_json=json.dumps(options.gate) if options.gate else "",
            limits=pb.Limits(record_s=options.record_s, task_bytes=options.task_bytes),
            seal=pb.SealPolicy(age_s=options.seal_age_s) if options.seal_age_s else None,
            token=uuid.uuid4().hex,
            keep=bool(was),
            was=was,
            user=user_name(),
        )
        within_s = AMEND_S if options.amend or was else APPLY_S
        reply: pb.ApplyReply = self._ask("Apply", request, within_s, lambda reply: reply.standby)
        if not reply.accepted:
            raise ApplyRefused(reply.reason, reply.differences)
        return reply

    def status(self, pipeline: str = "", *, workers: int = 0) -> pb.StatusReply:
        """The leader's status, of everything or of one pipeline.

        With `workers` it answers once so many are connected, or after WORKER_S.
        Among several controllers it looks for the leader for up to FAILOVER_S.
        """
        request = pb.StatusRequest(pipeline=pipeline, workers=workers, within_s=WORKER_S if workers else 0.0)
        deadline = time.monotonic() + FAILOVER_S
        while True:
            alone = len(self.addresses) == 1
            try:
                reply: pb.StatusReply = self._call("Status", request, ANSWER_S if alone else LOOK_S)
            except ControllerSilent:
                if alone or time.monotonic() >= deadline:
                    raise
                self._try_another("")
                continue
            if not reply.standby or time.monotonic() >= deadline:
                return reply
            self._try_another(reply.leader)

    def allows_chaos(self) -> bool:
        """Whether the controller that is connected, leader or not, lets operators have faults done to it."""
        reply: pb.StatusReply = self._call("Status", pb.StatusRequest(pipeline=_NOBODY), ANSWER_S)
        return reply.allows_chaos

    def stop(self, pipeline: str, *, cancel: bool) -> None:
        """Have a pipeline stop: with what is held committed, or at once. Raises CliError."""
        self.status(pipeline)
        self._agreed("Stop", pb.StopRequest(pipeline=pipeline, cancel=cancel), lambda reply: reply.standby)

    def steer(self, request: pb.SteerRequest) -> tuple[str, ...]:
        """Pause, resume or change a run, or drain a worker; the changes in words. Raises CliError."""
        return tuple(self._agreed("Steer", request, lambda reply: reply.again).changes)

    def queue(self, request: pb.QueueRequest) -> None:
        """Set or remove a queue. Raises CliError."""
        self.status(_NOBODY)
        self._agreed("Queue", request, lambda reply: reply.again)

    def fault(self, asked: pb.FaultAsked) -> pb.FaultTold:
        """Ask a fault of a worker. It is done once by its name, so that it may be asked for again."""
        reply: pb.FaultTold = self._ask("Fault", asked, ANSWER_S, lambda reply: reply.again)
        return reply

    def _agreed(self, method: str, request: Any, again: Callable[[Any], bool]) -> Any:
        reply = self._ask(method, request, ANSWER_S, again)
        if not reply.accepted:
            raise CliError(reply.reason)
        return reply

    def _ask(self, method: str, request: Any, within_s: float, again: Callable[[Any], bool]) -> Any:
        """Ask the leader; ask again, for up to FAILOVER_S, while another takes over or what forbids it passes.

        Every request is idempotent: a change names the wanted state, an apply carries a token.
        """
        deadline = time.monotonic() + FAILOVER_S
        while True:
            try:
                reply = self._patiently(method, request, within_s)
            except ControllerSilent:
                if len(self.addresses) == 1 or time.monotonic() >= deadline:
                    raise
            else:
                if reply.accepted or not again(reply) or time.monotonic() >= deadline:
                    return reply
            time.sleep(BETWEEN_S)
            self.status(_NOBODY)

    def _patiently(self, method: str, request: Any, within_s: float) -> Any:
        """A long call. Among several controllers, give up on one that no longer answers status requests."""
        if len(self.addresses) == 1:
            return self._call(method, request, within_s)
        answer = getattr(self._stub, method).future(request, timeout=within_s)
        while True:
            try:
                return answer.result(timeout=LOOK_S)
            except grpc.FutureTimeoutError:
                self._call("Status", pb.StatusRequest(pipeline=_NOBODY), LOOK_S)
            except grpc.RpcError as error:
                raise _silence(self.address, error) from error

    def watch(self, pipeline: str) -> SimpleQueue[pb.StatusReply | StreamBroke]:
        """A queue of statuses, with a StreamBroke at the end."""
        found: SimpleQueue[pb.StatusReply | StreamBroke] = SimpleQueue()
        address, stream = self.address, self._stub.Watch(pb.WatchRequest(pipeline=pipeline, interval_s=WATCH_S))

        def listen() -> None:
            try:
                for reply in stream:
                    if reply.standby:
                        found.put(StreamBroke(ControllerSilent(f"the controller at {address} no longer leads")))
                        return
                    found.put(reply)
            except (grpc.RpcError, ValueError) as error:
                found.put(StreamBroke(_silence(address, error)))
                return
            found.put(StreamBroke(ControllerSilent(f"the controller at {address} ended the stream")))

        threading.Thread(target=listen, name="watch", daemon=True).start()
        return found

    def logs(self, search: pb.LogSearch) -> Iterator[pb.LogPage]:
        """Pages of log lines: the present ones up to a page with `last`, then new ones if the search follows."""
        deadline = None if search.follow else ANSWER_S
        try:
            yield from self._stub.Logs(search, timeout=deadline)
        except grpc.RpcError as error:
            raise _silence(self.address, error) from error

    def connect(self, address: str) -> None:
        """Open the connection anew: elsewhere, or where the controller was started again."""
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
            ("grpc.enable_http_proxy", 0),
        ]
        if self._channel is not None:
            self._channel.close()
        self.address = address
        own = self._credentials
        if own is None:
            try:
                self._channel = grpc.insecure_channel(to_call(address), options=options)
            except (AddressError, OSError) as error:
                raise ControllerSilent(f"cannot ask a controller at {address}: {error}") from error
        else:
            from headrace.cluster import Role, role_host

            tls = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)
            options.append(("grpc.ssl_target_name_override", role_host(Role.CONTROLLER)))
            self._channel = grpc.secure_channel(address, tls, options=options)
        self._stub = rpc.ControlStub(self._channel)  # type: ignore[no-untyped-call,unused-ignore]

    def _try_another(self, hint: str) -> None:
        """Connect to the hinted leader, else to the next controller, after a moment."""
        # To plain TCP only if the user named plain TCP.
        if hint.startswith(INSECURE) and not any(item.startswith(INSECURE) for item in self.addresses):
            hint = ""
        if hint and hint not in self.addresses:
            self.addresses.append(hint)
        following = self.addresses[(self.addresses.index(self.address) + 1) % len(self.addresses)]
        self.connect(hint if hint and hint != self.address else following)
        time.sleep(BETWEEN_S)

    def _call(self, method: str, request: Any, within_s: float) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=within_s)
        except grpc.RpcError as error:
            raise _silence(self.address, error) from error

    def wait_for_worker(self, deadline_s: float, between: Callable[[], None]) -> None:
        """Return once a worker is registered; `between()` is called at each try and may raise."""
        deadline = time.monotonic() + deadline_s
        while not self.status(workers=1).workers:
            between()
            if time.monotonic() > deadline:
                raise CliError(f"no worker registered within {deadline_s:.0f} s")


def _silence(address: str, error: Any) -> ControllerSilent:
    if not isinstance(error, grpc.RpcError):
        return ControllerSilent(f"the connection to the controller at {address} was closed")
    code, details = str(error.code().name), str(error.details() or "")
    if code == "UNAVAILABLE":
        advice = "start one with `headrace controller`, or name another with --controller or HEADRACE_CONTROLLER"
        return ControllerSilent(f"no controller answers at {address}: {advice}", [details])
    if code == "DEADLINE_EXCEEDED":
        return ControllerSilent(f"the controller at {address} did not answer in time; look at its log, then try again")
    return ControllerSilent(f"the controller at {address} answered {code}: {details}")


def check_numbers(numbers: Mapping[str, int | None], most: int = NUMBER_MAX) -> None:
    """Raises UsageError for an option whose number is larger than a request holds, or than anybody can want."""
    for option, value in numbers.items():
        if type(value or 0) is not int:
            raise UsageError(f"{option} {value!r}: give a whole number")
        if not -most <= (value or 0) <= most:
            raise UsageError(f"{option} {value}: the number is too large; give at most {most:,}")


def user_name() -> str:
    """This process's user on this host; his number where he has no name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def cluster_folder(given: str) -> str:
    """The cluster's folder on the command line, else of HEADRACE_CLUSTER, else none."""
    return given or os.environ.get("HEADRACE_CLUSTER", "")


def controller_at(address: str, cluster: str) -> ControllerAt:
    """The controller that is meant, and an operator's credentials for it. Raises CliError."""
    folder = cluster_folder(cluster)
    if not folder:
        found = usual_address(address)
        for part in found.split(","):
            check_without_cluster("--controller", part.strip())
        return ControllerAt(found)
    from headrace.cluster import read_credentials, utc_now, why_ended

    try:
        credentials = read_credentials(Path(folder), "operator")
        described = json.loads((Path(folder) / "cluster.json").read_text(encoding="utf-8"))
        known = [str(item) for item in described["controllers"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        raise CliError(f"{folder} is no cluster's folder ({why}): make one with `headrace cluster init`") from error
    if why := why_ended(credentials, utc_now()):
        raise CliError(f"{folder}: {why}: renew it with `headrace cluster renew`, or `operator` for another person's")
    return ControllerAt(address or os.environ.get("HEADRACE_CONTROLLER", "") or ",".join(known), credentials)


def pipeline_of(reply: pb.StatusReply, name: str) -> pb.PipelineStatus | None:
    """One pipeline's status in a reply."""
    return next((item for item in reply.pipelines if item.pipeline == name), None)
