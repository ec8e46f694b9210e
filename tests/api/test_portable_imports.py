"""What a trainer's or a reader's machine imports needs nothing that only Linux has: by a process without it."""

import subprocess
import sys

import pytest

#: Names of the standard library that macOS has not, and modules that are only of Linux or not built for it.
WITHOUT = """import fcntl, importlib, mmap, os, select, signal, socket, sys

for module, names in {
    os: (
        "memfd_create", "eventfd", "eventfd_read", "eventfd_write", "sched_getaffinity", "sched_setaffinity",
        "splice", "copy_file_range", "pidfd_open", "posix_fadvise", "posix_fallocate", "getrandom", "getresuid",
        "EFD_CLOEXEC", "EFD_NONBLOCK", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "O_TMPFILE", "O_PATH",
    ),
    select: ("epoll", "EPOLLIN"),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    socket: ("SO_PEERCRED", "AF_NETLINK", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_USER_TIMEOUT", "SO_BINDTODEVICE"),
    mmap: ("MAP_POPULATE", "MADV_HUGEPAGE", "MAP_NORESERVE"),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SETPIPE_SZ", "F_OFD_SETLK"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("spwd", "ossaudiodev"):
    sys.modules[name] = None
for name in sys.argv[1:]:
    module, _, what = name.partition(":")
    found = importlib.import_module(module)
    if what:
        getattr(found, what)
"""


@pytest.mark.parametrize(
    "name",
    [
        "headrace",
        "headrace:Loader",
        "headrace:preview",
        "headrace.loader:Loader",
        "headrace.cli.commands.preview:preview_file",
        "headrace.cli.main",
    ],
)
def test_loader_and_preview_import_nothing_that_only_linux_has(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, name], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
