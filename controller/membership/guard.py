"""Who may ask what of a controller: every call is judged by the certificate that its caller shows.

gRPC's TLS refuses who has no certificate of the cluster's authority, or one that is not in force. That is not enough,
since every node of the cluster has one: here the role is looked at, and a worker is taken for the name in its
certificate, whatever it calls itself. A method that stands in no table is for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from cryptography import x509

from headrace.cluster import (
    CertificateError,
    Credentials,
    Expelled,
    Peer,
    Role,
    identity_of,
    read_certificate,
    utc_now,
    verify,
    why_expelled,
)
from headrace.protos import control_pb2 as pb

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


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Stands before every method."""

    def __init__(self, authority: x509.Certificate, expelled: Callable[[], Expelled], calls_max: int) -> None:
        self._authority, self._expelled, self._calls_max = authority, expelled, calls_max
        #: Calls that are open, by member.
        self._calls: Counter[str] = Counter()

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
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )

        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            peer = await self._admit(context, method)
            await self._begin(peer, context, method)

            async def still() -> None:
                # Who is expelled while its call goes on says and hears nothing more.
                if reason := why_expelled(peer, self._expelled()):
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method}: {reason}")

            if handler.request_streaming:
                request = _named(request, peer.identity.name, still)
            try:
                async for answer in inner(request, context):
                    await still()
                    yield answer
            finally:
                self._end(peer)

        return make(guarded, handler.request_deserializer, handler.response_serializer)

    def _single(self, handler: Any, method: str) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            peer = await self._admit(context, method)
            await self._begin(peer, context, method)
            try:
                return await handler.unary_unary(request, context)
            finally:
                self._end(peer)

        return grpc.unary_unary_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)

    async def _begin(self, peer: Peer, context: Any, method: str) -> None:
        """Count a call; ends that of who has too many open."""
        who = peer.identity.member
        if self._calls[who] >= self._calls_max:
            words = f"{method}: {who} has {self._calls_max} calls open, which is the limit"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
        self._calls[who] += 1

    def _end(self, peer: Peer) -> None:
        self._calls[peer.identity.member] -= 1
        if not self._calls[peer.identity.member]:
            del self._calls[peer.identity.member]

    async def _admit(self, context: Any, method: str) -> Peer:
        """Who calls; ends the call of who may not."""
        try:
            roles = MAY_CALL.get(method, frozenset())
            return verify(_shown(context), self._authority, roles, utc_now(), self._expelled())
        except CertificateError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{method}: {error}")
            raise AssertionError("abort returns never") from error


def caller(context: Any) -> str:
    """Who calls, as role/name, where the guard has admitted the call; empty where nobody has certificates."""
    shown = _shown(context)
    return identity_of(shown).member if shown is not None else ""


def _shown(context: Any) -> x509.Certificate | None:
    """The certificate of who calls. Raises CertificateUntrustedError for what is none."""
    pem = context.auth_context().get("x509_pem_cert", [])
    return read_certificate(bytes(pem[0])) if pem else None


async def _named(
    messages: AsyncIterator[pb.FromWorker], name: str, still: Callable[[], Awaitable[None]]
) -> AsyncIterator[pb.FromWorker]:
    async for message in messages:
        await still()
        if message.WhichOneof("message") == "register":
            message.register.worker = name
        yield message
