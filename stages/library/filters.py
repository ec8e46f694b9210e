"""The quality stages as a pipeline file declares them. Light: no loop is compiled or imported here.

Each stage's limits are parameters with the published values; with `tag=True` it drops nothing, and writes what they
would have been held against into columns of the documents table, `score.<stage>.<name>`.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from headrace.pipeline import PipelineError, Stage, StageKind
from headrace.stages.dedup import DEFAULTS, PARTITIONS_MAX, PERMUTATIONS_MAX, RULE, URL_RULE, best_bands
from headrace.stages.runtime import check_integer, check_number, check_path, check_text
from headrace.store import FormatError

#: The words of which Gopher asks for two.
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
#: At most as many bits as a mask of found words has.
STOP_WORDS_MAX = 60
#: Occurrences of a top n-gram may overlap, so that its share can be above 1.
_NGRAMS_MAX = 100.0
_SHARES_OF_PARTS = ("lines_max", "line_characters_max", "paragraphs_max", "paragraph_characters_max")


def gopher_repetition(
    *,
    lines_max: float = 0.30,
    line_characters_max: float = 0.20,
    paragraphs_max: float = 0.30,
    paragraph_characters_max: float = 0.20,
    top_ngrams_max: Sequence[float] = (0.20, 0.18, 0.16),
    duplicate_ngrams_max: Sequence[float] = (0.15, 0.14, 0.13, 0.12, 0.11, 0.10),
    tag: bool = False,
    name: str = "gopher-repetition",
) -> Stage:
    """Filter texts that repeat themselves: Gopher's repetition rules (Rae et al. 2021, table A1).

    Limits are shares of lines, paragraphs and characters: duplicate ones, those in the top 2- to 4-gram, and those in
    duplicate 5- to 10-grams.
    """
    shares = _checked(locals(), numbers=dict.fromkeys(_SHARES_OF_PARTS, (0, 1)))
    lists = {
        "top_ngrams_max": _shares(name, "top_ngrams_max", top_ngrams_max, 3),
        "duplicate_ngrams_max": _shares(name, "duplicate_ngrams_max", duplicate_ngrams_max, 6),
    }
    return _stage(name, "repetition:GopherRepetition", {**shares, **lists}, tag)


def duplicate_lines(
    *, lines_max: float = 0.3, characters_max: float = 0.2, tag: bool = False, name: str = "duplicate-lines"
) -> Stage:
    """Filter texts that repeat their own lines: the two rules of Gopher's repetition rules that are about lines."""
    return gopher_repetition(
        lines_max=lines_max,
        line_characters_max=characters_max,
        paragraphs_max=1.0,
        paragraph_characters_max=1.0,
        top_ngrams_max=(_NGRAMS_MAX,) * 3,
        duplicate_ngrams_max=(_NGRAMS_MAX,) * 6,
        tag=tag,
        name=name,
    )


def gopher_quality(
    *,
    words_min: int = 50,
    words_max: int = 100_000,
    word_length_min: float = 3.0,
    word_length_max: float = 10.0,
    symbols_per_word_max: float = 0.1,
    bullet_lines_max: float = 0.9,
    ellipsis_lines_max: float = 0.3,
    alphabetic_words_min: float = 0.8,
    stop_words_min: int = 2,
    stop_words: Sequence[str] = STOP_WORDS,
    tag: bool = False,
    name: str = "gopher-quality",
) -> Stage:
    """Keep texts that read like prose: Gopher's quality rules (Rae et al. 2021, appendix A1.1).

    Words and their lengths are counted without words of symbols alone; hash signs and ellipses are held against all.
    """
    given = locals()
    parameters = _checked(given, integers={"words_min": (0, 1 << 40)}, numbers={"word_length_min": (0, 1e6)})
    limits = {
        "word_length_max": (word_length_min, 1e9),
        "symbols_per_word_max": (0, 1e9),
        **dict.fromkeys(("bullet_lines_max", "ellipsis_lines_max", "alphabetic_words_min"), (0, 1)),
    }
    parameters |= _checked(given, integers={"words_max": (words_min, 1 << 40)}, numbers=limits)
    words = list(stop_words)
    if len(words) > STOP_WORDS_MAX or not all(isinstance(word, str) and word for word in words):
        raise PipelineError(f'stage "{name}": stop_words must be at most {STOP_WORDS_MAX} words')
    check_integer(name, "stop_words_min", stop_words_min, 0, len(words))
    parameters |= {"stop_words_min": stop_words_min, "stop_words": words}
    return _stage(name, "gopher:GopherQuality", parameters, tag)


