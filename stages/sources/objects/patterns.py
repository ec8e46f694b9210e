"""Which files and objects an input names, in which order, and how files below its folder are opened.

Light: a pipeline file imports this through the library.

What was opened is looked at, and not its name: a descriptor without rights (O_PATH) is taken first, the kernel says
where that leads, and the same descriptor is then opened for reading. So a link that somebody puts in between, into
the place of a file or of a folder, is refused as well, and a pipe or a device is never opened.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import urllib.parse
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from headrace.pipeline import Stage
from headrace.stages.runtime import InputError

#: The window of a zstd frame that is read without being asked to: that of `zstd --long=27`, and of its highest levels.
WINDOW_BYTES = 128 << 20

#: What stands beside the data in a folder: the card and the terms of a dataset, what no data is called, and what Spark,
#: Hadoop and Arrow take for their own.
_BESIDE = re.compile(
    r"[._].*|(readme|licen[sc]e|copying|changelog|contributing|code_of_conduct)([-_.][^/]*)?", re.IGNORECASE | re.DOTALL
)

_MAGIC = re.compile(r"[*?\[]")
#: A folder of a partition, as Hive writes it, and its word for none.
_PARTITION = re.compile(r"([A-Za-z_][\w.-]{0,63})=([^/]{1,255})")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: A query such as `?endpoint=http://...` ends a URI; any other question mark is one of a glob.
_QUERY = re.compile(r"\?[a-z_]+=.*", re.DOTALL)
#: Of an address of the web any question mark begins one.
_WEB_QUERY = re.compile(r"\?.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class InputPlace:
    """Where a pattern points to: a store and what follows it. `root` is "" for a path of this machine.

    `root` is the URI that opens the store, its query included; `prefix` is what stands before a key in the URI of an
    object; `path` is the glob, an absolute path or a key.
    """

    text: str
    root: str
    prefix: str
    path: str


def split_patterns(text: str) -> list[str]:
    """The patterns in a comma list of paths, globs and URIs; paths become absolute.

    A text that names an existing file is that file, whatever commas it holds.
    """
    parts = [text] if os.path.exists(text) else [part.strip() for part in text.split(",") if part.strip()]
    return [part if _is_remote(part) else _absolute(part) for part in parts]


def place_of(pattern: str) -> InputPlace:
    """Where a pattern of `split_patterns` points to."""
    if not _is_remote(pattern):
        return InputPlace(pattern, "", "", _absolute(pattern))
    scheme = pattern.partition("://")[0].lower()
    found = (_WEB_QUERY if scheme in ("http", "https") else _QUERY).search(pattern)
    query = found.group() if found else ""
    plain = pattern[: len(pattern) - len(query)]
    rest = plain.partition("://")[2]
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise InputError(f"input {plain!r} names no bucket: write {scheme}://bucket/folder/*.jsonl")
    prefix = f"{scheme}://{bucket}/"
    return InputPlace(plain, prefix.rstrip("/") + query, prefix, path)


def _is_remote(pattern: str) -> bool:
    scheme, separator, _ = pattern.partition("://")
    return bool(separator) and scheme.isalnum() and scheme != "file"


def _absolute(pattern: str) -> str:
    if pattern.startswith("file://"):
        pattern = decode_path(pattern)
    if "\0" in pattern:
        raise InputError(f"input {pattern[:80]!r} holds a zero byte, which no path has")
    return os.path.abspath(os.path.expanduser(pattern))


def decode_path(uri: str) -> str:
    """The path in a `file://` URI."""
    return os.fsdecode(urllib.parse.unquote_to_bytes(uri.removeprefix("file://")))


@functools.lru_cache(maxsize=1024)
def partition_of(uri: str) -> dict[str, str]:
    """The fields that the folders of a file name: `k=v/`, with v as text, unescaped."""
    path = decode_path(uri) if uri.startswith("file://") else uri
    found = (_PARTITION.fullmatch(segment) for segment in path.split("/")[:-1])
    fields = {match[1]: urllib.parse.unquote(match[2]) for match in found if match and match[2] != _NO_VALUE}
    return {name: value.encode("utf-8", "replace").decode() for name, value in fields.items()}


def is_beside(name: str) -> bool:
    """Whether a file or folder of this name is no data of the folder that it lies in."""
    return _BESIDE.fullmatch(name) is not None


def is_glob(text: str) -> bool:
    """Whether the text has a character that a glob gives a meaning to."""
    return _MAGIC.search(text) is not None


class Glob:
    """Globs that share a folder; `**` spans folders, and no wildcard matches a name's leading dot."""

    def __init__(self, folder: str, globs: Sequence[str]) -> None:
        """`folder` is literal and ends in "/", or is empty; each glob is relative to it."""
        self.folder = folder
        self._globs = [glob.split("/") for glob in globs]
        self._pattern = re.compile("|".join(_translate(parts) for parts in self._globs), re.DOTALL)

    @staticmethod
    def of(path: str) -> Glob:
        """The glob of a path, from the last folder that is named without a wildcard."""
        parts = path.split("/")
        literal = next((index for index, part in enumerate(parts) if is_glob(part)), len(parts) - 1)
        folder = "/".join(parts[:literal])
        return Glob(folder + "/" if literal else "", ["/".join(parts[literal:])])

    def matches(self, path: str) -> bool:
        """Whether a path below the folder, relative to it, is named."""
        return self._pattern.fullmatch(path) is not None

    def enters(self, folder: str) -> bool:
        """Whether something named can lie in this folder, relative and without a slash at its end."""
        return any(_enters(parts, folder.split("/")) for parts in self._globs)


