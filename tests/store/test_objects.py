"""The contract of an object store, asked of every implementation."""

import itertools
import multiprocessing
import pathlib
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, strategies as st

from headrace.store.contract.errors import InvalidKey, InvalidUri, ObjectMissing
from headrace.store.contract.objects import KEY_BYTES_MAX, ObjectInfo, ObjectStore, get_with_info, stream, validate_key
from headrace.store.open import open_store
from tests.kits.store.s3_server import shared_server

RACERS = 8
RACE_DEADLINE_S = 120
BIG_BYTES = 24 << 20

#: One more store joins the suite by a line here: a name, and how to make the URI of an empty one.
FACTORIES: dict[str, Callable[[pytest.TempPathFactory], str]] = {
    "file": lambda factory: (factory.mktemp("store") / "new" / "dataset").as_uri(),
    "s3": lambda _: shared_server().uri(),
}


@pytest.fixture(params=sorted(FACTORIES))
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    return open_store(FACTORIES[request.param](tmp_path_factory))


def _keys(found: Iterator[ObjectInfo]) -> list[str]:
    return [info.key for info in found]


def test_an_object_reads_back_as_its_parts_in_order(store: ObjectStore) -> None:
    assert store.create("a/b.bin", [b"one ", bytearray(b"two "), memoryview(b"three")]) is True
    assert store.get("a/b.bin") == b"one two three"


def test_an_object_of_no_parts_and_of_empty_parts_is_empty(store: ObjectStore) -> None:
    assert store.create("none", [])
    assert store.create("empty", [b"", memoryview(b"")])
    assert store.get("none") == store.get("empty") == b""
    assert store.head("none").size == 0  # type: ignore[union-attr]


def test_create_refuses_a_key_that_exists_and_leaves_its_bytes(store: ObjectStore) -> None:
    assert store.create("k", [b"first"]) is True
    assert store.create("k", [b"second"]) is False
    assert store.get("k") == b"first"


def _race(uri: str, barrier: threading.Barrier, name: int, results: "multiprocessing.SimpleQueue[object]") -> None:
    racer = open_store(uri)
    body = bytes([name]) * 100_000
    won = []
    for lap in range(5):
        barrier.wait(RACE_DEADLINE_S)
        won.append(racer.create(f"race/{lap}", [body]))
    results.put((name, won))


def test_of_eight_processes_that_create_one_key_exactly_one_wins(store: ObjectStore) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(RACERS), context.SimpleQueue()
    racers = [context.Process(target=_race, args=(store.uri, barrier, name, results)) for name in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(RACE_DEADLINE_S)
    assert [racer.exitcode for racer in racers] == [0] * RACERS
    outcome = dict(results.get() for _ in racers)
    for lap in range(5):
        winners = [name for name, won in outcome.items() if won[lap]]
        assert len(winners) == 1
        assert store.get(f"race/{lap}") == bytes(winners) * 100_000


def test_of_eight_threads_of_one_store_exactly_one_wins(store: ObjectStore) -> None:
    barrier, won = threading.Barrier(RACERS), []

    def race(name: int) -> None:
        barrier.wait(RACE_DEADLINE_S)
        won.append(store.create("race", [bytes([name])]))

    threads = [threading.Thread(target=race, args=(name,)) for name in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RACE_DEADLINE_S)
    assert sorted(won) == [False] * (RACERS - 1) + [True]


def test_replace_writes_a_new_object_and_over_an_old_one(store: ObjectStore) -> None:
    store.replace("manifest.json", [b"long first version"])
    store.replace("manifest.json", [b"2nd"])
    assert store.get("manifest.json") == b"2nd"


def test_an_update_sees_what_stands_and_writes_what_follows_from_it(store: ObjectStore) -> None:
    assert store.update("manifest.json", lambda standing: [b"first"] if standing is None else None) is True
    assert store.update("manifest.json", lambda standing: [standing or b"", b" second"]) is True
    assert store.get("manifest.json") == b"first second"


def test_an_update_that_wants_nothing_leaves_what_stands(store: ObjectStore) -> None:
    store.create("k", [b"as it was"])
    assert store.update("k", lambda _: None) is False
    assert store.get("k") == b"as it was"


def test_an_update_is_decided_again_where_another_was_faster(store: ObjectStore) -> None:
    if not store.is_remote:
        pytest.skip("writers of files take turns, so that nobody is faster")
    store.create("k", [b"1"])
    seen: list[bytes | None] = []

    def decide(standing: bytes | None) -> list[bytes]:
        seen.append(standing)
        if len(seen) == 1:
            open_store(store.uri).replace("k", [b"2"])
        return [b"3"]

    assert store.update("k", decide) is True
    assert seen == [b"1", b"2"]


def test_no_update_of_three_threads_is_lost(store: ObjectStore) -> None:
    def count() -> None:
        open_store(store.uri).update("count", lambda standing: [str(int(standing or b"0") + 1).encode()])

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RACE_DEADLINE_S)
    assert store.get("count") == b"3"


