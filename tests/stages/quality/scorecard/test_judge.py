"""Filters on texts at hand: what they decide, and on which side of a limit."""

from __future__ import annotations

import pytest

from headrace.pipeline.graph import Stage
from headrace.stages import library
from headrace.stages.quality.scorecard.judgement import Judgement, judge, score

LETTER = (
    "Dear neighbour, the wall between our gardens fell in last night's storm. "
    "I have spoken to a mason in the village, and he is willing to look at it on Thursday. "
    "If that suits you, leave the side gate open; the dog will be with my sister until then. "
    "We might share the cost, or you might prefer a hedge. Tell me which of the two you would rather have.\n"
)


def reason_of(text: str, *stages: Stage) -> str:
    (judgement,) = judge([text], stages)
    return judgement.reason


def test_each_text_gets_a_judgement_in_its_place() -> None:
    stages = [library.duplicate_lines(), library.gopher_quality()]
    assert judge([LETTER, "Too short.", "again\n" * 9], stages) == [
        Judgement(True, LETTER),
        Judgement(False, "Too short.", "gopher-quality", "filtered", "too few words"),
        Judgement(False, "again\n" * 9, "duplicate-lines", "filtered", "too many duplicate lines"),
    ]


def test_without_stages_every_text_is_kept_and_no_text_gets_no_judgement() -> None:
    assert judge(["", "a"], []) == [Judgement(True, ""), Judgement(True, "a")]
    assert judge([], [library.fineweb_quality()]) == []


def test_a_text_that_is_kept_comes_back_as_the_stages_left_it() -> None:
    text = LETTER.replace(". ", ".\n") + "Click here\nRead our privacy policy before you go on.\n"
    (judgement,) = judge([text], [library.c4_quality()])
    assert judgement == Judgement(True, LETTER.replace(". ", ".\n").strip())


def test_what_is_no_unicode_text_is_refused_with_its_number() -> None:
    with pytest.raises(ValueError, match=r"text 1 of 2 is no Unicode text: surrogates not allowed at 3"):
        judge(["fine", "abc\ud800"], [library.gopher_quality()])


def test_scores_are_given_by_name() -> None:
    first, second = score(["to be or not to be", ""], library.gopher_quality())
    assert (first["words"], first["word length"], first["stop words"]) == (6, 13 / 6, 2)
    assert second["words"] == 0


REPETITION = library.gopher_repetition()


def share(text: str, name: str, stage: Stage = REPETITION) -> float:
    (scores,) = score([text], stage)
    return float(scores[name])


def test_the_first_of_equal_lines_is_no_duplicate() -> None:
    assert share("ab\ncd\nab\nab", "duplicate lines") == 2 / 4
    assert share("ab\ncd\nab\nab", "characters in duplicate lines") == pytest.approx(4 / 11)


def test_line_feeds_in_a_row_part_paragraphs_and_lines_once() -> None:
    text = "ab\n\n\n\ncd\n\nab"
    assert share(text, "duplicate paragraphs") == pytest.approx(1 / 3)
    assert share(text, "duplicate lines") == pytest.approx(1 / 3)
    assert share(text, "characters in duplicate paragraphs") == pytest.approx(2 / len(text))


def test_the_last_line_feed_ends_a_line_before_an_empty_one() -> None:
    assert share("ab\nab\n", "duplicate lines") == pytest.approx(1 / 3)
    assert share("ab\n\nab\n\n", "duplicate paragraphs") == 1 / 2


def test_the_top_pair_counts_with_its_space_in_all_its_occurrences() -> None:
    assert share("ab cd ab cd ab", "characters in the top 2-gram") == pytest.approx(10 / 14)
    # Occurrences overlap: three words alike hold the pair twice.
    assert share("ab ab ab", "characters in the top 2-gram") == pytest.approx(10 / 8)


def test_of_pairs_as_frequent_as_each_other_the_first_is_the_top() -> None:
    assert share("a b longer words a b longer words", "characters in the top 2-gram") == pytest.approx(6 / 33)
    assert share("one two", "characters in the top 2-gram") == 1.0


