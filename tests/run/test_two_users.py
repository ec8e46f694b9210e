"""Controller and worker as two users, in folders as `systemd/` makes them: a run completes, and no more is shared."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.kits.host.rights import need_other_users
from tests.kits.host.users import as_user
from tests.kits.run.kill import headrace

CONTROLLER, WORKER, GROUP = 60_101, 60_102, 60_100
PATIENCE_S = 120.0
RECORDS = 50
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("two-users", output, read_jsonl(input), write_documents())
"""


class Host:
    """The folders of two daemons and of their datasets, as the units have them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._count = 0
        for user, name in ((CONTROLLER, "controller"), (WORKER, "worker")):
            for kind in ("state", "runtime"):
                path = folder / f"{kind}-{name}"
                path.mkdir(mode=0o700)
                os.chown(path, user, user)
        self.data.mkdir()
        os.chown(self.data, 0, GROUP)
        self.data.chmod(0o2770)
        self.cluster = folder / "state-controller" / "cluster"
        self.member = folder / "state-worker" / "member"

    def command(self, user: int, *command: str) -> list[str]:
        """A command as one of the two."""
        self._count += 1
        hold = self.folder / f"hold-{self._count}"
        hold.mkdir()
        return as_user(user, GROUP, command, hold)

    def environment(self, user: int, **more: str) -> dict[str, str]:
        """What the unit of a user sets."""
        name = "controller" if user == CONTROLLER else "worker"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HEADRACE_", "XDG_"))}
        home = str(self.folder / f"state-{name}")
        return {**kept, "HOME": home, "HEADRACE_RUNTIME_DIR": str(self.folder / f"runtime-{name}"), **more}

    def run(self, user: int, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            self.command(user, *command),
            env=self.environment(user, **more),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )


@pytest.fixture
def host() -> Iterator[Host]:
    need_other_users()
    # Not in a folder of pytest's, which another session of it closes for others as it begins.
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        Path(folder).chmod(0o711)
        yield Host(Path(folder))


def free_ports() -> int:
    """A port that is free, with the one behind it; none of those that the kernel gives to who asks for any."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


def until(look: Callable[[], bool], what: str) -> None:
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not look():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:.0f} s"
        pause.wait(0.1)


@pytest.fixture
def daemons(host: Host) -> Iterator[Host]:
    """Both of them, each as its user; the worker has joined."""
    address = f"127.0.0.1:{free_ports()}"
    made = host.run(CONTROLLER, *headrace("cluster", "init", str(host.cluster), "--controller", address))
    assert made.returncode == 0, made.stderr
    commands = [
        (CONTROLLER, ("controller",), {"HEADRACE_CLUSTER": str(host.cluster), "HEADRACE_LISTEN": address}),
        (
            WORKER,
            ("worker", "--cores", "1"),
            {"HEADRACE_STATE": str(host.member), "HEADRACE_JOIN_TOKEN": made.stdout.strip()},
        ),
    ]
    with ExitStack() as stack:
        for user, arguments, more in commands:
            process = stack.enter_context(
                subprocess.Popen(
                    host.command(user, *headrace(*arguments)),
                    env=host.environment(user, **more),
                    cwd=host.folder,
                    stderr=stack.enter_context(open(host.folder / f"{arguments[0]}.log", "wb")),
                )
            )
            stack.callback(process.terminate)
            if user == CONTROLLER:
                until(partial(answers_or_died, address, process), "a controller that answers")
            assert process.poll() is None, (host.folder / f"{arguments[0]}.log").read_text()
        until(lambda: attends(host), "a worker that attends")
        yield host


def answers_or_died(address: str, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        return True
    name, _, port = address.partition(":")
    with socket.socket() as client:
        return client.connect_ex((name, int(port))) == 0


def attends(host: Host) -> bool:
    status = host.run(CONTROLLER, *headrace("status", "--cluster", str(host.cluster), "--json"))
    return status.returncode == 0 and bool(json.loads(status.stdout)["workers"])


def test_a_run_completes_and_neither_reads_what_is_the_others(daemons: Host) -> None:
    host = daemons
    (host.folder / "two.py").write_text(PIPELINE)
    lines = [json.dumps({"text": f"record {number}"}) for number in range(RECORDS)]
    (host.folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    for name in ("two.py", "in.jsonl"):
        (host.folder / name).chmod(0o644)
    output = f"file://{host.data}/out"
    parameters = ("-p", f"input={host.folder}/in.jsonl", "-p", f"output={output}")
    applied = host.run(
        CONTROLLER, *headrace("apply", "two.py", *parameters, "--cluster", str(host.cluster), "--wait", "--json")
    )
    assert applied.returncode == 0, applied.stderr
    report = json.loads(applied.stdout)
    assert (report["kept"], report["complete"], report["balanced"]) == (RECORDS, True, True)
    owners = {path.parent.name: path.stat().st_uid for path in (host.data / "out").rglob("*.msgpack")}
    assert set(owners.values()) == {CONTROLLER}, "the ledger is the controller's"
    shards = {path.stat().st_uid for path in (host.data / "out" / "shards").rglob("*.parquet")}
    assert shards == {WORKER}, "shards are the worker's"
    assert all(path.stat().st_mode & 0o007 == 0 for path in (host.data / "out").rglob("*"))
    keys = sorted(host.cluster.glob("*.key"))
    assert len(keys) >= 4
    for key in keys:
        assert host.run(CONTROLLER, "test", "-r", str(key)).returncode == 0
        refused = host.run(WORKER, "test", "-r", str(key))
        assert refused.returncode != 0, f"a task reads {key.name}"
    assert host.run(CONTROLLER, "test", "-r", str(host.member / "node.key")).returncode != 0
    denied = host.run(WORKER, *headrace("status", "--cluster", str(host.cluster)))
    assert denied.returncode == 1
    assert "Permission denied" in denied.stderr
