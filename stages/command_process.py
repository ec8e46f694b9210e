"""The process of a command stage: bytes in, bytes out, what it said on standard error, and how it ended.

Nothing here waits on one end of the process alone, so it may write before it has read all. It dies with its task.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

#: Bytes of the end of its standard error that are kept for a verdict.
ERRORS_BYTES_MAX = 2048
#: Bytes that the pipes to and from it may hold, where the kernel allows it.
PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_F_SETPIPE_SZ = 1031
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class CommandFailedError(Exception):
    """A command ended, or was ended, before its answer was whole; `hung` if it was ended for taking too long.

    `code` is the exit code by which it failed, 0 where it was something else.
    """

    def __init__(self, story: str, *, hung: bool = False, code: int = 0) -> None:
        super().__init__(story)
        self.hung = hung
        self.code = code


class CommandProcess:
    """One running command. Raises CommandFailedError when it cannot be started."""

    def __init__(self, arguments: Sequence[str], succeeds: Sequence[int]) -> None:
        self._succeeds = succeeds
        #: The end of what it said on standard error, and how many bytes that were in all.
        self.errors = b""
        self.errors_bytes = 0
        #: Whether it closed its input before it had all.
        self.refused = False
        self._out: list[memoryview] = []
        self._closing = False
        #: Whether it has closed its output.
        self.ended = False
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the user's own command)
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env={"PYTHONUNBUFFERED": "1", **os.environ},
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (one system call, that takes no lock)
            )
        except OSError as error:
            raise CommandFailedError(f"command does not start: {error}") from error
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
            _widen(pipe.fileno())
        self.pid = self._process.pid

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time of the process and of children that it has waited for; 0 once it was waited for."""
        if self._process.returncode is not None:
            return 0.0
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

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
            if self._process.poll() is not None:
                self.drain_errors()
                break
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise CommandFailedError(
                f"command did not end within {timeout_s:g} s of the end of its input", hung=True
            ) from None
        if code not in self._succeeds:
            raise CommandFailedError(self.story(code), code=max(0, code))

    def story(self, code: int) -> str:
        """How it ended, for a verdict: the exit code, and the end of what it said."""
        how = f"command was killed by signal {-code}" if code < 0 else f"command ended with exit code {code}"
        said = " ".join(self.errors.decode("utf-8", "replace").split())
        return f"{how}: {said}" if said else how

    def kill(self) -> None:
        """End it and whatever it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()

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


def _widen(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        # More than this user may have: a pipe of the usual size works as well.
        return


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
