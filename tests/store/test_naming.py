"""One place has one name, by whatever URI it is called."""

from pathlib import Path

import pytest

from headrace.store.contract.errors import InvalidUri
from headrace.store.open import one_name


def test_a_folder_has_one_name_through_links_dots_slashes_and_escapes(tmp_path: Path) -> None:
    real = tmp_path / "r e"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "above").symlink_to(tmp_path)
    ways = (
        str(real),
        f"{real}/",
        real.as_uri(),
        f"file://localhost{real}",
        f"file://{tmp_path}/r%20e",
        f"{tmp_path}//./above/link",
        f"{real}/../r e",
    )
    assert {one_name(f"{way}/out") for way in ways} == {one_name(str(real / "out"))}
    assert one_name(str(tmp_path / "other" / "out")) != one_name(str(real / "out"))


def test_a_bucket_has_one_name_whatever_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = (
        "s3://bucket/a%20b?endpoint=http://Store:80",
        "s3://bucket/a b/?endpoint=http://store&style=path",
        "s3://bucket/a b?endpoint=http://store&region=eu-1&sse=AES256",
    )
    assert len({one_name(way) for way in ways}) == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store")
    assert one_name("s3://bucket/a b") == one_name(ways[0])
    others = ("s3://bucket/a", "s3://bucket2/a b", "s3://bucket/a b?endpoint=http://store:81")
    assert len({one_name(way) for way in (*others, ways[0])}) == 4


def test_what_is_no_uri_has_no_name() -> None:
    with pytest.raises(InvalidUri):
        one_name("gopher://x")
