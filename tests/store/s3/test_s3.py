"""The S3 store through faults: a proxy that makes them, before a real server."""

import contextlib
import itertools
import json
import os
import pathlib
import random
import socket
import threading
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from headrace.chaos.gates.s3 import S3Fault, S3Proxy
from headrace.store.contract.errors import (
    ChecksumMismatch,
    InvalidKey,
    ObjectMissing,
    StoreRefused,
    StoreStalled,
    StoreUnavailable,
)
from headrace.store.ledger.log import Appended, Log, Refused
from headrace.store.s3.retry import Pace, RetryPolicy
from headrace.store.s3.store import S3Store
from headrace.store.s3.upload import Sizes
from tests.kits.store.s3_server import (
    READER_ACCESS_KEY,
    READER_SECRET_KEY,
    USER_ACCESS_KEY,
    USER_SECRET_KEY,
    S3Server,
)

MIB = 1 << 20
THREAD_S_MAX = 60.0
#: Objects of a few hundred KiB go in several parts and ranges (a part of an upload has 5 MiB at least on AWS).
SMALL = Sizes(multipart_bytes_min=6 * MIB, part_bytes=5 * MIB, read_bytes=100_000)


@dataclass(slots=True)
class FakeTime:
    """A clock that moves only when someone waits."""

    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, wait_s: float) -> None:
        self.now += wait_s

    def pace(self) -> Pace:
        return Pace(self.clock, self.sleep, random.Random(0).random)


@pytest.fixture
def faketime() -> FakeTime:
    return FakeTime()


@pytest.fixture
def store(s3_server: S3Server, proxy: S3Proxy, faketime: FakeTime) -> S3Store:
    """A store behind the proxy that has been reached once, on a clock of its own."""
    store = S3Store(s3_server.uri(endpoint=proxy.endpoint), pace=faketime.pace(), sizes=SMALL)
    assert store.head("nothing") is None
    proxy.seen.clear()
    return store


BEFORE = [S3Fault.BUSY, S3Fault.BROKEN, S3Fault.CONFLICT, S3Fault.TORN_UPLOAD, S3Fault.FLIPPED_UPLOAD, S3Fault.EXPIRED]
AFTER = [S3Fault.LOST_ANSWER, S3Fault.BUSY_AFTER]


@pytest.mark.parametrize("fault", BEFORE + AFTER)
def test_a_create_that_meets_a_fault_is_ours_and_whole(store: S3Store, proxy: S3Proxy, fault: S3Fault) -> None:
    proxy.plan(fault, "PUT")
    assert store.create("k", [b"first ", b"attempt"]) is True
    assert proxy.count("PUT") == 2
    assert store.create("k", [b"second"]) is False
    assert store.get("k") == b"first attempt"


@pytest.mark.parametrize("fault", AFTER)
def test_a_lost_answer_about_anothers_object_is_a_refusal(store: S3Store, proxy: S3Proxy, fault: S3Fault) -> None:
    assert store.create("k", [b"theirs"])
    proxy.plan(fault, "PUT")
    assert store.create("k", [b"ours"]) is False


def test_the_same_bytes_from_another_writer_are_not_ours(store: S3Store, proxy: S3Proxy) -> None:
    assert store.create("k", [b"same"])
    proxy.plan(S3Fault.LOST_ANSWER, "PUT")
    assert store.create("k", [b"same"]) is False


def test_a_lost_answer_is_read_back_though_writes_are_refused(store: S3Store, proxy: S3Proxy) -> None:
    proxy.plan(S3Fault.LOST_ANSWER, "PUT")
    proxy.plan(S3Fault.BUSY, "PUT", times=10_000)
    assert store.create("k", [b"x"]) is True


def test_a_lost_answer_that_cannot_be_read_back_is_unknown(store: S3Store, proxy: S3Proxy) -> None:
    proxy.plan(S3Fault.LOST_ANSWER, "PUT")
    proxy.plan(S3Fault.BUSY, times=10_000)
    with pytest.raises(StoreUnavailable, match=r"cannot write .*503 SlowDown; asked \d+ times in 1[12]\d s"):
        store.create("k", [b"x"])
    proxy.mend()
    assert store.get("k") == b"x"


