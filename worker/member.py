"""What a worker does with its membership: the channel to the controller, and what its tasks are lent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from headrace.protos import control_pb2 as pb
from headrace.worker.addresses import own_addresses
from headrace.worker.membership import JoinError, Membership

#: Plain text is spoken to controllers of this host only.
LOOPBACK = ("127.", "localhost", "[::1]")


def membership(token: str, state: Path | None) -> Membership | None:
    """The membership in the folder `state`, made with `token` if there is none; None for a worker of no cluster.

    Raises JoinError.
    """
    if state is None:
        if token:
            raise JoinError("--join needs --state: the folder in which this node keeps its key and certificate")
        return None
    from headrace.worker.joining import join, read_membership

    member = join(token, state) if token else read_membership(state)
    if member is None:
        raise JoinError(f"{state} holds no membership: join a cluster with --join TOKEN")
    return member


def check_plain(address: str) -> None:
    """Raise JoinError for an address to which nothing is said in plain text."""
    if not address.startswith(LOOPBACK):
        raise JoinError(
            f"plain text is allowed on loopback only, and the controller is at {address}: "
            "join its cluster with --join TOKEN --state DIR"
        )


def open_channel(address: str, member: Membership | None, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
    """A channel to a controller: mutual TLS for a member, plain text for others (see `check_plain`)."""
    if member is None:
        if not address.startswith(LOOPBACK):
            raise JoinError(
                f"plain text is allowed on loopback only, and the controller is at {address}: join a cluster"
            )
        return grpc.aio.insecure_channel(address, options=options)
    from headrace.transport.certificates import Role, role_host

    credentials = member.credentials
    tls = grpc.ssl_channel_credentials(credentials.authority_pem, credentials.key_pem, credentials.certificate_pem)
    # Whoever answers must have a controller's certificate; under which name or address it was found is no matter.
    named = ("grpc.ssl_target_name_override", role_host(Role.CONTROLLER))
    return grpc.aio.secure_channel(address, tls, options=[*options, named])


def network_of(member: Membership) -> pb.Network:
    """What a task is lent to be reached by tasks of other workers."""
    lent = member.credentials
    return pb.Network(
        certificate=lent.certificate_pem, key=lent.key_pem, authority=lent.authority_pem, addresses=own_addresses()
    )
