"""A rank that reports to a page: what it says, and that no page holds its loop up."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.loader import report as module
from headrace.loader.report import LoaderReport
from headrace.loader.statistics import LoaderStatistics
from headrace.page import serve_page

KEY = "k" * 43
WAIT_S = 120.0


class Rank:
    def statistics(self) -> LoaderStatistics:
        return LoaderStatistics(2, 6, 90, 1.5, 0.5, 0, 0, elapsed_s=10.0, position=12, rank=3)


class Page:
    """What a page is asked."""

    def __init__(self) -> None:
        self.asked = list[Mapping[str, Any]]()
        self.some = threading.Event()

    def whole(self) -> bytes:
        return b"{}"

    def change(self) -> bytes:
        return b""

    async def answer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(given)
        self.some.set()
        return {}


@contextlib.contextmanager
def served(page: Page, file: Path) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(serve_page(page, "127.0.0.1:0", file))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.address.url
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(WAIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_S", 0.01)
    monkeypatch.setattr(module, "REQUEST_S", 0.2)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.02)


@pytest.mark.parametrize("by", ["address", "file"])
def test_a_page_hears_of_a_rank(by: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    page, file = Page(), tmp_path / "page.url"
    with served(page, file) as url, LoaderReport(Rank(), url if by == "address" else str(file), "trainer"):
        assert page.some.wait(WAIT_S)
    assert page.asked[0] == {
        "question": "loader",
        "name": "trainer",
        "rank": 3,
        "tokens": 90,
        "position": 12,
        "batches": 2,
        "data_wait_s": 1.5,
        "elapsed_s": 10.0,
    }


def test_a_page_that_is_served_again_hears_of_the_rank_again(tmp_path: Path) -> None:
    """With another key, which stands in its file."""
    tmp_path.chmod(0o700)
    page, file = Page(), tmp_path / "page.url"
    with served(page, file) as first:
        reports = LoaderReport(Rank(), str(file), "trainer")
    with served(page, file) as second, reports:
        assert second != first
        assert page.some.wait(WAIT_S)


def test_a_page_that_is_dead_silent_or_refuses_is_missed(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as silent, served(Page(), tmp_path / "page.url") as url:
        wrong_key = f"{url.partition('#')[0]}#{KEY}"
        for address in (f"http://127.0.0.1:1/#{KEY}", f"http://127.0.0.1:{silent.getsockname()[1]}/#{KEY}", wrong_key):
            with LoaderReport(Rank(), address) as reports:
                deadline = threading.Event()
                while not reports.missed:
                    assert not deadline.wait(0.005)
            assert reports.sent == 0


@pytest.mark.parametrize("address", ["", "http://10.0.0.1:80/#" + KEY, "http://127.0.0.1:80/", "https://127.0.0.1/#k"])
def test_what_is_no_address_of_a_page_is_refused(address: str, tmp_path: Path) -> None:
    file = tmp_path / "page.url"
    file.write_text(address)
    with pytest.raises(ValueError, match="the whole address of a page"):
        LoaderReport(Rank(), str(file))
