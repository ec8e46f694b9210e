"""The process of a command stage: bytes in, bytes out, what it said on standard error, and how it ended.

Nothing here waits on one end of the process alone, so it may write before it has read all. It dies with its task, and
so does all that it has started, wherever that has gone (`command_keeper`).
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.stages.commands import keeper as command_keeper

#: Bytes of the end of its standard error that are kept for a verdict.
ERRORS_BYTES_MAX = 2048
#: Bytes that the pipes to and from it may hold, where the kernel allows it.
PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_F_SETPIPE_SZ = 1031
#: Seconds in which a keeper answers.
ANSWER_S = 30.0
_ANSWER_BYTES = 256


class CommandFailedError(Exception):
    """A command ended, or was ended, before its answer was whole; `hung` if it was ended for taking too long.

    `code` is the exit code by which it failed, 0 where it was something else.
    """

    def __init__(self, story: str, *, hung: bool = False, code: int = 0) -> None:
        super().__init__(story)
        self.hung = hung
        self.code = code


class KeeperProcess:
    """The process that starts the commands of one stage, and ends all that they have started (`command_keeper`).

    Raises OSError where the system has no room for it; CommandFailedError where it died.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(ANSWER_S)
        self._code: int | None = None
        with theirs:
            # In a session of its own: Ctrl-C is not for it, and it ends when this process does and not before.
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
                [sys.executable, "-I", "-S", command_keeper.__file__, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={"PYTHONUNBUFFERED": "1", **os.environ},
            )
        assert self._process.stdin is not None
        with self._process.stdin as given:
            given.write(json.dumps(list(arguments)).encode())

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time of its commands that have ended, and its own."""
        return cpu_s(self._process.pid)

    def start(self, descriptors: Sequence[int]) -> int:
        """Start the command with these as its standard input, output and error; its process id. Raises OSError."""
        self._code = None
        try:
            socket.send_fds(self._channel, [b"start"], list(descriptors))
        except OSError as error:
            raise self._died() from error
        answer = self._heard("pid", "errno")
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]), self._arguments[0])
        return int(answer["pid"])

    def exit_code(self, timeout_s: float) -> int | None:
        """The exit code of the command, negative for a signal; None if it lives still after so long."""
        if self._code is None and select.select([self._channel], [], [], timeout_s)[0]:
            self._heard("exited")
        return self._code

    def kill(self) -> None:
        """End the command and all that it and those before it have started."""
        try:
            self._channel.send(b"kill")
        except OSError as error:
            raise self._died() from error
        self._heard("gone")

    def close(self) -> None:
        """End all of them, and the keeper."""
        self._channel.close()
        self._process.wait()

    def _heard(self, *awaited: str) -> dict[str, Any]:
        """The next message with one of these; the end of a command may come before it."""
        while True:
            try:
                data = self._channel.recv(_ANSWER_BYTES)
            except OSError as error:
                raise self._died() from error
            if not data:
                raise self._died()
            message: dict[str, Any] = json.loads(data)
            self._code = message.get("exited", self._code)
            if any(name in message for name in awaited):
                return message

    @property
    def lives(self) -> bool:
        """Whether it can be asked for anything."""
        return self._channel.fileno() >= 0

    def _died(self) -> CommandFailedError:
        """It is of no more use: whoever kills it should know that it kills the command as well."""
        self._channel.close()
        self._process.kill()
        return CommandFailedError(f"the process that starts the command died (exit code {self._process.wait()})")


class CommandProcess:
    """One running command. Raises CommandFailedError when it cannot be started."""

    def __init__(self, keeper: KeeperProcess, succeeds: Sequence[int]) -> None:
        self._keeper, self._succeeds = keeper, succeeds
        #: The end of what it said on standard error, and how many bytes that were in all.
        self.errors = b""
        self.errors_bytes = 0
        #: Whether it closed its input before it had all.
        self.refused = False
        self._out: list[memoryview] = []
        self._closing = False
        #: Whether it has closed its output.
        self.ended = False
        theirs, ours = zip(*(_pipe(reads=reads) for reads in (True, False, False)), strict=True)
        try:
            self.pid = keeper.start(theirs)
        except OSError as error:
            for descriptor in ours:
                os.close(descriptor)
            raise CommandFailedError(f"command does not start: {error}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._stdin = io.FileIO(ours[0], "wb")
        self._stdout, self._stderr = (io.FileIO(descriptor, "rb") for descriptor in ours[1:])
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
            _widen(pipe.fileno())

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time of the process and of children that it has waited for; 0 once it was waited for."""
        return 0.0 if self._keeper.exit_code(0.0) is not None else cpu_s(self.pid)

    @property
    def idle(self) -> bool:
        """Whether all that was given to it is in its pipe."""
        return not self._out

    def give(self, data: bytes) -> None:
        """Queue bytes for its standard input."""
        if data:
            self._out.append(memoryview(data))

    def finish(self, last_words: bytes = b"") -> None:
        """Close its standard input behind all that was given, and these bytes."""
        self.give(last_words)
        self._closing = True
        self._write()

    def turn(self, timeout_s: float, take: Callable[[bytes], None]) -> bool:
        """Move what can be moved, or wait up to `timeout_s` for it; `take` gets its output. False if nothing moved."""
        poll = select.poll()
        for pipe in (self._stdout, self._stderr):
            if not pipe.closed:
                poll.register(pipe.fileno(), select.POLLIN)
        if self._out and not self._stdin.closed:
            poll.register(self._stdin.fileno(), select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1000)}
        moved = False
        if not self._stderr.closed and self._stderr.fileno() in ready:
            self._read_errors()
        if not self._stdin.closed and self._stdin.fileno() in ready:
            moved = self._write()
        if not self._stdout.closed and self._stdout.fileno() in ready:
            data = self._stdout.read(_READ_BYTES)
            if data:
                take(data)
                moved = True
            elif data is not None:
                self._stdout.close()
                self.ended = moved = True
        return moved

    def waiting(self) -> bytes:
        """The output that is there already."""
        return (not self._stdout.closed and self._stdout.read(_READ_BYTES)) or b""

    def drain_errors(self) -> None:
        """Take what it has said on standard error so far."""
        if not self._stderr.closed:
            self._read_errors()

    def judge(self, timeout_s: float) -> None:
        """Wait for its end. Raises CommandFailedError unless its exit code is one of those that succeed."""
        deadline = time.monotonic() + timeout_s
        while not self._stderr.closed and time.monotonic() < deadline:
            self.turn(0.1, lambda _: None)
            if self._keeper.exit_code(0.0) is not None:
                self.drain_errors()
                break
        code = self._keeper.exit_code(max(0.0, deadline - time.monotonic()))
        if code is None:
            raise CommandFailedError(f"command did not end within {timeout_s:g} s of the end of its input", hung=True)
        if code not in self._succeeds:
            raise CommandFailedError(self.story(code), code=max(0, code))

    def story(self, code: int) -> str:
        """How it ended, for a verdict: the exit code, and the end of what it said."""
        how = f"command was killed by signal {-code}" if code < 0 else f"command ended with exit code {code}"
        said = " ".join(self.errors.decode("utf-8", "replace").split())
        return f"{how}: {said}" if said else how

    def kill(self) -> None:
        """End it and whatever it started, at once."""
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()
        self._keeper.kill()

    def _write(self) -> bool:
        moved = False
        try:
            while self._out:
                count = self._stdin.write(self._out[0])
                if not count:
                    break
                moved = True
                self._out[0] = self._out[0][count:]
                if not self._out[0]:
                    del self._out[0]
        except OSError:
            # It reads no more. Its end, or what it still says, tells why.
            self.refused = True
            self._out.clear()
            self._stdin.close()
        if self._closing and not self._out:
            self._stdin.close()
        return moved

    def _read_errors(self) -> None:
        while data := self._stderr.read(_READ_BYTES):
            self.errors = (self.errors + data)[-ERRORS_BYTES_MAX:]
            self.errors_bytes += len(data)
        if data is not None:
            self._stderr.close()


def cpu_s(pid: int) -> float:
    """Seconds of processor time of a process and of children that it has waited for; 0 for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _widen(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        # More than this user may have: a pipe of the usual size works as well.
        return


def _pipe(*, reads: bool) -> tuple[int, int]:
    """A pipe: the command's end, from which it reads or to which it writes, and this process's."""
    out, into = os.pipe()
    return (out, into) if reads else (into, out)