def test_a_reader_during_replaces_sees_one_whole_version(store: ObjectStore) -> None:
    versions = {bytes([value]) * 300_000 for value in range(8)}
    store.replace("k", [min(versions)])
    done = threading.Event()

    def write() -> None:
        for version in sorted(versions) * 3:
            store.replace("k", [version])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert store.get("k") in versions
    writer.join(RACE_DEADLINE_S)


def test_a_range_is_read_alone_and_ends_with_the_object(store: ObjectStore) -> None:
    store.create("k", [b"0123456789"])
    assert store.get("k", 3, 4) == b"3456"
    assert store.get("k", 3) == b"3456789"
    assert store.get("k", 8, 1 << 40) == b"89"
    assert store.get("k", 3, 0) == store.get("k", 10, 5) == store.get("k", 99) == b""


def test_a_range_comes_with_the_version_that_it_is_of(store: ObjectStore) -> None:
    store.replace("k", [b"0123456789"])
    first = store.head("k")
    assert get_with_info(store, "k", 3, 4) == (b"3456", first)
    assert get_with_info(store, "k", 8, 1 << 40) == (b"89", first)
    assert get_with_info(store, "k", 10, 5) == get_with_info(store, "k", 3, 0) == (b"", first)
    store.replace("k", [b"01234-6789"])
    data, info = get_with_info(store, "k", 0, 4)
    assert (data, info) == (b"0123", store.head("k"))
    assert info != first
    with pytest.raises(ObjectMissing):
        get_with_info(store, "nothing", 0, 4)


def test_a_negative_range_is_the_callers_mistake(store: ObjectStore) -> None:
    store.create("k", [b"0"])
    with pytest.raises(ValueError, match="negative"):
        store.get("k", -1)
    with pytest.raises(ValueError, match="negative"):
        store.get("k", 0, -1)