def c4_quality(
    *,
    sentences_min: int = 5,
    words_per_line_min: int = 3,
    word_characters_max: int = 1000,
    terminal_punctuation: bool = True,
    citations: bool = False,
    lorem_ipsum: bool = False,
    javascript: bool = False,
    curly_brackets: bool = False,
    policies: bool = False,
    tag: bool = False,
    name: str = "c4-quality",
) -> Stage:
    """Drop lines that are no text, and filter placeholders, code and fragments: C4 (Raffel et al. 2020, section 2.2).

    `terminal_punctuation` asks each line to end in it, which FineWeb leaves out. The other switches say whether
    citation marks, pages with "lorem ipsum", lines with "javascript", pages with curly brackets and lines about
    policies are left as they are. What is dropped of a text that is kept is counted as an edit.
    """
    limits = {
        "sentences_min": (0, 1 << 30),
        "words_per_line_min": (0, 1 << 30),
        "word_characters_max": (1, 1 << 40),
    }
    switches = ("terminal_punctuation", "citations", "lorem_ipsum", "javascript", "curly_brackets", "policies")
    return _stage(name, "c4:C4Quality", _checked(locals(), integers=limits, switches=switches), tag)


def fineweb_quality(
    *,
    punctuated_lines_min: float = 0.12,
    short_lines_max: float = 0.67,
    short_line_characters: int = 30,
    duplicate_characters_max: float = 0.01,
    lines_per_word_max: float = 0.3,
    tag: bool = False,
    name: str = "fineweb-quality",
) -> Stage:
    """Filter lists and menus: the line rules that FineWeb adds (Penedo et al. 2024, section 3.6)."""
    shares = dict.fromkeys(("punctuated_lines_min", "short_lines_max", "duplicate_characters_max"), (0, 1))
    limits = {**shares, "lines_per_word_max": (0, 1e9)}
    parameters = _checked(locals(), integers={"short_line_characters": (0, 1 << 20)}, numbers=limits)
    return _stage(name, "fineweb:FinewebQuality", parameters, tag)


def language(
    languages: str | Sequence[str] = "en",
    *,
    score_min: float = 0.65,
    characters_max: int = 1000,
    tag: bool = False,
    name: str = "language",
) -> Stage:
    """Keep texts in these languages (ISO 639 codes, a comma list), as told by their first characters.

    fastText's model for 176 languages (Joulin et al. 2016); FineWeb asks for English with a score of 0.65.
    """
    codes = _entries(languages)
    if not tag and not codes:
        raise PipelineError(f'stage "{name}": languages is empty; name at least one, such as "en"')
    check_number(name, "score_min", score_min, 0, 1)
    check_integer(name, "characters_max", characters_max, 1, 1 << 30)
    parameters = {"languages": codes, "score_min": score_min, "characters_max": characters_max}
    return _stage(name, "models.language:Language", parameters, tag)


def url_filter(
    lists: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    words: Sequence[str] = (),
    url_key: str = "url",
    tag: bool = False,
    name: str = "urls",
) -> Stage:
    """Filter records whose URL, a field of their metadata, is on a list or holds one of `words`.

    `lists` are text files (a comma list): an entry a line, a domain or a domain with the beginning of a path.
    """
    paths = [str(pathlib.Path(os.path.expanduser(path)).absolute()) for path in _entries(lists)]
    if not paths and not words:
        raise PipelineError(f'stage "{name}": give lists or words to filter by')
    check_text(name, "url_key", url_key)
    check_switch(name, "tag", tag)
    digests = [_digest(path, name) for path in paths]
    parameters = {"lists": paths, "words": sorted(words), "url_key": url_key, "tag": tag}
    target = "headrace.stages.quality.urls:UrlFilter"
    return Stage(name, StageKind.TRANSFORM, target, parameters, identity={"lists": digests}, volatile=("lists",))


def decontaminate(
    suites: str | os.PathLike[str] | Mapping[str, str] | Sequence[str | Mapping[str, str]],
    *,
    threshold: float = 0.8,
    tag: bool = False,
    name: str = "decontaminate",
) -> Stage:
    """Filter texts in which an item of a test suite stands, scored as SIMPLE of allenai/decon does.

    A suite is JSON Lines or Parquet, named as an input is, or a table {"input", "name", "question", "choices",
    "answer", "passage"} with the names of its fields. Its content is part of the pipeline's version, its place is not.
    """
    from headrace.stages.decontamination import describe_suites

    check_text(name, "name", name)
    check_number(name, "threshold", threshold, 0.5, 1)
    check_switch(name, "tag", tag)
    tables = describe_suites(name, os.fspath(suites) if isinstance(suites, os.PathLike) else suites)
    parameters = {"suites": tables, "threshold": float(threshold), "tag": tag}
    identity = {"suites": [{key: value for key, value in table.items() if key != "input"} for table in tables]}
    target = "headrace.stages.decontamination.stage:Decontaminate"
    return Stage(name, StageKind.TRANSFORM, target, parameters, identity=identity, volatile=("suites",))


