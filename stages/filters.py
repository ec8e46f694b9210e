"""Filters of texts by published rules. Each rule has a reason; a text is filtered for the first rule that it breaks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from headrace.stages.batch import Batch
from headrace.stages.text import Counts, Mask, Texts, text_of

#: The words of which Gopher asks for two.
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLETS = ("•", "-")
ELLIPSES = ("...", "…")
#: What ends a line that is a sentence: C4's terminal marks.
LINE_ENDS = (".", "?", "!", '"', "'")
SENTENCE_ENDS = b".?!"


def ratio(part: npt.NDArray[np.number], whole: Counts) -> npt.NDArray[np.float64]:
    """`part / whole`, and 0 where there is nothing to divide by."""
    share: npt.NDArray[np.float64] = np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)
    return share


def drop(batch: Batch, stage: str, *rules: tuple[str, Mask]) -> Batch:
    """Filter the rows for which a rule's mask holds, for the reason of the first such rule."""
    reasons: list[str | None] = [None] * batch.rows.num_rows
    keep = np.ones(len(reasons), dtype=np.bool_)
    for reason, breaks in rules:
        for index in np.flatnonzero(breaks & keep).tolist():
            reasons[index] = reason
        keep &= ~breaks
    return batch.keep(keep, stage, reasons)


class GopherQuality:
    """The quality rules of Gopher: Rae et al. 2021, "Scaling Language Models", appendix A1.1."""

    def __init__(
        self,
        name: str,
        words_min: int,
        words_max: int,
        word_length_min: float,
        word_length_max: float,
        symbols_per_word_max: float,
        bullet_lines_max: float,
        ellipsis_lines_max: float,
        alphabetic_words_min: float,
        stop_words_min: int,
    ) -> None:
        self.name = name
        self.words = (words_min, words_max)
        self.word_length = (word_length_min, word_length_max)
        self.symbols_per_word_max = symbols_per_word_max
        self.bullet_lines_max, self.ellipsis_lines_max = bullet_lines_max, ellipsis_lines_max
        self.alphabetic_words_min = alphabetic_words_min
        self.stop_words_min = stop_words_min

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts that break a rule."""
        texts = Texts(text_of(batch, self.name))
        lines = texts.lines
        words = texts.words
        length = ratio(texts.characters_in_words, words)
        ellipses = texts.count_text("...") + texts.count_text("…")
        return drop(
            batch,
            self.name,
            ("too few words", words < self.words[0]),
            ("too many words", words > self.words[1]),
            ("words too short", length < self.word_length[0]),
            ("words too long", length > self.word_length[1]),
            ("too many hash signs", ratio(texts.count_text("#"), words) > self.symbols_per_word_max),
            ("too many ellipses", ratio(ellipses, words) > self.symbols_per_word_max),
            ("too many bullet lines", self._share(lines.starting_with(*BULLETS), texts) > self.bullet_lines_max),
            (
                "too many lines end in an ellipsis",
                self._share(lines.ending_with(*ELLIPSES), texts) > self.ellipsis_lines_max,
            ),
            ("too few words with a letter", ratio(texts.alphabetic_words, words) < self.alphabetic_words_min),
            ("too few stop words", texts.distinct_words_of(STOP_WORDS) < self.stop_words_min),
        )

    def _share(self, mask: Mask, texts: Texts) -> npt.NDArray[np.float64]:
        return ratio(texts.lines.per_text(mask), texts.lines.count)


class DuplicateLines:
    """Two repetition rules of Gopher: Rae et al. 2021, table A1. Blank lines are left out of account."""

    def __init__(self, name: str, lines_max: float, characters_max: float) -> None:
        self.name = name
        self.lines_max, self.characters_max = lines_max, characters_max

    def process(self, batch: Batch) -> Batch:
        """The batch less the texts of which too much repeats an earlier line of theirs."""
        texts = Texts(text_of(batch, self.name))
        lines = texts.lines
        repeated = lines.repeated()
        heads = np.append(0, np.cumsum(lines.characters * repeated))
        sums = np.append(0, np.cumsum(lines.characters))
        edges = np.searchsorted(lines.first, texts.offsets)
        return drop(
            batch,
            self.name,
            ("too many repeated lines", ratio(lines.per_text(repeated), lines.count) > self.lines_max),
            (
                "too many characters in repeated lines",
                ratio(np.diff(heads[edges]), np.diff(sums[edges])) > self.characters_max,
            ),
        )


class C4Quality:
    """Page rules of C4: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.2."""

    def __init__(self, name: str, sentences_min: int, lorem_ipsum: bool, curly_brackets: bool) -> None:
        self.name = name
        self.sentences_min = sentences_min
        self.lorem_ipsum, self.curly_brackets = lorem_ipsum, curly_brackets

    def process(self, batch: Batch) -> Batch:
        """The batch less placeholders, code and fragments."""
        column = text_of(batch, self.name)
        texts = Texts(column)
        none = np.zeros(len(column), dtype=np.bool_)
        lorem = none if self.lorem_ipsum else _holds(pc.match_substring(column, "lorem ipsum", ignore_case=True))
        curly = none if self.curly_brackets else texts.count_text("{") > 0
        return drop(
            batch,
            self.name,
            ("lorem ipsum", lorem),
            ("curly bracket", curly),
            ("too few sentences", sentences(texts) < self.sentences_min),
        )


def sentences(texts: Texts) -> Counts:
    """Words of each text that end in a full stop, a question mark or an exclamation mark."""
    last = texts.word_ends - 1
    ends = np.isin(texts.bytes[last], np.frombuffer(SENTENCE_ENDS, np.uint8))
    return texts.per_text(last[ends])


class FinewebQuality:
    """The line rules that FineWeb adds: Penedo et al. 2024, "The FineWeb Datasets", section 3.6."""

    def __init__(
        self, name: str, punctuated_lines_min: float, short_lines_max: float, short_line_characters: int
    ) -> None:
        self.name = name
        self.punctuated_lines_min = punctuated_lines_min
        self.short_lines_max = short_lines_max
        self.short_line_characters = short_line_characters

    def process(self, batch: Batch) -> Batch:
        """The batch less lists and menus."""
        texts = Texts(text_of(batch, self.name))
        lines = texts.lines
        punctuated = ratio(lines.per_text(lines.ending_with(*LINE_ENDS)), lines.count)
        short = ratio(lines.per_text(lines.characters < self.short_line_characters), lines.count)
        return drop(
            batch,
            self.name,
            ("too few lines end in punctuation", punctuated <= self.punctuated_lines_min),
            ("too many short lines", short >= self.short_lines_max),
        )


def _holds(column: object) -> Mask:
    return np.asarray(column).astype(np.bool_)
