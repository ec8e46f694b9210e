"""A real S3 server for the tests: SeaweedFS from PyPI, or whatever `HEADRACE_TEST_S3` points to.

`HEADRACE_TEST_S3=s3://bucket?endpoint=http://host:port` (more may follow: `&region=...&ca=...`) with `AWS_*`
credentials in the environment runs the same tests on another server. The bucket must exist; each test writes under a
prefix of its own and leaves it there.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from headrace.store.contract.errors import StoreError
from headrace.store.s3.retry import RetryPolicy
from headrace.store.s3.store import S3Store

START_S_MAX = 120.0
POLL_S = 0.05
#: Where its ports are looked for, in each process of the tests elsewhere: below those of which the kernel gives one to
#: whoever asks for any, so that nobody takes one before the server does.
PORTS_FROM, PORTS_APIECE = 20_000, 1_000
BUCKET = "headrace-test"
ACCESS_KEY, SECRET_KEY = "headrace", "headrace-secret"
#: One that may use the bucket, but not make others (SeaweedFS makes a bucket for an administrator who writes to it).
USER_ACCESS_KEY, USER_SECRET_KEY = "headrace-user", "headrace-user-secret"
#: One that may read and nothing else.
READER_ACCESS_KEY, READER_SECRET_KEY = "headrace-reader", "headrace-reader-secret"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the tests' bucket is."""

    endpoint: str
    bucket: str
    #: Whether we started it, and so know its users and its name.
    is_ours: bool
    #: What else a URI must say to reach it: "&region=...".
    more: str = ""

    def need_own_users(self) -> None:
        """Pass the test over where the server is somebody else's: it knows none of our users."""
        if not self.is_ours:
            pytest.skip("needs users of its own on the server")

    def uri(self, prefix: str = "", endpoint: str | None = None) -> str:
        """The URI of a prefix (a fresh one by default), optionally by way of a proxy."""
        return f"s3://{self.bucket}/{prefix or secrets.token_hex(6)}?endpoint={endpoint or self.endpoint}{self.more}"


@functools.cache
def shared_server(host: str = "127.0.0.1", *within: str) -> S3Server:
    """The one server of this test session, started at the first call; the environment holds its credentials.

    `host` is an address of the network namespace that the command `within` enters.
    """
    # What this machine's user has configured for S3 is none of the tests' business.
    os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        os.environ.pop(name, None)
    elsewhere = os.environ.get("HEADRACE_TEST_S3")
    if elsewhere:
        place = urllib.parse.urlsplit(elsewhere)
        said = dict(urllib.parse.parse_qsl(place.query))
        endpoint = said.pop("endpoint")
        more = "".join(f"&{name}={urllib.parse.quote(value)}" for name, value in said.items())
        return S3Server(endpoint, place.netloc, False, more)
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_REGION="us-east-1")
    return _start(pathlib.Path(tempfile.mkdtemp(prefix="headrace-s3-")), host, within)


def _start(folder: pathlib.Path, host: str, within: Sequence[str]) -> S3Server:
    ports = _free_ports(8)
    (folder / "s3.json").write_text(json.dumps(_identities()))
    (folder / "data").mkdir()
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    names += ("filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc")
    weed = shutil.which("weed", path=f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert weed is not None, "there is no `weed`: install the development extra, or set HEADRACE_TEST_S3"
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [
            *(*within, weed, "server", f"-dir={folder / 'data'}", f"-ip={host}", "-master.telemetry=false"),
            *("-filer", "-s3", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-volume.max=100", "-master.volumeSizeLimitMB=256"),
            *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
        ],
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - one call of libc, which takes no lock
    )
    log.close()
    atexit.register(_stop, process, folder, os.getpid())
    server = S3Server(f"http://{host}:{ports[6]}", BUCKET, True)
    _wait(server, process, folder / "log")
    return server


def _identities() -> dict[str, object]:
    def identity(name: str, access: str, secret: str, actions: list[str]) -> dict[str, object]:
        return {"name": name, "credentials": [{"accessKey": access, "secretKey": secret}], "actions": actions}

    scoped = [f"{action}:{BUCKET}" for action in ("Read", "Write", "List")]
    return {
        "identities": [
            identity("admin", ACCESS_KEY, SECRET_KEY, ["Admin", "Read", "Write", "List", "Tagging"]),
            identity("user", USER_ACCESS_KEY, USER_SECRET_KEY, scoped),
            identity("reader", READER_ACCESS_KEY, READER_SECRET_KEY, scoped[:1]),
        ]
    }


def _wait(server: S3Server, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    """Ready is who takes an object: the S3 port is open long before there is a volume to write to."""
    deadline = time.monotonic() + START_S_MAX
    store = S3Store(server.uri("ready"), retry_policy=RetryPolicy(retry_s_max=0.1, first_contact_s=0.1))
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(StoreError):
            store.replace("ready", [b"yes"])
            return
        threading.Event().wait(POLL_S)
    raise AssertionError(f"SeaweedFS was not ready after {START_S_MAX:.0f} s:\n{log.read_text()[-4000:]}")


def _free_ports(count: int) -> list[int]:
    first = PORTS_FROM + PORTS_APIECE * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = range(first, first + PORTS_APIECE)
    found: list[int] = []
    for port in random.SystemRandom().sample(ports, len(ports)):
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"only {len(found)} of the ports {first} to {first + PORTS_APIECE} are free")


def _die_with_parent() -> None:
    # A test run that is killed must not leave a server behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop(process: subprocess.Popen[bytes], folder: pathlib.Path, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child of the test session runs this too
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
