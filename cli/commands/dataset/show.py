"""`headrace dataset ls`, `show` and `verify`: datasets as their ledgers describe them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from headrace.cli.commands import print_samples
from headrace.cli.ui import (
    ACCENT,
    FAINT,
    Recipes,
    balance_page,
    console,
    facts_page,
    megabytes,
    number,
    padding,
    place,
    plain_table,
    print_json,
    ranges_json,
    ranges_page,
    recipes_page,
    safe,
    title,
)
from headrace.client import EXIT_FAULT, CliError
from headrace.stages.export import DuplicatePair, differences, duplicate_pairs
from headrace.stages.runtime import read_samples
from headrace.store import (
    FolderRefused,
    NoDataset,
    ObjectInfo,
    ObjectStore,
    StoreError,
    below,
    counted,
    folder_of,
    open_store,
)
from headrace.store.datasets import Dataset, as_shown, count_retracted, state_at
from headrace.store.history import open_at
from headrace.store.ledger import Balance, Log, balance_of, empty_sinks, main_sink
from headrace.store.shards import read_table

#: Quarantined records that `show --quarantine` prints; `--json` gives all of them.
QUARANTINE_SHOWN = 20
#: Characters of a quarantined record that are shown.
RAW_SHOWN = 200
#: Fragments given up that `show` prints; `--json` gives all of them.
GIVEN_UP_SHOWN = 10
#: Objects that `ls` looks at before it gives up on a folder.
OBJECTS_MAX = 1_000_000


def show_dataset(
    uri: str, *, quarantine: bool, samples: bool, ranges: bool, as_json: bool, duplicates: bool = False
) -> int:
    """Show one dataset; the exit code."""
    whole = open_at(uri)
    dataset = as_shown(whole)
    balance = balance_of(dataset.state)
    described = dataset.describe()
    records = list(_quarantined(dataset)) if quarantine else []
    recipes = Recipes.of(dataset.state)
    closed = ranges_json(dataset.state) if ranges else []
    sampled = read_samples(dataset, main_sink(dataset.state.counts)) if samples else {}
    pairs = list(duplicate_pairs(dataset, main_sink(dataset.state.counts))) if duplicates else []
    facts = {
        "dataset": dataset.uri,
        "pipeline": str(dataset.state.pipeline.get("name", "")),
        **asdict(described),
        "recipes": recipes.to_json(),
        **balance.to_dict(),
        **whole.completeness().to_dict(),
        "bytes": _bytes(dataset),
        "given_up": list(_given_up(dataset)),
        "retracted": _retracted(dataset),
        "ledger_entries": dataset.state.number + 1,
        "term": dataset.state.term,
        "epoch": dataset.state.epoch,
    }
    if as_json:
        asked = {
            "quarantine": records,
            "samples": sampled,
            "duplicates": [asdict(pair) for pair in pairs],
            "ranges": closed,
        }
        wanted = {"quarantine": quarantine, "samples": samples, "duplicates": duplicates, "ranges": ranges}
        return print_json({**facts, **{name: found for name, found in asked.items() if wanted[name]}})
    out = console()
    out.print(title(str(facts["pipeline"]) or "dataset", f"version {balance.version}", good=balance.balanced))
    out.print(place(dataset.uri))
    out.print_below(balance_page(balance))
    _say_standing(whole)
    for words in empty_sinks(dataset.state):
        out.print(f"  {safe(words)}", style="yellow", markup=False)
    out.print_below(facts_page(_facts_of(dataset, balance, recipes)))
    if len(recipes) > 1:
        out.print_below(recipes_page(recipes))
    if ranges:
        out.print_below(ranges_page(closed))
    for item in list(_given_up(dataset))[:GIVEN_UP_SHOWN]:
        out.print(f"  given up  {safe(item['uri'])}: {safe(item['reason'])}", style="yellow", markup=False)
    if samples:
        print_samples(sampled, dict(balance.counts.filtered_by))
    if duplicates:
        _print_pairs(pairs)
    if quarantine:
        main = main_sink(dataset.state.counts)
        _print_quarantine([record for record in records if record["sink"] == main])
    return 0


def _facts_of(dataset: Dataset, balance: Balance, recipes: Recipes) -> list[tuple[str, str]]:
    described = dataset.describe()
    rows = [("shards", f"{number(balance.shards)}, {megabytes(_bytes(dataset))}")]
    if described.seq_len:
        rows = [
            ("tokens", f"{number(balance.counts.tokens)} in {counted(balance.counts.sequences, 'sequence')}"),
            ("padding", padding(balance)),
            *rows,
            ("seq_len", str(described.seq_len)),
            ("tokenizer", f"sha256 {described.tokenizer[:16]}" if described.tokenizer else "unknown"),
        ]
    rows += [
        ("pipeline", f"{described.pipeline_version}{_made_by(recipes)}"),
        ("ledger", f"{counted(dataset.state.number + 1, 'entry', 'entries')}, term {dataset.state.term}"),
    ]
    if retracted := _retracted(dataset):
        rows.append(("retracted", f"{counted(retracted, 'document')} of those kept, shown no more"))
    return rows


def _retracted(dataset: Dataset) -> int:
    return count_retracted(dataset.state, dataset.version, dataset.of_main_sink(dataset.shards))


#: How a word is shown that only the kept record has, that only the duplicate has, and that both have.
_STYLES = {"kept": ("[-", "-]", "red"), "other": ("{+", "+}", "green"), "same": ("", "", FAINT)}


def _print_pairs(pairs: Sequence[DuplicatePair]) -> None:
    out = console()
    if not pairs:
        out.print_below(Text("  no duplicates are sampled", style=FAINT))
    for pair in pairs:
        out.print_below(
            Text.assemble(
                "  duplicate ", (safe(pair.id), ACCENT), " of ", (safe(pair.kept), ACCENT), f"  {safe(pair.reason)}"
            )
        )
        if pair.kept_text is None:
            out.print(Text("    the kept record has no text in this dataset", style=FAINT))
            continue
        shown = Text("    ")
        for kind, words in differences(pair.kept_text, pair.text):
            begin, end, style = _STYLES[kind]
            shown.append(f"{begin}{safe(words)}{end} ", style)
        out.print(shown)


def _say_standing(dataset: Dataset) -> None:
    for words in dataset.completeness().words:
        console().print(f"  {words}", style="yellow", markup=False)


def _made_by(recipes: Recipes) -> str:
    return f", in force; {len(recipes)} recipes made the dataset" if len(recipes) > 1 else ""


def _bytes(dataset: Dataset) -> int:
    return sum(item.size for shard in dataset.shards for item in shard.closed.objects)


def _given_up(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Fragments whose rest was given up, with the number of their closed records."""
    main = main_sink(dataset.state.counts)
    for state in dataset.state.fragments.values():
        if state.dropped is not None:
            named = {"uri": state.fragment.uri, "start": state.fragment.start, "end": state.fragment.end}
            yield {**named, "reason": state.dropped.reason, "records_closed": state.of(main).size}


