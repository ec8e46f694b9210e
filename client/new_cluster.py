"""`headrace cluster init`, `token`, `operator`, `renew`: the folder that makes a cluster, and what lets others in."""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from headrace.client.errors import CliError, UsageError, check_address
from headrace.cluster import (
    AUTHORITY,
    IDENTIFIER_BYTES,
    PEOPLE,
    JoinToken,
    Role,
    create_authority,
    create_node,
    encode_token,
    fingerprint,
    issue,
    public_pem,
    read_credentials,
    write_credentials,
    write_public,
    write_secret,
)
from headrace.controller.membership import CLUSTER_KEY_BYTES, CONTROLLER, OPERATOR, ClusterFiles, ClusterFilesError
from headrace.store.files import disk

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_DAY_S = 86400
#: Characters of a name that several workers share; digits of each key follow.
SHARED_NAME_MAX = 54


def init(folder: Path, name: str, controllers: list[str]) -> int:
    """Make a cluster: its authority, its keys, and the first token. The token is all that goes to standard output."""
    files = make_cluster(folder, name, controllers)
    mark = fingerprint(files.authority.certificate())[:16]
    print(f"headrace: cluster {name} in {folder}, authority {mark}; a worker's token:", file=sys.stderr)
    print(make_token(files, "", 1))
    return 0


def make_cluster(folder: Path, name: str, controllers: list[str]) -> ClusterFiles:
    """Make the folder of a cluster. Raises CliError."""
    for address in controllers:
        check_address("--controller", address)
    _check_name("--name", name)
    if folder.exists() and any(folder.iterdir()):
        raise CliError(f"{folder} is not empty: a cluster is made once; for another token use `headrace cluster token`")
    disk.make_folder(folder, 0o700)
    folder.chmod(0o700)
    now = datetime.now(UTC)
    authority = create_authority(name, now)
    write_credentials(folder, AUTHORITY, authority)
    write_credentials(folder, CONTROLLER, create_node(authority, Role.CONTROLLER, CONTROLLER, now))
    write_credentials(folder, OPERATOR, create_node(authority, Role.OPERATOR, OPERATOR, now))
    write_secret(folder / "cluster.key", secrets.token_bytes(CLUSTER_KEY_BYTES))
    # Last, since it says that the rest is there.
    write_public(folder / "cluster.json", json.dumps({"name": name, "controllers": controllers}).encode())
    files = _read(folder)
    files.issued(f"{OPERATOR}/{OPERATOR}")
    return files


def token(folder: Path, name: str, days: int, nodes: int) -> int:
    """Print a token for so many more workers."""
    if name:
        _check_name("--name", name)
    if nodes > 1 and len(name) > SHARED_NAME_MAX:
        raise UsageError(f"--name {name!r}: the beginning of several names has at most {SHARED_NAME_MAX} characters")
    print(make_token(_read(folder), name, days, nodes))
    return 0


def operator(folder: Path, out: Path, name: str, role: str = Role.OPERATOR.value) -> int:
    """Make the folder with which one more person asks, as this role."""
    _check_name("--name", name)
    if role not in (known := [item.value for item in PEOPLE]):
        raise UsageError(f"--role {role!r}: give one of {', '.join(known)}")
    files = _read(folder)
    if out.exists() and any(out.iterdir()):
        raise CliError(f"{out} is not empty: name a folder to make")
    disk.make_folder(out, 0o700)
    out.chmod(0o700)
    write_credentials(out, OPERATOR, create_node(files.authority, Role(role), name, datetime.now(UTC)))
    write_public(out / f"{AUTHORITY}.pem", files.authority.authority_pem)
    # Last, since it says that the rest is there.
    write_public(out / "cluster.json", (files.folder / "cluster.json").read_bytes())
    files.issued(f"{role}/{name}")
    print(f"{role} {name} of cluster {files.name}: {out}, to be named with --cluster or HEADRACE_CLUSTER")
    return 0


def renew(folder: Path) -> int:
    """Issue the certificates of the folder anew, for the keys that they have: its controller's and its operator's."""
    files = _read(folder)
    roles = {CONTROLLER: Role.CONTROLLER, OPERATOR: Role.OPERATOR}
    # The operator's may lie on another machine.
    standing = [name for name in roles if name == CONTROLLER or (folder / f"{name}.key").exists()]
    keys = {name: public_pem(_key_of(folder, name)) for name in standing}
    now = datetime.now(UTC)
    for name, key in keys.items():
        write_public(folder / f"{name}.pem", issue(files.authority, key, roles[name], name, now))
    end = read_credentials(folder, CONTROLLER).certificate().not_valid_after_utc
    print(f"certificates of cluster {files.name} are good until {end:%Y-%m-%d}: {', '.join(standing)}")
    print("headrace: copy the folder to the other controllers, and start each controller again", file=sys.stderr)
    return 0


def _key_of(folder: Path, name: str) -> EllipticCurvePrivateKey:
    try:
        return read_credentials(folder, name).key()
    except (OSError, ValueError, TypeError) as error:
        raise CliError(f"{folder}: the key of the {name} cannot be read: {error}") from error


def _read(folder: Path) -> ClusterFiles:
    try:
        return ClusterFiles.read(folder)
    except ClusterFilesError as error:
        raise CliError(str(error)) from error


def make_token(files: ClusterFiles, name: str, days: int, nodes: int = 1) -> str:
    """A token with which so many workers may join within so many days; under names of their own where none is given."""
    made = JoinToken(
        authority=fingerprint(files.authority.certificate()),
        identifier=secrets.token_bytes(IDENTIFIER_BYTES),
        role=Role.WORKER,
        name=name,
        expires_at=int(time.time()) + days * _DAY_S,
        controllers=files.controllers,
        nodes=nodes,
    )
    return encode_token(made, files.key)


def _check_name(option: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{option} {name!r}: use a-z, 0-9 and -, at most 63")
