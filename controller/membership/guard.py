"""Who may ask what of a controller: every call is judged by the certificate that its caller shows.

gRPC's TLS refuses who has no certificate of the cluster's authority, or one that is not in force. That is not enough,
since every node of the cluster has one: here the role is looked at, and a worker is taken for the name in its
certificate, whatever it calls itself. A method that stands in no table is for nobody.

Who may do what: one table of roles and acts. The guard holds roles against methods; here stands what a request asks
for. Where nobody has certificates, on a socket in a folder of its user, whoever gets there is that user and may do
all, and so may who has the key of the page. A controller of no cluster loads no library of certificates.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import grpc

from headrace.cluster import Role
from headrace.protos import control_pb2 as pb

if TYPE_CHECKING:
    from cryptography import x509

    from headrace.cluster import Credentials, Expelled, Peer

_VIEWERS = frozenset({Role.OPERATOR, Role.USER, Role.VIEWER})
_USERS = frozenset({Role.OPERATOR, Role.USER})
_OPERATORS = frozenset({Role.OPERATOR})
#: The roles that may call each method of the Control service; `rights` holds what they may ask for.
MAY_CALL: dict[str, frozenset[Role]] = {
    "Attend": frozenset({Role.WORKER}),
    "Apply": _USERS,
    "Status": _VIEWERS | {Role.WORKER, Role.CONTROLLER},
    "Watch": _VIEWERS,
    "Stop": _USERS,
    "Steer": _USERS,
    "Queue": _OPERATORS,
    "Logs": _VIEWERS,
    "Fault": _OPERATORS,
}


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """TLS for a server that asks every client for a certificate."""
    pair = (credentials.key_pem, credentials.certificate_pem)
    return grpc.ssl_server_credentials([pair], credentials.authority_pem, require_client_auth=True)


@dataclass(frozen=True, slots=True)
class MemberLimits:
    """What one member may have at once, on all of its connections."""

    calls_max: int
    #: Sessions of a worker: one, and those that it lost and that are not found dead yet. Each may send a large message.
    sessions_max: int
    #: Requests that are being read, and seconds for one.
    requests_max: int
    request_s: float


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Stands before every method.

    To gRPC each method takes a stream of requests, also one that takes a single one: so who calls is judged and counted
    before a request is read. gRPC itself would read up to `message_bytes_max` of each call first.
    """

    def __init__(self, authority: x509.Certificate, expelled: Callable[[], Expelled], limits: MemberLimits) -> None:
        self._authority, self._expelled, self._limits = authority, expelled, limits
        #: Calls that are open, by member, sessions of workers, and the turns of requests to be read.
        self._calls: Counter[str] = Counter()
        self._sessions: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """The method's handler, with the judgement before it."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method).rpartition("/")[2]
        if handler.response_streaming:
            return self._streaming(handler, method)
        return self._single(handler, method)

    def _streaming(self, handler: Any, method: str) -> Any:
        from headrace.cluster import why_expelled

        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

        async def guarded(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            peer = await self._admit(context, method)
            await self._begin(peer, context, method)

            async def still() -> None:
                # Who is expelled while its call goes on says and hears nothing more.
                if reason := why_expelled(peer, self._expelled()):
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method}: {reason}")

            try:
                if handler.request_streaming:
                    request: Any = _named(requests, peer.identity.name, still)
                else:
                    request = await self._request(requests, peer, context, method)
                async for answer in inner(request, context):
                    await still()
                    yield answer
            finally:
                self._end(peer, method)

        return grpc.stream_stream_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)

    def _single(self, handler: Any, method: str) -> Any:
        async def guarded(requests: AsyncIterator[Any], context: Any) -> Any:
            peer = await self._admit(context, method)
            await self._begin(peer, context, method)
            try:
                return await handler.unary_unary(await self._request(requests, peer, context, method), context)
            finally:
                self._end(peer, method)

        return grpc.stream_unary_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)

    async def _request(self, requests: AsyncIterator[Any], peer: Peer, context: Any, method: str) -> Any:
        """The request of a call that has one: so many of a member are read at once, each for so long."""
        limits = self._limits
        async with self._turns.setdefault(peer.identity.member, asyncio.Semaphore(limits.requests_max)):
            try:
                async with asyncio.timeout(limits.request_s):
                    return await anext(requests)
            except (TimeoutError, StopAsyncIteration):
                words = f"{method}: no whole request came within {limits.request_s:.0f} s"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)

    async def _begin(self, peer: Peer, context: Any, method: str) -> None:
        """Count a call; ends that of who has too many open."""
        who, limits = peer.identity.member, self._limits
        if self._calls[who] >= limits.calls_max:
            words = f"{method}: {who} has {limits.calls_max} calls open, which is the limit"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        if method == "Attend" and self._sessions[who] >= limits.sessions_max:
            words = f"{method}: {who} has {limits.sessions_max} sessions open, which is the limit"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        self._calls[who] += 1
        self._sessions[who] += method == "Attend"

    def _end(self, peer: Peer, method: str) -> None:
        who = peer.identity.member
        _less(self._calls, who)
        if method == "Attend":
            _less(self._sessions, who)
        if not self._calls[who]:
            self._turns.pop(who, None)

    async def _admit(self, context: Any, method: str) -> Peer:
        """Who calls; ends the call of who may not."""
        from headrace.cluster import CertificateError, utc_now, verify

        try:
            roles = MAY_CALL.get(method, frozenset())
            return verify(_shown(context), self._authority, roles, utc_now(), self._expelled())
        except CertificateError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method}: {error}")
            raise AssertionError("abort returns never") from error


def _less(counted: Counter[str], who: str) -> None:
    counted[who] -= 1
    if counted[who] <= 0:
        del counted[who]


def caller(context: Any) -> str:
    """Who calls, as role/name, where the guard has admitted the call; empty where nobody has certificates."""
    shown = _shown(context)
    if shown is None:
        return ""
    from headrace.cluster import identity_of

    return identity_of(shown).member


def _shown(context: Any) -> x509.Certificate | None:
    """The certificate of who calls. Raises CertificateUntrustedError for what is none."""
    pem = context.auth_context().get("x509_pem_cert", [])
    if not pem:
        return None
    from headrace.cluster import read_certificate

    return read_certificate(bytes(pem[0]))


async def _named(
    messages: AsyncIterator[pb.FromWorker], name: str, still: Callable[[], Awaitable[None]]
) -> AsyncIterator[pb.FromWorker]:
    async for message in messages:
        await still()
        if message.WhichOneof("message") == "register":
            message.register.worker = name
        yield message


class Act(Enum):
    """What people ask for, as it follows `may`."""

    APPLY = "apply pipelines"
    STOP = "stop pipelines"
    CHANGE = "pause, resume, scale, move or relink pipelines"
    CLEAR = "clear pipelines"
    DRAIN = "drain workers"
    EXPEL = "expel members"
    QUEUE = "set or remove queues"


class Reach(Enum):
    """Whose pipelines an act may be about."""

    ALL = "all"
    OWN = "own"


#: Roles by their names in certificates: here nothing needs the library of these.
OPERATOR, USER = "operator", "user"

#: What is not here, nobody of that role may.
RIGHTS: dict[tuple[str, Act], Reach] = {
    (OPERATOR, Act.APPLY): Reach.ALL,
    (OPERATOR, Act.STOP): Reach.ALL,
    (OPERATOR, Act.CHANGE): Reach.ALL,
    (OPERATOR, Act.CLEAR): Reach.ALL,
    (OPERATOR, Act.DRAIN): Reach.ALL,
    (OPERATOR, Act.EXPEL): Reach.ALL,
    (OPERATOR, Act.QUEUE): Reach.ALL,
    (USER, Act.APPLY): Reach.OWN,
    (USER, Act.STOP): Reach.OWN,
    (USER, Act.CHANGE): Reach.OWN,
    (USER, Act.CLEAR): Reach.OWN,
}


def act_of(request: pb.SteerRequest) -> Act:
    """What a request of the method Steer asks for."""
    if request.expel:
        return Act.EXPEL
    if request.clear:
        return Act.CLEAR
    return Act.DRAIN if request.worker else Act.CHANGE


def why_not(member: str, act: Act, pipeline: str = "", owner: str | None = None) -> str:
    """Why a member, as role/name, may not do that; empty if it may, and where nobody has certificates.

    `owner` is who applied the pipeline, None where there is none of that name; without a name it is about all of them.
    """
    role, _, name = member.partition("/")
    if not member:
        return ""
    reach = RIGHTS.get((role, act))
    if reach is None:
        return f"{role} {name} may not {act.value}: an operator may"
    if reach is Reach.ALL or (pipeline and owner in (None, member)) or (act is Act.APPLY and owner is None):
        return ""
    whose = f"{pipeline!r} is of {(owner or 'somebody unknown').replace('/', ' ')}" if pipeline else "name one of them"
    return f"{role} {name} may {act.value} of his own: {whose}"
