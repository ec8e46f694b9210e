"""What a controller's gRPC server takes at most: the limits that grpcio has, each with a value of ours.

grpcio has no limit by the address of a peer, and cannot send the oldest half-open connection away for a new one: a
flood can fill `connections_max` until `handshake_s` is over, again and again. Then nobody new is let in while it lasts;
sessions that stand go on, and the process keeps the descriptors that its store and logs need.
docs/reference/security.md says what stands in that place.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

#: Bytes of one message; a page of a listing and a proposal of many ranges must fit.
MESSAGE_BYTES_MAX = 64 << 20
#: Connections, and how much of the process's descriptors they may take.
CONNECTIONS_MAX, CONNECTIONS_SHARE = 4096, 0.5


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """The limits of one server, in seconds, bytes and numbers."""

    #: Connections at once; a further one is closed before a byte of it is read.
    connections_max: int
    #: What TLS and the first frames of HTTP/2 may take.
    handshake_s: float = 10.0
    #: A connection without a call is ended after so long.
    idle_s: float = 120.0
    #: A peer is asked for a sign of life when it was silent for so long, and given up when it has not answered after.
    silent_s: float = 60.0
    answer_s: float = 20.0
    #: Pings of a peer may be so far apart; one that sends this many too soon is sent away.
    ping_apart_s: float = 60.0
    ping_strikes_max: int = 2
    #: Calls at once on one connection, and of all.
    streams_max: int = 128
    calls_max: int = 4096
    #: Calls at once of one member of a cluster, on all of its connections; the guard counts them.
    calls_a_member_max: int = 128
    #: All headers of a call.
    headers_bytes_max: int = 16 << 10
    message_bytes_max: int = MESSAGE_BYTES_MAX

    def options(self) -> list[tuple[str, int]]:
        """As gRPC's channel arguments; `calls_max` is an argument of the server itself."""
        return [
            ("grpc.max_allowed_incoming_connections", self.connections_max),
            ("grpc.server_handshake_timeout_ms", _ms(self.handshake_s)),
            ("grpc.max_connection_idle_ms", _ms(self.idle_s)),
            ("grpc.keepalive_time_ms", _ms(self.silent_s)),
            ("grpc.keepalive_timeout_ms", _ms(self.answer_s)),
            ("grpc.http2.min_ping_interval_without_data_ms", _ms(self.ping_apart_s)),
            ("grpc.http2.max_ping_strikes", self.ping_strikes_max),
            ("grpc.max_concurrent_streams", self.streams_max),
            # Without both, some of what is too large is refused at random.
            ("grpc.max_metadata_size", self.headers_bytes_max),
            ("grpc.absolute_max_metadata_size", self.headers_bytes_max),
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_send_message_length", self.message_bytes_max),
            ("grpc.so_reuseport", 0),
        ]


def usual_limits() -> GrpcLimits:
    """Those of a controller: its connections leave descriptors for all else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else int(soft * CONNECTIONS_SHARE)
    return GrpcLimits(max(1, min(CONNECTIONS_MAX, share)))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