def test_duplicate_runs_of_words_count_without_spaces_and_are_passed_over() -> None:
    run = "aa bb cc dd ee"
    assert share(f"{run} {run}", "characters in duplicate 5-grams") == pytest.approx(10 / 29)
    assert share(f"{run} {run} {run}", "characters in duplicate 5-grams") == pytest.approx(20 / 44)
    # After a duplicate the search goes on behind it: of nine words alike, the second five begin at the second word.
    assert share("x " * 9, "characters in duplicate 5-grams") == pytest.approx(5 / 18)


@pytest.mark.parametrize("case", ["Ab cd ab cd", "ab cd ab cD"])
def test_words_in_different_case_are_different(case: str) -> None:
    assert share(case, "characters in the top 2-gram") == pytest.approx(5 / 11)


@pytest.mark.parametrize(("words", "reason"), [(49, "too few words"), (50, ""), (90, ""), (91, "too many words")])
def test_the_limits_on_words_are_allowed_themselves(words: int, reason: str) -> None:
    text = "the and " + " ".join(f"word{chr(97 + number % 26)}" for number in range(words - 2))
    assert reason_of(text, library.gopher_quality(words_max=90)) == reason


@pytest.mark.parametrize(("word", "reason"), [("ab", "words too short"), ("abc", ""), ("a" * 11, "words too long")])
def test_the_length_of_words_is_a_mean(word: str, reason: str) -> None:
    assert reason_of(f"{word} " * 60, library.gopher_quality(stop_words_min=0)) == reason


def test_marks_are_no_words_to_the_limits_and_words_to_the_ratios() -> None:
    (scores,) = score(["a # b ... ###"], library.gopher_quality())
    assert (scores["words"], scores["word length"]) == (2, 1.0)
    # "###" comes apart into three: seven words, four hash signs, one ellipsis.
    assert (scores["hash signs per word"], scores["ellipses per word"]) == pytest.approx((4 / 7, 1 / 7))


def test_bullets_and_ellipses_are_looked_for_at_the_ends_of_stripped_lines() -> None:
    (scores,) = score(["  - one\n• two\nthree … \nfour...\n"], library.gopher_quality())
    assert (scores["bullet lines"], scores["lines ending in an ellipsis"]) == (2 / 4, 2 / 4)


def test_c4_drops_lines_and_keeps_the_rest_of_the_page() -> None:
    lines = [
        "This line has enough words and ends well.",
        "two words.",
        "This line does not end in a mark",
        "This line trails off...",
        "Please turn on JavaScript to read this page.",
        "By reading on you accept our Terms of Use.",
        f"One word is too long {'x' * 1001}.",
        'He said that it was "enough for today"',
    ]
    (judgement,) = judge(["\n".join(lines)], [library.c4_quality(sentences_min=0)])
    assert judgement.text.splitlines() == [lines[0], lines[-1]]
    (judgement,) = judge(["\n".join(lines)], [library.c4_quality(sentences_min=0, terminal_punctuation=False)])
    assert judgement.text.splitlines() == [*lines[:1], *lines[2:4], lines[-1]]


@pytest.mark.parametrize(("count", "reason"), [(4, "too few sentences"), (5, "")])
def test_c4_asks_for_sentences_in_the_lines_that_are_left(count: int, reason: str) -> None:
    assert reason_of("One of the sentences stands here.\n" * count + "no more\n", library.c4_quality()) == reason


def test_fineweb_counts_lines_neither_blank_nor_too_long() -> None:
    stage = library.fineweb_quality(short_line_characters=4)
    assert share("abcd\n\nabcde.\n   \n", "short lines", stage) == 1 / 2
    assert share("abcd\n\nabcde.\n   \n", "punctuated lines", stage) == 1 / 2
    # Two letters of eight characters that are no line feeds are in a line seen before.
    assert share("ab\nab\ncdef\n", "characters in duplicate lines", stage) == 2 / 8
    assert share("ab cd\nef\n", "line feeds per word", stage) == pytest.approx(2 / 3)
