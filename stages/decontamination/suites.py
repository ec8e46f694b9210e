"""Test suites: JSON Lines or Parquet, an item a record, and the fields that hold its question and what goes with it.

A suite is given as a path or URI, as inputs are, or as a table: `input`, `name`, and the names of its fields. Where no
field is named, the first item tells: FIELDS are looked for in their order. All of it is checked when it is declared.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.runtime import FragmentEnd, InputError, build_stage
from headrace.stages.sources.objects import MIXED_SOURCE, format_of, split_patterns, to_path
from headrace.store import StoreError
from headrace.store.ledger import UNBOUNDED, Gap

#: The parts of an item, and the fields that are looked for.
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "question": ("question", "problem", "prompt", "text"),
    "choices": ("choices", "options"),
    "answer": ("answer", "answerKey", "completion", "solution"),
    "passage": ("passage", "context"),
}
#: The largest record of a suite, in bytes of its file; and how many suites, items, and bytes of these there may be.
ITEM_BYTES_MAX: Final = 256 << 10
SUITES_MAX: Final = 256
ITEMS_MAX: Final = 1_000_000
SUITES_BYTES_MAX: Final = 1 << 30
CHOICES_MAX: Final = 256
_DIGITS_MAX: Final = 3
_NAME: Final = re.compile(r"[\w.()+-][\w.()+ -]{0,63}")
_KEYS: Final = ("input", "name", *FIELDS)
_FORMATS: Final = ("JSON Lines", "Parquet")


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a suite; what it has not is empty."""

    question: str
    choices: tuple[str, ...] = ()
    answer: str = ""
    passage: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite, its items in the order of its records, and the hash of what they say."""

    name: str
    items: tuple[Item, ...]
    sha256: str


def describe_suites(stage: str, given: Any) -> list[dict[str, Any]]:
    """What a stage needs to know of each suite, with the hash of its content, as JSON. Raises PipelineError."""
    if isinstance(given, (str, Mapping)):
        given = [given]
    if not isinstance(given, Sequence) or not given:
        raise PipelineError(f'stage "{stage}": suites is {given!r}; give paths or URIs of JSON Lines or Parquet')
    tables = [_table(stage, one) for one in given]
    if len(tables) > SUITES_MAX:
        raise PipelineError(f'stage "{stage}": {len(tables)} suites; the limit is {SUITES_MAX}')
    names = [table["name"] for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(f'stage "{stage}": two suites are called {name!r}; give each a name of its own')
    for table, suite in zip(tables, read_suites(stage, tables), strict=True):
        table["sha256"] = suite.sha256
    return tables


def read_suites(stage: str, tables: Sequence[Mapping[str, Any]]) -> list[Suite]:
    """The suites of `describe_suites`. Raises PipelineError for one that is not what it was."""
    suites: list[Suite] = []
    items, size = 0, 0
    for table in tables:
        found: list[Item] = []
        digest = hashlib.sha256()
        for item in _items(stage, table):
            packed = orjson.dumps([item.question, item.choices, item.answer, item.passage])
            digest.update(packed)
            items, size = items + 1, size + len(packed)
            if items > ITEMS_MAX or size > SUITES_BYTES_MAX:
                raise PipelineError(
                    f'stage "{stage}": suites hold more than {ITEMS_MAX:,} items or {SUITES_BYTES_MAX >> 20:,} MiB: '
                    "leave some out"
                )
            found.append(item)
        if not found:
            raise PipelineError(f'stage "{stage}": suite "{table["name"]}" ({table["input"]}) has no item')
        suite = Suite(table["name"], tuple(found), digest.hexdigest())
        if table.get("sha256", suite.sha256) != suite.sha256:
            raise PipelineError(
                f'stage "{stage}": suite "{suite.name}" ({table["input"]}) is not what it was when it was declared: '
                "put the same content on every host"
            )
        suites.append(suite)
    return suites


def _table(stage: str, given: Any) -> dict[str, Any]:
    """A suite as a table. Raises PipelineError."""
    if not isinstance(given, (str, Mapping)):
        raise PipelineError(f'stage "{stage}": suite {given!r} is no path and no table')
    table: dict[str, Any] = {"input": given} if isinstance(given, str) else dict(given)
    for key, value in table.items():
        if key not in _KEYS or not isinstance(value, str) or not value:
            raise PipelineError(
                f'stage "{stage}": suite has {key}={value!r}; it takes {", ".join(_KEYS)}, each a string'
            )
    if "input" not in table:
        raise PipelineError(f'stage "{stage}": suite {given!r} has no input: name its file')
    if any(part in table for part in FIELDS) and "question" not in table:
        raise PipelineError(f'stage "{stage}": suite {table["input"]!r} names fields, and none for question')
    places = split_patterns(table["input"])
    table["input"] = ",".join(
        place if "://" in place else str(pathlib.Path(os.path.expanduser(place)).absolute()) for place in places
    )
    table.setdefault("name", pathlib.PurePosixPath(places[0].partition("?")[0]).name.partition(".")[0] or "suite")
    if not _NAME.fullmatch(table["name"]):
        raise PipelineError(
            f'stage "{stage}": a suite is called {table["name"]!r}; give it a name of letters and digits'
        )
    return table


def _items(stage: str, table: Mapping[str, Any]) -> Iterator[Item]:
    """The items of a suite. Raises PipelineError."""
    where = f'stage "{stage}": suite "{table["name"]}"'
    try:
        fields = {part: table[part] for part in FIELDS if part in table} or _detect(where, table["input"])
        for number, (question, others) in enumerate(_records(where, table["input"], fields["question"])):
            yield _item(f"{where} item {number}", question, others, fields)
    except (InputError, StoreError) as error:
        raise PipelineError(f"{where}: {error}") from error


def _detect(where: str, given: str) -> dict[str, str]:
    """The field of each part, as the first item has them."""
    for name in FIELDS["question"]:
        try:
            first = next(_records(where, given, name), None)
        except (InputError, PipelineError) as error:
            if f'"{name}"' not in str(error):
                raise
            continue
        if first is None:
            raise PipelineError(f"{where} ({given}) has no item")
        found = {part: next((field for field in fields if field in first[1]), "") for part, fields in FIELDS.items()}
        return {part: field for part, field in found.items() if field} | {"question": name}
    raise PipelineError(
        f"{where}: item 0 has none of the fields {', '.join(FIELDS['question'])} with a text: "
        'name the field, {"input": ..., "question": ...}'
    )


def _records(where: str, given: str, text_key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The text of each record, and its other fields. Raises PipelineError for the first record that is none."""
    parameters = {"input": split_patterns(given), "text_key": text_key, "max_record_bytes": ITEM_BYTES_MAX}
    source = build_stage(Stage("suite", StageKind.SOURCE, MIXED_SOURCE, parameters), {})
    number = 0
    for fragment in source.list():
        kind = format_of(to_path(fragment.uri))
        if kind is None or kind.name not in _FORMATS:
            raise PipelineError(f"{where}: {to_path(fragment.uri)!r} is neither JSON Lines nor Parquet by its name")
        for batch in source.read(fragment, [Gap(0, UNBOUNDED, 0)]):
            if isinstance(batch, FragmentEnd):
                continue
            bad = min(batch.verdicts.to_pylist(), key=lambda verdict: verdict["row"], default=None)
            for row in batch.rows.select(["__row", "text", "metadata"]).to_pylist():
                if bad is None or row["__row"] < bad["row"]:
                    yield row["text"], orjson.loads(row["metadata"]) if row["metadata"] else {}
            if bad is not None:
                raise PipelineError(f"{where} item {number + bad['row'] - batch.first}: {bad['reason']}")
            number += batch.count


