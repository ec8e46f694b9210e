"""Records found in datasets that exist: duplicates, repeated passages, items of test suites.

Lists of records, as JSON Lines: what some commands write, and what `headrace dataset retract --list` reads.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.cli.commands.maintenance.maintenance import publish_without
from headrace.cli.ui import FAINT, console, number, plain_table, print_json, title
from headrace.client import CliError, UsageError
from headrace.controller import with_offline_writer
from headrace.stages.decontamination import Contaminated, describe_suites, kept_texts, search_dataset
from headrace.stages.dedup import KeepRule, OfflineDuplicate, find_offline
from headrace.stages.dedup.spans import SpanCounter
from headrace.stages.runtime import check_number
from headrace.store import counted
from headrace.store.datasets import Dataset, as_shown
from headrace.store.ledger import DEDUPLICATION


def write_list(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a line for each record. Raises CliError."""
    try:
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error


#: The largest list that is read, in bytes.
LIST_BYTES_MAX = 1 << 30


def read_list(path: Path) -> list[str]:
    """The ids of a list of records: JSON Lines with an `id` each. Raises CliError."""
    try:
        with path.open("rb") as file:
            # Not what stat says: a pipe and a device have no size.
            data = file.read(LIST_BYTES_MAX + 1)
        if len(data) > LIST_BYTES_MAX:
            raise CliError(f"the list {path} has more than {number(LIST_BYTES_MAX)} bytes: give it in parts")
        lines = data.decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read the list {path}: {error}") from error
    ids: list[str] = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            name = json.loads(line)["id"]
        except (ValueError, LookupError, TypeError, RecursionError):
            name = None
        if not isinstance(name, str) or not name:
            raise CliError(f'{path}, line {place}: no record; a line of the list is {{"id": "..."}}')
        ids.append(name)
    return ids


#: Duplicates that are shown to people; `--json` and the list have all of them.
PAIRS_SHOWN = 10
_BY = {"first": "", "longest": "", "newest": "date", "best": "score"}


