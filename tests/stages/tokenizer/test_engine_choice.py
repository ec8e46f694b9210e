"""gigatoken is held against tokenizers before a run, and what differs is encoded by tokenizers."""

from __future__ import annotations

import json
import os
import pathlib
import random
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from headrace.pipeline.errors import PipelineError
from headrace.stages.library import tokenize, write_tokens
from headrace.stages.runtime import process_safely
from headrace.stages.runtime.batch import Batch
from headrace.stages.tokenizer import engine_check, engine_choice
from headrace.stages.tokenizer.engine_battery import byte_characters, spelled_codes, sweep_codes
from headrace.stages.tokenizer.engine_choice import Choice, choose_engine, engine_names
from headrace.stages.tokenizer.engines import Disputed, Gigatoken
from headrace.stages.tokenizer.tokenize import BY_TOKENIZERS, Tokenize
from headrace.stages.tokenizer.vocabulary import resolve_tokenizer

#: Letters, a mark, digits and an emoji that came with Unicode 17, on which the engines' tables do not agree.
NEW = "\u088f\u1acf\U00010940\U00011de0\U0001fa8a"
TEXTS = [
    *("hello othello hello", "", " ", "a  b   c\n\n\n d\t\te \r\n", "it's 12345 o'CLOCK", "漢字 привет"),
    *(f"a{new}b 1{new}23 {new}{new}" for new in NEW),
    *("<x>  b<x>\n\n", "a <y>", "<x> <y>   <x>    ", "<x>" * 9, "hello<x>hello  "),
    # What is composed here is one of the added tokens below, or is none.
    *("x cafe\u0301 y", "x<end>\u0338y"),
]
#: A pattern that gigatoken knows.
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


#: Marks of all classes, and characters that came after the oldest table of an engine; U+088F is in neither's.
MARKS = [chr(code) for code in range(0x300, 0x20000) if unicodedata.combining(chr(code))]
BASES = [chr(code) for code in spelled_codes(range(0xC0, 0x20000)) if not 0xAC40 < code < 0xD7A4]
NEWER = [*"\u0897\u0898\u1ad0\u1ae0\u09fe\u0c3c\u088f", *"\U000105d2\U000105c9\U0001fa8a\u0378"]
NEWER += map(chr, (0x10D69, *range(0x11380, 0x113D3), *range(0x11930, 0x11944), *range(0x1611E, 0x16130), 0x16D67))


def bytewise(**given: bool) -> Any:
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **given})


def split(behavior: str, *, invert: bool = False) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), behavior, invert), bytewise(use_regex=False)])


#: A tokenizer by name: what it begins with, and the settings of its trainer and its added tokens.
TRAINED: dict[str, dict[str, Any]] = {
    "plain": {"pre": bytewise()},
    "suffix of words": {"pre": bytewise(), "trainer": {"end_of_word_suffix": "</w>"}},
    "prefix of parts": {"pre": bytewise(), "trainer": {"continuing_subword_prefix": "##"}},
    "no words": {"pre": bytewise(use_regex=False)},
    "no pre-tokenizer": {},
    "single words": {"pre": bytewise(), "added": [AddedToken("hello", single_word=True)]},
    "stripped": {
        "pre": bytewise(),
        "added": [AddedToken("<x>", rstrip=True), AddedToken("<y>", lstrip=True), AddedToken("  "), AddedToken("\n\n")],
    },
    "matches left out": {"pre": split("removed")},
    "words alone": {"pre": split("removed", invert=True)},
    "merged": {"pre": split("merged_with_next")},
    "lower case": {"pre": bytewise(), "normalizer": normalizers.Lowercase()},
    "composed": {"pre": split("isolated"), "normalizer": normalizers.NFC()},
    "composed words": {
        "pre": bytewise(),
        "normalizer": normalizers.NFC(),
        "added": [AddedToken("caf\u00e9", normalized=True), AddedToken("<raw>", normalized=False)],
    },
    "composed signs": {
        "pre": bytewise(),
        "normalizer": normalizers.NFC(),
        "added": [AddedToken("<end>", normalized=True)],
    },
    "digits": {"pre": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytewise()])},
}


