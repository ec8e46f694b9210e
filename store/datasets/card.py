"""`README.md` of a dataset: a card whose `configs` name the files of the version that is shown.

These are its files with text; of one that has tokens alone, the tables of its documents.

So `datasets.load_dataset(FOLDER)` reads exactly these, and nothing of an attempt that died or of a later version. A
card is derived, as the manifest beside it, and written only while the manifest names the same entry, however long its
writer slept. A `README.md` without our mark is a person's: it stays, and the writer is told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import orjson

from headrace.store import Buffer, ObjectStore, StoreError, counted
from headrace.store.datasets.dataset import DOCUMENTS, TOKENS, Dataset
from headrace.store.datasets.manifest import bring_forward, entry_shown
from headrace.store.datasets.shown import state_at
from headrace.store.ledger import ClosedShard, StoredObject

CARD_KEY: Final = "README.md"
#: What our cards hold, and what begins what a person added.
MARK: Final = "<!-- written by headrace for each version; delete this line to keep your own text -->"
OWN: Final = "<!-- what stands below this line is kept -->"
#: Files that a card names. A dataset of more is read by its manifest, or exported.
CARD_FILES_MAX: Final = 10_000
#: Bytes of a README.md that is looked into; more is a person's.
CARD_BYTES_MAX: Final = 4 << 20
_LINES: Final = "lines"
#: What a card says of tables without text.
_ABOUT_TABLES: Final = (
    "",
    "The files name each kept document, its source and count of tokens, also those that were retracted since. None",
    "has text: `headrace.Loader` reads the tokens, `headrace dataset export --format parquet` writes them as Parquet.",
)
#: What a name of a configuration may not hold.
_UNNAMEABLE = re.compile(r"[^\w.-]+")


class CardFate(Enum):
    """What became of a card."""

    WRITTEN = "written"
    STANDS = "stands already"
    NEWER = "a newer version's stands"
    OF_A_PERSON = "a README.md without our mark stands, and was left alone"
    NOTHING = "no sink of this dataset writes text or documents"


def files_of(dataset: Dataset, *, has_text: bool = True) -> dict[str, list[str]]:
    """The keys of the files with text (or the tables of kept documents) that a dataset's version shows, by sink."""
    found: dict[str, list[str]] = {}
    for shard in dataset.of_version(dataset.version or None).shards:
        item = _with_text(shard) if has_text else shard.object(DOCUMENTS)
        if item is not None and shard.closed.counts.kept:
            found.setdefault(shard.closed.sink, []).append(item.key)
    return found


def _with_text(shard: ClosedShard) -> StoredObject | None:
    lines = shard.object(_LINES)
    return shard.object(DOCUMENTS) if lines is None and shard.object(TOKENS) is None else lines


def card_of(dataset: Dataset) -> str:
    """The card; it names no file where the version shows none with text, or more than CARD_FILES_MAX."""
    if dataset.version:
        dataset = Dataset(dataset.store, state_at(dataset.state, dataset.version), dataset.version)
    has_text = any(_with_text(shard) for shard in dataset.shards)
    files = files_of(dataset, has_text=has_text)
    count = sum(map(len, files.values()))
    name = str(dataset.state.pipeline.get("name", "")) or "dataset"
    lines = ["---", "configs:"] if 0 < count <= CARD_FILES_MAX else ["---"]
    for at, (sink, keys) in enumerate(files.items() if count <= CARD_FILES_MAX else ()):
        lines += [f"- config_name: {_quoted(_UNNAMEABLE.sub('_', sink))}", *(["  default: true"] if not at else [])]
        lines += ["  data_files:", "  - split: train", "    path:", *(f"    - {_quoted(key)}" for key in keys)]
    balance = dataset.balance().counts
    lines += [
        "---",
        MARK,
        f"# {_UNNAMEABLE.sub(' ', name)}",
        "",
        (
            f"Version {dataset.version}: {counted(count, 'file')}. Of {counted(balance.records, 'record')} "
            f"{balance.kept:,} were kept, {balance.filtered:,} filtered, {balance.duplicate:,} duplicates, "
            f"{balance.quarantined:,} quarantined; `ledger/` accounts for each."
        ),
        *([] if has_text else _ABOUT_TABLES),
        "",
        OWN,
        "",
    ]
    return "\n".join(lines)


def show_version(dataset: Dataset, manifest: Mapping[str, Any]) -> str:
    """Bring the manifest forward, and the card with it; what a person should hear of it, or "". Raises StoreError."""
    if not bring_forward(dataset.store, manifest):
        return ""
    try:
        fate = put_card(dataset, int(manifest["entry"]))
    except StoreError as error:
        # the version is published all the same
        return f"{dataset.uri}: its {CARD_KEY} could not be written: {error}"
    return f"{dataset.uri}: {fate.value}" if fate is CardFate.OF_A_PERSON else ""


def put_card(dataset: Dataset, entry: int) -> CardFate:
    """Write the card of the version that `entry` published, while the manifest names that entry. Raises StoreError."""
    if all(_with_text(shard) is None and shard.object(DOCUMENTS) is None for shard in dataset.shards):
        return CardFate.NOTHING
    text, fate = card_of(dataset), CardFate.WRITTEN

    def decide(standing: bytes | None) -> list[Buffer] | None:
        nonlocal fate
        data = text.encode()
        if standing is not None:
            if not is_our_card(standing):
                fate = CardFate.OF_A_PERSON
                return None
            data += standing.partition(f"{OWN}\n".encode())[2]
        if entry_shown(dataset.store) != entry:
            fate = CardFate.NEWER
            return None
        fate = CardFate.STANDS if standing == data else CardFate.WRITTEN
        return None if standing == data else [data]

    dataset.store.update(CARD_KEY, decide)
    return fate


def clear_card(store: ObjectStore) -> None:
    """Have the card of a dataset that was removed name nothing; a person's stays. Raises StoreError."""

    def decide(standing: bytes | None) -> list[Buffer] | None:
        if standing is None or not is_our_card(standing):
            return None
        return [f"{MARK}\nThis dataset was removed.\n".encode()]

    store.update(CARD_KEY, decide)


def is_our_card(card: bytes) -> bool:
    """Whether these bytes are a card that Headrace wrote."""
    return len(card) <= CARD_BYTES_MAX and MARK.encode() in card


def _quoted(text: str) -> str:
    """As YAML, of which JSON is a part."""
    return orjson.dumps(text).decode()
