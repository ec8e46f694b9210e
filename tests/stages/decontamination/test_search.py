"""What of an item must stand in a text, and in what form, for the text to be contaminated."""

# ruff: noqa: RUF001 (marks that look alike are what is tried)

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.stages.decontamination.index import HOT_ITEMS, SuiteIndex, make_index
from headrace.stages.decontamination.stage import MISSES_MAX, _most_before, _put, find_items, needed
from headrace.stages.decontamination.suites import Item, Suite

WORD_PROBLEM = Item(
    "Mira's orchard has 1,240 apple trees in well-kept rows. Each spring she doesn't prune more than 3/4 of them, and "
    "every pruned tree yields 17.5 kilograms. If the co-operative pays $2.35 a kilogram, how many dollars does Mira "
    "earn when she prunes as many trees as she may?",
    answer="She prunes 1,240 * 3/4 = 930 trees.\nThey yield 930 * 17.5 = 16,275 kilograms.\n#### 38246.25",
)
CHOICES = Item(
    "Which organelle of a plant cell stores most of the cell sap?",
    choices=("the nucleus", "the vacuole", "the ribosome", "the cell wall"),
    answer="the vacuole",
)
PASSAGE = Item(
    "Why did the ferrymen of Ostervik stop at noon?",
    answer="because the tide ran out of the inner harbour and left the landing dry for hours",
    passage="The ferrymen of Ostervik worked from before dawn. They carried barrels, goats and now and then a bishop. "
    "At noon they stopped, because the tide ran out of the inner harbour and left the landing dry for hours.",
)
CHINESE = Item("小明有三十二个苹果，他给了妹妹一半以后又买了九个，请问小明现在一共有多少个苹果？")
SHORT = Item("What metal is liquid at room temperature?", answer="Mercury")
FILLER = " ".join(f"An unrelated sentence about ledgers and mills follows number {n} of the list." for n in range(60))


def index_of(*items: Item) -> SuiteIndex:
    return make_index([Suite("suite", items, "")])


def scores(texts: Sequence[str], *items: Item, threshold: float = 0.8) -> list[tuple[int, float, bool]]:
    found, words, best = find_items(pa.array(texts, pa.string()), index_of(*items), threshold)
    over = found >= needed(words, threshold)
    return list(zip(best.tolist(), found.tolist(), over.tolist(), strict=True))


def is_contaminated(text: str, *items: Item) -> bool:
    ((_, __, over),) = scores([text], *items)
    return over


def printed(item: Item) -> str:
    choices = "\n".join(f"({chr(65 + at)}) {choice}" for at, choice in enumerate(item.choices))
    return "\n".join(part for part in (item.passage, item.question, choices, item.answer) if part)


FORMS: dict[str, Callable[[str], str]] = {
    "verbatim": lambda text: text,
    "upper case": str.upper,
    "lower case": str.lower,
    "title case": str.title,
    "without punctuation": lambda text: re.sub(r"[^\w\s]", "", text),
    "spaces for punctuation": lambda text: re.sub(r"[^\w\s]", " ", text),
    "other punctuation": lambda text: re.sub(r"[^\w\s]", ";", text),
    "more punctuation": lambda text: re.sub(r"(\w) ", r"\1, ", text),
    "a part of its punctuation": lambda text: re.sub(r"[,'’]", "", text).replace("-", " "),
    "broken lines": lambda text: text.replace(" ", "\n"),
    "typographic": lambda text: text.replace("'", "’").replace("-", "\N{EN DASH}"),
    "within a long text": lambda text: f"{FILLER}\n{text}\n{FILLER}",
    "within a sentence": lambda text: f'As they asked:"{text}"and so on',
}


@pytest.mark.parametrize("item", [WORD_PROBLEM, CHOICES, PASSAGE, CHINESE, SHORT], ids=lambda item: item.question[:9])
@pytest.mark.parametrize("form", FORMS)
def test_an_item_is_found_in_any_form(item: Item, form: str) -> None:
    assert scores([FORMS[form](printed(item))], item) == [(0, pytest.approx(1.0), True)]


