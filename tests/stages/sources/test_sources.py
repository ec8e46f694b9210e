from __future__ import annotations

import gzip
import pathlib
import random
from collections.abc import Callable

import orjson
import pyarrow as pa
import pytest

from headrace.stages.library import read, read_warc
from headrace.stages.runtime.build import build_stage
from headrace.stages.runtime.contract import FragmentChanged, InputError
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.tables.columns import ParquetSource
from headrace.stages.sources.warc import WarcSource
from tests.kits.inputs import files, reading

Place = tuple[pathlib.Path, Callable[[str], str]]
EXPECTED = [
    ("kept", record["id"], record["text"], orjson.dumps({"url": record["url"]}).decode()) for record in files.RECORDS
]

FORMATS = {
    "a.jsonl": files.lines(),
    "a.jsonl.gz": gzip.compress(files.lines()),
    "a.ndjson.zst": files.zstd(files.lines()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_json_lines_plain_and_compressed_come_from_files_and_stores(place: Place, name: str) -> None:
    folder, named = place
    files.write(folder / name, FORMATS[name])
    source = JsonlSource("read", [named(name)], fragment_bytes=1024, batch_bytes=200)
    assert reading.read_all(source) == EXPECTED
    reading.check_gaps(source)


def test_large_plain_files_are_cut_and_compressed_ones_whole(tmp_path: pathlib.Path) -> None:
    for name, data in FORMATS.items():
        files.write(tmp_path / name, data)
    counts = {
        name: len(list(JsonlSource("read", [str(tmp_path / name)], fragment_bytes=1024).list())) for name in FORMATS
    }
    assert counts == {"a.jsonl": 4, "a.jsonl.gz": 1, "a.ndjson.zst": 1}


def test_gzip_members_and_zstd_frames_end_to_end_are_one_stream(tmp_path: pathlib.Path) -> None:
    half = len(files.RECORDS) // 2
    parts = [files.lines(files.RECORDS[:half]), files.lines(files.RECORDS[half:])]
    files.write(tmp_path / "a.jsonl.gz", b"".join(gzip.compress(part) for part in parts))
    assert reading.read_all(JsonlSource("read", [str(tmp_path / "a.jsonl.gz")])) == EXPECTED
    files.write(tmp_path / "a.jsonl.zst", b"".join(files.zstd(part) for part in parts))
    assert reading.read_all(JsonlSource("read", [str(tmp_path / "a.jsonl.zst")])) == EXPECTED


def test_what_is_decompressed_only_to_reach_a_gap_is_counted_apart(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.jsonl.gz", FORMATS["a.jsonl.gz"])
    source = JsonlSource("read", [str(tmp_path / "a.jsonl.gz")], batch_bytes=200)
    (fragment,) = source.list()
    batches, _ = reading.read_whole(source, fragment)
    read = source.bytes_read
    last = batches[-1]
    list(source.read(fragment, [reading.Gap(last.first, reading.UNBOUNDED, last.offset)]))
    assert source.bytes_read - read == last.length
    assert source.bytes_skipped == last.offset
    assert source.stored_read <= len(FORMATS["a.jsonl.gz"])


def test_what_was_read_of_each_format_adds_up_to_what_is_stored(place: Place) -> None:
    folder, named = place
    random_ = random.Random(7)
    texts = files.lines([{"text": random_.randbytes(200).hex()} for _ in range(5_000)])
    files.write(folder / "a.jsonl.gz", gzip.compress(texts))
    files.write(folder / "b.jsonl.zst", files.zstd(texts))
    files.write(folder / "c.jsonl", texts)
    files.write(folder / "d.warc.gz", PACKED["a.warc.gz"])
    files.parquet_of(folder / "e.parquet")
    files.write(folder / "f.txt", b"plain")
    for path in sorted(folder.iterdir()):
        source, shares = MixedSource("read", [named(path.name)], batch_bytes=1 << 16), [0.0]
        for fragment in source.list():
            shares += [source.stored_read / path.stat().st_size for _ in source.read(fragment, reading.WHOLE)]
        assert 0.99 <= shares[-1] <= 1
        if "jsonl" in path.name:
            assert sum(0 < share < 0.9 for share in shares) > 5


@pytest.mark.parametrize("group", [7, 1000])
def test_parquet_is_read_by_row_groups_from_files_and_stores(place: Place, group: int) -> None:
    folder, named = place
    files.parquet_of(folder / "a.parquet", group)
    source = ParquetSource("read", [named("a.parquet")], fragment_bytes=1, batch_records=4)
    assert reading.read_all(source) == EXPECTED
    assert len(list(source.list())) == -(-len(files.RECORDS) // group)
    reading.check_gaps(source)


def test_row_groups_share_a_fragment_up_to_its_size(tmp_path: pathlib.Path) -> None:
    files.parquet_of(tmp_path / "a.parquet", 1)
    source = ParquetSource("read", [str(tmp_path / "a.parquet")])
    assert len(list(source.list())) == 1
    assert reading.read_all(source) == EXPECTED
    reading.check_gaps(source)


def test_a_hugging_face_folder_is_all_its_parquet_files(place: Place) -> None:
    folder, named = place
    for name in ("data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet", "README.md"):
        files.write(folder / "set" / name, b"x") if name.endswith("md") else files.parquet_of(folder / "set" / name)
    source = ParquetSource("read", [named("set")])
    found = [fragment.uri.rpartition("/")[2] for fragment in source.list()]
    assert found == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]
)
def test_a_parquet_text_of_any_arrow_type_is_text(tmp_path: pathlib.Path, kind: pa.DataType) -> None:
    texts = pa.array(["a", None, "é"]).cast(kind) if not pa.types.is_dictionary(kind) else None
    if texts is None:
        texts = pa.array(["a", None, "é"]).dictionary_encode()
    files.write_parquet(tmp_path / "a.parquet", {"text": texts, "n": [1, 2, 3]})
    found = reading.read_all(ParquetSource("read", [str(tmp_path / "a.parquet")]))
    uri = (tmp_path / "a.parquet").as_uri()
    assert found == [
        ("kept", f"{uri}#0", "a", '{"n":1}'),
        ("quarantined", f"{uri}#1", 'text is not a string: column "text" is null', b""),
        ("kept", f"{uri}#2", "é", '{"n":3}'),
    ]


PACKED = {
    "a.warc": b"".join(files.warc()),
    "a.warc.gz": files.members(files.warc()),
    "b.warc.gz": gzip.compress(b"".join(files.warc())),
    "a.warc.zst": files.zstd(b"".join(files.warc())),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_warc_gives_the_text_of_its_pages(place: Place, name: str) -> None:
    folder, named = place
    files.write(folder / name, PACKED[name])
    source = WarcSource("read", [named(name)], batch_records=3)
    found = reading.read_all(source)
    assert [fate[0] for fate in found] == ["kept"] * 20 + ["filtered"] * 2
    metadata = {"url": "http://x/p3", "date": "2024-01-01T00:00:00Z", "content_type": "text/html", "title": "t"}
    assert found[3][:3] == ("kept", "urn:uuid:p3", "page 3 é")
    assert orjson.loads(found[3][3]) == metadata
    assert [fate[2] for fate in found[20:]] == ["not text: image/png", "http status: 404"]
    reading.check_gaps(source)


def test_a_wet_gives_its_conversions(place: Place) -> None:
    folder, named = place
    files.write(folder / "a.warc.wet.gz", files.members(files.wet()))
    source = WarcSource("read", [named("a.warc.wet.gz")])
    found = reading.read_all(source)
    assert [fate[:3] for fate in found] == [("kept", f"urn:uuid:w{index}", f"text {index} é") for index in range(20)]
    assert orjson.loads(found[0][3])["language"] == "fra"
    reading.check_gaps(source)


@pytest.mark.parametrize(
    ("html", "content", "expected"),
    [
        # what these bytes look like is another encoding: their own word counts, and before it the server's
        ('<meta charset="koi8-r"><p>naive ПРИВЕТ</p>'.encode("koi8-r"), "text/html", "naive ПРИВЕТ"),
        (
            '<meta charset="windows-1251"><p>naive ПРИВЕТ</p>'.encode("koi8-r"),
            "text/html; charset=KOI8-R",
            "naive ПРИВЕТ",
        ),
        ("<p>naïve café</p>".encode("latin-1"), "text/html; charset=iso-8859-1", "naïve café"),
        ('<meta charset="windows-1252"><p>naïve café</p>'.encode("cp1252"), "text/html", "naïve café"),
        ("<p>naïve café</p>".encode("utf-8-sig"), "text/html; charset=iso-8859-1", "naïve café"),
        ("<p>naïve café</p>".encode(), "text/html; charset=nonsense", "naïve café"),
        ("<p>naïve café</p>".encode("utf-16"), "text/html", "naïve café"),
    ],
)
def test_a_page_is_decoded_by_mark_server_or_own_word(
    tmp_path: pathlib.Path, html: bytes, content: str, expected: str
) -> None:
    files.write(tmp_path / "a.warc", files.response("x", html, content))
    ((verdict, _, text, _),) = reading.read_all(WarcSource("read", [str(tmp_path / "a.warc")], main_content=False))
    assert (verdict, text) == ("kept", expected)


def test_a_warc_record_of_no_known_type_is_filtered_with_that(tmp_path: pathlib.Path) -> None:
    typed = files.warc_record("conversion", "one", b"text", "text/plain")
    records = [
        typed,
        typed.replace(b"WARC-Type: conversion\r\n", b""),
        typed.replace(b"conversion", b"abstract", 1),
        typed,
    ]
    files.write(tmp_path / "a.warc", b"".join(records))
    known = WarcSource("read", [str(tmp_path / "a.warc")])
    assert [fate[0] for fate in reading.read_all(known)] == ["kept", "kept"], "as datasets made before have them"
    for declared in (read_warc(str(tmp_path / "a.warc")), read(str(tmp_path / "a.warc"))):
        source = build_stage(declared, {})
        fates = [(verdict, reason) for verdict, _, reason, _ in reading.read_all(source)]
        untold = [("filtered", "record type: none"), ("filtered", "record type: unknown")]
        assert fates == [("kept", "text"), *untold, ("kept", "text")]
        reading.check_gaps(source, rounds=4)


def test_offsets_of_a_plain_warc_let_it_be_read_from_the_middle(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.warc", PACKED["a.warc"])
    source = WarcSource("read", [str(tmp_path / "a.warc")], batch_records=5)
    (fragment,) = source.list()
    batches, count = reading.read_whole(source, fragment)
    assert sum(batch.length for batch in batches) == len(PACKED["a.warc"])
    read = source.bytes_read
    list(source.read(fragment, [reading.Gap(batches[-1].first, count, batches[-1].offset)]))
    assert source.bytes_read - read == batches[-1].length
    assert source.bytes_skipped == 0


def test_files_of_all_formats_are_read_by_one_source(place: Place) -> None:
    folder, named = place
    files.write(folder / "in" / "a.jsonl.gz", FORMATS["a.jsonl.gz"])
    files.parquet_of(folder / "in" / "deep" / "b.parquet")
    files.write(folder / "in" / "c.warc", PACKED["a.warc"])
    files.write(folder / "in" / "d.txt", b"plain")
    source = MixedSource("read", [named("in")])
    found = reading.read_all(source)
    assert found[:60] == EXPECTED
    assert [fate[1] for fate in found[60:82:21]] == ["urn:uuid:p0", "urn:uuid:gone"]
    assert found[82][2] == "plain"
    assert found[83:] == EXPECTED
    assert source.bytes_read > 0
    reading.check_gaps(source, rounds=3)


def test_a_file_of_no_known_format_is_named(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.xz", b"x")
    with pytest.raises(InputError, match=r"a\.xz.*is not one of \.jsonl"):
        list(MixedSource("read", [str(tmp_path / "*")]).list())


def test_an_object_that_changed_since_it_was_listed_is_refused(place: Place) -> None:
    folder, named = place
    for name, data in (("a.jsonl", FORMATS["a.jsonl"]), ("a.warc.gz", PACKED["a.warc.gz"])):
        files.write(folder / name, data)
        source = MixedSource("read", [named(name)])
        (fragment,) = source.list()
        files.write(folder / name, data + data)
        with pytest.raises(FragmentChanged, match="has changed since it was listed"):
            list(source.read(fragment, reading.WHOLE))
        (folder / name).unlink()
        with pytest.raises(FragmentChanged, match="is gone since it was listed"):
            list(source.read(fragment, reading.WHOLE))


def test_an_object_that_changes_while_it_is_read_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stages.sources.objects.streams.BLOCK_BYTES", 500)
    folder, named = place
    files.write(folder / "a.jsonl", FORMATS["a.jsonl"])
    source = JsonlSource("read", [named("a.jsonl")], batch_bytes=400)
    (fragment,) = source.list()
    items = source.read(fragment, reading.WHOLE)
    next(items)
    files.write(folder / "a.jsonl", FORMATS["a.jsonl"][::-1])
    with pytest.raises(FragmentChanged):
        list(items)


def test_small_blocks_of_a_store_read_the_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.stages.sources.objects.streams.BLOCK_BYTES", 100)
    monkeypatch.setattr("headrace.stages.sources.objects.streams.RANDOM_BYTES_MIN", 50)
    folder, named = place
    for name, data in FORMATS.items():
        files.write(folder / name, data)
    files.parquet_of(folder / "b.parquet")
    files.write(folder / "c.warc.gz", PACKED["a.warc.gz"])
    found = reading.read_all(MixedSource("read", [named("*")], batch_bytes=150))
    assert found[: 4 * 60] == EXPECTED * 4
