"""Deduplication in one process: keys, the index, the one who decides, and the files by which an index is made again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.cli.diagrams import redraw
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage
from headrace.pipeline.validation import validate
from headrace.stages.dedup import stage as stage_module
from headrace.stages.dedup.core import decider as core
from headrace.stages.dedup.core.scheme import DEFAULTS, KEYS, RULE, SKETCH, Scheme, best_bands
from headrace.stages.dedup.key_index import KeyIndex
from headrace.stages.dedup.minhash import make_keys
from headrace.stages.dedup.stage import Dedup, KeyMaker
from headrace.stages.library import (
    dedup,
    gopher_quality,
    map_records,
    read_jsonl,
    redact_pii,
    write_documents,
    write_jsonl,
)
from headrace.stages.runtime.batch import Batch, no_verdicts
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.shipping.preload import inherited_by, preload
from headrace.store.contract.errors import FormatError
from headrace.store.shards.dedup_files import PARTITIONS, RecordName, decode_keys, encode_keys

FRAGMENT = b"f" * 16
WORDS = [f"word{number}" for number in range(4000)]


def keys(texts: Sequence[str], scheme: Scheme | None = None) -> np.ndarray:
    return make_keys(pa.array(texts, pa.string()), scheme or Scheme())


def batch(texts: Sequence[str], first: int = 0) -> Batch:
    rows = pa.record_batch(
        {
            "__row": pa.array(range(first, first + len(texts)), pa.int64()),
            "id": pa.array([f"id-{first + place}" for place in range(len(texts))], pa.string()),
            "text": pa.array(texts, pa.string()),
        }
    )
    return Batch(FRAGMENT, "file:///a.jsonl", first, len(texts), -1, -1, rows, no_verdicts())


def stages(*, near: bool = True) -> tuple[KeyMaker, Dedup]:
    maker, decider = (build_stage(stage, {}) for stage in dedup(near=near))
    decider.begin(None, 0, "")
    return maker, decider


def fates(answer: Batch) -> dict[int, str | None]:
    """What each record is a duplicate of; None of a kept one."""
    kept = dict.fromkeys(answer.rows.column("__row").to_pylist())
    lost = answer.verdicts
    columns = (lost.column(name).to_pylist() for name in ("row", "named_fragment", "named_row"))
    return {**kept, **{row: str(RecordName(fragment, named)) for row, fragment, named in zip(*columns, strict=True)}}


def text_of_words(seed: int, count: int = 300) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)


def shingles(words: Sequence[str], size: int = 5) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


# ---- keys ----


def test_texts_that_differ_in_white_space_alone_have_one_key() -> None:
    same = ["a b  c", " a b c\n", "a\tb\u3000c"]
    assert len(np.unique(keys(same, Scheme(bands=0)), axis=0)) == 1


@pytest.mark.parametrize(("one", "other"), [("a b", "ab"), ("a b", "a B"), ("", "."), ("a.b", "a b"), ("ab", "ba")])
def test_texts_that_differ_otherwise_have_keys_of_their_own(one: str, other: str) -> None:
    found = keys([one, other], Scheme(bands=0))
    assert found[0].tolist() != found[1].tolist()


@given(st.lists(st.text(max_size=40), min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_a_key_depends_on_its_own_text_alone(texts: list[str]) -> None:
    together = keys(texts)
    for place, text in enumerate(texts):
        assert together[place].tolist() == keys([text])[0].tolist()
        assert (together[place, :2].tolist() == together[0, :2].tolist()) == (text.split() == texts[0].split())


def test_case_and_punctuation_are_nothing_to_the_bands() -> None:
    one, other = keys(["Ein Satz, der ÜBER alles geht: ja!", "ein satz der über alles geht ja"])
    assert one[:2].tolist() != other[:2].tolist()
    assert one[2:].tolist() == other[2:].tolist()


def test_a_text_without_words_has_no_bands() -> None:
    assert not keys(["", " \n", "?!... --"])[:, 2:].any()


def test_each_character_of_a_script_without_spaces_is_a_word() -> None:
    text = "".join(chr(0x4E00 + number) for number in random.Random(3).choices(range(2000), k=400))
    one, other, another = keys([text, f"{text[:200]}。{text[200:]}", text[::-1]])
    assert one[2:].tolist() == other[2:].tolist()
    assert not (one[2:] == another[2:]).any()


def test_near_duplicates_share_a_band_as_often_as_their_similarity_says() -> None:
    """Measured against the true Jaccard similarity of the sets of shingles, of 600 pairs that were planted."""
    scheme, generator = Scheme(), random.Random(7)
    pairs: list[tuple[float, str, str]] = []
    for seed in range(600):
        words = text_of_words(seed)
        other = [generator.choice(WORDS) if generator.random() < 0.12 * seed / 600 else word for word in words]
        one, two = shingles(words), shingles(other)
        pairs.append((len(one & two) / len(one | two), " ".join(words), " ".join(other)))
    left, right = keys([pair[1] for pair in pairs]), keys([pair[2] for pair in pairs])
    met = (left[:, 2:] == right[:, 2:]).any(axis=1)
    similarity = np.array([pair[0] for pair in pairs])
    assert met[similarity >= 0.9].all()
    assert not met[similarity < 0.35].any()
    expected = np.array([scheme.share_of(value) for value in similarity])
    for low, high in ((0.4, 0.6), (0.6, 0.75), (0.75, 0.9)):
        here = (similarity >= low) & (similarity < high)
        assert here.sum() > 30
        assert abs(met[here].mean() - expected[here].mean()) < 0.1, (low, high)


def test_texts_that_have_nothing_in_common_share_no_band() -> None:
    found = keys([" ".join(text_of_words(seed, 80)) for seed in range(2000)])
    for word in range(2, found.shape[1]):
        assert len(np.unique(found[:, word])) == 2000


@pytest.mark.parametrize(("threshold", "bands", "rows"), [(0.8, 9, 13), (0.5, 25, 5)])
def test_a_threshold_gives_the_bands_that_err_least_about_it(threshold: float, bands: int, rows: int) -> None:
    """The bands and rows that are known for 128 values (Zhu's datasketch has them in its documentation)."""
    assert best_bands(threshold, 128) == (bands, rows)


def test_a_scheme_without_bands_is_the_same_whatever_its_rows() -> None:
    assert Scheme(5, 0, 8).identity() == Scheme(3, 0, 4).identity() != Scheme().identity()


# ---- the one who decides ----


def test_the_first_of_several_duplicates_is_kept_and_the_others_name_it() -> None:
    maker, decider = stages()
    long = " ".join(text_of_words(1))
    answer = decider.process(maker.process(batch(["a b c", long, "a  b c", f"{long} more", "d"])))
    first, second = RecordName(FRAGMENT, 0), RecordName(FRAGMENT, 1)
    assert fates(answer) == {0: None, 1: None, 2: str(first), 3: str(second), 4: None}
    assert answer.verdicts.column("reason").to_pylist() == ["equal text", "similar text: score 0.996, rule 1"]
    assert answer.verdicts.column("verdict").to_pylist() == ["duplicate", "duplicate"]


def test_without_near_only_equal_texts_are_duplicates() -> None:
    maker, decider = stages(near=False)
    long = " ".join(text_of_words(1))
    assert fates(decider.process(maker.process(batch([long, f"{long} more", long])))) == {
        0: None,
        1: None,
        2: str(RecordName(FRAGMENT, 0)),
    }


def test_a_record_that_is_read_again_has_the_fate_that_it_had() -> None:
    maker, decider = stages()
    texts = ["a", "b", "a", "c", "b"]
    before = fates(decider.process(maker.process(batch(texts))))
    again = {
        **fates(decider.process(maker.process(batch(texts[2:], 2)))),
        **fates(decider.process(maker.process(batch(texts[:2])))),
    }
    assert again == before


def test_a_claim_that_is_released_is_free_for_the_next() -> None:
    maker, decider = stages()
    decider.process(maker.process(batch(["a", "a"])))
    decider.release([RecordName(FRAGMENT, 0)])
    assert fates(decider.process(maker.process(batch(["a", "a"], 1)))) == {1: None, 2: str(RecordName(FRAGMENT, 1))}


def test_a_fenced_decider_lets_nothing_through() -> None:
    machine = core.Decider(KeyIndex(Scheme()))
    machine.handle(core.ServiceForbidden(), 0.0)
    assert machine.handle(core.BatchStamped(FRAGMENT, np.arange(1), keys(["a"])), 0.0) == [core.DropBatch()]


def test_a_decider_that_has_not_loaded_its_keys_answers_nobody() -> None:
    with pytest.raises(ValueError, match="before the keys of the kept are loaded"):
        core.Decider(KeyIndex(Scheme())).handle(core.BatchStamped(FRAGMENT, np.arange(1), keys(["a"])), 0.0)


def test_records_without_keys_are_refused_with_the_remedy() -> None:
    with pytest.raises(StageContractError, match="dedup\\(\\) gives two stages"):
        stages()[1].process(batch(["a"]))


@given(st.lists(st.sampled_from("abcdefghijklmnop"), max_size=60), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_of_each_text_exactly_one_record_is_kept_whatever_is_released(texts: list[str], chance: random.Random) -> None:
    index, held = KeyIndex(Scheme(bands=0)), dict[str, int]()
    for row, text in enumerate(texts):
        (found,) = index.decide(FRAGMENT, np.array([row]), keys([text], Scheme(bands=0)))
        assert (found.name.row if found is not None else row) == held.setdefault(text, row)
        if chance.random() < 0.2:
            assert index.release(RecordName(FRAGMENT, held.pop(text)))


def test_an_index_grows_and_forgets_nothing() -> None:
    scheme = Scheme(bands=0)
    index, found = KeyIndex(scheme), keys([f"text {number}" for number in range(50_000)], scheme)
    for first in range(0, 50_000, 7_000):
        part = found[first : first + 7_000]
        assert index.decide(FRAGMENT, np.arange(first, first + len(part)), part) == [None] * len(part)
    answers = index.decide(b"g" * 16, np.arange(50_000), found)
    assert [answer and answer.name.row for answer in answers] == list(range(50_000))


# ---- the files ----


def test_an_index_made_again_answers_like_the_lost_one() -> None:
    texts = [" ".join(text_of_words(number % 300, 60)) + (" x" if number >= 300 else "") for number in range(600)]
    scheme, rows = Scheme(), np.arange(600)
    found = keys(texts, scheme)
    lost = KeyIndex(scheme)
    answers = lost.decide(FRAGMENT, rows, found)
    kept = np.array([answer is None for answer in answers])
    again = KeyIndex(scheme)
    data = encode_keys([(FRAGMENT, rows[kept], found[kept])], scheme.identity())
    assert again.load(decode_keys(data, scheme.identity(), "keys")) == 0
    assert again.decide(FRAGMENT, rows, found) == answers
    assert 0 < kept.sum() < 600


def test_a_file_of_keys_is_independent_of_batch_order() -> None:
    found, rows = keys([f"text {number}" for number in range(40)]), np.arange(40)
    parts = [
        (FRAGMENT, rows[:20], found[:20]),
        (b"a" * 16, rows[20:30], found[20:30]),
        (FRAGMENT, rows[30:], found[30:]),
    ]
    assert encode_keys(parts, "s") == encode_keys(parts[::-1], "s")


def test_a_file_of_keys_is_sorted_by_virtual_partition() -> None:
    import json

    import pyarrow.parquet as pq

    found = keys([f"text {number}" for number in range(500)], Scheme(bands=0))
    with pq.ParquetFile(pa.BufferReader(encode_keys([(FRAGMENT, np.arange(500), found)], "s"))) as file:
        table = file.read()
    bounds = json.loads(table.schema.metadata[b"headrace.keys"])["partitions"]
    high = np.asarray(table.column("high"), np.uint64) >> np.uint64(56)
    assert len(bounds) == PARTITIONS + 1
    for partition in range(PARTITIONS):
        assert (high[bounds[partition] : bounds[partition + 1]] == partition).all()


def test_keys_of_another_scheme_are_refused() -> None:
    data = encode_keys([], Scheme().identity())
    with pytest.raises(FormatError, match="write a new dataset"):
        decode_keys(data, Scheme(bands=0).identity(), "x.keys")


@given(st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_bytes_that_are_no_file_of_keys_are_an_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_keys(data, "s", "x.keys")


# ---- what may follow ----


def chain(*behind: Stage) -> Pipeline:
    return Pipeline.chain("p", "file:///d", read_jsonl("/in"), gopher_quality(), *dedup(), *behind)


def test_filters_may_follow_dedup() -> None:
    validate(chain(redact_pii(), gopher_quality(name="again"), map_records("mine:function"), write_jsonl()))


def test_dedup_stages_stand_in_one_line_before_the_same_sinks() -> None:
    read, (maker, decider), (again, second) = read_jsonl("/in"), dedup(near=False), dedup(name="again")
    both = Pipeline.chain("p", "d", read, maker, decider, again, second, write_jsonl())
    validate(both)
    assert [both.remembering_before(stage.name) for stage in both.stages] == [0, 0, 0, 1, 1, 2]
    apart = write_documents().fed_by(decider.name)
    with pytest.raises(PipelineError, match="each sink after one of them must stand after both"):
        validate(Pipeline("p", "d", (*both.stages, apart)))
    with pytest.raises(PipelineError, match="put both into the pipeline"):
        validate(Pipeline.chain("p", "d", read, maker, decider, second, write_jsonl()))
    many = [stage for number in range(9) for stage in dedup(name=f"d{number}")]
    with pytest.raises(PipelineError, match="9 stages deduplicate; the limit is 8"):
        validate(Pipeline.chain("p", "d", read, *many, write_jsonl()))


def test_one_stage_decides_once_and_for_several_sinks() -> None:
    read, (maker, decider) = read_jsonl("/in"), dedup()
    with pytest.raises(PipelineError, match="replicas is None"):
        validate(Pipeline.chain("p", "d", read, maker, replace(decider, replicas=None), write_jsonl()))
    whole = Pipeline.chain("p", "d", read, maker, decider, write_jsonl())
    other = Stage.from_dict({**write_documents().to_dict(), "after": [decider.name]})
    both = Pipeline("p", "d", (*whole.stages, other))
    validate(both)
    assert both.dependent_sinks == ("lines", other.name)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"bands": 0}, "bands is 0"),
        ({"bands": 600, "rows": 2}, "1200 MinHash values"),
        ({"threshold": 2}, "threshold is 2"),
    ],
)
def test_parameters_that_cannot_be_are_named(parameters: dict[str, int], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        dedup(**parameters)  # type: ignore[arg-type]


def test_the_diagram_in_the_documentation_is_that_of_the_table() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "guide" / "dedup.md").read_text(encoding="utf-8")
    assert text == redraw(text), "a table has changed: run `make diagrams`"


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_forkserver_loads_loops_and_compiles_none(monkeypatch: pytest.MonkeyPatch, is_cached: bool) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(stage_module, "is_prepared", lambda _loops: is_cached)
    monkeypatch.setattr(stage_module, "compile_keys", lambda: loaded.append("keys"))
    monkeypatch.setattr(stage_module, "compile_index", lambda: loaded.append("index"))
    for module, parameters in inherited_by([stage.to_dict() for stage in dedup()], "file:///out"):
        preload(module, parameters)
    assert loaded == (["keys", "index"] if is_cached else [])


@pytest.mark.parametrize("spoilt", ["keys", "sketches"])
def test_a_record_with_a_strange_key_or_sketch_is_quarantined(spoilt: str) -> None:
    maker, decider = KeyMaker("k", *DEFAULTS[True], RULE), Dedup("d", *DEFAULTS[True], RULE)
    decider.begin(None, 0, "")
    made = maker.process(batch(["a text of some words", "another text of words"]))
    rows = made.rows
    if spoilt == "keys":
        strange = pa.array([bytes(16)] * 2, pa.binary(16))
        rows = rows.set_column(rows.schema.get_field_index(KEYS), KEYS, strange)
    else:
        strange = pa.array([rows.column(SKETCH)[0].as_py(), b"\xff" * 5000], pa.binary())
        rows = rows.set_column(rows.schema.get_field_index(SKETCH), SKETCH, strange)
    answer = process_safely(decider, made.with_rows(rows), "d")
    assert set(answer.verdicts.column("verdict").to_pylist()) == {"quarantined"}
    assert answer.rows.num_rows == (0 if spoilt == "keys" else 1)