def test_the_log_survives_lost_answers_and_knows_its_own_entry(store: S3Store, proxy: S3Proxy) -> None:
    log = Log(store)
    proxy.plan(S3Fault.LOST_ANSWER, "PUT")
    proxy.plan(S3Fault.BUSY, times=10_000)
    with pytest.raises(StoreUnavailable):
        log.append(0, b"mine")
    proxy.mend()
    assert log.append(0, b"mine") == Appended(0)
    assert log.append(0, b"other") == Refused(0, b"mine")
    assert list(log.read()) == [(0, b"mine")]


def test_an_answer_that_takes_too_long_is_asked_for_again(s3_server: S3Server, proxy: S3Proxy) -> None:
    store = S3Store(s3_server.uri(endpoint=proxy.endpoint), read_timeout_s=0.3)
    proxy.plan(S3Fault.HELD, "PUT")
    assert store.create("k", [b"x"]) is True
    assert store.get("k") == b"x"


@pytest.mark.parametrize("fault", [S3Fault.BUSY, S3Fault.BROKEN, S3Fault.LOST_ANSWER, S3Fault.TORN_ANSWER])
def test_a_read_that_meets_a_fault_is_whole(store: S3Store, proxy: S3Proxy, fault: S3Fault) -> None:
    body = os.urandom(350_000)
    store.create("k", [body])
    for times in (1, 3):
        proxy.plan(fault, "GET", times=times)
        assert store.get("k") == body
        proxy.plan(fault, "GET", times=times)
        assert store.get("k", 5, 250_000) == body[5:250_005]


def test_a_stream_gives_a_ranges_pieces_and_ends(store: S3Store, proxy: S3Proxy) -> None:
    data = random.Random(2).randbytes(300_000)
    store.create("k", [data])
    proxy.seen.clear()
    pieces = [bytes(piece) for piece in store.stream("k", 1000, 250_000, 65_536)]
    assert [len(piece) for piece in pieces] == [65_536, 65_536, 65_536, 53_392]
    assert b"".join(pieces) == data[1000:251_000]
    assert proxy.count("GET") == 1
    assert b"".join(store.stream("k", 290_000, 65_536, 65_536)) == data[290_000:]
    assert list(store.stream("k", 300_000, 10, 10)) == []
    with pytest.raises(ObjectMissing):
        list(store.stream("nothing", 0, 10, 10))


@pytest.mark.parametrize("fault", [S3Fault.BUSY, S3Fault.BROKEN, S3Fault.LOST_ANSWER])
def test_a_stream_that_meets_a_fault_before_its_answer_is_whole(store: S3Store, proxy: S3Proxy, fault: S3Fault) -> None:
    store.create("k", [b"abc" * 1000])
    proxy.plan(fault, "GET")
    assert b"".join(bytes(piece) for piece in store.stream("k", 0, 3000, 1000)) == b"abc" * 1000


def test_a_stream_that_breaks_says_so_and_what_it_gave_stands(store: S3Store, proxy: S3Proxy) -> None:
    data = random.Random(3).randbytes(300_000)
    store.create("k", [data])
    proxy.plan(S3Fault.TORN_ANSWER, "GET")
    pieces = store.stream("k", 0, 300_000, 10_000)
    assert b"".join(bytes(next(pieces)) for _ in range(15)) == data[:150_000]
    with pytest.raises(StoreUnavailable, match="what is left"):
        next(pieces)
    assert b"".join(map(bytes, store.stream("k", 150_000, 150_000, 10_000))) == data[150_000:]


