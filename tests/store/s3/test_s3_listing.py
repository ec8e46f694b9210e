"""The order of a listing, whatever order the server keeps, against a server made of a list."""

import urllib.parse
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from headrace.store.contract.errors import StoreUnavailable
from headrace.store.s3.connection.wire import Answer
from headrace.store.s3.listing import Listed, OutOfOrder, list_flat, list_folders

segments = st.text("a-./0b~", min_size=1, max_size=4).filter(lambda text: "/" not in text)
keys = st.lists(segments, min_size=1, max_size=3).map("/".join)


class Server:
    """Answers list requests over some keys, sorted by the name of each folder or by the whole key."""

    def __init__(self, keys: set[str], by_folder: bool, page_keys: int = 3) -> None:
        self.order = sorted(keys, key=(lambda key: key.split("/")) if by_folder else None)
        self.by_folder = by_folder
        self.page_keys = page_keys
        self.requests = 0

    def fetch(self, query: dict[str, str]) -> Answer:
        self.requests += 1
        prefix, delimiter = query["prefix"], query["delimiter"]
        start = query.get("continuation-token", query.get("start-after", ""))
        lines: list[str] = []
        for key in self.order:
            rest = key[len(prefix) :]
            line = prefix + rest.partition("/")[0] + "/" if delimiter and "/" in rest else key
            if key.startswith(prefix) and self._rank(line) > self._rank(start) and line not in lines:
                lines.append(line)
        return self._page(lines)

    def _rank(self, line: str) -> list[str]:
        return line.rstrip("/").split("/") if self.by_folder else [line]

    def _page(self, lines: list[str]) -> Answer:
        page = lines[: self.page_keys]
        more = len(lines) > len(page)
        text = "".join(
            f"<CommonPrefixes><Prefix>{urllib.parse.quote(line)}</Prefix></CommonPrefixes>"
            if line.endswith("/")
            else f"<Contents><Key>{urllib.parse.quote(line)}</Key><Size>1</Size></Contents>"
            for line in page
        )
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
        body = (
            f"<ListBucketResult><Name>b</Name><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{text}</ListBucketResult>"
        )
        return Answer(200, {}, body.encode())


def names(lines: Iterator[Listed]) -> list[str]:
    return [line.key for line in lines]


def expected(keys: set[str], prefix: str, after: str) -> list[str]:
    return [key for key in sorted(keys) if key.startswith(prefix) and key > after]


def folders_of(keys: set[str]) -> set[str]:
    return {"/".join(key.split("/")[:depth]) for key in keys for depth in range(1, key.count("/") + 1)}


@given(st.sets(keys, max_size=15), st.booleans(), st.data())
def test_a_walk_gives_the_order_of_keys_whatever_the_servers_order(
    keys: set[str], by_folder: bool, data: st.DataObject
) -> None:
    keys -= folders_of(keys)  # as in a file store, no key is another's folder
    whole = data.draw(st.sampled_from(sorted(keys) or [""]))
    prefix = whole[: data.draw(st.integers(0, len(whole)))]
    after = data.draw(st.one_of(st.just(""), st.sampled_from(sorted(keys) or [""]), st.text("a-./0b~", max_size=6)))
    server = Server(keys, by_folder)
    folder = prefix[: prefix.rfind("/") + 1]
    assert names(list_folders(server.fetch, folder, prefix, after)) == expected(keys, prefix, after)


@given(st.sets(keys, max_size=15), st.text("a-./0b~", max_size=6))
def test_a_flat_listing_gives_the_order_of_a_server_that_keeps_it(keys: set[str], after: str) -> None:
    assert names(list_flat(Server(keys, by_folder=False).fetch, "a", after)) == expected(keys, "a", after)


def test_another_order_on_the_first_page_is_told_before_anything_is_given() -> None:
    with pytest.raises(OutOfOrder):
        next(list_flat(Server({"a/z", "a-b"}, by_folder=True).fetch, "", ""))


def test_another_order_on_a_later_page_names_the_keys() -> None:
    listing = list_flat(Server({"a/w", "a/x", "a/y", "a/z", "a-b"}, by_folder=True).fetch, "", "")
    with pytest.raises(StoreUnavailable, match=r"'a-b' after 'a/z'"):
        list(listing)


def test_a_listing_asks_for_a_page_only_when_it_is_wanted() -> None:
    server = Server({f"{number:04d}" for number in range(1000)}, by_folder=False, page_keys=10)
    listing = list_flat(server.fetch, "", "")
    for _ in range(25):
        next(listing)
    assert server.requests == 3


def test_the_tail_of_a_log_is_listed_without_reading_its_head() -> None:
    server = Server({f"ledger/{number:020d}.msgpack" for number in range(500)}, by_folder=True, page_keys=10)
    found = names(list_folders(server.fetch, "ledger/", "ledger/", f"ledger/{497:020d}.msgpack"))
    assert found == [f"ledger/{number:020d}.msgpack" for number in (498, 499)]
    assert server.requests <= 2