class Folder(Glob):
    """What a folder stands for: files of some suffixes at any depth, but for those beside the data."""

    def matches(self, path: str) -> bool:
        """Whether a path below the folder, relative to it, is data."""
        *folders, name = path.split("/")
        return (
            super().matches(path)
            and not is_beside(name)
            and not any(folder.startswith((".", "_")) for folder in folders)
        )

    def enters(self, folder: str) -> bool:
        """Whether data can lie in this folder; one that is called as a card is, is a folder like others."""
        return super().enters(folder) and not any(name.startswith("_") for name in folder.split("/"))


def _enters(parts: Sequence[str], names: Sequence[str]) -> bool:
    for index, name in enumerate(names):
        if index < len(parts) and parts[index] == "**":
            return not any(part.startswith(".") for part in names[index:])
        if index >= len(parts) - 1:
            return False
        if not re.fullmatch(_segment(parts[index]), name, re.DOTALL):
            return False
    return True


def _translate(parts: Sequence[str]) -> str:
    """The glob's segments as a regular expression of the whole path."""
    pieces: list[str] = []
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            pieces.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else ""))
        else:
            pieces.append(_segment(part) + ("" if last else "/"))
    return "(?:" + "".join(pieces) + ")"


@functools.cache
def _segment(glob: str) -> str:
    out = "" if glob.startswith(".") else r"(?!\.)"
    at = 0
    while at < len(glob):
        char = glob[at]
        at += 1
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and (end := glob.find("]", at + 1 + (glob[at : at + 1] == "!"))) > 0:
            out += _one_of(glob[at:end])
            at = end + 1
        else:
            out += re.escape(char)
    return out


def _one_of(inside: str) -> str:
    """The characters between brackets as a regular expression; a range from high to low is empty."""
    negated, inside = ("^", inside[1:]) if inside.startswith("!") else ("", inside)
    parts: list[str] = []
    at = 0
    while at < len(inside):
        low, high = inside[at], inside[at + 2 : at + 3] if inside[at + 1 : at + 2] == "-" else ""
        at += 3 if high else 1
        if not high:
            parts.append(re.escape(low))
        elif low <= high:
            parts.append(f"{re.escape(low)}-{re.escape(high)}")
    chosen = f"[{negated}{''.join(parts)}]" if parts else "[^/]" if negated else "(?!)"
    return "(?!/)" + chosen


def order_of(path: str) -> bytes:
    """What paths and keys are sorted by: their bytes."""
    return os.fsencode(path)


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
