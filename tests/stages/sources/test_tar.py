"""Tar archives of text: samples as they were written in any dialect; what is cut off or hostile is said."""

from __future__ import annotations

import gzip
import io
import json
import pathlib
import tarfile
import time
import tracemalloc

import pytest

from headrace.stages.runtime.errors import DamagedInput
from headrace.stages.sources.tar import TarSource, pax_of
from tests.kits.inputs import files, reading

DIALECTS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(members: list[tuple[str, bytes]], dialect: str = "pax", kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=DIALECTS[dialect]) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(data), kind
            if kind != tarfile.REGTYPE:
                member.linkname = "/etc/passwd"
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def read(path: pathlib.Path, data: bytes, **options: object) -> list[tuple[object, ...]]:
    return reading.read_all(TarSource("read", [str(files.write(path, data))], **options))


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_samples_are_read_in_every_dialect(tmp_path: pathlib.Path, dialect: str, suffix: str) -> None:
    deep = "/".join(["folder" * 5] * 4) if dialect == "ustar" else "é" * 120
    members = [
        member
        for place in range(30)
        for member in (
            (f"{deep}/{place:04}.jpg", bytes(700)),
            (f"{deep}/{place:04}.txt", f"text {place}".encode() * place),
            (f"{deep}/{place:04}.json", json.dumps({"n": place}).encode()),
        )
    ]
    data = archive(members, dialect)
    path = tmp_path / f"a{suffix}"
    found = read(path, gzip.compress(data) if suffix == ".tar.gz" else data)
    assert [(fate[0], fate[1], fate[2], json.loads(str(fate[3]))) for fate in found] == [
        ("kept", f"{deep}/{place:04}", f"text {place}" * place, {"n": place}) for place in range(30)
    ]
    reading.check_gaps(TarSource("read", [str(path)], batch_records=4), rounds=4)


def test_the_text_is_a_member_or_a_field(tmp_path: pathlib.Path) -> None:
    members = [
        ("a.caption", b"one"),
        ("b.json", b'{"caption": "two", "id": 7}'),
        (".c.d.txt", b"three"),
        ("e.txt", b"four"),
    ]
    found = read(tmp_path / "a.tar", archive(members), text_key="caption")
    assert [(fate[0], fate[1]) for fate in found] == [
        ("kept", "a"),
        ("kept", "7"),
        ("quarantined", ".c"),
        ("kept", "e"),
    ]


def test_what_is_no_record_of_text_is_quarantined_alone(tmp_path: pathlib.Path) -> None:
    members = [
        ("a.txt", b"\xff"), ("b.jpg", b"x"), ("c.json", b"{"), ("d.json", b"[]"), ("e.txt", b"x" * 300),
        ("f.txt", b"1"), ("f.txt", b"2"), ("g.txt", b"fine"),
    ]  # fmt: skip
    found = read(tmp_path / "a.tar", archive(members), max_record_bytes=200)
    assert [fate[0] for fate in found] == ["quarantined"] * 6 + ["kept"]
    assert [str(fate[2])[:16] for fate in found[:6]] == [
        "invalid UTF-8: b", "no text: the sam", "malformed JSON: ", "malformed sample", "text too long: .",
        "malformed sample",
    ]  # fmt: skip


def test_links_and_paths_lead_nowhere(tmp_path: pathlib.Path) -> None:
    linked = archive([("a.txt", b"")], kind=tarfile.SYMTYPE) + archive([("b.txt", b"")], kind=tarfile.LNKTYPE)
    found = read(tmp_path / "a.tar", linked + archive([("../../etc/c.txt", b"text"), ("/abs/d.txt", b"more")]))
    assert [(fate[1], fate[2]) for fate in found] == [("../../etc/c", "text"), ("/abs/d", "more")]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.tar"]


@pytest.mark.parametrize(
    ("at", "change", "why"),
    [
        (1024, b"", "cut off at byte 1024, before the zeros that end an archive"),
        (700, b"", "cut off within 'b.jpg'"),
        (100, b"", "no tar header is where one should be, at byte 0"),
        (1030, b"", "no tar header is where one should be, at byte 1024"),
        (0, b"PK\x03\x04" + bytes(600), "holds no tar but a zip archive"),
        (0, b"x" * 600, "no tar header is where one should be, at byte 0"),
    ],
)
def test_what_is_cut_off_or_garbage_is_damaged(tmp_path: pathlib.Path, at: int, change: bytes, why: str) -> None:
    data = archive([("b.jpg", b"x" * 400), ("a.txt", b"text")], "ustar")
    with pytest.raises(DamagedInput, match=why):
        read(tmp_path / "a.tar", data[:at] + change)


def test_what_stands_before_the_damage_is_kept(tmp_path: pathlib.Path) -> None:
    data = archive([("a.txt", b"one"), ("b.txt", b"two"), ("c.txt", b"x" * 900)], "ustar")[:2800]
    found = read(tmp_path / "a.tar", data, damaged="quarantine")
    assert [(fate[0], fate[2]) for fate in found[:1]] == [("kept", "one")]
    assert "cut off within 'c.txt'" in str(found[-1][2])


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"-1\0         "])
def test_a_size_that_lies_takes_no_memory(tmp_path: pathlib.Path, size: bytes) -> None:
    block = bytearray(archive([("a.txt", b"text")], "ustar"))
    block[124:136] = size
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:512]) + 256)
    with pytest.raises(DamagedInput):
        read(tmp_path / "a.tar", bytes(block))


def test_records_of_pax_that_are_none_say_nothing() -> None:
    assert pax_of(b"13 path=a/b\nx") == {}
    assert pax_of(b"12 path=a/b\n9 size=5\n") == {"path": "a/b", "size": "5"}
    assert pax_of(b"99999999999999999999999 path=a\n") == {}


def test_an_empty_archive_and_an_empty_file_have_no_records(tmp_path: pathlib.Path) -> None:
    assert read(tmp_path / "a.tar", archive([])) == []
    assert read(tmp_path / "a.tar", b"") == []


def test_a_sparse_file_is_no_text_and_is_said(tmp_path: pathlib.Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.txt")
        member.size, member.pax_headers = 5, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        tar.addfile(member, io.BytesIO(b"1\n0\n5"))
    with pytest.raises(DamagedInput, match="a sparse file is at byte"):
        read(tmp_path / "a.tar", out.getvalue())
    with pytest.raises(DamagedInput, match="a sparse file is at byte 0"):
        read(tmp_path / "b.tar", archive([("a.txt", b"text")], "gnu", tarfile.GNUTYPE_SPARSE))


def test_records_of_pax_take_time_by_their_bytes_alone() -> None:
    began = time.thread_time()
    assert pax_of(b"4 =\n" * (3 << 18) + b"9 size=7\n") == {"size": "7"}
    assert time.thread_time() - began < 5.0


def test_long_names_of_fields_are_not_kept(tmp_path: pathlib.Path) -> None:
    members = [(f"a.{number}{'x' * (100 << 10)}", b"") for number in range(100)]
    path = files.write(tmp_path / "a.tar.gz", gzip.compress(archive([*members, ("a.txt", b"text")]), 1))
    tracemalloc.start()
    found = reading.read_all(TarSource("read", [str(path)]))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [fate[0] for fate in found] == ["kept"]
    assert most < 8 << 20
