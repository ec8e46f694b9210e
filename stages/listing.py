"""Local files as fragments: globs, byte ranges, and the version by which a changed file is recognised."""

from __future__ import annotations

import glob
import os
import pathlib
import stat
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from headrace.stages.errors import FragmentChanged, InputError
from headrace.store.entries import Fragment

#: The files that can be read as JSON Lines, and those that a directory stands for.
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
JSONL_IN_DIRECTORY = ("*.jsonl", "*.ndjson")
#: The files that a directory of documents stands for.
DOCUMENTS_IN_DIRECTORY = ("**/*.txt", "**/*.md", "**/*.rst")


def split_patterns(text: str) -> list[str]:
    """The absolute path patterns in a comma list of paths, globs and `file://` URIs.

    A text that names an existing file is that file, whatever commas it holds.
    """
    parts = [text] if os.path.exists(text) else [part.strip() for part in text.split(",") if part.strip()]
    return [_absolute(part) for part in parts]


def _absolute(pattern: str) -> str:
    if pattern.startswith("file://"):
        pattern = _decoded(pattern)
    return os.path.abspath(os.path.expanduser(pattern))


def to_uri(path: str) -> str:
    """The `file://` URI of an absolute path."""
    return pathlib.Path(path).as_uri()


def to_path(uri: str) -> str:
    """The path behind a URI that `to_uri` made."""
    if not uri.startswith("file:///"):
        raise InputError(f"cannot read {uri!r}: sources read local files, file:///absolute/path")
    return _decoded(uri)


def _decoded(uri: str) -> str:
    return os.fsdecode(urllib.parse.unquote_to_bytes(uri.removeprefix("file://")))


def find_files(patterns: Sequence[str], in_directory: Sequence[str]) -> list[str]:
    """The files that match, sorted, each once; raises InputError where a pattern matches none.

    A pattern that names a directory stands for the patterns `in_directory` within it.
    """
    found: set[str] = set()
    for pattern in patterns:
        matches = [path for path in _expand(pattern, in_directory) if os.path.isfile(path)]
        if not matches:
            raise InputError(f'no file matches "{pattern}": check the path (cwd is {os.getcwd()})')
        found.update(matches)
    return sorted(found)


def find_jsonl(patterns: Sequence[str]) -> list[str]:
    """The files that match; raises InputError for none and for a kind of file that cannot be read."""
    paths = find_files(patterns, JSONL_IN_DIRECTORY)
    for path in paths:
        if not path.endswith(JSONL_SUFFIXES):
            known = ", ".join(JSONL_SUFFIXES)
            raise InputError(f"{path!r} is not one of {known}: narrow the glob, and decompress or convert other files")
    return paths


def find_documents(patterns: Sequence[str]) -> list[str]:
    """The files that match; raises InputError for none."""
    return find_files(patterns, DOCUMENTS_IN_DIRECTORY)


def _expand(pattern: str, in_directory: Sequence[str]) -> list[str]:
    if os.path.isdir(pattern):
        inside = [os.path.join(glob.escape(pattern), name) for name in in_directory]
        return [path for name in inside for path in glob.glob(name, recursive=True)]
    if os.path.exists(pattern):
        return [pattern]
    return glob.glob(pattern, recursive=True)


def file_version(status: os.stat_result) -> str:
    """What differs between two contents of one path: size in bytes, mtime in nanoseconds, inode."""
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def list_fragments(paths: Sequence[str], *, stage: str, reader: str, fragment_bytes: int | None) -> Iterator[Fragment]:
    """The fragments of these files in order; a file above `fragment_bytes` is cut into ranges of that many bytes."""
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise InputError(f"cannot list {path!r}: {error.strerror}; it was there a moment ago") from error
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path!r} is not a regular file any more: check what changes it")
        size, version, uri = status.st_size, file_version(status), to_uri(path)
        starts = range(0, size, fragment_bytes) if fragment_bytes and size > fragment_bytes else range(1)
        for start in starts:
            end = -1 if start == starts[-1] else start + starts.step
            length = (size if end < 0 else end) - start
            yield Fragment.named(stage, uri, version, start=start, end=end, reader=reader, size=length)


def open_fragment(fragment: Fragment) -> BinaryIO:
    """The file behind a fragment, open and checked; raises InputError, FragmentChanged."""
    path = to_path(fragment.uri)
    try:
        file = open(path, "rb", buffering=0)  # noqa: SIM115 (the caller closes it)
    except FileNotFoundError as error:
        raise FragmentChanged(f"{path!r} is gone since it was listed: put it back") from error
    except OSError as error:
        raise InputError(f"cannot read {path!r}: {error.strerror}; check its permissions and the disk") from error
    try:
        check_unchanged(file, fragment)
    except BaseException:
        file.close()
        raise
    return file


def check_unchanged(file: BinaryIO, fragment: Fragment) -> None:
    """Raise FragmentChanged unless the open file is still the version that was listed."""
    found = file_version(os.fstat(file.fileno()))
    if found != fragment.version:
        raise FragmentChanged(
            f"{to_path(fragment.uri)!r} has changed since it was listed (size-mtime-inode {fragment.version}, "
            f"now {found}): run again to take it up as new input"
        )
