"""Files below the folder that an input gives: a link that leads out of it is refused, unless links may be followed.

What was opened is looked at, and not its name: a descriptor without rights (O_PATH) is taken first, the kernel says
where that leads, and the same descriptor is then opened for reading. So a link that somebody puts in between, into the
place of a file or of a folder, is refused as well, and a pipe or a device is never opened.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import replace

from headrace.pipeline import Stage
from headrace.stages.runtime import InputError

#: How the command line and the sources call the leave to follow links.
OPTION, PARAMETER = "--follow-links", "follow_links"


def with_followed_links(source: Stage) -> Stage:
    """A declared source that may follow links out of the folders that it is given; no part of its version."""
    parameters = {**source.parameters, PARAMETER: True}
    return replace(source, parameters=parameters, volatile=(*source.volatile, PARAMETER))


class LeadsOutError(InputError):
    """A link leads out of the folder that was given."""


def open_below(root: str, path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the file or folder at `path`, which begins with `root`, a folder that ends in "/".

    An empty root is that of a path that was given itself: it may lead anywhere. `O_PATH` in `flags` opens nothing.
    Raises OSError (EINVAL for what is neither a file nor a folder) and LeadsOutError.
    """
    if not root:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    else:
        top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.open(path[len(root) :] or ".", os.O_PATH | os.O_CLOEXEC, dir_fd=top)
            try:
                _check(root, path, _place_of(top), _place_of(found))
            except BaseException:
                os.close(found)
                raise
        finally:
            os.close(top)
    if flags & os.O_PATH:
        return found
    try:
        mode = os.fstat(found).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError(errno.EINVAL, "no regular file", path)
        return os.open(f"/proc/self/fd/{found}", flags | os.O_CLOEXEC)
    finally:
        os.close(found)


def _check(root: str, path: str, home: str, place: str) -> None:
    if place != home and not place.startswith(home.rstrip("/") + "/"):
        raise LeadsOutError(
            f"{_link_on(root, path)!r} is a link that leads to {place!r}, out of {root!r}, which the input names: "
            f"take it out of the input, or let links lead anywhere with {OPTION}"
        )


def _place_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _link_on(root: str, path: str) -> str:
    """The first link on the way from the root to the path; the path where there is none any more."""
    at = root.rstrip("/")
    for name in path[len(root) :].split("/"):
        at = f"{at}/{name}"
        with suppress(OSError):
            if stat.S_ISLNK(os.lstat(at).st_mode):
                return at
    return path