@pytest.mark.parametrize(
    ("sent", "is_cut", "said"),
    [
        (0, True, "ended after"),
        (7, True, "ended after"),
        (99_999, True, "ended after"),
        (7, False, "in time"),
        (20_000, False, "in time"),
    ],
)
def test_a_stream_that_stalls_says_so_and_one_that_is_cut_too(sent: int, is_cut: bool, said: str) -> None:
    answer = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100000\r\nContent-Range: bytes 0-99999/100000\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as open_:

        def serve() -> None:
            connection = open_.enter_context(server.accept()[0])
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += connection.recv(65_536)
            connection.sendall(answer + b"x" * sent)
            if is_cut:
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        # so long that a thread of a busy machine answers within it
        store = S3Store(f"s3://bucket/prefix?endpoint={endpoint}&anonymous=true", read_timeout_s=4.0)
        pieces = store.stream("k", 0, 100_000, 10_000)
        for _ in range(sent // 10_000):
            assert next(pieces) == b"x" * 10_000
        with pytest.raises(StoreUnavailable, match=said):
            next(pieces)
        thread.join(THREAD_S_MAX)


def test_a_stream_that_is_given_up_leaves_the_next_request_alone(store: S3Store) -> None:
    store.create("k", [b"x" * 300_000])
    pieces = store.stream("k", 0, 300_000, 10_000)
    assert next(pieces).nbytes == 10_000
    pieces.close()
    assert store.get("k", 0, 10) == b"x" * 10


def test_a_bit_that_flips_on_its_way_is_noticed_and_read_again(store: S3Store, proxy: S3Proxy) -> None:
    store.create("k", [b"0123456789"])
    proxy.plan(S3Fault.FLIPPED_ANSWER, "GET")
    assert store.get("k") == b"0123456789"
    assert proxy.count("GET") == 2


def test_an_object_that_stays_damaged_is_an_error_with_both_checksums(store: S3Store, proxy: S3Proxy) -> None:
    store.create("k", [b"0123456789"])
    proxy.plan(S3Fault.FLIPPED_ANSWER, "GET", times=100)
    with pytest.raises(ChecksumMismatch, match=r"'k' has checksum xxh3-64:.* xxh3-64:"):
        store.get("k")


def test_an_object_replaced_between_two_ranges_is_read_anew(store: S3Store, proxy: S3Proxy) -> None:
    old, new = os.urandom(350_000), os.urandom(350_000)
    store.replace("k", [old])
    proxy.plan(S3Fault.HELD, "GET")  # the first range is answered only after the object has changed
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(store.get("k")))
    reader.start()
    store.replace("k", [new])
    proxy.gate.set()
    reader.join(THREAD_S_MAX)
    assert seen in ([new], [old])


