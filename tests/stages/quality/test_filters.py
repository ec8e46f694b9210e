"""What each filter says of a text, and what becomes of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Stage
from headrace.stages import library as stages
from headrace.stages.quality.scorecard.judgement import decide
from headrace.stages.runtime.batch import LINEAGE
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.sinks.sidecars import documents_table
from headrace.stages.text.texts import with_column
from tests.kits.stages.quality import make_batch

PROSE = """\
The mill stood where two streams met, and its wheel had turned for longer than anybody could remember.
In spring, when snow melted on the hills, water rose to the sill of the lower door.
A narrow channel, cut into rock by hand, carried the stream along the slope to a wooden gate.
Behind that gate the flow became quiet, deep and even, as though it had been told what to do.
Farmers brought barley in autumn; they paid with every sixteenth sack, which nobody thought unfair.
My grandfather, who kept the books, wrote down each delivery with the name of the horse.
Some of those names have outlived their owners: Juno, Old Peter, the grey one from Hill Farm.
Nobody stole grain, he used to say, because everyone could read what had been written.
Later a turbine replaced the wheel, and cables ran from our valley towards the town.
It hums still, day and night, behind a door that has lost its paint.
"""
MENU = "\n".join(f"an entry of the menu that is long enough {number}" for number in range(40))
RULES: list[tuple[Stage, str, str | None]] = [
    (stages.gopher_repetition(), PROSE, None),
    (stages.gopher_repetition(), "", None),
    (stages.gopher_repetition(), "one line\n" * 4 + PROSE[:20], "too many duplicate lines"),
    (stages.gopher_repetition(), "a\n\na\n\nb\n\na", "too many duplicate paragraphs"),
    (stages.gopher_repetition(), "word other " * 40, "too many characters in the top 2-gram"),
    (stages.duplicate_lines(), "word other " * 40, None),
    (stages.gopher_quality(), PROSE, None),
    (stages.gopher_quality(), "The cat and the dog.", "too few words"),
    (stages.gopher_quality(words_max=60), PROSE, "too many words"),
    (stages.gopher_quality(), "a of the " * 40, "words too short"),
    (stages.gopher_quality(), "incomprehensibility the " * 40, "words too long"),
    (stages.gopher_quality(), "word # the and " * 40, "too many hash signs"),
    (stages.gopher_quality(), "words ... the and " * 40, "too many ellipses"),
    (stages.gopher_quality(), "- the words and the marks\n" * 40, "too many bullet lines"),
    (
        stages.gopher_quality(),
        "the words of an advertisement that is cut off…\n" * 9,
        "too many lines end in an ellipsis",
    ),
    (stages.gopher_quality(), "the and 1999 " * 40, "too few words with a letter"),
    (stages.gopher_quality(), "Wörter ohne englische Stoppwörter folgen hier. " * 20, "too few stop words"),
    (stages.c4_quality(terminal_punctuation=False), PROSE, None),
    (stages.c4_quality(), PROSE, None),
    (stages.c4_quality(), MENU, "too few sentences"),
    (stages.c4_quality(), PROSE + "Some Lorem Ipsum stands here.", "lorem ipsum"),
    (stages.c4_quality(), PROSE + "if (the) {code}.", "curly bracket"),
    (stages.c4_quality(curly_brackets=True), PROSE + "if (the) {code}.", None),
    (stages.fineweb_quality(), PROSE, None),
    (stages.fineweb_quality(), "\n \n", "no line"),
    (stages.fineweb_quality(), MENU, "too few lines end in punctuation"),
    (stages.fineweb_quality(), "Short.\nBrief.\nTiny.\n" + PROSE[:90], "too many short lines"),
    (stages.fineweb_quality(), PROSE * 2, "too many characters in duplicate lines"),
    (stages.fineweb_quality(short_lines_max=1), "\n".join(f"{n}." for n in range(40)), "too many lines for its words"),
]


@pytest.mark.parametrize(
    ("stage", "text", "reason"), RULES, ids=[f"{s.name}: {r}: {i}" for i, (s, _, r) in enumerate(RULES)]
)
def test_a_text_is_filtered_for_the_first_rule_that_it_breaks(stage: Stage, text: str, reason: str | None) -> None:
    answer = process_safely(build_stage(stage, {}), make_batch([text]), stage.name)
    expected = [] if reason is None else [(0, stage.name, "filtered", reason)]
    found = [(row["row"], row["stage"], row["verdict"], row["reason"]) for row in answer.verdicts.to_pylist()]
    assert found == expected


def test_lines_that_c4_drops_of_a_text_that_is_kept_are_counted() -> None:
    text = (
        PROSE.replace("\n", "\nhome\nPlease enable JavaScript in your browser.\n", 1) + "We wrote[12] this[edit] here."
    )
    stage = stages.c4_quality()
    answer = process_safely(build_stage(stage, {}), make_batch([PROSE.strip(), text, "gone"]), stage.name)
    kept = answer.rows.to_pylist()
    assert [row["text"] for row in kept] == [PROSE.strip(), PROSE + "We wrote this here."]
    assert answer.edits == {"c4-quality": 1}
    assert answer.counters == {"c4-quality/lines dropped": 2}
    assert [row[LINEAGE] and orjson.loads(row[LINEAGE]) for row in kept] == [None, {"edited_by": ["c4-quality"]}]


FAMILIES = [
    stages.gopher_repetition(tag=True),
    stages.gopher_quality(tag=True),
    stages.c4_quality(tag=True),
    stages.fineweb_quality(tag=True),
]


@pytest.mark.parametrize("stage", FAMILIES, ids=lambda stage: stage.name)
def test_a_stage_that_tags_keeps_each_text_and_writes_its_scores(stage: Stage) -> None:
    batch = make_batch([PROSE, "gone"], ['{"n":1}', None])
    answer = process_safely(build_stage(stage, {}), batch, stage.name)
    assert answer.rows.column("text").to_pylist() == [PROSE, "gone"]
    assert not answer.verdicts.num_rows
    assert answer.rows.column("metadata").to_pylist() == ['{"n":1}', None]
    scores = [field for field in answer.rows.schema if field.name.startswith(f"score.{stage.name}.")]
    assert len(scores) >= 4
    assert not any(answer.rows.column(field.name).null_count for field in scores)
    assert all(field.type in (pa.float64(), pa.int64(), pa.bool_()) for field in scores)


@pytest.mark.parametrize(
    "declare", [stages.gopher_repetition, stages.gopher_quality, stages.c4_quality, stages.fineweb_quality]
)
def test_what_is_decided_by_tags_is_what_the_filter_would_have_done(declare: Callable[..., Stage]) -> None:
    texts = [PROSE, MENU, "word other " * 40, "The cat.", "", "lorem ipsum and more.\n" * 3, PROSE * 2]
    tagged = process_safely(build_stage(declare(tag=True), {}), make_batch(texts), "x").rows
    batch = make_batch(texts).with_rows(tagged)
    documents = documents_table([batch])
    filtered = process_safely(build_stage(declare(), {}), make_batch(texts), "x").verdicts
    decided = decide(documents, [declare()])
    assert decided.column("row").to_pylist() == filtered.column("row").to_pylist()
    assert decided.column("reason").to_pylist() == filtered.column("reason").to_pylist()


@pytest.mark.parametrize("stage", FAMILIES, ids=lambda stage: stage.name)
def test_a_batch_without_rows_comes_back_without_rows(stage: Stage) -> None:
    batch = make_batch(["a"])
    empty = batch.with_rows(batch.rows.slice(0, 0))
    assert build_stage(stage, {}).process(empty).rows.num_rows == 0


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: stages.gopher_repetition(top_ngrams_max=(0.1,)), "top_ngrams_max is (0.1,)"),
        (lambda: stages.gopher_repetition(lines_max=2), "lines_max is 2"),
        (lambda: stages.gopher_quality(stop_words=[""]), "stop_words"),
        (lambda: stages.c4_quality(tag=1), "tag is 1"),  # type: ignore[arg-type]
        (lambda: stages.fineweb_quality(short_line_characters=-1), "short_line_characters is -1"),
    ],
)
def test_a_bad_limit_is_named_when_it_is_declared(declare: object, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        declare()  # type: ignore[operator]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "declare", [stages.url_filter, stages.remove_junk, stages.language], ids=["urls", "junk", "language"]
)
def test_urls_markup_and_languages_are_tags_too(declare: Callable[..., Stage]) -> None:
    given: dict[str, Any] = {"words": ["casino"]} if declare is stages.url_filter else {}
    texts = [PROSE, "<p><b>x</b></p>" * 20, "Der Fuchs springt über den Hund und schläft dann."]
    metadata = ['{"url":"https://a.org/casino"}', None, '{"url":"https://a.org/"}']
    tagged = process_safely(build_stage(declare(**given, tag=True), {}), make_batch(texts, metadata), "x")
    assert tagged.rows.num_rows == 3
    filtered = process_safely(build_stage(declare(**given), {}), make_batch(texts, metadata), "x").verdicts
    decided = decide(documents_table([tagged]), [declare(**given)])
    assert filtered.num_rows
    for name in ("row", "reason"):
        assert decided.column(name).to_pylist() == filtered.column(name).to_pylist()


def test_a_record_that_no_stage_scored_is_null_and_is_not_decided() -> None:
    stage = build_stage(stages.gopher_quality(tag=True), {})
    tagged = process_safely(stage, make_batch(["few words"]), "x")
    plain = make_batch(["few words"])
    table = documents_table([tagged, replace(plain, fragment=b"\2" * 16)])
    assert table.column("score.gopher-quality.words").to_pylist() == [2.0, None]
    assert decide(table, [stages.gopher_quality()]).num_rows == 1


def test_a_score_of_two_types_is_refused() -> None:
    batches = [make_batch(["a"]), make_batch(["b"])]
    columns = [pa.array([1.0]), pa.array(["one"])]
    made = [
        batch.with_rows(with_column(batch.rows, "score.mine.x", column))
        for batch, column in zip(batches, columns, strict=True)
    ]
    with pytest.raises(StageContractError, match=r"score\.mine\.x"):
        documents_table(made)
