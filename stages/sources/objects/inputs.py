"""The objects that an input names, on this machine and in object stores: listed in order, opened, and recognised again.

A listing holds the names of one folder at a time, so that it streams whatever the input holds.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import pathlib
import stat
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.stages.runtime import FragmentChanged, InputError, unreadable
from headrace.stages.sources.objects.formats import CODECS, codec_of
from headrace.stages.sources.objects.patterns import (
    Folder,
    Glob,
    InputPlace,
    LeadsOutError,
    decode_path,
    is_beside,
    is_glob,
    open_below,
    order_of,
    place_of,
)
from headrace.store import InputStore, ObjectInfo, open_input
from headrace.store.ledger import Fragment

#: Files that a folder holds instead of what was looked for, which are named.
OTHERS_SHOWN = 3
#: Kinds of skipped files that are told apart; others are counted together.
KINDS_MAX = 1000
#: Kinds that are named in the line.
KINDS_SHOWN = 8
OTHERS = "others"
#: Suffixes that say nothing of what is packed: the one before them does.
_PACKED = (*CODECS, ".xz", ".lz4", ".lzo", ".snappy", ".br")
#: Folders below one another that a listing follows; deeper ones are a loop of links.
DEPTH_MAX = 256


@dataclass(frozen=True, slots=True)
class InputObject:
    """A file or an object: its URI, its size in bytes, and what differs between two contents of one name."""

    uri: str
    size: int
    version: str

    def fragment(self, stage: str, reader: str, start: int = 0, end: int = -1) -> Fragment:
        """The fragment of a range of it, by default of the whole."""
        size = (self.size if end < 0 else end) - start
        return Fragment.named(stage, self.uri, self.version, start=start, end=end, reader=reader, size=size)

    def fragments(self, stage: str, reader: str, starts: Sequence[int]) -> Iterator[Fragment]:
        """The fragments that begin at these bytes, of which each ends where the next begins."""
        for start, end in zip(starts, [*starts[1:], -1], strict=True):
            yield self.fragment(stage, reader, start, end)


class SkippedFiles:
    """What a listing skips: files beside the data by name, others by suffix, and what is no file. Bounded memory."""

    def __init__(self) -> None:
        #: by whether it stands beside data, and the kind
        self._kinds: Counter[tuple[bool, str]] = Counter()
        #: What is named and is no file: how many by what they are, and the first of each.
        self._odd: dict[str, tuple[int, str]] = {}
        #: Large files that one task has to read: how many, the bytes of the largest, and its path.
        self._whole = 0, 0, ""

    def add_whole(self, path: str, size: int) -> None:
        """A large compressed file that cannot be cut among tasks."""
        count, most, largest = self._whole
        self._whole = (count + 1, size, path) if size > most else (count + 1, most, largest)

    def add(self, path: str) -> None:
        """A file, or with a slash at its end a folder, relative to the folder that was named."""
        kind = _kind(path)
        self._kinds[kind if kind in self._kinds or len(self._kinds) < KINDS_MAX else (True, OTHERS)] += 1

    def add_odd(self, what: str, path: str) -> None:
        """Something that the input names, and that is no file: what it is instead, and its whole path."""
        count, first = self._odd.get(what, (0, path))
        self._odd[what] = count + 1, first

    def line(self) -> str:
        """The line, or nothing where nothing was skipped. What should be data is named first, then what may be."""
        odd = [
            f"not read: {path!r} {what}" + (f", like {count - 1:,} {OTHERS}" if count > 1 else "")
            for what, (count, path) in sorted(self._odd.items())
        ]
        count, size, path = self._whole
        whole = (
            f"not cut, so that one task reads all of it: {path!r}, {size >> 20:,} MiB in one compressed stream"
            + (f", like {count - 1:,} {OTHERS}" if count > 1 else "")
            + "; bgzip, pzstd and pbzip2 write many"
        )
        return "; ".join([*odd, *([self._kinds_line()] if self._kinds else []), *([whole] if count else [])])

    def _kinds_line(self) -> str:
        ranked = sorted(
            self._kinds.items(), key=lambda item: (item[0] == (True, OTHERS), item[0][0], -item[1], item[0])
        )
        shown = [
            kind if count == 1 or kind.endswith("/") else f"{count:,} {kind}"
            for (_, kind), count in ranked[:KINDS_SHOWN]
        ]
        rest = sum(count for _, count in ranked[KINDS_SHOWN:])
        listed = ", ".join(shown) + (f", and {rest:,} {OTHERS}" if rest else "")
        return f"skipped in the input's folders: {listed}; a glob names what a folder does not stand for"


class Inputs:
    """What a list of patterns names. `in_directory` are the globs that a folder stands for.

    Links below a folder that is given lead out of it only with `follow_links`
    (`headrace.stages.sources.objects.patterns`).
    """

    def __init__(self, patterns: Sequence[str], in_directory: Sequence[str], *, follow_links: bool = False) -> None:
        self._follows = follow_links
        self._places = [place_of(pattern) for pattern in patterns]
        self._given = {place.path for place in self._places if not place.root}
        globs = {Glob.of(path).folder for path in self._given if is_glob(path)}
        self._folders = sorted(globs | {_folder_of(path) for path in self._given})
        self._in_directory = tuple(in_directory)
        self._roots: dict[str, str] = {}
        self._stores: dict[str, InputStore] = {}
        #: What `streams.expect` has begun to fetch: the fragment's name, and its file.
        self.coming: tuple[bytes, Any] | None = None
        #: What the newest listing found in folders that it was given, and skipped.
        self.skipped = SkippedFiles()
        for place in self._places:
            known = self._roots.setdefault(place.prefix, place.root)
            if known != place.root:
                raise InputError(f"input names {place.prefix} at two endpoints: use a source for each")

    def __iter__(self) -> Iterator[InputObject]:
        """Every object once, in order of the names. Raises InputError where a pattern names none."""
        last = ""
        self.skipped = SkippedFiles()
        listings = [self._some(place) for place in self._places]
        for _, found in heapq.merge(*listings, key=lambda pair: pair[0]):
            if found.uri != last:
                yield found
            last = found.uri

    def store_of(self, uri: str) -> tuple[InputStore, str] | None:
        """The store and key behind the URI of an object; None for a file of this machine."""
        if uri.startswith("file:///"):
            return None
        prefix = "/".join(uri.split("/", 3)[:3]) + "/"
        if prefix not in self._roots:
            raise InputError(f"cannot read {uri!r}: no input of this source names {prefix}")
        return self._store(prefix), uri.removeprefix(prefix)

    def open_file(self, path: str) -> int:
        """A descriptor of a file of this machine, open for reading. Raises OSError, LeadsOutError."""
        roots = self._roots_of(path)
        for root in roots[:-1]:
            with contextlib.suppress(LeadsOutError):
                return open_below(root, path)
        return open_below(roots[-1], path)

    def _roots_of(self, path: str) -> list[str]:
        """The folders out of which no link on the way to a path may lead, one for each pattern that may name it.

        Empty is the root of what was given itself. A file that no pattern names stays in its folder.
        """
        if self._follows or path in self._given:
            return [""]
        return [root for root in self._folders if path.startswith(root)] or [_folder_of(os.path.dirname(path))]

    def _store(self, prefix: str) -> InputStore:
        if prefix not in self._stores:
            self._stores[prefix] = open_input(self._roots[prefix])
        return self._stores[prefix]

    def _some(self, place: InputPlace) -> Iterator[tuple[bytes, InputObject]]:
        """The objects of one pattern with what they are sorted by; at least one."""
        count = 0
        for found in self._remote(place) if place.root else self._local(place):
            count += 1
            yield found
        if not count:
            raise InputError(self._nothing(place))

    def _nothing(self, place: InputPlace) -> str:
        """What is wrong with a pattern that names no file, and what to do."""
        if place.root:
            others = itertools.islice(self._below(place), OTHERS_SHOWN + 1) if not is_glob(place.path) else ()
            where = "the place and the path"
        elif not os.path.isdir(place.path) and (what := _no_file(place.path)):
            return f"{place.path!r} {what}: name another"
        else:
            others = itertools.islice(_files_below(place.path), OTHERS_SHOWN + 1)
            where = f"the path (cwd is {os.getcwd()})"
        names = list(others)
        if not names:
            return f'no file matches "{place.text}": check {where}'
        shown = ", ".join(repr(name) for name in names[:OTHERS_SHOWN]) + (", ..." if len(names) > OTHERS_SHOWN else "")
        return (
            f'folder "{place.text}" holds {shown}, and no data that ends in {self._suffixes()}: decompress, convert or '
            "rename them, or name them by a glob"
        )

    def _suffixes(self) -> str:
        """What the files end in that a folder stands for, in words."""
        suffixes = [glob.rpartition("*")[2] for glob in self._in_directory]
        packed = [suffix for suffix in suffixes if codec_of(suffix)]
        plain = ", ".join(suffix for suffix in suffixes if suffix not in packed)
        return plain + (", or these with .gz or .zst" if packed else "")

    def _below(self, place: InputPlace) -> Iterator[str]:
        """The keys of a bucket below a folder."""
        folder = place.path.rstrip("/") + "/" if place.path.rstrip("/") else ""
        return (info.key for info in self._store(place.prefix).list(folder))

    # -- files of this machine --

    def _local(self, place: InputPlace) -> Iterator[tuple[bytes, InputObject]]:
        if os.path.isdir(place.path):
            glob: Glob = Folder(_folder_of(place.path), self._in_directory)
        elif os.path.exists(place.path) or not is_glob(place.path):
            found = file_at(place.path)
            if found is not None:
                yield order_of(place.path), found
            return
        else:
            glob = Glob.of(place.path)
        root = "" if self._follows else glob.folder
        for path in _walk(glob, root, "", (), self._skip(glob)):
            found = file_at(path, root)
            if found is not None:
                yield order_of(path), found
            elif what := _no_file(path):
                self.skipped.add_odd(what, path)

    # -- objects of a store --

    def _remote(self, place: InputPlace) -> Iterator[tuple[bytes, InputObject]]:
        store = self._store(place.prefix)
        folder = place.path.rstrip("/")
        if not is_glob(place.path):
            info = store.head(place.path) if folder == place.path and folder else None
            if info is not None:
                yield order_of(place.prefix + info.key), _object(place, info)
                return
            glob: Glob = Folder(folder + "/" if folder else "", self._in_directory)
        else:
            glob = Glob.of(place.path)
        skip = self._skip(glob)

        def wanted(below: str) -> bool:
            found = glob.matches(below)
            if not found:
                skip(below)
            return found

        def enters(below: str) -> bool:
            found = glob.enters(below)
            if not found:
                skip(below + "/")
            return found

        walk = store.capabilities.walk
        if walk is not None:
            listed = walk(glob.folder, enters, wanted)
        else:
            listed = (info for info in store.list(glob.folder) if wanted(info.key.removeprefix(glob.folder)))
        for info in listed:
            yield order_of(place.prefix + info.key), _object(place, info)

    def _skip(self, glob: Glob) -> Callable[[str], None]:
        """Counts a path that is no input. A glob names what is wanted, so nothing is counted for one."""
        return self.skipped.add if isinstance(glob, Folder) else lambda _: None


def first_named(pattern: str, in_directory: Sequence[str], folder: str, names: Sequence[str]) -> str:
    """The first of these names below a folder or URI that the pattern names as well; "" where it names none."""
    asked, held = place_of(pattern), place_of(folder)
    endpoints = {endpoint for place in (asked, held) for endpoint in _query(place).get("endpoint", ())}
    if asked.prefix != held.prefix or len(endpoints) > 1:
        return ""
    if is_glob(asked.path) and not (not asked.root and os.path.isdir(asked.path)):
        glob: Glob = Glob.of(asked.path)
    else:
        within = asked.path.rstrip("/")
        glob = Folder(within + "/" if within or not asked.root else "", in_directory)
    for name in names:
        path = f"{held.path.rstrip('/')}/{name}".lstrip("/" if held.root else "")
        if path.startswith(glob.folder) and glob.matches(path.removeprefix(glob.folder)):
            return name
    return ""


def _query(place: InputPlace) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(place.root.partition("?")[2])


def file_version(status: os.stat_result) -> str:
    """What differs between two contents of one path: size in bytes, mtime in nanoseconds, inode."""
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def to_path(uri: str) -> str:
    """The path behind a `file://` URI; another URI is its own path."""
    return decode_path(uri) if uri.startswith("file:///") else uri


def changed(fragment: Fragment, found: str) -> FragmentChanged:
    """The error of an object that is not the one that was listed."""
    return FragmentChanged(
        f"{to_path(fragment.uri)!r} has changed since it was listed (version {fragment.version}, now {found}): "
        "the same command compares first what was read of it, and goes on where that is the same"
    )


def gone(fragment: Fragment) -> FragmentChanged:
    """The error of an object that is no more."""
    return FragmentChanged(f"{to_path(fragment.uri)!r} is gone since it was listed: put it back")


def _object(place: InputPlace, info: ObjectInfo) -> InputObject:
    return InputObject(place.prefix + info.key, info.size, info.version)


def file_at(path: str, root: str = "") -> InputObject | None:
    """The regular file at a path; None where there is none. Raises LeadsOutError of a link that leads out of `root`."""
    try:
        status = os.lstat(path)
        if stat.S_ISLNK(status.st_mode):
            descriptor = open_below(root, path, os.O_PATH)
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable("list", path, error) from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return InputObject(pathlib.Path(path).as_uri(), status.st_size, file_version(status))


def _no_file(path: str) -> str:
    """What stands at a path where no regular file does; "" where nothing does any more."""
    if not os.path.lexists(path):
        return ""
    return "is no regular file" if os.path.exists(path) else "is a link that leads nowhere"


def _files_below(folder: str) -> Iterator[str]:
    """The files of a folder and of those below it; none where it is no folder."""
    for path, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(path, name) for name in sorted(names))


def _folder_of(path: str) -> str:
    return path.rstrip("/") + "/"


def _walk(
    glob: Glob, root: str, below: str, above: tuple[tuple[int, int], ...], skip: Callable[[str], None]
) -> Iterator[str]:
    """The paths that the glob names, in the order of their bytes. `above` are the folders that lead here.

    No folder is entered that a link out of `root` leads to. `skip` is called with each file and folder that the
    glob does not name.
    """
    folder = glob.folder + below
    try:
        descriptor = open_below(root, folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            status = os.fstat(descriptor)
            here = (status.st_dev, status.st_ino)
            if here in above or len(above) > DEPTH_MAX:
                return
            with os.scandir(descriptor) as entries:
                listed = [entry.name + "/" if _is_folder(entry) else entry.name for entry in entries]
        finally:
            os.close(descriptor)
        names = sorted(listed, key=order_of)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise unreadable("list", folder, error) from error
    for name in names:
        if not name.endswith("/"):
            if glob.matches(below + name):
                yield folder + name
            else:
                skip(below + name)
        elif glob.enters(below + name[:-1]):
            yield from _walk(glob, root, below + name, (*above, here), skip)
        else:
            skip(below + name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder. A link that leads nowhere or round is a file, whose own name says what is wrong."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _kind(path: str) -> tuple[bool, str]:
    """What a file is counted as: the folder beside the data that it lies in, its name, or its suffix."""
    *folders, name = path.rstrip("/").split("/")
    if path.endswith("/"):
        return True, f"{name}/"
    if outer := next((folder for folder in folders if folder.startswith((".", "_"))), ""):
        return True, f"{outer}/"
    if is_beside(name):
        return True, name
    bare, dot, last = name.rpartition(".")
    before = bare.rpartition(".")
    return False, (before[1] + before[2] if f".{last}" in _PACKED and before[1] else "") + dot + last