def _item(where: str, question: str, others: Mapping[str, Any], fields: Mapping[str, str]) -> Item:
    if not question.strip():
        raise PipelineError(f"{where}: its question is empty")
    choices: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    if "choices" in fields:
        choices, labels = _choices(where, fields["choices"], _field(where, others, fields["choices"]))
    answer = _field(where, others, fields["answer"]) if "answer" in fields else None
    passage = _field(where, others, fields["passage"]) if "passage" in fields else ""
    if passage is not None and not isinstance(passage, str):
        raise PipelineError(f'{where}: field "{fields["passage"]}" is no string')
    said = _chosen(where, answer, choices, labels) if choices and answer is not None else _text(where, answer)
    return Item(question, choices, said, passage or "")


def _field(where: str, record: Mapping[str, Any], name: str) -> Any:
    """A field, or the field of an object that "field.name" names. Raises PipelineError where there is none."""
    found: Any = record
    for part in [name] if name in record else name.split("."):
        if not isinstance(found, dict) or part not in found:
            raise PipelineError(f'{where} has no field "{name}"')
        found = found[part]
    return found


def _text(where: str, value: Any) -> str:
    """An answer as text; of several the first."""
    if isinstance(value, dict) and "text" in value:
        value = value["text"]
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, (bool, int, float)):
        return str(value) if type(value) is not bool else "yes" if value else "no"
    raise PipelineError(f"{where}: its answer is {type(value).__name__}, and no text")


def _choices(where: str, name: str, value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The choices and their labels, of a list of texts, or of an object with the lists `text` and `label`."""
    labels: Any = ()
    if isinstance(value, dict):
        value, labels = value.get("text"), value.get("label") or ()
    if not isinstance(value, list) or not isinstance(labels, (list, tuple)) or not 0 < len(value) <= CHOICES_MAX:
        raise PipelineError(f'{where}: field "{name}" is no list of at most {CHOICES_MAX} choices')
    if not all(isinstance(one, (str, int, float)) for one in value):
        raise PipelineError(f'{where}: field "{name}" holds a choice that is no text')
    letters = [chr(ord("A") + number) for number in range(26)]
    return tuple(map(str, value)), tuple(map(str, labels)) or tuple(letters)


def _chosen(where: str, answer: Any, choices: tuple[str, ...], labels: tuple[str, ...]) -> str:
    """The choice that an answer names: its number from 0, its label, or itself."""
    if type(answer) is int and 0 <= answer < len(choices):
        return choices[answer]
    text = str(answer).strip()
    if text in choices:
        return text
    for label, choice in zip(labels, choices, strict=False):
        if text.strip("().").upper() == label.upper():
            return choice
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and int(text) < len(choices):
        return choices[int(text)]
    raise PipelineError(f"{where}: its answer {text[:40]!r} is none of its {len(choices)} choices")
