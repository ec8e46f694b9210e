"""What is measured of a host, with the real disk, loopback and stages."""

import contextlib
import socket
from pathlib import Path

import pytest

from headrace.cli.host import MeasureError, machine, measure_disk, measure_network, measure_store, programs, serve_peer
from headrace.daemon import threads
from tests.kits.host.small_disk import small_disk
from tests.kits.run.small_tokenizer import small_tokenizer

SECONDS = 0.01


def test_a_disk_has_rates_and_leaves_no_file(tmp_path: Path) -> None:
    found = measure_disk(tmp_path, SECONDS)
    assert min(found.values()) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_not_filled(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as folder, pytest.raises(MeasureError, match="full"):
        measure_disk(folder, SECONDS)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="--folder"):
        measure_disk(tmp_path / "missing", SECONDS)
    with pytest.raises(MeasureError, match="--folder"):
        programs.measure_loader(tmp_path / "missing", SECONDS)


def test_a_store_holds_nothing_of_ours_at_the_end(tmp_path: Path) -> None:
    found = measure_store(str(tmp_path), SECONDS)
    assert min(found.values()) > 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("uri", ["gopher://nowhere", "s3://", "\0"])
def test_a_store_that_cannot_be_opened_is_one_line(uri: str) -> None:
    with pytest.raises(MeasureError) as error:
        measure_store(uri, SECONDS)
    assert "\n" not in str(error.value)


def test_loopback_has_a_rate_and_a_round_trip() -> None:
    assert min(measure_network(None, SECONDS).values()) > 0


def test_a_peer_with_another_word_is_sent_away() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        ended: list[str] = []
        thread = threads.start("peer", lambda: serve_peer(server, "a" * 32, 30.0), lambda: ended.append("died"))
        port = server.getsockname()[1]
        with pytest.raises(MeasureError, match="another word"):
            measure_network(("127.0.0.1", port, "b" * 32), SECONDS)
        assert measure_network(("127.0.0.1", port, "a" * 32), SECONDS)["net_bytes_s"] > 0
        thread.join(30.0)
        assert (ended, thread.is_alive()) == ([], False)


def test_a_peer_that_does_not_listen_is_said() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with pytest.raises(MeasureError, match=str(port)):
        measure_network(("127.0.0.1", port, "a" * 32), SECONDS)


def test_nobody_who_comes_is_said_at_the_end() -> None:
    with (
        contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server,
        pytest.raises(MeasureError, match="no peer"),
    ):
        serve_peer(server, "a" * 32, 0.001)


def test_a_tokenizer_has_a_rate_and_bytes_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TEXT_BYTES", 1 << 12)
    found = programs.measure_tokenizer(small_tokenizer(), SECONDS)
    assert min(found.values()) > 0
    assert found["text_bytes_token"] >= 1


def test_a_tokenizer_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TEXT_BYTES", 1 << 12)
    with pytest.raises(MeasureError, match=r"nowhere\.json"):
        programs.measure_tokenizer("/nowhere.json", SECONDS)


@pytest.mark.slow
def test_filters_and_loader_have_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "TEXT_BYTES", 1 << 12)
    assert programs.measure_filters(SECONDS)["filters_bytes_s"] > 0
    assert programs.measure_loader(tmp_path, SECONDS)["loader_tokens_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_waits_have_a_median_where_time_is_over() -> None:
    assert machine._median(lambda: None, 0.0) > 0