def _quarantined(dataset: Dataset) -> Iterator[dict[str, Any]]:
    for shard in dataset.shards:
        item = shard.object("quarantine")
        if item is None:
            continue
        for row in read_table(dataset.store, item.key).to_pylist():
            raw = row.get("raw")
            yield {
                "sink": shard.closed.sink,
                **row,
                "raw": None if raw is None else bytes(raw).decode("utf-8", "replace"),
            }


def _print_quarantine(records: list[dict[str, Any]]) -> None:
    out = console()
    out.print()
    rows = []
    for record in records[:QUARANTINE_SHOWN]:
        raw = safe((record["raw"] or "")[:RAW_SHOWN])
        rows.append((record["id"], f"{record['stage']}: {record['reason']}", raw))
    out.print(plain_table(("quarantined", "why", "record"), rows))
    if len(records) > QUARANTINE_SHOWN:
        more = number(len(records) - QUARANTINE_SHOWN)
        out.print(f"  and {more} more; `--json` gives all of them", style=FAINT)


def verify_dataset(uri: str, *, gate: str = "", as_json: bool) -> int:
    """Verify one dataset, and hold it against a gate; the exit code is 1 where something is wrong."""
    if gate and not as_json and (failed := pass_gate(uri, gate)):
        return failed
    dataset = open_at(uri)
    if as_json:
        broken = broken_of(uri, gate) if gate else []
        report = dataset.verify()
        found: dict[str, Any] = {
            "dataset": dataset.uri,
            "sound": report.sound,
            **dataset.completeness().to_dict(),
            "shards": report.shards,
            "objects": report.objects,
            "bytes": report.size,
            "records": report.records,
            "given_up": [f"{item['uri']}: {item['reason']}" for item in _given_up(dataset)],
            "problems": list(report.problems),
            "unnamed": report.unnamed,
            "unnamed_bytes": report.unnamed_size,
        }
        if gate:
            found["gate"] = {"file": gate, "broken": list(map(str, broken))}
        print_json(found)
        return EXIT_FAULT if broken or not report.sound else 0
    report = dataset.verify()
    counts = ((report.shards, "shard"), (report.objects, "object"), (report.records, "record"))
    checked = ", ".join(counted(count, word) for count, word in counts)
    out = console()
    if report.sound:
        dropped = sum(1 for _ in _given_up(dataset))
        rest = f"; the rest of {counted(dropped, 'fragment')} is given up" if dropped else ""
        out.print(title(dataset.uri, f"sound: {checked}, {megabytes(report.size)}{rest}"))
        _say_standing(dataset)
        if report.unnamed:
            left = f"{counted(report.unnamed, 'object')}, {megabytes(report.unnamed_size)}"
            out.print(f"  {left}, named by no entry: `headrace dataset gc` deletes what sinks that died have left")
        return 0
    raise CliError(f"{dataset.uri}: {counted(len(report.problems), 'problem')} in {checked}", report.problems)


