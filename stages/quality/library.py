"""The quality stages as a pipeline file declares them. Light: no loop is compiled or imported here.

Each stage's limits are parameters with the published values; `tag=True` writes what they would have been held against
into the record's metadata, under the stage's name, and drops nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Stage, StageKind
from headrace.stages.parameters import check_integer, check_number, check_text

#: The words of which Gopher asks for two.
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
STOP_WORDS_MAX = 60


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
    shares = {
        "lines_max": lines_max,
        "line_characters_max": line_characters_max,
        "paragraphs_max": paragraphs_max,
        "paragraph_characters_max": paragraph_characters_max,
    }
    for parameter, value in shares.items():
        check_number(name, parameter, value, 0, 1)
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
        top_ngrams_max=(1.0,) * 3,
        duplicate_ngrams_max=(1.0,) * 6,
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
    check_integer(name, "words_min", words_min, 0, 1 << 40)
    check_integer(name, "words_max", words_max, words_min, 1 << 40)
    check_number(name, "word_length_min", word_length_min, 0, 1e6)
    check_number(name, "word_length_max", word_length_max, word_length_min, 1e9)
    check_number(name, "symbols_per_word_max", symbols_per_word_max, 0, 1e9)
    shares = {
        "bullet_lines_max": bullet_lines_max,
        "ellipsis_lines_max": ellipsis_lines_max,
        "alphabetic_words_min": alphabetic_words_min,
    }
    for parameter, share in shares.items():
        check_number(name, parameter, share, 0, 1)
    words = list(stop_words)
    if len(words) > STOP_WORDS_MAX or not all(isinstance(word, str) and word for word in words):
        raise PipelineError(f'stage "{name}": stop_words must be at most {STOP_WORDS_MAX} words')
    check_integer(name, "stop_words_min", stop_words_min, 0, len(words))
    parameters = {
        "words_min": words_min,
        "words_max": words_max,
        "word_length_min": word_length_min,
        "word_length_max": word_length_max,
        "symbols_per_word_max": symbols_per_word_max,
        **shares,
        "stop_words_min": stop_words_min,
        "stop_words": words,
    }
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
    check_integer(name, "sentences_min", sentences_min, 0, 1 << 30)
    check_integer(name, "words_per_line_min", words_per_line_min, 0, 1 << 30)
    check_integer(name, "word_characters_max", word_characters_max, 1, 1 << 40)
    switches = {
        "terminal_punctuation": terminal_punctuation,
        "citations": citations,
        "lorem_ipsum": lorem_ipsum,
        "javascript": javascript,
        "curly_brackets": curly_brackets,
        "policies": policies,
    }
    for parameter, value in switches.items():
        check_switch(name, parameter, value)
    limits = {
        "sentences_min": sentences_min,
        "words_per_line_min": words_per_line_min,
        "word_characters_max": word_characters_max,
    }
    return _stage(name, "c4:C4Quality", {**limits, **switches}, tag)


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
    check_number(name, "punctuated_lines_min", punctuated_lines_min, 0, 1)
    check_number(name, "short_lines_max", short_lines_max, 0, 1)
    check_integer(name, "short_line_characters", short_line_characters, 0, 1 << 20)
    check_number(name, "duplicate_characters_max", duplicate_characters_max, 0, 1)
    check_number(name, "lines_per_word_max", lines_per_word_max, 0, 1e9)
    parameters = {
        "punctuated_lines_min": punctuated_lines_min,
        "short_lines_max": short_lines_max,
        "short_line_characters": short_line_characters,
        "duplicate_characters_max": duplicate_characters_max,
        "lines_per_word_max": lines_per_word_max,
    }
    return _stage(name, "fineweb:FinewebQuality", parameters, tag)


def check_switch(stage: str, parameter: str, value: Any) -> None:
    """Raise PipelineError unless `value` is True or False."""
    if type(value) is not bool:
        raise PipelineError(f'stage "{stage}": {parameter} is {value!r}; it must be True or False')


def _shares(stage: str, parameter: str, given: Sequence[float], count: int) -> list[float]:
    if isinstance(given, str) or len(given) != count:
        raise PipelineError(f'stage "{stage}": {parameter} is {given!r}; it must be {count} numbers from 0 to 1')
    for share in given:
        check_number(stage, parameter, share, 0, 1)
    return [float(share) for share in given]


def _stage(name: str, target: str, parameters: dict[str, Any], tag: bool | None = None) -> Stage:
    check_text(name, "name", name)
    if tag is not None:
        check_switch(name, "tag", tag)
        parameters = {**parameters, "tag": tag}
    return Stage(name, StageKind.TRANSFORM, f"headrace.stages.quality.{target}", parameters)