def test_large_objects_go_in_parts_and_come_in_ranges(store: S3Store, proxy: S3Proxy) -> None:
    body = os.urandom(12 * MIB)
    store.replace("k", [body[:MIB], body[MIB:]])
    assert proxy.count("PUT", "partNumber") == 3
    assert store.get("k") == body
    assert proxy.count("GET") == -(-len(body) // SMALL.read_bytes)
    assert store.head("k").size == len(body)  # type: ignore[union-attr]


STEPS = [("POST", "uploads"), ("PUT", "partNumber"), ("POST", "uploadId")]
#: A completion whose XML is damaged is refused as such.
FAULTY_STEPS = [
    (fault, *step)
    for fault, step in itertools.product(BEFORE + AFTER, STEPS)
    if (fault, step[1]) != (S3Fault.FLIPPED_UPLOAD, "uploadId")
]


@pytest.mark.parametrize(("fault", "method", "part"), FAULTY_STEPS)
def test_an_upload_in_parts_survives_a_fault_at_each_step(
    store: S3Store, proxy: S3Proxy, fault: S3Fault, method: str, part: str
) -> None:
    body = os.urandom(6 * MIB)
    proxy.plan(fault, method, part)
    store.replace("k", [body])
    assert store.get("k") == body


def test_an_upload_that_fails_is_aborted(store: S3Store, proxy: S3Proxy) -> None:
    proxy.plan(S3Fault.BUSY, "PUT", "partNumber=2", times=10_000)
    with pytest.raises(StoreUnavailable, match="cannot upload part 2"):
        store.replace("k", [bytes(12 * MIB)])
    assert proxy.count("DELETE", "uploadId") == 1
    assert store.head("k") is None


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_large_create_never_overwrites_in_parts_or_in_one(store: S3Store, proxy: S3Proxy, is_trusted: bool) -> None:
    store._retrier.health.completes_once = is_trusted
    body = os.urandom(6 * MIB)
    proxy.plan(S3Fault.LOST_ANSWER, "POST" if is_trusted else "PUT", "uploadId" if is_trusted else "")
    assert store.create("k", [body]) is True
    assert store.create("k", [bytes(6 * MIB)]) is False
    assert store.get("k") == body
    assert (proxy.count("POST") > 0) is is_trusted


def test_parts_are_not_trusted_where_two_writers_win(store: S3Store, s3_server: S3Server) -> None:
    if not s3_server.is_ours:
        pytest.skip("another server may be better")
    assert store.create("k", [bytes(6 * MIB)]) is True
    assert store._retrier.health.completes_once is False


def test_a_create_too_large_for_what_the_server_can_do_is_refused(s3_server: S3Server) -> None:
    store = S3Store(s3_server.uri(), sizes=Sizes(multipart_bytes_min=10, put_bytes_max=20))
    store._retrier.health.completes_once = False
    with pytest.raises(StoreRefused, match=r"30 bytes are more than one PUT takes .*make shards smaller"):
        store.create("k", [bytes(30)])


def test_a_minute_of_503_is_waited_out(store: S3Store, proxy: S3Proxy, faketime: FakeTime) -> None:
    began = faketime.now
    proxy.plan(S3Fault.BUSY, times=10_000)

    def sleep(wait_s: float) -> None:
        faketime.now += wait_s
        if faketime.now - began > 60:
            proxy.mend()

    store._retrier._pace = Pace(faketime.clock, sleep, random.Random(0).random)
    assert store.create("k", [b"x"]) is True
    assert 60 < faketime.now - began < 75
    assert len(proxy.seen) < 60  # the breaker spared the store


def test_many_threads_spare_a_failing_store(store: S3Store, proxy: S3Proxy, faketime: FakeTime) -> None:
    proxy.plan(S3Fault.BUSY, times=10_000)
    lock = threading.Lock()

    def sleep(wait_s: float) -> None:
        until = faketime.now + wait_s
        with lock:
            faketime.now = max(faketime.now, until)

    store._retrier._pace = Pace(faketime.clock, sleep, random.Random(0).random)
    failed: list[str] = []

    def read() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            store.get("k")
        failed.append(str(caught.value))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(THREAD_S_MAX)
    assert len(failed) == 8
    assert len(proxy.seen) < 200


def test_a_full_store_says_so_at_once_without_harm(store: S3Store, proxy: S3Proxy) -> None:
    proxy.plan(S3Fault.FULL, "PUT", times=100)
    for _ in range(20):
        with pytest.raises(
            StoreStalled, match="it answered 507 XMinioStorageFull; the endpoint's disks are full; free"
        ):
            store.create("k", [b"x"])
    proxy.mend()
    assert store.create("k", [b"x"]) is True


def test_a_store_that_has_answered_and_does_not_any_more_has_stalled(
    store: S3Store, proxy: S3Proxy, faketime: FakeTime
) -> None:
    store.create("k", [b"x"])
    proxy.plan(S3Fault.BUSY, times=10_000)
    store._retrier._pace = faketime.pace()
    with pytest.raises(StoreStalled, match=r"see that .* is up and not overloaded"):
        store.create("l", [b"x"])


def test_an_unreachable_endpoint_is_given_up_soon_with_one_line(faketime: FakeTime) -> None:
    store = S3Store("s3://bucket/a?endpoint=http://127.0.0.1:1", pace=faketime.pace())
    with pytest.raises(
        StoreUnavailable,
        match=r"^s3://bucket/a\?endpoint=http://127.0.0.1:1: cannot get 'k': no connection to http://127.0.0.1:1 "
        r"\(Connection refused\); asked \d+ times in \d+ s; see that .* is the right endpoint",
    ):
        store.get("k")
    assert faketime.now <= 10


def test_a_host_without_a_name_is_said_so(faketime: FakeTime) -> None:
    store = S3Store(
        "s3://bucket/a?endpoint=http://nowhere.invalid:1", pace=faketime.pace(), retry_policy=RetryPolicy(1, 1, 1, 1)
    )
    with pytest.raises(StoreUnavailable, match=r"the host name of http://nowhere.invalid:1 is not known"):
        store.get("k")


USES: dict[str, Callable[[S3Store], object]] = {
    "get": lambda store: store.get("k"),
    "head": lambda store: store.head("k"),
    "create": lambda store: store.create("k", [b"x"]),
    "large create": lambda store: store.create("k", [bytes(2 * MIB)]),
    "replace": lambda store: store.replace("k", [b"x"]),
    "replace in parts": lambda store: store.replace("k", [bytes(6 * MIB)]),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete("k"),
}


@pytest.fixture
def as_user(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    s3_server.need_own_users()

    def become(access: str, secret: str) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)

    return become


@pytest.mark.parametrize("use", USES)
def test_a_missing_bucket_is_one_clear_line(s3_server: S3Server, as_user: Callable[[str, str], None], use: str) -> None:
    # Who may do all asks for a bucket that is not there, and who may write there is told so.
    if use in ("create", "large create", "replace", "replace in parts"):
        as_user(USER_ACCESS_KEY, USER_SECRET_KEY)
    store = S3Store(f"s3://no-such-bucket/a?endpoint={s3_server.endpoint}", sizes=SMALL)
    with pytest.raises(StoreRefused, match=r"there is no bucket 'no-such-bucket' at http|AccessDenied"):
        USES[use](store)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("access", "secret"), [("nobody", "x"), (USER_ACCESS_KEY, "wrong")], ids=["unknown", "wrong secret"]
)
def test_wrong_credentials_are_one_clear_line(
    s3_server: S3Server, as_user: Callable[[str, str], None], use: str, access: str, secret: str
) -> None:
    as_user(access, secret)
    store = S3Store(s3_server.uri(), sizes=SMALL)
    with pytest.raises(StoreRefused, match=r"cannot .*; .*correct AWS_ACCESS_KEY_ID") as caught:
        USES[use](store)
    assert "wrong" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reader_reads_and_is_told_that_it_may_not_write(
    s3_server: S3Server, as_user: Callable[[str, str], None]
) -> None:
    uri = s3_server.uri()
    S3Store(uri).create("k", [b"x"])
    as_user(READER_ACCESS_KEY, READER_SECRET_KEY)
    assert S3Store(uri).get("k") == b"x"
    with pytest.raises(StoreRefused, match="403 AccessDenied; these credentials have no right"):
        S3Store(uri).create("l", [b"x"])


