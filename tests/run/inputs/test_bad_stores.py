"""Whole runs against stores that fail: each ends as it should, loses nothing, and the next run completes it."""

from __future__ import annotations

import contextlib
import pathlib
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import certifi
import pytest

from headrace.chaos.gates.s3 import S3Fault, S3Proxy
from headrace.store.open import open_store
from tests.kits.host.small_disk import enlarge, small_disk
from tests.kits.inputs import bad_stores as kit
from tests.kits.run.dataset import fates
from tests.kits.run.small_tokenizer import small_tokenizer
from tests.kits.store.s3_server import READER_ACCESS_KEY, READER_SECRET_KEY, S3Server, shared_server
from tests.kits.store.tls import Authority, TlsProxy

#: Enough to open the breaker of a process, whose prober then looks whether the store is back.
BUSY_ANSWERS = 12
#: Seconds between two looks at a run that must not be far on before something is done to its store.
SOON_S = 0.005


@pytest.fixture(scope="module")
def server() -> S3Server:
    return shared_server()


def written(folder: pathlib.Path) -> pathlib.Path:
    (folder / "bad.py").write_text(kit.PIPELINE.replace("TOKENIZER", small_tokenizer()))
    (folder / "in.jsonl").write_bytes(kit.TEXT)
    return folder


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    return written(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def unreached(tmp_path_factory: pytest.TempPathFactory, server: S3Server) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs to and from a store that does not answer: they try and give up while the other tests run.

    The server gives credentials.
    """
    home = written(tmp_path_factory.mktemp("unreached"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = f"?endpoint=http://127.0.0.1:{nobody.getsockname()[1]}"
        runs = [start(home, "in.jsonl", f"s3://bucket/out{where}"), start(home, f"s3://bucket/in.jsonl{where}", "out")]
        yield runs
        for process in runs:
            process.kill()
            process.communicate()


@pytest.fixture
def given(server: S3Server) -> str:
    """The name of an object that holds the input."""
    name = f"{secrets.token_hex(6)}.jsonl"
    open_store(server.uri("bad")).create(name, [kit.TEXT])
    return f"s3://{server.bucket}/bad/{name}"


def wait_for_entries(process: subprocess.Popen[str], proxy: S3Proxy, entries: int) -> None:
    """Until the ledger of a run has so many entries."""
    deadline = time.monotonic() + kit.RUN_S_MAX
    while proxy.count("PUT", "/ledger/") < entries:
        assert time.monotonic() < deadline, f"{proxy.count('PUT', '/ledger/')} entries"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SOON_S)
            raise AssertionError(process.communicate())


def start(home: pathlib.Path, given: str, output: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        kit.command(given, output), cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=kit.RUN_S_MAX)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_a_bucket_that_is_not_there_ends_the_run_with_one_line(home: pathlib.Path, server: S3Server) -> None:
    where = f"?endpoint={server.endpoint}"
    for given, output in (
        (f"s3://nobody-has-this/in.jsonl{where}", "out"),
        ("in.jsonl", f"s3://nobody-has-this/out{where}"),
    ):
        line = kit.the_line(kit.run(home, given, output))
        assert "nobody-has-this" in line


def test_credentials_that_are_wrong_end_the_run_with_one_line(home: pathlib.Path, server: S3Server, given: str) -> None:
    wrong = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"}
    for arguments, words in (
        ((f"{given}?endpoint={server.endpoint}", "out"), "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (("in.jsonl", server.uri()), "the endpoint does not know the access key"),
    ):
        assert words in kit.the_line(kit.run(home, *arguments, environment=wrong))


def test_credentials_without_the_right_to_write_end_the_run_with_one_line(home: pathlib.Path, server: S3Server) -> None:
    server.need_own_users()
    reader = {"AWS_ACCESS_KEY_ID": READER_ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": READER_SECRET_KEY}
    done = kit.run(home, "in.jsonl", server.uri(), environment=reader)
    assert "these credentials have no right to this" in kit.the_line(done)


def test_a_run_over_tls_needs_the_environments_ca(home: pathlib.Path, server: S3Server, given: str) -> None:
    authority = Authority(home)
    with TlsProxy(server.endpoint, authority.context()) as proxy:
        uris = f"{given}?endpoint={proxy.endpoint}", server.uri(endpoint=proxy.endpoint)
        line = kit.the_line(kit.run(home, *uris, environment={"AWS_CA_BUNDLE": str(certifi.where())}))
        assert "unable to get local issuer certificate); name the file of the CA that made it in" in line
        assert not proxy.seen, "nothing was sent to whom we do not know"
        done = kit.run(home, *uris, environment={"AWS_CA_BUNDLE": str(authority.ca)})
        assert proxy.count("PUT", "/ledger/") > 3
    kit.check_complete(done, uris[1].replace(proxy.endpoint, server.endpoint))


def test_a_store_that_answers_503_is_waited_for_and_nothing_is_lost(
    home: pathlib.Path, server: S3Server, given: str
) -> None:
    with S3Proxy(server.endpoint) as proxy:
        output = server.uri(endpoint=proxy.endpoint)
        process = start(home, f"{given}?endpoint={proxy.endpoint}", output)
        wait_for_entries(process, proxy, 4)
        proxy.plan(S3Fault.BUSY, times=BUSY_ANSWERS)
        report = kit.check_complete(ended(process), output)
        assert proxy.waiting() == 0, "the run was over before the store had failed so often"
    assert report["records_resumed"] == 0


@pytest.mark.slow
def test_a_store_that_answers_503_for_a_minute_is_waited_for(home: pathlib.Path, server: S3Server, given: str) -> None:
    with S3Proxy(server.endpoint) as proxy:
        output = server.uri(endpoint=proxy.endpoint)
        process = start(home, f"{given}?endpoint={proxy.endpoint}", output)
        wait_for_entries(process, proxy, 4)
        proxy.plan(S3Fault.BUSY, times=1_000_000)
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=300)
        proxy.mend()
        kit.check_complete(ended(process), output)


def test_a_disk_that_fills_is_waited_for_without_loss(home: pathlib.Path) -> None:
    kit.check_complete(kit.run(home, "in.jsonl", "roomy"), str(home / "roomy"))
    with small_disk(home / "disk", 300 << 10) as disk, kit.Watched(home, "in.jsonl", "disk/out") as run:
        waits = run.says("bad: waits: ")
        assert "/disk/out: cannot create '" in waits
        assert "No space left on device (" in waits
        remedy = "bytes are free); free space on the disk, or point the dataset at a larger one; nothing is lost"
        assert remedy in waits
        # On a busy machine shards may fill the disk before the first of them is in the ledger.
        assert len(kit.kept(str(disk / "out"))) < len(kit.RECORDS)
        enlarge(disk, 64 << 20)
        done = run.end()
        report = kit.check_complete(done, str(disk / "out"))
        assert "bad: continues" in done.stderr
        assert (report["records_resumed"], report["records_read"]) == (0, len(kit.RECORDS))
        assert fates(disk / "out") == fates(home / "roomy")


def test_a_disk_without_room_for_the_first_entry_is_waited_for_too(home: pathlib.Path) -> None:
    with small_disk(home / "disk", 64 << 10) as disk:
        (disk / "ballast").write_bytes(bytes(60 << 10))
        with kit.Watched(home, "in.jsonl", "disk/out") as run:
            waits = run.says("bad: waits: ")
            assert "No space left on device (0 bytes are free); free space on the disk" in waits
            enlarge(disk, 64 << 20)
            kit.check_complete(run.end(), str(disk / "out"))


def test_a_run_waiting_for_its_first_entry_can_be_cancelled(home: pathlib.Path) -> None:
    with small_disk(home / "disk", 64 << 10) as disk:
        (disk / "ballast").write_bytes(bytes(60 << 10))
        with kit.Watched(home, "in.jsonl", "disk/out") as run:
            run.says("bad: waits: ")
            run.process.send_signal(signal.SIGINT)
            assert run.end().returncode == 130


def test_a_run_waiting_for_room_can_be_cancelled_and_resumed(home: pathlib.Path) -> None:
    with small_disk(home / "disk", 300 << 10) as disk:
        with kit.Watched(home, "in.jsonl", "disk/out") as run:
            run.says("bad: waits: ")
            for words in ("stopping", "cancel"):
                run.process.send_signal(signal.SIGINT)
                run.says(words)
            assert run.end().returncode == 130
        before = kit.kept(str(disk / "out"))
        enlarge(disk, 64 << 20)
        report = kit.check_complete(kit.run(home, "in.jsonl", "disk/out"), str(disk / "out"))
        assert report["records_resumed"] >= len(before)


def test_a_store_that_cannot_be_reached_ends_the_run_with_one_line(unreached: list[subprocess.Popen[str]]) -> None:
    for process in unreached:
        assert "is the right endpoint and can be reached from this host" in kit.the_line(ended(process))
