from __future__ import annotations

import glob
import itertools
import os
import pathlib
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, strategies as st

from headrace.stages.runtime.errors import InputError
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.mixed import MixedSource
from headrace.stages.sources.objects.formats import JSONL, globs_of
from headrace.stages.sources.objects.inputs import Inputs, SkippedFiles
from headrace.stages.sources.objects.patterns import Glob, place_of, split_patterns
from headrace.store import open as opening
from headrace.store.contract.objects import ObjectInfo
from headrace.store.files.store import FileStore
from tests.kits.inputs import files

Place = tuple[pathlib.Path, Callable[[str], str]]
TREE = (
    "a.jsonl",
    "b.jsonl",
    "b/c.jsonl",
    "b/d/e.jsonl",
    "b-2/f.jsonl",
    ".h.jsonl",
    ".g/i.jsonl",
    "b/d/x.txt",
    "[1].jsonl",
)
GLOBS = "*.jsonl **/*.jsonl b*/*.jsonl ?.jsonl [ab].jsonl [!a].jsonl b/**/*.jsonl **/d/* .*"


def found(named: Callable[[str], str], *patterns: str) -> list[str]:
    base = named("")
    return [
        item.uri.removeprefix("file://").replace("%5B", "[").replace("%5D", "]").removeprefix(base).lstrip("/")
        for item in Inputs([named(pattern) for pattern in patterns], ("**/*.jsonl",))
    ]


@pytest.fixture
def tree(place: Place) -> Callable[[str], str]:
    folder, named = place
    for path in TREE:
        files.write(folder / path, b"{}")
    return named


@pytest.mark.parametrize("pattern", GLOBS.split())
def test_a_glob_names_what_the_standard_library_says(
    tree: Callable[[str], str], pattern: str, bucket: pathlib.Path
) -> None:
    expected = glob.glob(pattern, root_dir=bucket, recursive=True)
    assert found(tree, pattern) == sorted(path for path in expected if (bucket / path).is_file())


def test_several_patterns_are_listed_in_one_order_and_each_file_once(tree: Callable[[str], str]) -> None:
    assert found(tree, "b/*.jsonl", "*.jsonl", "a.jsonl") == ["[1].jsonl", "a.jsonl", "b.jsonl", "b/c.jsonl"]


def test_a_folder_stands_for_what_is_below_it(tree: Callable[[str], str]) -> None:
    assert found(tree, "b") == ["b/c.jsonl", "b/d/e.jsonl"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "[1].jsonl", b"{}")
    (item,) = Inputs([str(tmp_path / "[1].jsonl")], ())
    assert item.uri.endswith("/%5B1%5D.jsonl")


def test_a_folder_without_readable_files_is_told_with_its_content(place: Place) -> None:
    folder, named = place
    for name in ("a.jsonl.xz", "b/c.json", "d.csv", "e.JSONL"):
        files.write(folder / "odd" / name, b"{}")
    words = (
        r"""folder ".*odd" holds '.*a.jsonl.xz', .*, \.\.\., and no data that ends in .jsonl, .ndjson, or these with"""
    )
    with pytest.raises(InputError, match=words):
        list(Inputs([named("odd")], globs_of((JSONL,))))
    assert [item.uri.rpartition("/")[2] for item in Inputs([named("odd/**/*.json")], ())] == ["c.json"]


#: A folder as the hub has it, with what others leave beside data; those that are data, and what is said of the rest.
HUB = (
    "README.md",
    "LICENSE",
    "LICENSE-APACHE.txt",
    "readme_zh.md",
    ".gitattributes",
    ".cache/huggingface/a.jsonl",
    "dataset_infos.json",
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/test-00000-of-00001.parquet",
    "data/_SUCCESS",
    "data/._SUCCESS.crc",
    "data/_temporary/0/part-00000.parquet",
    "more/a.jsonl.xz",
    "more/b.jsonl.xz",
    "more/c.tar.gz",
    "more/d.lz4",
    "more/README.md",
    "licenses/mit.txt",
    "notes.md",
    "Makefile",
)
DATA = (
    "data/test-00000-of-00001.parquet",
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "licenses/mit.txt",
    "notes.md",
)
REST = "2 .jsonl.xz, .json, .lz4, .tar.gz, Makefile, 2 README.md, ._SUCCESS.crc, .cache/, and 6 others"