@pytest.fixture(scope="module")
def few_codes() -> list[int]:
    """Some blocks of the code points that a sweep takes, and those that a normalizer moves or takes apart."""
    near = {ord(new) + step for new in NEW for step in range(-0x1F, 0x20)}
    near |= {ord(mark) for mark in MARKS} | {ord(base) for base in BASES}
    return [code for code in sweep_codes() if code < 0x500 or code in near]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _few_code_points(
    few_codes: list[int],
    cache: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    request: pytest.FixtureRequest,
) -> None:
    """A sweep of some blocks in place of four seconds, and a cache that tests share which do not look at it."""
    monkeypatch.setattr(engine_check, "sweep_codes", lambda: few_codes)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache" if request.cls is TestWhatIsKept else cache))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("trained")

    def train(name: str) -> str:
        path = folder / f"{name}.json"
        if not path.exists():
            how = TRAINED[name]
            engine = tokenizers.Tokenizer(models.BPE())
            if "pre" in how:
                engine.pre_tokenizer = how["pre"]
            if "normalizer" in how:
                engine.normalizer = how["normalizer"]
            alphabet = pre_tokenizers.ByteLevel.alphabet()
            engine.train_from_iterator(
                [*TEXTS, "the other one is another"] * 3,
                trainers.BpeTrainer(
                    vocab_size=400,
                    special_tokens=["</s>"],
                    initial_alphabet=alphabet,
                    show_progress=False,
                    **how.get("trainer", {}),
                ),
            )
            engine.add_tokens(how.get("added", []))
            engine.save(str(path))
        return str(path)

    return train


def expected_tokens(path: str, texts: list[str]) -> list[list[int]]:
    engine = tokenizers.Tokenizer.from_file(path)
    return [encoding.ids for encoding in engine.encode_batch(texts, add_special_tokens=False)]


#: Of these the test below shows that tokenizers encodes all.
MISREAD = ("no words", "matches left out", "lower case", "composed signs")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in MISREAD else ()) for name in TRAINED]
)
def test_tokens_are_those_of_tokenizers_whatever_the_file_asks_for(
    name: str, trained: Callable[[str], str], batch_of: Callable[..., Batch]
) -> None:
    stage = tokenize(trained(name), eos=None)
    batch = Tokenize("tokenize", **stage.parameters).process(batch_of(TEXTS))
    assert batch.rows.column("tokens").to_pylist() == expected_tokens(trained(name), TEXTS)


@pytest.mark.parametrize("name", ["plain", "single words", "stripped", "words alone", "composed"])
def test_gigatoken_encodes_all_but_the_records_that_differ(
    name: str, trained: Callable[[str], str], batch_of: Callable[..., Batch]
) -> None:
    stage = tokenize(trained(name), eos=None)
    assert stage.identity["tokenizer_engine"] == engine_names()[0]
    plain = ["hullo  there", *(f"text number {number} café" for number in range(50))]
    batch = Tokenize("tokenize", **stage.parameters).process(batch_of([*plain, f"new {NEW}"]))
    assert batch.counters == {f"tokenize/{BY_TOKENIZERS}": 1}


@pytest.mark.parametrize(
    "name",
    [
        "suffix of words",
        "prefix of parts",
        "no words",
        "matches left out",
        "lower case",
        "composed words",
        "composed signs",
    ],
)
def test_a_tokenizer_that_gigatoken_misreads_is_declared_for_the_other_engine(
    name: str, trained: Callable[[str], str]
) -> None:
    facts = resolve_tokenizer(trained(name))
    choice = choose_engine(facts.path, facts.sha256)
    assert choice.engine == engine_names()[1]
    assert choice.why