def test_a_big_object_of_very_many_parts_reads_back(store: ObjectStore) -> None:
    block = bytes(range(256)) * 32
    parts = [memoryview(block)] * (BIG_BYTES // len(block))
    assert store.create("big", parts)
    assert store.head("big").size == BIG_BYTES  # type: ignore[union-attr]
    assert store.get("big", BIG_BYTES - 256, 256) == bytes(range(256))
    assert store.get("big") == b"".join(parts)


def test_parts_may_be_views_of_wider_items(store: ObjectStore) -> None:
    store.create("k", [memoryview(b"abcdefgh").cast("Q")])
    assert store.get("k") == b"abcdefgh"


@pytest.mark.parametrize("key", ["nothing", "folder", "folder/nothing", "folder/object/below"])
def test_what_is_no_object_is_missing_by_name(store: ObjectStore, key: str) -> None:
    store.create("folder/object", [b"x"])
    with pytest.raises(ObjectMissing, match=key):
        store.get(key)
    assert store.head(key) is None
    store.delete(key)
    assert _keys(store.list("")) == ["folder/object"]


def test_head_tells_size_and_a_version_that_changes_with_the_content(store: ObjectStore) -> None:
    store.replace("k", [b"one"])
    before = store.head("k")
    store.replace("k", [b"two"])
    after = store.head("k")
    assert before is not None
    assert after is not None
    assert (before.key, before.size, after.size) == ("k", 3, 3)
    assert before.version != after.version
    assert store.head("k") == after


def test_a_deleted_object_is_gone_and_its_key_may_be_created_again(store: ObjectStore) -> None:
    store.create("a/k", [b"x"])
    store.delete("a/k")
    store.delete("a/k")
    assert store.head("a/k") is None
    assert store.create("a/k", [b"y"]) is True


def test_keys_are_listed_as_bytes_sort_and_not_as_folders_do(store: ObjectStore) -> None:
    keys = ["a-b", "a.b/c", "a/z", "a0", "b-", "b/a.x", "b/a/z", "b/aa", "é", "z\uffff", "z\U0001f600"]
    for key in reversed(keys):
        assert store.create(key, [b"x"])
    assert _keys(store.list("")) == sorted(keys, key=str.encode)


def test_a_listing_equals_the_sorted_keys_for_each_prefix_and_start(store: ObjectStore) -> None:
    keys = ["a-b", "a.b/c", "a/b/c", "a/b/d", "a/b-", "a0", "b", "ledger/00", "ledger/01", "ledger/10", "é/ü"]
    for key in keys:
        store.create(key, [b"x"])
    prefixes = {key[:end] for key in keys for end in range(len(key) + 1)} | {"zz", "ledger/2", "b/"}
    for prefix, after in itertools.product(prefixes, ["", *keys, "a/", "a/b", "ledger/005", "zzz"]):
        expected = [key for key in sorted(keys, key=str.encode) if key.startswith(prefix) and key > after]
        assert _keys(store.list(prefix, after)) == expected, (prefix, after)


def test_a_listing_streams_and_survives_a_deletion_ahead_of_it(store: ObjectStore) -> None:
    for number in range(20):
        store.create(f"{number:02d}/object", [b"x"])
    listing = store.list("")
    assert next(listing) == store.head("00/object")
    store.delete("15/object")
    # A store that answers by pages has perhaps given it already.
    found = [key for key in _keys(listing) if key != "15/object"]
    assert found == [f"{number:02d}/object" for number in range(1, 20) if number != 15]
    assert "15/object" not in _keys(store.list(""))


def test_a_store_that_was_never_written_lists_nothing(store: ObjectStore) -> None:
    assert _keys(store.list("")) == _keys(store.list("shards/3/")) == []


HOSTILE = [
    "", "/etc/passwd", "..", "../up", "a/../../up", "a//b", "a/", "./a", "a/.", "nul\0", "line\nfeed", "del\x7f",
    "back\\slash", ".tmp/x", "lone\ud800", "x" * (KEY_BYTES_MAX + 1), "é" * 128, "/".join(["x" * 255] * 5),
]  # fmt: skip


@pytest.mark.parametrize("key", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_key_is_refused_by_every_method(store: ObjectStore, key: str) -> None:
    for use in (
        lambda: store.create(key, [b"x"]),
        lambda: store.replace(key, [b"x"]),
        lambda: store.get(key),
        lambda: store.head(key),
        lambda: store.delete(key),
        lambda: store.open_local(key),
    ):
        with pytest.raises(InvalidKey):
            use()
    assert _keys(store.list("")) == []


@pytest.mark.parametrize("prefix", ["../", "/", "a/../", "nul\0"])
def test_a_hostile_prefix_is_refused(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(InvalidKey):
        list(store.list(prefix))


@given(st.text(max_size=40))
def test_any_text_is_a_valid_key_or_refused_as_one(text: str) -> None:
    try:
        validate_key(text)
    except InvalidKey:
        return
    assert text.encode().decode() == text
    assert not any(segment in ("", ".", "..") for segment in text.split("/"))


def test_a_local_path_holds_the_objects_bytes(store: ObjectStore) -> None:
    store.create("a/k", [b"x"])
    path = store.open_local("a/k")
    assert path is None or path.read_bytes() == b"x"
    if path is not None:
        with pytest.raises(ObjectMissing):
            store.open_local("a/other")


def test_a_store_has_local_paths_where_it_is_not_remote(store: ObjectStore) -> None:
    store.create("k", [b"x"])
    assert (store.open_local("k") is None) is store.is_remote


def test_a_store_reopened_by_its_uri_is_the_same_store(store: ObjectStore) -> None:
    store.create("k", [b"x"])
    twin = open_store(store.uri)
    assert (twin.uri, twin.is_remote) == (store.uri, store.is_remote)
    assert twin.head("k") == store.head("k")


def test_relative_and_absolute_uris_and_plain_paths_name_one_store(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = open_store(f"{tmp_path}/da ta").uri
    assert expected == f"file://{tmp_path}/da%20ta"
    for uri in ("da ta", "./da ta", "file://./da ta", "file://./da%20ta", f"file://{tmp_path}/da ta/", expected):
        assert open_store(uri).uri == expected
    assert open_store(f"file://localhost{tmp_path}/da%20ta").uri == expected


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("", "give a path"),
        ("a\0b", "give a path"),
        ("file:///a%00b", "give a path"),
        ("file://data/set", r"file://\./data/set"),
        ("file://", r"file://\./data"),
        ("s3://", "write s3://bucket/prefix"),
        ("s3://b/dataset", "no name of a bucket"),
        ("gs://bucket", "known are file://, s3://"),
    ],
)
def test_a_uri_that_opens_nothing_is_refused_with_a_remedy(uri: str, remedy: str) -> None:
    with pytest.raises(InvalidUri, match=remedy):
        open_store(uri)


def test_a_size_sent_to_a_stream_is_the_next_pieces(store: ObjectStore) -> None:
    data = bytes(range(250)) * 12
    store.create("streamed", [data])
    pieces = stream(store, "streamed", 0, 3000, 1000)
    assert bytes(next(pieces)) == data[:1000]
    assert bytes(pieces.send(300)) == data[1000:1300]
    assert [bytes(piece) for piece in pieces] == [data[1300:2300], data[2300:]]
    pieces = stream(store, "streamed", 0, 3000, 1000, 200)
    assert [bytes(piece) for piece in pieces] == [data[:200], data[200:1200], data[1200:2200], data[2200:]]


def test_streams_at_once_write_over_their_own_pieces_alone(store: ObjectStore) -> None:
    data = bytes(range(250)) * 12
    store.create("streamed", [data])
    list(stream(store, "streamed", 0, 3000, 1000))
    pieces = [(begin, stream(store, "streamed", begin, 2000, 500)) for begin in (0, 400, 1000)]
    shown = [(begin, next(one)) for begin, one in pieces]
    for begin, piece in shown:
        assert bytes(piece) == data[begin : begin + 500]
    list(pieces[0][1])
    # of those that go on, none was given what another gave back
    again = stream(store, "streamed", 700, 2000, 500)
    assert bytes(next(again)) == data[700:1200]
    for begin, piece in shown[1:]:
        assert bytes(piece) == data[begin : begin + 500]
