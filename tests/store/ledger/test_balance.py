"""The balance over random ledgers: one reckoning, whoever shows it, equal to a count of the fragments themselves."""

import io
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from headrace.cli.ui.page import balance_page
from headrace.protos import control_pb2 as pb
from headrace.protos.codec import balance_from, balance_to, plain
from headrace.stages.quality.scorecard.scorecard import collect, to_markdown
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.balance import Balance, balance_of, sinks_of
from headrace.store.ledger.core.entries import (
    Change,
    Closed,
    Entry,
    EpochRaised,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
    Removed,
    encode_entry,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range
from headrace.store.ledger.core.totals import SinkTotals, Totals
from headrace.store.ledger.log import Log
from headrace.store.ledger.snapshot import decode_snapshot, encode_snapshot

STEPS = 40
LONGEST = 12
PIPELINE = {
    "name": "random",
    "stages": [
        {"name": "read", "kind": "source", "parameters": {}},
        {"name": "write", "kind": "sink", "parameters": {"seq_len": 8}},
        {"name": "text", "kind": "sink", "parameters": {}},
    ],
}


def verdicts(chance: random.Random, records: int) -> Counts:
    """As many verdicts as there are records, of any kind."""
    names = [chance.choice(("kept", "filtered", "duplicate", "quarantined")) for _ in range(records)]
    found = {name: names.count(name) for name in set(names)}
    return Counts(**found, filtered_by={"f/r": found.get("filtered", 0)}, tokens=3 * found.get("kept", 0))


class Random:
    """A ledger that grows by random changes that the fold allows."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state = LedgerState()
        self.entries: list[bytes] = []
        self.lengths: dict[bytes, int] = {}
        declared = PIPELINE if self.chance.random() < 0.7 else {}
        self.add(Led(1, {}), PipelineApplied("v", declared))

    def add(self, *changes: Change) -> None:
        entry = Entry(1, changes)
        self.state.apply(self.state.number + 1, entry)
        self.entries.append(encode_entry(entry))

    def grow(self) -> Iterator[Balance]:
        for _ in range(STEPS):
            step = self.chance.choice((self._list, self._close, self._close, self._close, self._end, self._drop))
            step()
            yield balance_of(self.state)

    def _list(self) -> None:
        name = f"file:///{len(self.lengths)}.jsonl"
        made = Fragment.named("read", name, "1", start=0, end=-1, reader="jsonl", size=9)
        self.lengths[made.id] = self.chance.choice((0, self.chance.randint(1, LONGEST)))
        self.add(FragmentsListed((made,)))

    def _close(self) -> None:
        sink = self.chance.choice(("write", "write", "text"))
        gaps = [(name, gap) for name, state in self.state.fragments.items() for gap in state.open_gaps(sink)]
        gaps = [(name, gap) for name, gap in gaps if gap.first < self.lengths[name]]
        if not gaps:
            return
        name, gap = self.chance.choice(gaps)
        end = min(gap.end, self.lengths[name])
        first = self.chance.randint(gap.first, end - 1)
        many = self.chance.choice((end - first, self.chance.randint(1, end - first)))
        counts = verdicts(self.chance, many)
        self.add(Closed(sink, "v", self.state.epoch, (Range(name, first, many),), (), counts))

    def _end(self) -> None:
        if self.lengths:
            name = self.chance.choice(list(self.lengths))
            self.add(FragmentEnded(name, self.lengths[name]))

    def _drop(self) -> None:
        still = [name for name, state in self.state.fragments.items() if state.dropped is None]
        if still and self.chance.random() < 0.3:
            self.add(FragmentDropped(self.chance.choice(still), "it changed", False))


def recounted(state: LedgerState, sink: str) -> tuple[int, int, int, int]:
    """Closed, open, fragments open and given up, from the fragments one by one."""
    fragments = list(state.fragments.values())
    closed = sum(item.of(sink).size for item in fragments)
    ended = [item for item in fragments if item.count is not None and item.dropped is None]
    still = sum((item.count or 0) - item.of(sink).size for item in ended)
    return closed, still, sum(not i.done((sink,)) for i in fragments), sum(i.dropped is not None for i in fragments)


def page_of(balance: Balance) -> str:
    out = Console(file=io.StringIO(), width=90)
    out.print(balance_page(balance))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("seed", range(12))
def test_a_random_ledgers_balance_is_what_its_fragments_say(seed: int) -> None:
    made = Random(seed)
    for balance in made.grow():
        for sink in ("write", "text"):
            mine = balance_of(made.state, sink)
            found = mine.records_closed, mine.records_open, mine.fragments_open, mine.fragments_dropped
            assert found == recounted(made.state, sink)
        counts = balance.counts
        assert balance.records_closed == counts.kept + counts.filtered + counts.duplicate + counts.quarantined
        assert balance.records_read == balance.records_closed + balance.records_open
        sinks = sinks_of(made.state) or ("",)
        complete = bool(made.state.fragments) and all(i.done(sinks) for i in made.state.fragments.values())
        assert (balance.balanced, balance.complete) == (True, complete)
        assert balance.records_open == 0 or not complete
        restored = decode_snapshot(encode_snapshot(made.state))
        assert isinstance(restored, LedgerState)
        assert balance_of(restored) == balance
        folded, counted = made.state.totals, Totals.of(made.state.fragments.values())
        assert replace(folded, sinks={}) == replace(counted, sinks={})
        for sink in ("write", "text"):
            assert folded.sinks.get(sink, SinkTotals()) == counted.sinks.get(sink, SinkTotals())


@pytest.mark.parametrize("seed", range(12))
def test_page_object_and_status_show_one_true_equation(seed: int) -> None:
    for balance in Random(seed).grow():
        text, told = page_of(balance), balance.to_dict()
        equation = re.findall(r"[\d,]+ = .*", text)[0]
        whole, *parts = [int(digits.replace(",", "")) for digits in re.findall(r"[\d,]+", equation)]
        assert whole == sum(parts[:4]) == told["records_closed"]
        assert parts[:4] == [told[name] for name in ("kept", "filtered", "duplicate", "quarantined")]
        shares = [float(share) for share in re.findall(r"([\d.]+)%", text)]
        assert abs(sum(shares) - (100 if whole else 0)) < 0.3
        assert ("open  " in text) == (not told["complete"])
        assert not told["records_open"] or f"{told['records_open']} record" in text
        status = pb.PipelineStatus(balance=balance_to(balance))
        assert balance_from(status.balance) == balance
        assert plain(status)["balance"].items() >= json.loads(json.dumps(told)).items()


@pytest.mark.parametrize("seed", range(3))
def test_the_scorecard_of_a_random_ledger_says_what_is_closed_and_open(seed: int, tmp_path: Path) -> None:
    made = Random(seed)
    *_, balance = made.grow()
    log = Log(FileStore(tmp_path))
    for number, data in enumerate(made.entries):
        log.append(number, data)
    facts = collect(str(tmp_path))
    assert facts.numbers["records"] == balance.records_closed
    assert facts.numbers["records_open"] == balance.records_open
    assert balance.open_words in to_markdown(facts)


def test_a_dataset_that_was_removed_begins_its_balance_anew() -> None:
    made = Random(1)
    list(made.grow())
    made.add(EpochRaised("removal"), Removed("removal"))
    assert balance_of(made.state) == Balance(Counts())
    assert balance_of(made.state).open_words == "nothing is listed yet"


def test_a_snapshot_whose_counts_are_not_its_ranges_is_not_balanced() -> None:
    made = Random(2)
    list(made.grow())
    made.state.counts["write"] += Counts(kept=1)
    restored = decode_snapshot(encode_snapshot(made.state))
    assert isinstance(restored, LedgerState)
    balance = balance_of(restored)
    assert not balance.balanced
    assert "NOT balanced" in page_of(balance)


@pytest.mark.parametrize(
    ("opened", "unended", "words"),
    [
        (1, 0, "1 fragment is open"),
        (1, 1, "1 fragment is open and not read to the end"),
        (2, 2, "2 fragments are open, none of them read to the end"),
        (3, 1, "3 fragments are open, 1 of them not read to the end"),
    ],
)
def test_what_is_open_is_said_as_people_would(opened: int, unended: int, words: str) -> None:
    assert Balance(Counts(), fragments=3, fragments_open=opened, fragments_unended=unended).open_words == words