def list_datasets(root: str, *, as_json: bool) -> int:
    """List the datasets below a folder; the exit code, 1 where one of them cannot be read."""
    store = open_store(root)
    rows: list[dict[str, Any]] = []
    unread: list[dict[str, str]] = []
    for prefix in _ledgers(store, unread):
        uri = _place(store, prefix)
        try:
            dataset = Dataset.open(uri)
        except NoDataset:
            continue
        except StoreError as error:
            unread.append({"dataset": uri, "reason": str(error)})
            continue
        # A log without a pipeline belongs to a cluster or a refused run.
        if dataset.state.pipeline:
            rows.append(_listed(dataset))
    if as_json:
        print_json({"root": store.uri, "datasets": rows, "unreadable": unread})
        return EXIT_FAULT if unread else 0
    names = ("dataset", "pipeline", "version", "kept", "tokens", "shards")
    cells = [
        (row["dataset"], _named(row), _version(row), number(row["kept"]), number(row["tokens"]), row["shards"])
        for row in rows
    ]
    if rows:
        console().print(plain_table(names, cells, right=(2, 3, 4, 5)))
    elif not unread:
        print(f"no dataset below {store.uri}")
    if unread:
        many = counted(len(unread), "place")
        raise CliError(f"{many} below {store.uri} cannot be read", [item["reason"] for item in unread])
    return 0


def _version(row: dict[str, Any]) -> str:
    """A version, and which closed shards are not counted beside it."""
    if not row["version"]:
        return "none yet"
    said = [str(row["version"]), *([] if row["version_complete"] else ["incomplete"])]
    hidden = (("unshown", row["shards_unshown"]), ("rolled back", row["shards_rolled_back"]))
    return ", ".join([*said, *(f"{counted(shards, 'shard')} {how}" for how, shards in hidden if shards)])


#: What a list of datasets has of each balance; of the first only what its version shows.
_SHOWN = ("kept", "tokens", "shards")
_LISTED = ("version", "records_read", "records_closed", "records_open", "kept", "tokens", "shards", "complete")


