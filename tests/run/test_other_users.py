"""Another user of this host at every listener of a living run, controller, worker and spool: the kernel names them all.

Nothing here knows where they listen: every socket that a process holds is found by its inode in the kernel's tables, so
that a listener that is added later is attacked as well.
"""

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kits.host.rights import need_other_users, open_way
from tests.kits.run.command_server import ended
from tests.kits.run.kill import Marked, headrace
from tests.kits.run.operators import write_paced

PATIENCE_S = 120.0
NOBODY = 65534
#: Column and value by which the kernel's tables say that a socket takes connections (proc_net_tcp(5), unix(7)).
_TCP_LISTENS, _UNIX_LISTENS = "0A", "00010000"
#: Tries each address as another user, and prints what became of it.
ATTACK = """
import json, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
found = []
for kind, where in json.loads(sys.stdin.read()):
    if kind == "unix":
        family, address = socket.AF_UNIX, where.replace("@", "\\0", 1) if where.startswith("@") else where
    else:
        family, address = socket.AF_INET, ("127.0.0.1", where)
    codes = []
    for type in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, type) as attacker:
                codes.append(attacker.connect_ex(address))
        except OSError as error:
            codes.append(error.errno)
    found.append(codes)
print(json.dumps(found))
"""
Listener = tuple[str, str | int]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of sockets, in a folder that everybody may enter, as /tmp is; its name is short, as a socket's is."""
    need_other_users()
    open_way(tmp_path)
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        Path(folder).chmod(0o711)
        monkeypatch.setenv("HEADRACE_RUNTIME_DIR", f"{folder}/runtime")
        yield Path(folder, "runtime")


def listeners(marked: Marked) -> set[Listener]:
    """Where the processes of a command can be reached: a path, a name behind @, or a port."""
    inodes = set()
    for pid in marked.alive():
        folder = Path(f"/proc/{pid}/fd")
        for name in os.listdir(folder) if folder.exists() else ():
            try:
                target = os.readlink(folder / name)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return {item for inode, item in _of_this_host() if inode in inodes}


def _of_this_host() -> Iterator[tuple[str, Listener]]:
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if fields[3] == _UNIX_LISTENS and len(fields) > 7:
            yield fields[6], ("unix", fields[7])
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if table.startswith("udp") or fields[3] == _TCP_LISTENS:
                yield fields[9], (table.rstrip("6"), int(fields[1].rpartition(":")[2], 16))


def until_there(marked: Marked, process: "subprocess.Popen[bytes]", count: int) -> set[Listener]:
    """The listeners, once there are so many."""
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while len(found := listeners(marked)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"{found}: not {count} within {PATIENCE_S:.0f} s"
        pause.wait(0.02)
    return found


def attacked(found: set[Listener]) -> dict[Listener, list[int]]:
    """What each kind of connection to each of them comes to for another user."""
    order = sorted(found, key=str)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ATTACK], input=json.dumps(order), capture_output=True, text=True, check=True
    )
    return dict(zip(order, json.loads(done.stdout), strict=True))


def test_another_user_reaches_no_listener_of_any_process(home: Path, runtime: Path, tmp_path: Path) -> None:
    write_paced(tmp_path)
    output = f"output={tmp_path}/out"
    commands = {
        "run": headrace("run", "paced.py", "-p", f"input={home}/corpus/*.jsonl", "-p", output),
        "controller": headrace("controller"),
        "worker": headrace("worker", "--name", "w", "--cores", "1"),
        "spool": [sys.executable, "-P", "-m", "headrace.worker.spool.server", str(tmp_path / "spool")],
    }
    #: A run has a controller's socket and a worker's door.
    counts = {"run": 2, "controller": 1, "worker": 1, "spool": 1}
    with ExitStack() as stack:
        found: set[Listener] = set()
        for name, command in commands.items():
            marked = Marked(command, tmp_path)
            process = marked.start()
            stack.callback(process.communicate, timeout=PATIENCE_S)
            stack.callback(marked.kill)
            found |= until_there(marked, process, counts[name])
        assert {kind for kind, _ in found} == {"unix"}, f"nothing listens on a network: {found}"
        assert len(found) == sum(counts.values())
        for (_, where), codes in attacked(found).items():
            assert str(where).startswith(f"{runtime}/"), "no name that everybody may connect to"
            assert codes == [errno.EACCES] * 3, where
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if "door" in str(where) else 1) as own:
                own.connect(str(where))


def test_the_attack_is_one_it_reaches_what_everybody_may_reach(tmp_path: Path, runtime: Path) -> None:
    tmp_path.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as everybodys, socket.socket() as port:
        everybodys.bind(str(tmp_path / "all.sock"))
        (tmp_path / "all.sock").chmod(0o777)
        everybodys.listen()
        port.bind(("127.0.0.1", 0))
        port.listen()
        name: Listener = ("unix", str(tmp_path / "all.sock"))
        number: Listener = ("tcp", port.getsockname()[1])
        reached = attacked({name, number})
    assert (reached[name][0], reached[number][0]) == (0, 0)


def test_a_folder_taken_by_another_user_is_refused_naming_him(runtime: Path, tmp_path: Path) -> None:
    runtime.mkdir(0o700)
    os.chown(runtime, NOBODY, NOBODY)
    for arguments in (["controller"], ["worker"], ["status"], ["run", "paced.py", "-p", "input=x", "-p", "output=y"]):
        write_paced(tmp_path)
        done = ended(headrace(*arguments), cwd=tmp_path, timeout=PATIENCE_S)
        assert done.returncode == 1, arguments
        assert f"{runtime} belongs to user 65534" in done.stderr
        assert "Traceback" not in done.stderr
