"""Tests that take rights which not everybody has. In CI, which runs as root, none of them may be passed over."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

#: Set by `.ci/run`: what would be skipped for want of a right is a failure.
VARIABLE = "HEADRACE_CI"


def need_namespaces() -> None:
    """Skip unless network namespaces can be made."""
    if os.geteuid() != 0:
        _pass_over("no root: no network namespaces")


def need_other_users() -> None:
    """Skip unless a process of another user can be started."""
    if os.geteuid() != 0:
        _pass_over("no root: nothing can be tried as another user")


def need_mounts() -> None:
    """Skip where neither root nor a user namespace gives the right to mount."""
    if os.geteuid() == 0:
        return
    command = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    try:
        refused = subprocess.call(command, stderr=subprocess.DEVNULL) != 0
    except FileNotFoundError:
        refused = True
    if refused:
        _pass_over("neither root nor user namespaces: nothing can be mounted")


def open_way(folder: Path) -> None:
    """Let everybody walk to a folder of a test, as to one in /tmp; how deep it lies depends on how tests are run."""
    above = Path(tempfile.gettempdir())
    for part in (folder, *folder.parents):
        if part == above or above not in part.parents:
            break
        part.chmod(0o711)


def _pass_over(why: str) -> None:
    if os.environ.get(VARIABLE):
        pytest.fail(f"{why}; {VARIABLE} is set, and there nothing may be skipped: run as root")
    pytest.skip(why)