def redact_pii(*, email: bool = True, ip: bool = True, phone: bool = True, name: str = "pii") -> Stage:
    """Put `<email>`, `<ip-address>` (public ones) and `<phone-number>` where these stand."""
    switches = _checked(locals(), switches=("email", "ip", "phone"))
    if not any(switches.values()):
        raise PipelineError(f'stage "{name}": email, ip and phone are all False: leave the stage out')
    return _stage(name, "edits:PersonalData", switches)


def remove_junk(
    *, blob_characters_min: int = 100, markup_max: float = 0.3, tag: bool = False, name: str = "junk"
) -> Stage:
    """Take out control characters and blobs of base64; filter texts of which more than `markup_max` is markup."""
    limits = _checked(locals(), integers={"blob_characters_min": (20, 1 << 20)}, numbers={"markup_max": (0, 1)})
    return _stage(name, "edits:Junk", limits, tag)


def normalize(form: str = "NFC", *, mojibake: bool = True, name: str = "normalize") -> Stage:
    """Bring texts into a Unicode form ("NFC", "NFKC", or "" for none); repair a wrong character set (ftfy)."""
    if form not in ("NFC", "NFD", "NFKC", "NFKD", ""):
        raise PipelineError(f'stage "{name}": form is {form!r}; it must be NFC, NFD, NFKC, NFKD or empty')
    check_switch(name, "mojibake", mojibake)
    return _stage(name, "edits:Normalize", {"form": form, "mojibake": mojibake})


