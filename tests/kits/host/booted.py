"""systemd itself as the first process of a host that is made of namespaces, with Headrace in /opt/headrace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kits.host.silent import below, wait_until

TREE = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("boot.sh")
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = ("--pid", "--mount", "--net", "--uts", "--ipc", "--cgroup")
#: In the environment of a command.
PATH = "/opt/headrace/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: A busy machine may be slow.
PATIENCE_S = 150.0


def need_systemd() -> None:
    """Skip where systemd cannot be booted: it is not there, or too few rights."""
    if os.geteuid() != 0:
        pytest.skip("no root: systemd is not booted")
    missing = [tool for tool in ("systemctl", "systemd-analyze", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing or not Path("/lib/systemd/systemd").exists():
        pytest.skip(f"systemd is not installed: {', '.join(missing)}")
    if subprocess.call(["unshare", *NAMESPACES, "--fork", "mount", "--make-rprivate", "/"]) != 0:
        pytest.skip("no rights for namespaces and mounts")


class Booted:
    """A host whose first process is systemd."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def run(self, *command: str, text: str = "", seconds: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """A command of root, to its end."""
        inside = ["nsenter", f"--target={self._pid}", *NAMESPACES, "env", "-i", f"PATH={PATH}", "HOME=/"]
        return subprocess.run([*inside, *command], input=text, capture_output=True, text=True, timeout=seconds)

    def said(self, *command: str, text: str = "") -> str:
        """What a command says that must succeed."""
        done = self.run(*command, text=text)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def facts(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit."""
        told = self.said("systemctl", "show", f"--property={','.join(names)}", unit)
        return dict(line.split("=", 1) for line in told.splitlines())

    def write(self, path: str, text: str) -> str:
        """Make a file that everybody may read."""
        self.said("sh", "-c", 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod 644 "$1"', "sh", path, text=text)
        return path


@contextmanager
def booted() -> Iterator[Booted]:
    """Boot systemd, and end all that it started."""
    own = _cgroups()
    environment = {**os.environ, **({} if len(own) > 1 else {"CGROUP2": "1"})}
    site = sysconfig.get_paths()["purelib"]
    command = ["unshare", *NAMESPACES, "--fork", "bash", str(SCRIPT), str(TREE), sys.base_prefix, site]

    def enter() -> None:
        for group in own:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    starter = subprocess.Popen(command, env=environment, preexec_fn=enter)  # noqa: PLW1509 - no threads here
    try:
        wait_until(lambda: starter.poll() is not None or bool(below(starter.pid)), PATIENCE_S, "the first process")
        host = Booted(next(iter(below(starter.pid))))
        answer = ("systemctl", "is-system-running", "--wait")
        wait_until(lambda: "running" in host.run(*answer).stdout, PATIENCE_S, "systemd to have booted")
        yield host
    finally:
        for pid in list(below(starter.pid))[:1]:
            # All of its namespace ends with it.
            os.kill(pid, signal.SIGKILL)
        starter.wait(PATIENCE_S)
        for group in own:
            for folder in sorted(group.rglob("*/"), reverse=True):
                folder.rmdir()
            group.rmdir()


def _cgroups() -> list[Path]:
    """Groups of its own in each hierarchy that systemd is given: version 1 where the memory controller is there."""
    name = f"headrace-booted-{os.getpid()}"
    lines = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines())
    here = {kind: path.strip("/") for _, kind, path in lines}
    kinds = ("memory", "pids", "systemd") if "memory" in here else ("",)
    found = [CGROUPS / kind / here.get(kind, here.get(f"name={kind}", "")) / name for kind in kinds]
    for group in found:
        group.mkdir()
    return found