def deduplicate(
    uris: Sequence[str],
    against: Sequence[str],
    *,
    keep: KeepRule,
    by: str,
    near: bool,
    out: str,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Find the duplicates, write the list, and publish versions without them; the exit code."""
    datasets, references = ([as_shown(Dataset.open(uri)) for uri in given] for given in (uris, against))
    names = [dataset.uri for dataset in (*references, *datasets)]
    if len(set(names)) < len(names):
        raise UsageError("a dataset is given twice: a record would be a duplicate of itself")
    found = list(find_offline(datasets, references, rule=keep, by=by or _BY[keep], near=near))
    rows = [_line(one, names) for one in found]
    if out:
        write_list(Path(out), rows)
    versions = {}
    if not dry_run:
        _refuse_texts(found, names)
    for place, dataset in enumerate(datasets, len(references)):
        mine = [one for one in found if one.record.dataset == place]
        if mine and not dry_run:
            versions[dataset.uri] = _publish(dataset, mine)
    if as_json:
        return print_json({"datasets": names, "duplicates": len(rows), "versions": versions, "found": rows})
    page = console()
    page.print(title(", ".join(names[len(references) :]), counted(len(rows), "duplicate")))
    shown = [(row["id"], row["duplicate_of"], row["reason"]) for row in rows[:PAIRS_SHOWN]]
    if shown:
        page.print(plain_table(("record", "duplicate of", "why"), shown))
    if len(rows) > PAIRS_SHOWN:
        page.print(f"  and {number(len(rows) - PAIRS_SHOWN)} more; `--json` and `--out` give all of them", style=FAINT)
    for uri, version in versions.items():
        when = f"version {version} of {uri} shows" if version else f"{uri} has no version yet; the first will show"
        page.print(f"  {when} them no more", style=FAINT, markup=False)
    return 0


def _line(one: OfflineDuplicate, names: Sequence[str]) -> dict[str, Any]:
    """What the list says of one duplicate."""
    return {
        "id": one.record.id,
        "dataset": names[one.record.dataset],
        "duplicate_of": one.kept.id,
        "of_dataset": names[one.kept.dataset],
        "reason": one.reason,
    }


def _refuse_texts(found: Sequence[OfflineDuplicate], names: Sequence[str]) -> None:
    """Raise CliError, before any version is published, for a dataset that can have none."""
    for one in found:
        if one.record.tokens_key.endswith(".parquet"):
            uri = names[one.record.dataset]
            raise CliError(f"{uri} holds text: only datasets of tokens get a version without them; use --dry-run")


def _publish(dataset: Dataset, found: Sequence[OfflineDuplicate]) -> int:
    """Publish a version of a dataset without these records; its number. Raises CliError, StoreError."""
    documents: dict[str, list[int]] = {}
    for one in found:
        documents.setdefault(one.record.tokens_key, []).append(one.record.place)

    since = "its duplicates were looked for: do it again"
    return with_offline_writer(
        dataset.uri, lambda writer: publish_without(writer, dataset, DEDUPLICATION, documents, since)
    )


def write_repeats(
    uris: Sequence[str],
    out: str,
    *,
    unit: str,
    records_min: int,
    words_min: int,
    keeps_one: bool,
    tokenizer: str,
    as_json: bool,
) -> int:
    """Count the spans of the newest versions, and write the index; the exit code."""
    datasets = [Dataset.open(uri).of_version() for uri in uris]
    counter = SpanCounter(unit, words_min)
    for dataset in datasets:
        for ids, texts in kept_texts(dataset, tokenizer):
            counter.add(ids, texts)
    try:
        facts = counter.write(out, records_min, keeps_one=keeps_one)
    except OSError as error:
        raise CliError(f"the index cannot be written to {out}: {error}; name a file of a folder with room") from error
    size = Path(out).stat().st_size
    if as_json:
        return print_json(
            {"datasets": [dataset.uri for dataset in datasets], "index": out, "bytes": size, **asdict(facts)}
        )
    page = console()
    what = f"{counted(facts.spans, facts.unit)} of {number(facts.records_min)} records and more"
    page.print(title(out, f"{what}, in {counted(facts.records, 'record')}"))
    page.print(f'  a pipeline removes them by `dedup_{facts.unit}s("{out}")`', style=FAINT, markup=False)
    return 0


#: Records that are shown to people; `--json` and the list have all of them.
RECORDS_SHOWN = 10


def show_contamination(
    uri: str, suites: Sequence[str], *, threshold: float, tokenizer: str, out: str, as_json: bool
) -> int:
    """Search one dataset; the exit code."""
    check_number("contamination", "threshold", threshold, 0.5, 1)
    tables = describe_suites("contamination", [_suite(given) for given in suites])
    dataset = as_shown(Dataset.open(uri))
    records = 0
    found: dict[str, Contaminated] = {}
    for count, some in search_dataset(dataset, tables, threshold=threshold, tokenizer=tokenizer):
        records += count
        for one in some:
            if one.id not in found or one.score > found[one.id].score:
                found[one.id] = one
    ranked = sorted(found.values(), key=lambda one: (one.suite, one.item, -one.score, one.id))
    if out:
        write_list(Path(out), [asdict(one) for one in ranked])
    by_suite = Counter(one.suite for one in ranked)
    items = Counter((one.suite, one.item) for one in ranked)
    best = {(one.suite, one.item): one.score for one in sorted(ranked, key=lambda one: one.score)}
    if as_json:
        facts = {
            "dataset": dataset.uri,
            "records": records,
            "contaminated": len(ranked),
            "suites": {table["name"]: by_suite[table["name"]] for table in tables},
            "items": [
                {"suite": suite, "item": item, "records": count, "score": best[suite, item]}
                for (suite, item), count in sorted(items.items())
            ],
            "found": [asdict(one) for one in ranked],
        }
        return print_json(facts)
    page = console()
    page.print(
        title(dataset.uri, f"{number(len(ranked))} of {counted(records, 'record')} contaminated", good=not ranked)
    )
    rows = [
        (name, number(by_suite[name]), number(sum(suite == name for suite, _ in items))) for name in sorted(by_suite)
    ]
    if rows:
        page.print(plain_table(("suite", "records", "items"), rows, right=(1, 2)))
        shown = sorted(ranked, key=lambda one: (-one.score, one.suite, one.item, one.id))[:RECORDS_SHOWN]
        lines = [(one.id, one.suite, str(one.item), f"{one.score:.2f}") for one in shown]
        page.print(plain_table(("record", "suite", "item", "score"), lines, right=(2, 3)))
    if len(ranked) > RECORDS_SHOWN:
        page.print(
            f"  and {number(len(ranked) - RECORDS_SHOWN)} more; `--json` and `--out` give all of them", style=FAINT
        )
    if out and ranked:
        page.print(f"  `headrace dataset retract {dataset.uri} --list {out}` retracts them", style=FAINT, markup=False)
    return 0


def _suite(given: str) -> Any:
    """A suite as `decontaminate` takes it: a path or URI, or the JSON of a table."""
    if not given.startswith("{"):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--suites {given[:60]!r} is no JSON: {error}") from error
