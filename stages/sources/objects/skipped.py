"""What a folder holds and does not stand for, and what no listing can read, in bounded memory and in one line."""

from __future__ import annotations

from collections import Counter

from headrace.stages.sources.objects.patterns import CODECS, is_beside

#: Kinds that are told apart; what comes behind them is counted together.
KINDS_MAX = 1000
#: Kinds that are named in the line.
KINDS_SHOWN = 8
OTHERS = "others"
#: Suffixes that say nothing of what is packed: the one before them does.
_PACKED = (*CODECS, ".bz2", ".xz", ".lz4", ".lzo", ".snappy", ".br")


class PassedOver:
    """Counts of what was passed over: files beside the data by their names, others by their suffixes, and no files."""

    def __init__(self) -> None:
        #: by whether it stands beside data, and the kind
        self._kinds: Counter[tuple[bool, str]] = Counter()
        #: What is named and is no file: how many by what they are, and the first of each.
        self._odd: dict[str, tuple[int, str]] = {}

    def add(self, path: str) -> None:
        """A file, or with a slash at its end a folder, relative to the folder that was named."""
        kind = _kind(path)
        self._kinds[kind if kind in self._kinds or len(self._kinds) < KINDS_MAX else (True, OTHERS)] += 1

    def add_odd(self, what: str, path: str) -> None:
        """Something that the input names, and that is no file: what it is instead, and its whole path."""
        count, first = self._odd.get(what, (0, path))
        self._odd[what] = count + 1, first

    def words(self) -> str:
        """The line, or nothing where nothing was passed over. What should be data is named first, then what may be."""
        odd = [
            f"not read: {path!r} {what}" + (f", like {count - 1:,} {OTHERS}" if count > 1 else "")
            for what, (count, path) in sorted(self._odd.items())
        ]
        return "; ".join([*odd, *([self._kinds_words()] if self._kinds else [])])

    def _kinds_words(self) -> str:
        ranked = sorted(
            self._kinds.items(), key=lambda item: (item[0] == (True, OTHERS), item[0][0], -item[1], item[0])
        )
        shown = [
            kind if count == 1 or kind.endswith("/") else f"{count:,} {kind}"
            for (_, kind), count in ranked[:KINDS_SHOWN]
        ]
        rest = sum(count for _, count in ranked[KINDS_SHOWN:])
        listed = ", ".join(shown) + (f", and {rest:,} {OTHERS}" if rest else "")
        return f"passed over in the input's folders: {listed}; a glob names what a folder does not stand for"


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