def _entries(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(given, os.PathLike):
        return [os.fspath(given)]
    parts = given.split(",") if isinstance(given, str) else [os.fspath(part) for part in given]
    return [part.strip() for part in parts if part.strip()]


def _digest(path: str, stage: str) -> str:
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise PipelineError(f'stage "{stage}": cannot read the list {path}: {error.strerror}') from error


def check_switch(stage: str, parameter: str, value: Any) -> None:
    """Raise PipelineError unless `value` is True or False."""
    if type(value) is not bool:
        raise PipelineError(f'stage "{stage}": {parameter} is {value!r}; it must be True or False')


def _checked(
    given: Mapping[str, Any],
    *,
    integers: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    numbers: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    switches: Sequence[str] = (),
) -> dict[str, Any]:
    """Those of the parameters `given` that are named, within their limits. Raises PipelineError."""
    for parameter, (least, most) in integers.items():
        check_integer(given["name"], parameter, given[parameter], least, most)
    for parameter, (low, high) in numbers.items():
        check_number(given["name"], parameter, given[parameter], low, high)
    for parameter in switches:
        check_switch(given["name"], parameter, given[parameter])
    return {parameter: given[parameter] for parameter in (*integers, *numbers, *switches)}


def _shares(stage: str, parameter: str, given: Sequence[float], count: int) -> list[float]:
    if isinstance(given, str) or len(given) != count:
        raise PipelineError(f'stage "{stage}": {parameter} is {given!r}; it must be {count} numbers')
    for share in given:
        check_number(stage, parameter, share, 0, _NGRAMS_MAX)
    return [float(share) for share in given]


def _stage(name: str, target: str, parameters: dict[str, Any], tag: bool | None = None) -> Stage:
    check_text(name, "name", name)
    if tag is not None:
        check_switch(name, "tag", tag)
        parameters = {**parameters, "tag": tag}
    return Stage(name, StageKind.TRANSFORM, f"headrace.stages.quality.{target}", parameters)


_NGRAM_MAX = 64
_MODULE = "headrace.stages.dedup.stage"


def dedup(
    *,
    by: Literal["text", "url"] = "text",
    url_key: str = "url",
    near: bool = True,
    judge: Literal["words", "none"] = "words",
    ngram: int | None = None,
    bands: int | None = None,
    rows: int | None = None,
    threshold: float | None = None,
    num_perm: int = 128,
    folder: str | os.PathLike[str] | None = None,
    partitions: int = 0,
    name: str = "dedup",
) -> tuple[Stage, Stage]:
    """Keep the first of several duplicates: two stages for a pipeline, `*dedup()`, to make keys and to decide.

    By "url", duplicates are records whose URL, the field `url_key` of their metadata ("a.b" is the field b of a), has
    the same normal form; one without a URL is kept. By "text" they are texts that are equal but for white space, and
    with `near` similar ones. Two texts are candidates where they share one of `bands` bands of `rows` MinHash values
    each over shingles of `ngram` words. The judge "words" compares their words (docs/guide/dedup.md), and "none" takes
    each candidate for a duplicate. With a `threshold` of Jaccard similarity the bands and rows are those, of at most
    `num_perm` values, that err least about it. Defaults with a judge are 20 bands of 4 rows over 3 words,
    without 14 of 8 over 5. With a `folder` of its own on a local disk of its worker the index lies there, and takes an
    eighth of the memory. With `partitions` its keys lie in so many tasks beside the one that decides, on any workers.
    """
    for what, text in (("name", name), ("url_key", url_key), ("folder", "." if folder is None else os.fspath(folder))):
        check_text(name, what, text)
    if by not in ("text", "url"):
        raise PipelineError(f'stage "{name}": by is {by!r}; it must be "text" or "url"')
    if type(near) is not bool:
        raise PipelineError(f'stage "{name}": near is {near!r}; it must be True or False')
    if judge not in ("words", "none"):
        raise PipelineError(f'stage "{name}": judge is {judge!r}; it must be "words" or "none"')
    judged = judge == "words"
    given, defaults = (ngram, bands, rows), DEFAULTS[judged]
    ngram, bands, rows = (default if value is None else value for value, default in zip(given, defaults, strict=True))
    check_integer(name, "ngram", ngram, 1, _NGRAM_MAX)
    if threshold is not None:
        check_number(name, "threshold", threshold, 0.05, 0.99)
        check_integer(name, "num_perm", num_perm, 1, PERMUTATIONS_MAX)
        bands, rows = best_bands(float(threshold), num_perm)
    check_integer(name, "bands", bands, 1, PERMUTATIONS_MAX)
    check_integer(name, "rows", rows, 1, PERMUTATIONS_MAX)
    if bands * rows > PERMUTATIONS_MAX:
        raise PipelineError(
            f'stage "{name}": {bands} bands of {rows} rows are {bands * rows} MinHash values; the limit is '
            f"{PERMUTATIONS_MAX}"
        )
    check_integer(name, "partitions", partitions, 0, PARTITIONS_MAX)
    near = near and by == "text"
    parameters: dict[str, Any] = {"ngram": ngram, "bands": bands if near else 0, "rows": rows}
    if near and judged:
        parameters["rule"] = RULE
    local: dict[str, Any] = {} if folder is None else {"folder": os.fspath(folder)}
    of_url: dict[str, Any] = {}
    if by == "url":
        parameters["url"], of_url = URL_RULE, {"url_key": url_key}
    return (
        Stage(f"{name}-keys", StageKind.TRANSFORM, f"{_MODULE}:KeyMaker", {**parameters, **of_url}),
        Stage(
            name,
            StageKind.STATEFUL,
            f"{_MODULE}:Dedup",
            parameters | local,
            replicas=1 + partitions,
            volatile=tuple(local),
        ),
    )


def dedup_lines(index: str | os.PathLike[str], *, name: str = "dedup-lines") -> Stage:
    """Remove the lines that an index names, made by `headrace dataset repeats`: those that many records have.

    A text of which only white space is left is filtered. The index's checksum is part of the pipeline's version, its
    place is not. The lineage of a record says which bytes were removed.
    """
    return _repeats("line", index, name)


def dedup_paragraphs(index: str | os.PathLike[str], *, name: str = "dedup-paragraphs") -> Stage:
    """Remove the paragraphs that an index names; the rest is as in `dedup_lines`."""
    return _repeats("paragraph", index, name)


def dedup_passages(index: str | os.PathLike[str], *, name: str = "dedup-passages") -> Stage:
    """Remove the passages that an index names: so many words in a row; the rest is as in `dedup_lines`."""
    return _repeats("passage", index, name)


def _repeats(unit: str, index: str | os.PathLike[str], name: str) -> Stage:
    from headrace.stages.dedup.spans import read_facts

    check_text(name, "name", name)
    path = str(pathlib.Path(os.path.expanduser(check_path(name, "index", index))).absolute())
    try:
        facts = read_facts(path)
    except (OSError, FormatError) as error:
        raise PipelineError(f'stage "{name}": {error}') from error
    if facts.unit != unit:
        raise PipelineError(f'stage "{name}": {path} is an index of {facts.unit}s, and not of {unit}s')
    identity = {"unit": unit, "words_min": facts.words_min, "rule": facts.rule, "checksum": facts.checksum}
    return Stage(
        name,
        StageKind.TRANSFORM,
        "headrace.stages.dedup.spans.repeats:RepeatRemover",
        {"index": path, "checksum": facts.checksum},
        identity=identity,
        volatile=("index", "checksum"),
    )


def dedup_keys(**options: Any) -> Stage:
    """The first stage of `dedup`, with its options, alone: keys lie beside the shards, and nothing is decided.

    `headrace dataset dedup` decides afterwards, the same for any number of tasks.
    """
    return dedup(**options)[0]
