"""Profiles: the same records give the same bytes, sums are sums, and any bytes give a profile or a FormatError."""

from __future__ import annotations

import json

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from headrace.store import FormatError
from headrace.store.shards import profile as p


def documents(count: int, **columns: object) -> pa.Table:
    given = {
        "source": [f"s3://lake/{row % 2}/part.jsonl" for row in range(count)],
        "tokens": list(range(1, count + 1)),
        "metadata": [json.dumps({"url": f"https://a{row % 3}.org/x", "language": "en"}) for row in range(count)],
    }
    return pa.table({**given, **columns})


def made(*tables: pa.Table) -> p.Profile:
    builder = p.ProfileBuilder()
    for table in tables:
        builder.add(table)
    return builder.finish({"kept": sum(table.num_rows for table in tables), "filter/short": 2, "duplicate": 0})


def test_a_profile_counts_lengths_folders_sites_languages_and_fates() -> None:
    found = made(documents(6))
    counts = {name: dict(series.counts) for name, series in found.items() if series.kind is p.SeriesKind.NAMES}
    assert counts == {
        "source": {"s3://lake/0": 3, "s3://lake/1": 3},
        "domain": {"a0.org": 2, "a1.org": 2, "a2.org": 2},
        "language": {"en": 6},
        "verdict": {"kept": 6, "filter/short": 2},
    }
    assert [p.middle_of(key) for key in sorted(found["length"].counts)] == [1, 2, 3, 4, 5, 6]


def test_a_language_that_a_stage_wrote_goes_before_a_field() -> None:
    table = documents(3, **{"score.lid.language": ["de", "de", None], "score.q.value": [0.5, None, float("nan")]})
    found = made(table)
    assert found["language"].counts == {"de": 2}
    assert [(p.middle_of(key), n) for key, n in found["score.q.value"].counts.items()] == [
        (pytest.approx(0.5, 0.03), 1)
    ]


def test_the_same_records_give_the_same_bytes_however_they_are_cut() -> None:
    whole = documents(p.ALL_FIELDS_MAX + 50)
    for cut in (1, 7, p.ALL_FIELDS_MAX, p.ALL_FIELDS_MAX + 3):
        assert p.encode_profile(made(whole.slice(0, cut), whole.slice(cut))) == p.encode_profile(made(whole))


def test_of_many_documents_the_fields_of_some_stand_for_all() -> None:
    found = made(documents(p.ALL_FIELDS_MAX + 24))
    assert found["language"].total == p.ALL_FIELDS_MAX + 24


def test_tokens_are_counted_but_for_padding_however_the_windows_lie() -> None:
    tokens = np.arange(5000, dtype=np.uint16) % 700
    encoded = set()
    for cut in (1, 10, 4096):
        builder = p.ProfileBuilder()
        take = builder.token_counter(3 * p.ALL_TOKENS_MAX, 0)
        take(tokens[:cut])
        take(tokens[cut:])
        encoded.add(p.encode_profile(builder.finish({"kept": 1})))
    assert len(encoded) == 1
    content = p.decode_profile(encoded.pop(), "it")["content"]
    assert content.total == 3 * np.count_nonzero(tokens[::3])


def test_texts_are_counted_by_bytes() -> None:
    builder = p.ProfileBuilder()
    builder.add(documents(3, text=["é" * 40, "", "abc"]))
    found = builder.finish({})
    assert [p.middle_of(key) for key in sorted(found["length"].counts)] == [0, 3, pytest.approx(80, rel=0.03)]
    assert found["content"].total == p.BYTE_STEP * 6


def test_bins_keep_the_order_of_numbers_and_are_a_32nd_wide() -> None:
    values = np.array([-1e30, -5.0, -1e-20, 0.0, 1e-13, 1e-3, 1.0, 1.01, 63, 64, 1e6, np.inf, 1e300])
    bins = p.bins_of(values)
    assert (np.diff(bins) >= 0).all()
    for value, number in zip(values[[1, 5, 6, 8, 9, 10]], bins[[1, 5, 6, 8, 9, 10]], strict=True):
        assert p.middle_of(int(number)) == pytest.approx(value, rel=1 / 32)
    assert [p.middle_of(int(number)) for number in p.bins_of(np.arange(64))] == list(range(64))


def test_names_are_capped_and_none_is_lost() -> None:
    builder = p.ProfileBuilder()
    builder.add(documents(600, source=[f"s3://{row}/x" for row in range(600)]))
    source = builder.finish({})["source"]
    assert (len(source.counts), source.total) == (p.NAMES_MAX, 600)
    assert source.counts[p.OTHER] == 600 - p.NAMES_MAX + 1


def test_profiles_add_up_in_any_order() -> None:
    one, other = made(documents(5)), made(documents(9))
    sums = [p.Profile(), p.Profile()]
    for found, parts in zip(sums, ((one, other), (other, one)), strict=True):
        for part in parts:
            found.add(part)
    assert sums[0] == sums[1]
    assert sums[0]["language"].counts == {"en": 14}


def test_shards_that_name_ever_other_series_are_not_added() -> None:
    found = p.Profile()
    series = p.Series(p.SeriesKind.NAMES)
    found.add({f"a{number}": series for number in range(p.SERIES_MAX)})
    found.add({"a0": series})
    with pytest.raises(FormatError, match="more than 1,024 series together"):
        found.add({"b": series})


def test_series_of_two_kinds_are_not_added() -> None:
    found = made(documents(2))
    with pytest.raises(FormatError, match="in another"):
        found.add({"length": p.Series(p.SeriesKind.NAMES)})


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        [2, {}],
        [1],
        [1, []],
        [1, {"a": ["names", ["x"], []]}],
        [1, {"a": ["names", [1], [1]]}],
        [1, {"a": ["numbers", ["x"], [1]]}],
        [1, {"a": ["numbers", [True], [1]]}],
        [1, {"a": ["numbers", [1, 1], [1, 1]]}],
        [1, {"a": ["numbers", [1], [0]]}],
        [1, {"a": ["numbers", [1], [1.5]]}],
        [1, {"a": ["numbers", [1 << 63], [1]]}],
        [1, {"a": ["other", [], []]}],
        [1, {"a" * 300: ["names", [], []]}],
        [1, {str(number): ["names", [], []] for number in range(p.SERIES_MAX + 1)}],
        [1, {"a": ["numbers", list(range(p.KEYS_MAX + 1)), [1] * (p.KEYS_MAX + 1)]}],
        b"\0" * (p.PROFILE_BYTES_MAX + 1),
    ],
)
def test_other_bytes_are_refused_by_name(body: object) -> None:
    data = body if isinstance(body, bytes) else msgpack.packb(body)
    with pytest.raises(FormatError, match="it is no profile of a shard"):
        p.decode_profile(data, "it")