def test_a_folder_stands_for_its_data_and_counts_the_skipped(place: Place) -> None:
    folder, named = place
    for name in HUB:
        files.write(folder / "hub" / name, b"{}")
    reader = MixedSource("read", [named("hub")])
    for _ in range(2):  # a listing that is made again counts anew
        listed = [item.uri.partition("/hub/")[2] for item in reader.inputs]
        assert listed == list(DATA)
        assert f"folders: {REST}; a glob names" in reader.skipped()
    # A glob names what is wanted, and nothing is passed over.
    reader = MixedSource("read", [named("hub/**/*.md")])
    assert [item.uri.partition("/hub/")[2] for item in reader.inputs] == [
        "README.md",
        "more/README.md",
        "notes.md",
        "readme_zh.md",
    ]
    assert reader.skipped() == ""


def test_a_folder_of_nothing_but_its_card_holds_no_data(place: Place) -> None:
    folder, named = place
    files.write(folder / "hub" / "README.md", b"# A card")
    with pytest.raises(InputError, match=r"""folder ".*hub" holds '.*README.md', and no data that ends in .*\.md"""):
        list(MixedSource("read", [named("hub")]).inputs)


def test_what_is_passed_over_is_counted_in_bounded_memory() -> None:
    passed = SkippedFiles()
    for number in range(3000):
        passed.add(f"a/b.x{number}")
    passed.add("a/b.x7")
    words = passed.line()
    assert "folders: 2 .x7, .x0, " in words
    assert words.count(",") < 12
    assert words.endswith("and 2,992 others; a glob names what a folder does not stand for")


def test_what_is_no_file_is_said_to_be_none(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "nowhere.jsonl").symlink_to("gone")
    with pytest.raises(InputError, match=r"pipe.jsonl' is no regular file: name another"):
        list(Inputs([str(tmp_path / "pipe.jsonl")], ()))
    with pytest.raises(InputError, match=r"nowhere.jsonl' is a link that leads nowhere: name another"):
        list(Inputs([str(tmp_path / "nowhere.jsonl")], ()))
    files.write(tmp_path / "a.jsonl", b"{}")
    assert [item.uri.rpartition("/")[2] for item in Inputs([str(tmp_path)], ("*.jsonl",))] == ["a.jsonl"]


def test_a_link_to_nowhere_among_others_is_told(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "hub" / "a.jsonl", b"{}")
    files.write(tmp_path / "hub" / "x.csv", b"{}")
    for name in ("b b.jsonl", "c.jsonl", "c.csv"):  # as a cache of a hub whose download was cut off
        (tmp_path / "hub" / name).symlink_to("../blobs/gone")
    os.mkfifo(tmp_path / "hub" / "pipe.jsonl")
    first = str(tmp_path / "hub" / "b b.jsonl")
    odd = f"not read: {first!r} is a link that leads nowhere, like 1 others; not read: "
    for pattern, rest in (
        ("hub", "is no regular file; skipped in the input's folders: 2 .csv; a glob"),
        ("hub/*.jsonl", "is no regular file"),
    ):
        reader = MixedSource("read", [str(tmp_path / pattern)])
        assert [item.uri.rpartition("/")[2] for item in reader.inputs] == ["a.jsonl"]
        assert reader.skipped().startswith(odd)
        assert f"pipe.jsonl' {rest}" in reader.skipped()


