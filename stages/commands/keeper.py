"""The parent of a stage's commands: it starts one after the other, and leaves none of what they started alive.

    python -I -S command_keeper.py FD < arguments as JSON

A command may start processes that leave its process group and its session, and that live on when it ends. All of them
become children of this process when their parents end, since it is their reaper (prctl(2), PR_SET_CHILD_SUBREAPER): so
it can kill them by generations until it has no child, and knows when none is left. It does so when it is told to, and
when the other end of its socket is closed: however its task has ended. The commands themselves die with it.

It holds nothing of the task and imports nothing but Python's own: a fork of it is cheaper than one of the task.
Datagrams to it are `start`, with three descriptors, and `kill`; from it, in JSON, {"pid": n} or {"errno": n} for the
first, {"gone": true} for the second, and {"exited": code} when the command ends, a signal as a negative number.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

#: Seconds between two looks at what is being killed.
_LOOK_S = 0.002
#: Seconds that a task is kept waiting while what cannot be killed (another user's, or waiting for a device) lives.
KILL_S = 5.0
_MESSAGE_BYTES = 64
_DESCRIPTORS = 3
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Those that Python ignores and a command expects not to be.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
_LIBC = ctypes.CDLL(None)


class Keeper:
    """One command at a time, and all that it and those before it have started."""

    def __init__(self, task: socket.socket, arguments: list[str]) -> None:
        self._task, self._arguments = task, arguments
        self._pid = 0

    def serve(self) -> None:
        """Do what the task asks for until it is gone."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._task, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    os.read(woken, 4096)
                    self._reap()
                elif not self._obey():
                    return

    def kill_all(self, seconds: float) -> None:
        """Kill every process below this one, by generations; what cannot be killed is waited for so long."""
        deadline = time.monotonic() + seconds
        while self._reap() and time.monotonic() < deadline:
            for pid in _children():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)

    def _obey(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._task, _MESSAGE_BYTES, _DESCRIPTORS)
        except ConnectionError:
            return False
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # the command has them as its standard ones, and nowhere else
        if data == b"start":
            self._say(self._start(descriptors))
            for descriptor in descriptors:
                os.close(descriptor)
        elif data == b"kill":
            self.kill_all(KILL_S)
            self._say({"gone": True})
        return bool(data)

    def _start(self, descriptors: list[int]) -> dict[str, Any]:
        own = os.getpid()
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                self._become(own, descriptors)
            except OSError as error:
                os.write(tell, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(tell)
        with open(told, "rb") as file:
            failed = file.read()
        if failed:
            os.waitpid(pid, 0)
            return {"errno": int(failed)}
        self._pid = pid
        return {"pid": pid}

    def _become(self, keeper: int, descriptors: list[int]) -> None:
        """Be the command."""
        os.setsid()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(127)
        for number in _RESTORED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        os.execvp(self._arguments[0], self._arguments)  # noqa: S606 - the user's own command

    def _reap(self) -> bool:
        """Bury the dead; whether a child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._pid:
                self._pid = 0
                self._say({"exited": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the task is gone, which is read in a moment
            self._task.send(json.dumps(message).encode())


def _children() -> list[int]:
    """The processes whose parent this one is, by the word of the kernel."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == own:
                    found.append(int(name))
    return found


def main() -> None:
    """Keep the commands of one stage."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    arguments = json.load(sys.stdin)
    os.set_inheritable(int(sys.argv[1]), False)
    keeper = Keeper(socket.socket(fileno=int(sys.argv[1])), arguments)
    try:
        keeper.serve()
    finally:
        # Nobody waits any more: as long as it takes.
        keeper.kill_all(float("inf"))


if __name__ == "__main__":
    main()