def reworded(text: str, seed: int) -> str:
    words = text.split()
    return " ".join(random.Random(seed).sample(words, len(words)))


NEGATIVES: dict[str, tuple[Item, str]] = {
    "words in another order": (WORD_PROBLEM, reworded(printed(WORD_PROBLEM), 1)),
    "sentences in another order": (WORD_PROBLEM, ". ".join(reversed(WORD_PROBLEM.question.split(". ")))),
    "the same template with other names and numbers": (
        WORD_PROBLEM,
        re.sub(r"Mira", "Ben", re.sub(r"\d", "8", WORD_PROBLEM.question))
        .replace("apple", "plum")
        .replace("rows", "lines"),
    ),
    "the same topic": (
        WORD_PROBLEM,
        (
            "Apple growers prune their trees each spring. A co-operative pays by the kilogram, and a well-kept tree "
            "yields up to twenty kilograms, so an orchard of a thousand trees may earn forty thousand dollars a year."
        ),
    ),
    "a half of the question": (WORD_PROBLEM, WORD_PROBLEM.question[: len(WORD_PROBLEM.question) // 2]),
    "the answer alone": (WORD_PROBLEM, WORD_PROBLEM.answer),
    "the passage alone": (PASSAGE, PASSAGE.passage),
    "question words alone": (
        WORD_PROBLEM,
        "If so, how many does she have when she may? How many dollars does each earn? " * 9,
    ),
    "a short question without its answer": (SHORT, f"{SHORT.question} Nobody in the class knew. {FILLER}"),
    "a short question with its answer far off": (SHORT, f"{SHORT.question} {FILLER[:400]} Mercury is a planet."),
    "a short question with one other word": (SHORT, "What metal is solid at room temperature? Mercury is not."),
    "a short answer as a part of a word": (SHORT, f"{SHORT.question} It is mercuryous."),
    "choices of another question": (CHOICES, "Which organelle makes proteins? " + " ".join(CHOICES.choices)),
}


@pytest.mark.parametrize("negative", NEGATIVES)
def test_what_only_resembles_an_item_is_clean(negative: str) -> None:
    item, text = NEGATIVES[negative]
    assert not is_contaminated(text, item)


def test_the_score_that_contamination_takes_falls_from_20_to_50_words() -> None:
    assert needed([1, 20, 35, 50, 900], 0.8) == pytest.approx([1.0, 1.0, 0.9, 0.8, 0.8], abs=1e-6)


def edited(question: str, *places: int) -> str:
    words = question.split()
    for place in places:
        words[place] = "quux"
    return " ".join(words)


def test_one_edit_of_a_long_question_is_borne_and_many_are_not() -> None:
    question = WORD_PROBLEM.question
    ((_, once, found), (__, often, lost)) = scores([edited(question, 4), edited(question, 4, 14, 24, 34)], WORD_PROBLEM)
    assert 0.8 < once < 1
    assert often < 0.6
    assert (found, lost) == (True, False)


def test_an_answer_beside_a_question_with_edits_raises_the_score() -> None:
    question = edited(WORD_PROBLEM.question, 4, 9)
    ((_, alone, __), (___, both, ____)) = scores([question, f"{question}\n{WORD_PROBLEM.answer}"], WORD_PROBLEM)
    assert alone < both == pytest.approx(0.75 * alone + 0.25)


def test_a_question_of_eight_words_counts_without_its_answer() -> None:
    seven, eight = (Item(" ".join(f"harbour{n}" for n in range(count)), answer="none") for count in (7, 8))
    assert [over for _, _, over in scores([seven.question, f"{seven.question} None."], seven)] == [False, True]
    assert scores([eight.question], eight) == [(0, 1.0, True)]


def test_of_items_with_one_question_the_answer_tells() -> None:
    question = "Which of the old harbours of Ostervik was the first to freeze?"
    items = [Item(question, answer=answer) for answer in ("the inner one", "the outer one", "the northern one")]
    for number, item in enumerate(items):
        assert scores([printed(item)], *items) == [(number, 1.0, True)]


def test_a_passage_beside_a_question_raises_the_score() -> None:
    item = Item("Why did the Ostervik ferrymen stop?", passage=PASSAGE.passage)
    ((_, alone, lost), (__, both, found)) = scores([item.question, f"{item.passage} {item.question}"], item)
    assert (both, found, lost) == (pytest.approx(1.0), True, False)
    assert alone == pytest.approx(0.85 * 6 / 20)


LONG = tuple(
    f"{a}{b}"
    for a in ("copper", "silver", "golden", "wooden")
    for b in ("wheels", "towers", "basket", "candle", "mirror")
)


@pytest.mark.parametrize(("inserted", "found"), [(MISSES_MAX - 1, True), (MISSES_MAX, False)])
def test_a_search_goes_on_through_eleven_words_that_begin_nothing(inserted: int, found: bool) -> None:
    # A gram is two of these words: of the last word before what is inserted it is not there either.
    item = Item(" ".join((*LONG, *(f"more{word}" for word in LONG), *(f"less{word}" for word in LONG))))
    words = item.question.split()
    text = " ".join((*words[:30], *(f"inserted{n}" for n in range(inserted)), *words[30:]))
    ((_, score, over),) = scores([text], item)
    assert over is found
    assert (score > 0.9) is found


def test_rare_grams_weigh_more_than_those_of_a_template() -> None:
    template = "Read the following report with care and then say in one sentence what its author wants from the board: "
    subjects = (
        f"number{n} sells{n} quarry{n} before{n} autumn{n} storms{n} arrive{n} there{n} so{n} that{n} carts{n} sink{n}"
        for n in range(50)
    )
    items = [Item(template + subject) for subject in subjects]
    ((_, common, __), (___, rare, ____)) = scores([template, items[3].question[len(template) - 6 :]], *items)
    assert (common, rare) == (0, pytest.approx(0.6, abs=0.1))


def test_a_question_that_many_items_have_is_told_by_its_choices() -> None:
    items = [
        Item(
            "Which of the following statements is true?",
            (f"Fact {n} holds", f"Fact {n} fails", f"Neither {n}"),
            f"Fact {n} holds",
        )
        for n in range(500)
    ]
    text = f"{FILLER} {printed(items[217])} {FILLER}"
    index = index_of(*items)
    _, __, (best,) = find_items(pa.array([text]), index, 0.8)
    assert index.arrays["number"][best] == 217
    assert is_contaminated(text, *items)
    assert not is_contaminated(f"{FILLER} {items[0].question} {FILLER}", *items)


def test_a_tiny_question_is_looked_for_with_choices_or_answer() -> None:
    tiny = Item("What is 6 * 7?", ("42", "48 units", "36 and no more"), "42")
    said = Item("Who wrote Emma?", answer="Jane Austen did")
    nothing = Item("Why?")
    for text in ("What is 6 * 7?\nA. 42\nB. 48 units\nC. 36 and no more", "what is 6*7? 42, 48 units, 36 and no more"):
        assert is_contaminated(text, tiny, said)
    for text in ("Q: Who wrote Emma?\nA: Jane Austen did", "Who wrote Emma? Answer: Jane Austen did"):
        assert is_contaminated(text, tiny, said)
    assert index_of(nothing, said).left_out == 1


def test_items_that_are_there_twice_are_looked_for_once() -> None:
    index = make_index([Suite("one", (WORD_PROBLEM,), ""), Suite("two", (WORD_PROBLEM, CHOICES), "")])
    assert (index.arrays["suite"].tolist(), index.arrays["number"].tolist(), index.left_out) == ([0, 1], [0, 1], 1)


def test_each_text_is_judged_by_itself() -> None:
    half = len(WORD_PROBLEM.question) // 2
    texts = [WORD_PROBLEM.question[:half], WORD_PROBLEM.question[half:], "", CHINESE.question, WORD_PROBLEM.question]
    found = [over and best for best, _, over in scores(texts, WORD_PROBLEM, CHINESE)]
    assert found == [False, False, False, 1, 0]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_slices_and_large_strings_are_read_as_they_are(kind: Any) -> None:
    column = pa.array(["first", WORD_PROBLEM.question, "last"], kind)
    assert find_items(column.slice(1, 1), index_of(WORD_PROBLEM), 0.8)[2].tolist() == [0]


LONG_ANSWER = " ".join(f"because{n} reasons{n}" for n in range(45))
APART = " ".join(f"unrelated{n}" for n in range(30))
BESIDE = {
    "answer behind": (Item("Is lead or mercury liquid at noon?", answer="a tin"), "{question} Surely a tin."),
    "answer before": (Item("Is lead or mercury liquid at noon?", answer="a tin"), "A tin. {question}"),
    "long answer behind": (Item("Why did it happen in Ostervik?", answer=LONG_ANSWER), "{question} {apart} {answer}"),
    "long answer before": (Item("Why did it happen in Ostervik?", answer=LONG_ANSWER), "{answer} {apart} {question}"),
    "passage behind": (Item("Why did it happen in Ostervik?", passage=LONG_ANSWER), "{question} {apart} {passage}"),
    "passage before": (Item("Why did it happen in Ostervik?", passage=LONG_ANSWER), "{passage} {apart} {question}"),
}


@pytest.mark.parametrize("place", BESIDE)
def test_what_belongs_to_a_question_is_found_on_either_side(place: str) -> None:
    item, form = BESIDE[place]
    text = form.format(question=item.question, answer=item.answer, passage=item.passage, apart=APART)
    assert scores([text], item) == [(0, pytest.approx(1.0), True)]


def test_the_question_itself_is_neither_its_answer_nor_its_passage() -> None:
    item = Item("Is lead or mercury liquid at noon?", answer="mercury", passage="Is lead or mercury liquid at noon?")
    ((_, score, over),) = scores([item.question], item)
    assert (score, over) == (pytest.approx(0.7 * 7 / 20), False)


def test_a_short_question_with_an_edit_is_clean_whatever_its_answer() -> None:
    item = Item("Why did ferrymen near Ostervik stop working yesterday?", answer=LONG_ANSWER)
    assert is_contaminated(printed(item), item)
    assert not is_contaminated(printed(item).replace("yesterday", "tomorrow"), item)


def test_an_item_is_looked_for_again_behind_a_part_of_it() -> None:
    assert is_contaminated(f"{WORD_PROBLEM.question[:90]} {FILLER} {WORD_PROBLEM.question}", WORD_PROBLEM)


def test_a_search_goes_backwards_over_edits_too() -> None:
    template = " ".join(f"template{n} words{n}" for n in range(24))
    items = [Item(f"{template} " + " ".join(f"item{n}tail{at}" for at in range(8))) for n in range(HOT_ITEMS + 9)]
    whole, *edits = (edited(items[5].question, *places) for places in ((), (10,), (10, 20), (10, 20, 30)))
    found = [score for _, score, _ in scores([whole, *edits], *items)]
    assert np.diff(found) == pytest.approx([found[1] - 1] * 3, abs=0.02)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=40))
def test_the_row_in_order_is_the_weightiest_that_there_is(met: list[tuple[int, int]]) -> None:
    best, ends = np.zeros(32), [0.0] * 31
    for place, weight in met:
        weightiest = max(ends[:place], default=0.0)
        assert _most_before(best, np.int64(place)) == weightiest
        _put(best, np.int64(place), 31, weightiest + weight)
        ends[place] = max(ends[place], weightiest + weight)