def test_a_listing_of_several_pages_and_folders_is_in_order_and_complete(store: S3Store, proxy: S3Proxy) -> None:
    keys = [f"d/{number:04d}" for number in range(1100)] + ["d/0500-", "d/0600./x", "d/0600.y", "e"]
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda key: store.create(key, [b"x"]), keys))
    proxy.plan(S3Fault.BUSY, "GET", "continuation-token")
    assert [info.key for info in store.list("")] == sorted(keys)
    assert [info.key for info in store.list("d/", "d/1097")] == ["d/1098", "d/1099"]


def test_what_lies_beside_the_prefix_is_not_ours(s3_server: S3Server) -> None:
    uri, query = s3_server.uri().split("?")
    inner, outer = S3Store(f"{uri}/in?{query}"), S3Store(f"{uri}?{query}")
    for key in ("in/a", "inner/b"):
        outer.create(key, [b"x"])
    assert [info.key for info in inner.list("")] == ["a"]
    assert inner.get("a") == outer.get("in/a") == b"x"


def test_a_key_too_long_with_its_prefix_is_refused(s3_server: S3Server) -> None:
    store = S3Store(s3_server.uri())
    key = "/".join(itertools.repeat("x" * 250, 4))
    with pytest.raises(InvalidKey, match="choose a shorter prefix"):
        store.create(key + "/" + "y" * 15, [b"x"])


def test_a_missing_object_names_the_store_without_secrets(s3_server: S3Server) -> None:
    store = S3Store(s3_server.uri("a b"))
    with pytest.raises(ObjectMissing) as caught:
        store.get("nothing")
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
    assert "a%20b" in store.uri
    assert "endpoint=http" in urllib.parse.urlsplit(store.uri).query


def test_a_store_made_before_a_fork_works_in_both_processes(s3_server: S3Server, tmp_path: pathlib.Path) -> None:
    store = S3Store(s3_server.uri())
    store.create("before", [b"x"])
    child = os.fork()
    if child == 0:
        (tmp_path / "child").write_text(json.dumps([store.create(f"child/{n}", [b"c"]) for n in range(20)]))
        os._exit(0)
    ours = [store.create(f"parent/{n}", [b"p"]) for n in range(20)]
    os.waitpid(child, 0)
    assert ours == json.loads((tmp_path / "child").read_text()) == [True] * 20
