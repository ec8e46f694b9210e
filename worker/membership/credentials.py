"""What a worker does with its membership: the channel to the controller, and what its tasks are lent.

Where the token comes from with which a node joins: standard input, a file of its own, or the environment. Never an
argument: every user of a host reads the command lines of all processes, and whoever reads a token first may join with
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from headrace.cluster import PREFIX, TOKEN_LIMIT
from headrace.daemon import read_private, to_call
from headrace.protos import control_pb2 as pb
from headrace.worker.membership.member import JoinError, Membership, own_addresses


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


VARIABLE = "HEADRACE_JOIN_TOKEN"
STANDARD_INPUT = "-"
HOW = f"give it on standard input (--join -), in a file of mode 0600 (--join FILE), or in {VARIABLE}"
SHOWN = (
    f"a token on the command line is read by every user of this host: {HOW}; "
    "this one has been shown, so make another with `headrace cluster token`"
)


def is_token(argument: str) -> bool:
    """Whether an argument is a token itself, which it must not be."""
    return argument.strip().startswith(PREFIX)


def find_token(given: str) -> str:
    """The token of `--join`: `-` or a file's path; else that of the environment, which it leaves; else nothing.

    Raises JoinError.
    """
    # Tasks and their command stages inherit the environment, and need no token.
    lent = os.environ.pop(VARIABLE, "")
    if is_token(given):
        raise JoinError(SHOWN)
    if given == STANDARD_INPUT:
        return _bounded(sys.stdin.buffer.read(TOKEN_LIMIT + 1), "standard input")
    if given:
        try:
            return _bounded(read_private(Path(given), TOKEN_LIMIT, pipes=True), given)
        except OSError as error:
            raise JoinError(f"--join {given} cannot be read: {error.strerror}; {HOW}") from error
    return _bounded(lent.encode(errors="replace"), VARIABLE) if lent else ""


def _bounded(data: bytes, where: str) -> str:
    """The one token that stands there."""
    if len(data) > TOKEN_LIMIT:
        raise JoinError(f"{where} holds more than {TOKEN_LIMIT:,} bytes, and no token is so long")
    token = data.decode("ascii", errors="replace").strip()
    if not is_token(token):
        raise JoinError(f"{where} holds no join token: put the one line there that `headrace cluster token` prints")
    return token
