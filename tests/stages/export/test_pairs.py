"""What is shown of two texts that differ."""

from __future__ import annotations

from headrace.stages.export.records import differences


def test_words_that_one_text_has_are_told_from_those_of_both() -> None:
    kept, other = "one two three four five", "zero one two three 4 five and more"
    expected = [
        ("other", "zero"),
        ("same", "one two three"),
        ("kept", "four"),
        ("other", "4"),
        ("same", "five"),
        ("other", "and"),
    ]
    assert list(differences(kept, other)) == expected


def test_a_long_stretch_that_both_have_is_cut() -> None:
    words = " ".join(map(str, range(100)))
    assert list(differences(words, words)) == [("same", "0 1 2 3 … 95 96 97 98")]


def test_nothing_is_said_of_what_stands_behind_the_shorter_beginning() -> None:
    assert list(differences("one two three four", "one two thr")) == [("same", "one two")]
