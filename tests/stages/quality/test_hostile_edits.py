"""Stages that edit or judge by URL and language keep their word on any text: no exception, one fate, the same alone."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings, strategies as st

from headrace.pipeline.graph import Stage
from headrace.stages import library as stages
from headrace.stages.quality.urls import split_url
from headrace.stages.runtime.build import build_stage, process_safely
from tests.kits.stages.quality import make_batch

PIECES = st.sampled_from(
    [
        *(
            "a@b.co",
            "8.8.8.8",
            "10.0.0.1",
            "::1",
            "2001:4860::8888",
            "+49 30 1234567",
            "(212) 555-0100",
            "<b>",
            "&amp;",
        ),
        *("\x00", "\x07", "\u200d", "e\u0301", "Ã¼", "日本語", "مرحبا", "👩‍👩‍👧", "\n", " ", ".", ":", "@", "x" * 40),
        *("iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4" * 3, "…", "\u2028", "<", "</", "\ufffd"),
    ]
)
HOSTILE = st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=12).map("".join))
STAGES: list[Stage] = [
    stages.redact_pii(),
    stages.remove_junk(),
    stages.normalize(),
    stages.normalize("NFKC", mojibake=False),
    stages.language("en"),
    stages.url_filter(words=["casino"]),
]
BUILT = [(stage.name, build_stage(stage, {})) for stage in STAGES]


def texts_after(built: Any, texts: list[str]) -> list[str | None]:
    """Each record's text behind the stage; None where it was filtered."""
    answer = process_safely(built, make_batch(texts), "stage")
    assert "quarantined" not in answer.verdicts.column("verdict").to_pylist()
    found: dict[int, str] = dict(
        zip(*(answer.rows.column(name).to_pylist() for name in ("__row", "text")), strict=True)
    )
    return [found.get(row) for row in range(len(texts))]


@pytest.mark.parametrize(("name", "built"), BUILT, ids=lambda value: value if isinstance(value, str) else "")
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(HOSTILE, min_size=1, max_size=5))
def test_a_record_fares_alone_as_in_a_batch(name: str, built: Any, texts: list[str]) -> None:
    together = texts_after(built, texts)
    assert together == [texts_after(built, [text])[0] for text in texts]


@settings(max_examples=100, deadline=None)
@given(text=HOSTILE)
def test_what_is_redacted_once_has_nothing_left_to_redact(text: str) -> None:
    (once,) = texts_after(BUILT[0][1], [text])
    assert once is not None
    assert texts_after(BUILT[0][1], [once]) == [once]


@settings(max_examples=100, deadline=None)
@given(text=HOSTILE)
def test_no_control_character_is_left_in_what_junk_removal_keeps(text: str) -> None:
    (left,) = texts_after(BUILT[1][1], [text])
    assert left is None or not any(ord(character) < 32 and character not in "\t\n\r" for character in left)


@given(url=st.one_of(st.text(max_size=60), st.lists(st.sampled_from([*"/.:@[]?#%", "http://", "a.com"])).map("".join)))
@example("%A")
def test_any_string_is_split_or_is_no_url(url: str) -> None:
    host, path = split_url(url)
    assert host == host.lower()
    assert isinstance(path, str)
    metadata = [orjson.dumps({"url": url}).decode()]
    answer = process_safely(BUILT[5][1], make_batch(["x"], metadata), "urls")
    assert "quarantined" not in answer.verdicts.column("verdict").to_pylist()


RUNS = ["a", "1.1.", "+1 1 ", ":", "a@", "<a ", "12:", "a.b@c.", "Aa1", "Ã¼", "e\u0301", "(212) 555-"]
LONG = [run * (1_000_000 // len(run)) for run in RUNS]


@pytest.mark.parametrize(("name", "built"), BUILT, ids=lambda value: value if isinstance(value, str) else "")
def test_a_megabyte_without_a_break_takes_no_more_than_linear_time(name: str, built: Any) -> None:
    for text in LONG:
        texts_after(built, [text])
