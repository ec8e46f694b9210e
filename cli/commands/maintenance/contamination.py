"""`headrace dataset contamination`: the items of test suites in a dataset that exists already."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.cli.commands.maintenance.lists import write_list
from headrace.cli.ui import FAINT, console, number, plain_table, title
from headrace.client import UsageError
from headrace.stages.decontamination import Contaminated, describe_suites, search_dataset
from headrace.stages.runtime import check_number
from headrace.store import counted
from headrace.store.datasets import Dataset

#: Records that are shown to people; `--json` and the list have all of them.
RECORDS_SHOWN = 10


def show_contamination(
    uri: str, suites: Sequence[str], *, threshold: float, tokenizer: str, out: str, as_json: bool
) -> int:
    """Search one dataset; the exit code."""
    check_number("contamination", "threshold", threshold, 0.5, 1)
    tables = describe_suites("contamination", [_suite(given) for given in suites])
    dataset = Dataset.open(uri)
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
        print(json.dumps(facts))
        return 0
    page = console(sys.stdout)
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
