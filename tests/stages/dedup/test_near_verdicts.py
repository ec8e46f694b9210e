"""What near duplicates lean on, where several sinks have a fate for each record."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.stages.dedup import near_verdicts
from headrace.stages.dedup.core.scheme import Scheme
from headrace.stages.dedup.key_index import Match
from headrace.stages.dedup.partitioned import KeptSources
from headrace.stages.dedup.stage import Dedup, matches_of
from headrace.stages.library import dedup
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage
from headrace.store.files.store import FileStore
from headrace.store.ledger.core.entries import Closed, FragmentEnded
from headrace.store.shards.dedup_files import RecordName
from tests.kits.store.dataset_writer import FRAGMENT as READ, Writer
from tests.stages.dedup.test_dedup import FRAGMENT, batch, fates, stages, text_of_words

SINKS = ("write", "other")


def family(count: int) -> list[str]:
    """Texts of one form. A judge that has seen few takes some for duplicates, and none when it knows the form."""
    texts = [text_of_words(1, 400) for _ in range(count)]
    for number, words in enumerate(texts):
        words[::50] = [f"own{number}x{place}" for place in range(8)]
    return [" ".join(words) for words in texts]


def judged(decider: Dedup, batch_of_keys: Batch) -> dict[int, str | None]:
    return fates(decider.process(batch_of_keys))


def test_a_near_duplicate_has_one_fate_at_all_of_several_sinks() -> None:
    maker, decider = (build_stage(stage, {}) for stage in dedup())
    decider.begin(None, 0, ("one", "other"))
    keyed = maker.process(batch(family(40)))
    first = judged(decider, keyed)
    assert judged(decider, keyed) == first
    assert [row for row, named in first.items() if named] == [1, 2, 3]
    decider.release([RecordName(FRAGMENT, 0)])
    anew = judged(decider, maker.process(batch(family(4)[1:], first=1)))
    assert str(RecordName(FRAGMENT, 0)) not in anew.values(), "what leaned on it is judged anew"


def test_where_there_is_one_sink_no_verdict_is_remembered() -> None:
    maker, decider = stages()
    keyed = maker.process(batch(family(40)))
    assert judged(decider, keyed) != judged(decider, keyed)


def test_the_newest_verdicts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_verdicts, "VERDICTS_MAX", 2)
    remembered, rows = near_verdicts.NearVerdicts(), np.arange(4)
    leaning = Match(RecordName(FRAGMENT, 9), near=True)
    remembered.note(FRAGMENT, rows, [leaning, None, leaning, leaning])
    assert remembered.known(FRAGMENT, rows) == {2: leaning, 3: leaning}
    remembered.note(FRAGMENT, rows[:2], [None, replace(leaning, near=False)])
    assert remembered.known(FRAGMENT, rows) == {2: leaning, 3: leaning}, "an equal text is equal whenever it comes"


def test_a_decider_begun_anew_learns_what_one_sink_has_closed(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))
    writer = Writer(store)
    writer.target = str(RecordName(READ.id, 0))
    closed = writer.shard([3, "duplicate", "filtered"])
    writer.entry(closed)
    kept = KeptSources(Scheme())
    (table,) = kept.open_verdicts(store, None, SINKS)
    remembered = near_verdicts.NearVerdicts()
    remembered.learn(matches_of(table, writer.stage))
    assert remembered.known(READ.id, np.arange(3)) == {1: Match(RecordName(READ.id, 0), near=True, settled=True)}
    assert list(kept.open_verdicts(store, 0, SINKS)) == [], "what was closed later belongs to another epoch"
    assert list(kept.open_verdicts(store, None, ("other",))) == []
    writer.entry(FragmentEnded(READ.id, 3), Closed("other", "v1", 0, closed.ranges, (), closed.counts))
    assert list(kept.open_verdicts(store, None, SINKS)) == [], "nothing of it is read again"
