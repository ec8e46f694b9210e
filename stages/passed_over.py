"""What a folder holds and does not stand for: counted by kind, in bounded memory, and said in one line."""

from __future__ import annotations

from collections import Counter

from headrace.stages.patterns import CODECS, is_beside

#: Kinds that are told apart; what comes behind them is counted together.
KINDS_MAX = 1000
#: Kinds that are named in the line.
KINDS_SHOWN = 8
OTHERS = "others"
#: Suffixes that say nothing of what is packed: the one before them does.
_PACKED = (*CODECS, ".bz2", ".xz", ".lz4", ".lzo", ".snappy", ".br")


class PassedOver:
    """Counts of the files that were passed over: those beside the data by their names, others by their suffixes."""

    def __init__(self) -> None:
        #: by whether it stands beside data, and the kind
        self._kinds: Counter[tuple[bool, str]] = Counter()

    def add(self, path: str) -> None:
        """A file, or with a slash at its end a folder, relative to the folder that was named."""
        kind = _kind(path)
        self._kinds[kind if kind in self._kinds or len(self._kinds) < KINDS_MAX else (True, OTHERS)] += 1

    def words(self) -> str:
        """The line, or nothing where nothing was passed over. What may be data is named first."""
        if not self._kinds:
            return ""
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
