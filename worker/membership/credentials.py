"""What a worker does with its membership: the channel to the controller, and what its tasks are lent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from headrace.daemon import to_call
from headrace.protos import control_pb2 as pb
from headrace.worker.membership.addresses import own_addresses
from headrace.worker.membership.member import JoinError, Membership


def membership(given: str, state: Path | None) -> Membership | None:
    """The membership in the folder `state`, made with a token if there is none; None for a worker of no cluster.

    `given` is what --join says: where the token is.

    Raises JoinError.
    """
    if state is None:
        if given:
            raise JoinError("--join needs --state: the folder in which this node keeps its key and certificate")
        return None
    from headrace.worker.membership.join import join, read_membership
    from headrace.worker.membership.token_file import HOW, find_token

    token = find_token(given)
    member = join(token, state) if token else read_membership(state)
    if member is None:
        raise JoinError(f"{state} holds no membership: join a cluster with a token: {HOW}")
    return member


def open_channel(address: str, member: Membership | None, options: Sequence[tuple[str, Any]]) -> grpc.aio.Channel:
    """A channel to a controller: mutual TLS for a member, else a socket that is this user's alone.

    Raises AddressError and OSError, where somebody else may have put the socket there.
    """
    if member is None:
        return grpc.aio.insecure_channel(to_call(address), options=options)
    from headrace.cluster import Role, role_host

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