def test_a_pattern_that_names_nothing_is_named(tree: Callable[[str], str]) -> None:
    with pytest.raises(InputError, match=r"no file matches .*nope"):
        found(tree, "*.jsonl", "nope/*.jsonl")
    with pytest.raises(InputError, match=r"no file matches"):
        found(tree, "nope.jsonl")


def test_a_loop_of_links_is_walked_once(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "d" / "a.jsonl", b"{}")
    (tmp_path / "d" / "loop").symlink_to(tmp_path)
    found = [item.uri for item in Inputs([str(tmp_path / "**" / "*.jsonl")], ())]
    assert found == [(tmp_path / "d" / "a.jsonl").as_uri()]


def test_links_to_files_and_folders_are_followed(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "blobs" / "x", b"{}")
    (tmp_path / "snap").mkdir()
    (tmp_path / "snap" / "a.jsonl").symlink_to("../blobs/x")
    (tmp_path / "main").symlink_to("snap")
    assert len(list(Inputs([str(tmp_path / "main" / "*.jsonl")], (), follow_links=True))) == 1


def test_a_query_of_an_s3_uri_is_no_part_of_its_glob() -> None:
    place = place_of("s3://b/a?/*.jsonl?endpoint=http://127.0.0.1:8333&region=x")
    assert (place.root, place.prefix, place.path) == (
        "s3://b?endpoint=http://127.0.0.1:8333&region=x",
        "s3://b/",
        "a?/*.jsonl",
    )
    with pytest.raises(InputError, match="names no bucket"):
        place_of("s3:///x")


def test_one_bucket_at_two_endpoints_needs_two_sources(bucket: pathlib.Path) -> None:
    with pytest.raises(InputError, match="two endpoints"):
        Inputs(["s3://bucket/a?endpoint=http://x", "s3://bucket/b?endpoint=http://y"], ())


def test_a_comma_separates_patterns_unless_a_file_has_it(tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a,b.jsonl", b"")
    assert split_patterns(str(tmp_path / "a,b.jsonl")) == [str(tmp_path / "a,b.jsonl")]
    assert split_patterns("/x/a, s3://b/c ,file:///d%20e") == ["/x/a", "s3://b/c", "/d e"]


class Endless(FileStore):
    """A bucket of a million objects that counts how many of them it was asked for."""

    told = 0

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        for number in range(1_000_000):
            Endless.told += 1
            yield ObjectInfo(f"{prefix}{number:07d}.jsonl", 1, "v")


def test_a_listing_of_a_million_objects_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setitem(opening._OPENERS, "s3", lambda uri: Endless(tmp_path))
    listed = iter(JsonlSource("read", ["s3://bucket/*.jsonl"]).list())
    assert [next(listed).uri for _ in range(3)][-1] == "s3://bucket/0000002.jsonl"
    assert Endless.told <= 5
    tracemalloc.start()
    count = sum(1 for _ in itertools.islice(listed, 20_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 1 << 19


@given(st.text("ab*?[]!./-^\\", max_size=12), st.text("ab[]!./-^\\", max_size=12))
def test_any_text_is_a_glob(pattern: str, path: str) -> None:
    """Whatever a user types compiles, and matching a path never raises."""
    glob = Glob.of(pattern)
    glob.matches(path)
    glob.enters(path)


def test_two_stars_at_the_end_name_files_at_any_depth(tmp_path: pathlib.Path) -> None:
    for name in ("a.jsonl", "b/c.jsonl", "b/d/e.jsonl", ".hidden/f.jsonl"):
        files.write(tmp_path / name, b"{}")
    found = [pathlib.Path(item.uri.removeprefix("file://")) for item in Inputs([f"{tmp_path}/**"], ())]
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a.jsonl", "b/c.jsonl", "b/d/e.jsonl"]


@pytest.mark.parametrize("pattern", ["~\0", "~a\0b/*", "a\0", "file:///a%00b"])
def test_a_path_with_a_zero_byte_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(InputError, match="zero byte"):
        split_patterns(pattern)