def of_bytes(folder: pathlib.Path, **given: Any) -> str:
    """A tokenizer.json whose tokens are the bytes of a text, with other parts as given."""
    parts = {"version": "1.0", "added_tokens": [], "pre_tokenizer": json.loads(bytewise().__getstate__()), **given}
    model = {"type": "BPE", "vocab": {text: byte for byte, text in byte_characters().items()}, "merges": []}
    parts["model"] = {**model, **given.get("model", {})}
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(parts))
    return str(path)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_marks_in_company_are_normalized_as_tokenizers_does(
    form: str, tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    path = of_bytes(tmp_path, normalizer={"type": form})
    generator, seconds = random.Random(form), [unicodedata.normalize("NFD", base)[-1] for base in BASES]
    kinds = [list("aeo <=>1"), BASES, MARKS, seconds, NEWER, [chr(code) for code in range(0x1100, 0x1200)]]
    texts = ["\U000105d2\u0307", "e\u0898\u0323", "\U00011935\U00011930", "\U00016d67\U00016d67"]
    for _ in range(6000):
        chosen = generator.choices(kinds[: generator.randint(3, len(kinds))], k=generator.randint(2, 8))
        texts.append("".join(map(generator.choice, chosen)))
    batch = Tokenize("tokenize", **tokenize(path, eos=None).parameters).process(batch_of(texts))
    assert batch.rows.column("tokens").to_pylist() == expected_tokens(path, texts)
    # Most that hold nothing new are not for tokenizers.
    assert (batch.counters.get(f"tokenize/{BY_TOKENIZERS}", 0) < 4500) or form != "NFC"


def test_common_writing_is_for_gigatoken_where_text_is_composed(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    path = of_bytes(tmp_path, normalizer={"type": "NFC"})
    texts = ["cafe\u0301", "Ti\u00ea\u0301ng Vi\u00ea\u0323t", "\u0995\u09c7\u09be", "\u304b\u3099\u6f22", "\U0001f600"]
    batch = Tokenize("tokenize", **tokenize(path, eos=None).parameters).process(batch_of(texts))
    assert batch.counters.get(f"tokenize/{BY_TOKENIZERS}", 0) == 0


class PanicException(BaseException):
    """Named as the one of Rust code."""


def test_a_tokenizer_at_which_tokenizers_panics_is_refused_in_a_line(tmp_path: pathlib.Path) -> None:
    model = {"vocab": {"a": 0, "b": 1, "##b": 2, "ab": 3}, "merges": [["a", "b"]], "continuing_subword_prefix": "##"}
    with pytest.raises(PipelineError, match=r"tokenizers cannot load .*tokenizer.json \(tokenizers panicked: "):
        tokenize(of_bytes(tmp_path, model=model), eos=None)


def test_a_record_at_which_tokenizers_panics_is_quarantined(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    normalizer = {"type": "Replace", "pattern": {"Regex": "(?=q)"}, "content": "y"}
    path = of_bytes(tmp_path, normalizer=normalizer)
    stage = Tokenize("tokenize", **tokenize(path, eos=None).parameters)
    answer = process_safely(stage, batch_of(["one", "q", "two"]), "tokenize")
    assert answer.rows.column("tokens").to_pylist() == expected_tokens(path, ["one", "two"])
    assert "RuntimeError: tokenizers panicked: " in str(answer.verdicts.to_pylist())


def test_gigatoken_that_panics_at_loading_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(_data: bytes) -> None:
        raise PanicException("Byte remapping failed")

    monkeypatch.setattr("gigatoken.gigatoken_rs.load_hf_json", panic)
    with pytest.raises(RuntimeError, match="gigatoken panicked: Byte remapping failed"):
        Gigatoken(b"{}")


@pytest.mark.parametrize("as_added", [False, True])
def test_a_tokenizer_with_one_id_for_two_tokens_is_for_tokenizers(as_added: bool, tmp_path: pathlib.Path) -> None:
    vocabulary = {text: byte for byte, text in byte_characters().items()}
    added = {"id": 7, "content": "qq", "special": False, "single_word": False, "lstrip": False, "rstrip": False}
    given: dict[str, Any] = {"added_tokens": [{**added, "normalized": False}]}
    if not as_added:
        given = {"model": {"vocab": {**vocabulary, "qq": 7}, "merges": [["q", "q"]]}}
    facts = resolve_tokenizer(of_bytes(tmp_path, **given), None)
    choice = choose_engine(facts.path, facts.sha256)
    assert choice.engine == engine_names()[1]
    assert choice.why.endswith("and 'qq' have the same id 7")


def test_the_engine_is_part_of_the_pipeline_and_not_of_its_sink(
    trained: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tokenize(trained("plain"))
    monkeypatch.setattr(engine_choice, "environment", lambda everything: {"gigatoken": "99", "tokenizers": "99"})
    after = tokenize(trained("plain"))
    assert after.identity["tokenizer_engine"] == "gigatoken 99 + tokenizers 99" != before.identity["tokenizer_engine"]
    assert write_tokens(after).identity == write_tokens(before).identity


def test_a_host_with_other_versions_refuses_the_stage(trained: Callable[[str], str]) -> None:
    parameters = dict(tokenize(trained("plain")).parameters)
    parameters["choice"] = {**parameters["choice"], "engine": "gigatoken 0.1 + tokenizers 0.2"}
    with pytest.raises(PipelineError, match=r'stage "tokenize" was declared with gigatoken 0.1 \+ tokenizers 0.2, and'):
        Tokenize("tokenize", **parameters)


class TestWhatIsKept:
    @pytest.fixture
    def compared(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Names the tokenizers that were compared, a fact at each comparison."""
        seen: list[str] = []
        held_against = engine_check.held_against

        def note(tokenizer: str, sha256: str) -> Choice:
            seen.append(pathlib.Path(tokenizer).stem)
            return held_against(tokenizer, sha256)

        monkeypatch.setattr(engine_check, "held_against", note)
        return seen

    def test_a_tokenizer_is_compared_once(self, trained: Callable[[str], str], compared: list[str]) -> None:
        first, second = (tokenize(trained("stripped")) for _ in range(2))
        assert compared == ["stripped"]
        assert first == second

    @pytest.mark.parametrize(
        "content", [b"", b'{"engine": 1}', b'{"engine":"e","ranges":[[9,1]],"tokens":[],"why":""}']
    )
    def test_what_is_spoilt_is_found_out_again(
        self, content: bytes, trained: Callable[[str], str], compared: list[str], tmp_path: pathlib.Path
    ) -> None:
        first = tokenize(trained("plain"))
        for path in (tmp_path / "cache" / "headrace" / "engines").iterdir():
            path.write_bytes(content)
        assert tokenize(trained("plain")) == first
        assert compared == ["plain", "plain"]

    def test_a_folder_in_which_others_may_write_is_not_believed(
        self, trained: Callable[[str], str], compared: list[str], tmp_path: pathlib.Path
    ) -> None:
        folder = tmp_path / "cache" / "headrace" / "engines"
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        for _ in range(2):
            tokenize(trained("plain"))
        assert compared == ["plain", "plain"]
        assert list(folder.iterdir()) == []

    def test_a_home_in_which_nothing_can_be_kept_is_no_fault(
        self, trained: Callable[[str], str], compared: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
        tokenize(trained("plain"))
        assert compared == ["plain"]


@given(
    st.lists(st.text(st.sampled_from("ab é\u0378\u088f\u1acf\u1ad0\U00010940<x>\U0001fa8a\uffff"), max_size=12)),
    st.sampled_from([(), ((0x88F, 0x88F), (0x1ACF, 0x1ADD), (0x10940, 0x10959)), ((0x378, 0x378), (0xE000, 0x10FFFF))]),
    st.sampled_from([(), ("<x>",), ("<x", "é")]),
    st.integers(0, 3),
)
def test_disputed_records_are_found_by_their_bytes(
    texts: list[str], ranges: tuple[tuple[int, int], ...], tokens: tuple[str, ...], skipped: int
) -> None:
    texts = [*(["\u088f<x>é"] * skipped), *texts]
    content = np.frombuffer("".join(texts).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(text.encode()) for text in texts)]).astype(np.int64)[skipped:]
    found = Disputed(ranges, tokens).records(offsets, content).tolist()

    def holds(text: str) -> bool:
        return any(low <= ord(char) <= high for char in text for low, high in ranges) or any(
            token in text for token in tokens
        )

    assert found == [at for at, text in enumerate(texts[skipped:]) if holds(text)]


def test_text_that_ends_within_a_character_is_no_fault() -> None:
    content = np.frombuffer("x\U00010940".encode()[:-1], np.uint8)
    assert Disputed(((0x10940, 0x10959),)).records(np.array([0, len(content)]), content).tolist() == []


# `make codes`
@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "words alone", "composed", "deepseek"])
def test_every_code_point_in_six_contexts_is_encoded_as_tokenizers_does(
    name: str,
    trained: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    batch_of: Callable[..., Batch],
    deepseek: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = str(deepseek) if name == "deepseek" else trained(name)
    stage = Tokenize("tokenize", **tokenize(path, eos=None).parameters)
    engine = tokenizers.Tokenizer.from_file(path)
    every = [0x41, *sweep_codes(every=True)]
    for start in range(0, len(every), 8192):
        texts = [f"a{c}b 1{c}23 {c}{c}\n{c}e{c}\u0338\u0323 e\u0345{c}" for c in map(chr, every[start : start + 8192])]
        expected = pa.array([e.ids for e in engine.encode_batch_fast(texts, add_special_tokens=False)])
        found = stage.process(batch_of(texts)).rows.column("tokens")
        assert found.equals(expected.cast(found.type)), f"between {every[start]:x} and {every[start] + 8192:x}"


def test_a_choice_survives_its_json() -> None:
    choice = Choice("gigatoken 1 + tokenizers 2", ((0x88F, 0x890), (0x1ACF, 0x1ADD)), ("<x>",), "")
    assert Choice.from_dict(json.loads(json.dumps(choice.to_dict()))) == choice


@pytest.mark.parametrize(
    "ends", ["[[1e999, 200]]", "[[Infinity, 200]]", "[[150.5, 200]]", '[["150", 200]]', "[" * 9999]
)
def test_what_was_kept_and_is_damaged_is_found_out_anew(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fresh = Choice(engine_names()[1], why="anew")
    engine_choice.kept("a", lambda: fresh)
    (path,) = (tmp_path / "headrace" / "engines").iterdir()
    path.write_text(f'{{"engine": "{engine_names()[0]}", "ranges": {ends}, "tokens": [], "why": ""}}')
    assert engine_choice.kept("a", lambda: fresh) == fresh
