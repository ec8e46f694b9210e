"""A process that has as many files open as it may."""

import contextlib
import os
import resource
from collections.abc import Iterator

#: Descriptors above those that are open; the limit is put so low that they are soon taken.
SPARE = 32


def open_count() -> int:
    """The descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """While this lasts the process can open so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + SPARE, hard))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
