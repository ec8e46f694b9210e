"""Duplicates by URL: the normal form, the keys that follow from it, and the stages."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings, strategies as st

from headrace.pipeline.errors import PipelineError
from headrace.stages.dedup.core.scheme import TRACKING, Scheme, normal_url, url_key
from headrace.stages.dedup.stage import matches_of
from headrace.stages.library import dedup, dedup_keys
from headrace.stages.runtime.batch import Batch, no_verdicts
from headrace.stages.runtime.build import build_stage
from headrace.store.shards.dedup_files import RecordName

FRAGMENT = b"f" * 16
PAGE = "https://example.com/a/b?x=1&y=2"


def batch(metadata: list[Any]) -> Batch:
    packed = [entry if entry is None or isinstance(entry, str) else orjson.dumps(entry).decode() for entry in metadata]
    count = len(packed)
    rows = pa.record_batch(
        {
            "__row": pa.array(range(count), pa.int64()),
            "id": pa.array([f"id-{place}" for place in range(count)], pa.string()),
            "text": pa.array(["one text"] * count, pa.string()),
            "metadata": pa.array(packed, pa.string()),
        }
    )
    return Batch(FRAGMENT, "file:///a.jsonl", 0, count, -1, -1, rows, no_verdicts())


def run(metadata: list[Any], **options: Any) -> Batch:
    maker, decider = (build_stage(stage, {}) for stage in dedup(by="url", **options))
    decider.begin(None, 0, "")
    answer: Batch = decider.process(maker.process(batch(metadata)))
    return answer


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a/b?x=1&y=2",
        "//example.com/a/b?x=1&y=2",
        "example.com/a/b?x=1&y=2",
        "HTTPS://EXAMPLE.com/a/b?x=1&y=2",
        "https://example.com:443/a/b?x=1&y=2",
        "http://example.com:80/a/b?x=1&y=2",
        "example.com:443/a/b?x=1&y=2",
        "https://example.com./a/b?x=1&y=2",
        "https://example.com:/a/b?x=1&y=2",
        "https://example.com/a/b/?x=1&y=2",
        "https://example.com/a/b//?x=1&y=2#part",
        "https://example.com/a/b?y=2&&x=1",
        "https://example.com/a/b?y=2&UTM_Source=news&x=1&fbclid=Iw",
        "https://example.com/%61/b?x=1&y=%32",
        "  https://exam\nple.com/a/b?x=1&y=2\t",
    ],
)
def test_spellings_of_one_url_have_one_form(url: str) -> None:
    assert normal_url(url) == "example.com/a/b?x=1&y=2" == normal_url(PAGE)


@pytest.mark.parametrize(
    "url",
    [
        "https://www.example.com/a/b?x=1&y=2",
        "ftp://example.com/a/b?x=1&y=2",
        "https://example.com:8443/a/b?x=1&y=2",
        "https://example.com:80/a/b?x=1&y=2",
        "https://me@example.com/a/b?x=1&y=2",
        "https://example.com/A/b?x=1&y=2",
        "https://example.com/a%2Fb?x=1&y=2",
        "https://example.com/a/b?x=1&x=1&y=2",
        "https://example.com/a/b?x=1&y=2&utmost=1",
        "https://example.com/a/b?x=1%26y=2",
        "https://example.com/a/b",
    ],
)
def test_other_urls_have_forms_of_their_own(url: str) -> None:
    assert normal_url(url) not in ("", normal_url(PAGE))


def test_percent_signs_and_letters_of_all_scripts_are_encoded_in_one_way() -> None:
    assert normal_url("http://a.b/é c") == normal_url("http://a.b/%c3%A9%20c") == "a.b/%C3%A9%20c"


@pytest.mark.parametrize(
    "url", ["", " ", "#a", "http://", "https:///a", "unknown", "n/a", "None", "/a/b.html", "see p. 3", "mailto:me"]
)
def test_what_names_no_host_is_no_url(url: str) -> None:
    assert normal_url(url) == ""
    assert url_key(url) == (0, 0)


@pytest.mark.parametrize("url", ["http://localhost/a", "[::1]/a", "http://[::1", "http://a.b:99999/", "a.b@:@.c"])
def test_odd_hosts_have_keys(url: str) -> None:
    high, low = url_key(url)
    assert high
    assert low % 2 == 1


def test_each_tracking_parameter_is_left_out_whatever_its_case() -> None:
    for name in TRACKING:
        assert name == name.lower()
        assert normal_url(f"{PAGE}&{name.upper()}=1") == normal_url(PAGE)


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_has_a_form_and_the_form_has_itself(url: str) -> None:
    form = normal_url(f"http://a.b/{url}")
    assert normal_url(f"https://A.B/{url}") == form
    assert "%" in url or normal_url(form) == form


def test_lone_surrogates_are_urls_too() -> None:
    assert url_key("http://\ud800.a/\udfff") != url_key("http://\ud801.a/\udfff") != (0, 0)


@pytest.mark.parametrize(
    "part",
    ["%41", "&", "@", ":9", "a.", "é", " ", "/", "?", "#", "&a=1", "%", "http://", "[", "\ud800", "&utm_a"],
)
def test_a_url_of_megabytes_costs_time_in_its_length(part: str) -> None:
    spent = []
    for size in (50_000, 800_000):
        text = part * (size // len(part))
        begun = time.thread_time()
        url_key(text)
        url_key(f"http://a.b/?{text}")
        spent.append(time.thread_time() - begun)
    # 16 times the length; a square takes 256 times the time.
    assert spent[1] < 64 * max(spent[0], 0.01)


def test_records_of_one_url_are_duplicates_and_those_without_are_not() -> None:
    metadata = [{"url": PAGE}, {"url": "example.com/a/b?y=2&x=1"}, {}, None, {"url": 5}, {"url": "n/a"}, "[1]", "{"]
    answer = run(metadata)
    assert answer.rows.column("__row").to_pylist() == [0, 2, 3, 4, 5, 6, 7]
    assert answer.verdicts.column("reason").to_pylist() == ["equal URL"]
    assert answer.counters == {"dedup-keys/without a URL": 6}
    assert not answer.verdicts.column("named_row").null_count


@pytest.mark.parametrize("metadata", [{"page": {"url": PAGE}}, {"page.url": PAGE, "page": {"url": "other.com"}}])
def test_the_field_of_the_url_may_lie_within_another(metadata: Any) -> None:
    answer = run([{"page": {"url": PAGE}}, metadata, {"page": "a"}, {"page": [PAGE]}], url_key="page.url")
    assert answer.verdicts.column("row").to_pylist() == [1]


def test_verdicts_by_url_are_read_back_as_equal_keys() -> None:
    table = pa.table(
        {
            "verdict": ["duplicate"],
            "stage": ["dedup"],
            "fragment": [FRAGMENT.hex()],
            "row": [1],
            "duplicate_of": [str(RecordName(FRAGMENT, 0))],
            "reason": ["equal URL"],
        }
    )
    (match,) = matches_of(table, "dedup").values()
    assert matches_of(table, "another") == {}
    assert (match.near, match.score) == (False, -1)


@pytest.mark.parametrize(
    ("scheme", "facts"),
    [
        (Scheme(), {"ngram": 5, "bands": 14, "rows": 8}),
        (Scheme(3, 20, 4, rule=1), {"ngram": 3, "bands": 20, "rows": 4, "rule": 1}),
        (Scheme(bands=0), {"bands": 0}),
        (Scheme(bands=0, rule=1), {"bands": 0}),
        (Scheme(bands=0, url=1), {"bands": 0, "url": 1}),
    ],
)
def test_a_scheme_is_named_by_what_its_keys_follow_from(scheme: Scheme, facts: dict[str, int]) -> None:
    """So an index made before there were rules is loaded."""
    text = json.dumps({"keys": 2, **facts}, sort_keys=True)
    assert scheme.identity() == xxhash.xxh3_64_hexdigest(text.encode())


def test_keys_of_urls_are_of_a_scheme_of_their_own() -> None:
    names = {Scheme(bands=0).identity(), Scheme(bands=0, url=1).identity(), Scheme().identity()}
    assert len(names) == 3
    for facts in ({"url": 2, "bands": 0}, {"url": 1}):
        with pytest.raises(ValueError, match="of URLs"):
            Scheme(**facts)


def test_by_url_there_are_no_bands_and_a_field_is_named() -> None:
    maker, decider = dedup(by="url", url_key="page.url")
    assert maker.parameters == {**decider.parameters, "url_key": "page.url"}
    assert decider.parameters["bands"] == 0
    assert dedup_keys(by="url", url_key="page.url") == maker
    assert "url" not in dedup()[0].parameters
    with pytest.raises(PipelineError, match='must be "text" or "url"'):
        dedup(by="host")  # type: ignore[arg-type]