def _listed(dataset: Dataset) -> dict[str, Any]:
    balance = balance_of(as_shown(dataset).state).to_dict()
    if dataset.state.unshown and dataset.state.newest is not None:
        version = balance_of(state_at(dataset.state, dataset.state.version)).to_dict()
        balance |= {name: version[name] for name in _SHOWN}
    return {
        "dataset": dataset.uri,
        "pipeline": str(dataset.state.pipeline.get("name", "")),
        "recipes": len(Recipes.of(dataset.state)),
        **{name: balance[name] for name in _LISTED},
        **dataset.completeness().to_dict(),
    }


def _named(row: dict[str, Any]) -> str:
    several = f", {row['recipes']} recipes" if row["recipes"] > 1 else ""
    return f"{row['pipeline']}{several}"


def _ledgers(store: ObjectStore, unread: list[dict[str, str]]) -> Iterator[str]:
    """The places below the root where a ledger begins."""
    first, looked = Log(store).key(0), -1
    for looked, info in enumerate(_objects(store, unread)):
        if looked >= OBJECTS_MAX:
            raise CliError(f"{store.uri} holds more than {OBJECTS_MAX:,} objects: name a folder below it")
        if info.key == first or info.key.endswith("/" + first):
            yield info.key.removesuffix(first)
    if looked < 0 and not _is_folder(store):
        raise CliError(f"nothing stands at {store.uri}: see how it is spelt")


def _objects(store: ObjectStore, unread: list[dict[str, str]]) -> Iterator[ObjectInfo]:
    """The objects below the root; folders that may not be read are noted, and passed by."""
    after = ""
    while True:
        try:
            yield from store.list("", after)
        except FolderRefused as error:
            if not error.folder:
                raise
            unread.append({"dataset": _place(store, error.folder), "reason": str(error)})
            # The next key that can follow all in the folder: "0" comes behind "/".
            after = error.folder.removesuffix("/") + "0"
        else:
            return


def _place(store: ObjectStore, folder: str) -> str:
    return below(store.uri, urllib.parse.quote(folder.rstrip("/"), errors="surrogateescape"))


def _is_folder(store: ObjectStore) -> bool:
    """Whether a folder of a file system is there, with objects or none; where there are keys alone, none is."""
    path = urllib.parse.unquote(urllib.parse.urlsplit(store.uri).path, errors="surrogateescape")
    return not store.is_remote and Path(path).is_dir()


def write_card(uri: str, place: str, *, as_json: bool = False) -> int:
    """Write card.md and card.html of a dataset into a folder; the exit code."""
    from headrace.stages.quality.scorecard import card

    folder = Path(folder_of(place))
    markdown, html = card(uri)
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / "card.md": markdown, folder / "card.html": html}
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    if as_json:
        return print_json({"card": list(map(str, files))})
    print(*files, sep="\n")
    return 0


def read_gate(path: str) -> dict[str, Any]:
    """The tables of a gate file, checked. Raises CliError."""
    import tomllib

    from headrace.store.history import GATE_CHARACTERS_MAX, parse_gate

    try:
        with Path(path).open("rb") as file:
            text = file.read(GATE_CHARACTERS_MAX + 1)
        if len(text) > GATE_CHARACTERS_MAX:
            raise CliError(f"gate file {path!r}: it has more than {GATE_CHARACTERS_MAX} bytes")
        plain = tomllib.loads(text.decode())
        parse_gate(plain)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise CliError(f"gate file {path!r}: {why}") from error
    return plain


def broken_of(uri: str, path: str) -> Sequence[object]:
    """The rows of a gate file that a dataset breaks. Raises CliError."""
    from headrace.store.history import broken_rows, parse_gate

    return broken_rows(open_at(uri), parse_gate(read_gate(path)))


def pass_gate(uri: str, path: str) -> int:
    """Hold a dataset against the limits of a gate file; exit code 1 with the rows that it breaks."""
    broken = broken_of(uri, path)
    for row in broken:
        print(row)
    print(f"{uri} {'does not pass' if broken else 'passes'} {path}")
    return EXIT_FAULT if broken else 0
