"""Stages beside the four families: languages, URLs, personal data, junk, the form of characters."""

from __future__ import annotations

import pathlib

import orjson
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage
from headrace.stages import library as stages
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage, process_safely
from tests.kits.stages.quality import make_batch

ENGLISH = "The quick brown fox jumps over the lazy dog, and then it sleeps for a while under the old tree."
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund und schläft dann unter dem alten Baum."


def run(stage: Stage, texts: list[str], metadata: list[str | None] | None = None) -> Batch:
    return process_safely(build_stage(stage, {}), make_batch(texts, metadata), stage.name)


def texts_of(batch: Batch) -> list[str]:
    return batch.rows.column("text").to_pylist()


def reasons_of(batch: Batch) -> list[str]:
    return batch.verdicts.column("reason").to_pylist()


def test_texts_in_other_languages_are_filtered() -> None:
    answer = run(stages.language("en"), [ENGLISH, GERMAN, ENGLISH])
    assert texts_of(answer) == [ENGLISH, ENGLISH]
    assert reasons_of(answer) == ["other language"]
    assert texts_of(run(stages.language("de,en"), [ENGLISH, GERMAN])) == [ENGLISH, GERMAN]


def test_a_text_of_which_the_language_is_not_sure_is_filtered() -> None:
    answer = run(stages.language("en", score_min=0.7), ["ok 12 + 12", ENGLISH])
    assert reasons_of(answer) in (["language not sure"], ["other language"])


def test_languages_are_written_as_tags() -> None:
    answer = run(stages.language((), tag=True), [ENGLISH, GERMAN, "", "\0\n"])
    assert answer.rows.column("score.language.language").to_pylist()[:2] == ["en", "de"]
    assert answer.rows.column("score.language.score").to_pylist()[0] > 0.8


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.com/a", "domain on a list"),
        ("http://www.Sub.Example.com:80/", "domain on a list"),
        ("https://notexample.com/", None),
        ("https://fine.org/bad/page?x", "URL on a list"),
        ("https://fine.org/badly", None),
        ("https://fine.org/casino-night", "word in the URL"),
        ("", None),
        ("http://[broken", None),
    ],
)
def test_a_url_on_a_list_is_filtered(tmp_path: pathlib.Path, url: str, reason: str | None) -> None:
    path = tmp_path / "blocked.txt"
    path.write_text("# mine\n\nexample.com\nhttps://fine.org/bad\n")
    metadata = [orjson.dumps({"url": url}).decode(), None]
    answer = run(stages.url_filter(str(path), words=["casino"]), ["a", "b"], metadata)
    assert reasons_of(answer) == ([reason] if reason else [])
    assert answer.counters == {"urls/without a URL": 1 if url else 2}


@pytest.mark.parametrize(
    ("entry", "url", "reason"),
    [
        ("bad.org/", "http://bad.org/page", "domain on a list"),
        (".www.bad.org", "http://www.bad.org", "domain on a list"),
        ("https://bad.org/", "http://bad.org", "domain on a list"),
        ("bad.org/dir/", "http://bad.org/dir", "URL on a list"),
        ("bad.org/dir/", "http://bad.org/dir/x", "URL on a list"),
        ("bad.org/dir/", "http://bad.org/directory", None),
        ("bad.org/?p=5", "http://bad.org/page", None),
        ("bad.org/?p=5", "http://bad.org?p=5#top", "URL on a list"),
        ("bad.org/x?u=/a/", "http://bad.org/x?u=/a/", "URL on a list"),
        ("bad.org/x?u=/a/", "http://bad.org/x?u=/b/", None),
        ("bad.org/x", "http://bad.org/x?u=/a/", "URL on a list"),
        (".bad.org", "http://www.bad.org/", "domain on a list"),
        ("\ufeffbad.org", "http://bad.org/", "domain on a list"),
        ("bad.org", " http://bad.org/", "domain on a list"),
        ("bad.org", "//bad.org/page", "domain on a list"),
        ("http://[broken", "/a/page", None),
        ("/a", "/a/page", None),
        ("bad.org", "http://fine.org/A-CASINO/", "word in the URL"),
    ],
)
def test_what_an_entry_or_a_word_names_is_filtered(
    tmp_path: pathlib.Path, entry: str, url: str, reason: str | None
) -> None:
    path = tmp_path / "blocked.txt"
    path.write_text(f"{entry}\n", encoding="utf-8")
    answer = run(stages.url_filter(str(path), words=["Casino"]), ["a"], [orjson.dumps({"url": url}).decode()])
    assert reasons_of(answer) == ([reason] if reason else [])


def test_a_lists_content_is_in_the_version_its_place_not(tmp_path: pathlib.Path) -> None:
    for name, text in (("a", "x.com\n"), ("b", "x.com\n"), ("c", "y.com\n")):
        (tmp_path / name).write_text(text)
    versions = [Pipeline.chain("p", "d", stages.url_filter(str(tmp_path / name))).version() for name in "abc"]
    assert versions[0] == versions[1] != versions[2]


def test_a_list_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PipelineError, match="cannot read the list"):
        stages.url_filter(str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to jane.doe+x@mail.example.co.uk now", "write to <email> now"),
        ("an @mention and a@b stay", "an @mention and a@b stay"),
        ("from 8.8.8.8, via 192.168.1.1.", "from <ip-address>, via 192.168.1.1."),
        ("version 1.2.3.4.5 and 300.1.1.1", "version 1.2.3.4.5 and 300.1.1.1"),
        ("host 2001:4860:4860::8888 up", "host <ip-address> up"),
        ("at 12:30:45 o'clock, ::1", "at 12:30:45 o'clock, ::1"),
        ("call +49 30 1234567 today", "call <phone-number> today"),
        ("call (212) 555-0100 or 212-555-0100", "call <phone-number> or <phone-number>"),
        ("call +4930123456+4930123457", "call <phone-number><phone-number>"),
        ("on 2024-01-02, 1234567890 items, pi 3.14159265", "on 2024-01-02, 1234567890 items, pi 3.14159265"),
    ],
)
def test_personal_data_becomes_a_typed_placeholder(text: str, expected: str) -> None:
    answer = run(stages.redact_pii(), ["plain", text])
    assert texts_of(answer) == ["plain", expected]
    assert answer.edits == ({"pii": 1} if text != expected else {})


def test_junk_is_taken_out_and_markup_is_filtered() -> None:
    blob = "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4" * 3
    camel = "aVeryLongIdentifier" * 8
    markup = "<div class='x'><p>word</p><br/></div>&nbsp;" * 5
    answer = run(stages.remove_junk(), [f"see {blob} here", "bell\x07", camel, markup, "a < b && c > d"])
    assert texts_of(answer) == ["see  here", "bell", camel, "a < b && c > d"]
    assert reasons_of(answer) == ["mostly markup"]
    assert answer.edits == {"junk": 2}


def test_characters_are_put_in_one_form_and_mojibake_is_repaired() -> None:
    answer = run(stages.normalize(), ["plain", "e\u0301", "schÃ¶n und grÃ¼n", "schön"])
    assert texts_of(answer) == ["plain", "é", "schön und grün", "schön"]
    assert answer.edits == {"normalize": 2}
