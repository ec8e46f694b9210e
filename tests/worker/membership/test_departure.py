"""How a worker ends: what is a notice, and what it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.protos import control_pb2 as pb
from headrace.worker.core.supervisor import LiveTasks
from headrace.worker.membership import departure as module
from headrace.worker.membership.departure import Departure, noticed


class Metadata(BaseHTTPRequestHandler):
    """A metadata service; `/tokens/...` wants a token that is put for."""

    #: Of who trickles: whether the test is over, and whether anybody reads to the end.
    over, read_on = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        if self.path.startswith("/trickle"):
            self._trickle()
            return
        answers = {"/yes": "TRUE", "/no": "FALSE", "/empty": "", "/tokens/action": '{"action": "terminate"}'}
        wants = self.path.startswith("/tokens") and self.headers.get("X-aws-ec2-metadata-token") != "secret"
        self._say(401 if wants else 200 if self.path in answers else 404, answers.get(self.path, ""))

    def do_PUT(self) -> None:
        self._say(200, "secret")

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def _trickle(self) -> None:
        """Say a byte at a time, of a head or of a body, for as long as anybody reads."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if self.path == "/trickle/body" else b"X: "))
        self.read_on.set()
        with contextlib.suppress(OSError):
            while not self.over.wait(0.05):
                self.wfile.write(b".")
        self.read_on.clear()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        Metadata.over.clear()
        Metadata.read_on.clear()
        yield f"http://127.0.0.1:{server.server_port}"
        Metadata.over.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("/yes", True), ("/no", False), ("/empty", False), ("/none", False), ("/tokens/action", True)],
)
def test_what_a_metadata_service_answers_is_a_notice_or_not(service: str, path: str, is_one: bool) -> None:
    assert noticed(service + path) is is_one


def test_a_service_that_is_not_there_is_no_notice() -> None:
    assert not noticed("http://127.0.0.1:1/yes")


@pytest.mark.parametrize("path", ["/trickle/head", "/trickle/body"])
def test_a_service_that_trickles_has_no_more_than_its_seconds(service: str, path: str) -> None:
    began = time.monotonic()
    stops = threading.Timer(60.0, Metadata.over.set)
    stops.start()
    assert not noticed(service + path)
    stops.cancel()
    assert time.monotonic() - began < 30.0


def test_who_is_to_end_waits_for_no_answer_about_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, gave_up = threading.Event(), list[bool]()

    async def play() -> None:
        asked, loop = asyncio.Event(), asyncio.get_running_loop()

        def away(_: str) -> bool:
            loop.call_soon_threadsafe(asked.set)
            gave_up.append(not answered.wait(60.0))
            return False

        monkeypatch.setattr(module, "noticed", away)
        departure = Departure(LiveTasks(), lambda: True, lambda _: None, 30.0, "/away", 0.0)
        waiting = asyncio.create_task(departure.wait())
        await asked.wait()
        departure.ask()
        await waiting

    asyncio.run(play())
    assert not gave_up, "the loop ended behind the answer"
    answered.set()


def test_a_file_that_cannot_be_looked_at_is_no_notice(tmp_path: Path) -> None:
    assert not noticed(str(tmp_path / ("x" * 300)))


def test_a_file_is_a_notice_once_it_is_there(tmp_path: Path) -> None:
    assert not noticed(str(tmp_path / "notice"))
    (tmp_path / "notice").touch()
    assert noticed(str(tmp_path / "notice"))


def departed(within_s: float = 30.0, *, tasks: int = 1, connected: bool = True) -> tuple[Departure, list[str]]:
    live, said = LiveTasks(), list[str]()
    for number in range(tasks):
        live.started(f"run/read.{number}", 1, "v", 0, ("read",))

    def say(message: pb.FromWorker) -> None:
        said.append(str(message.WhichOneof("message")))
        live.tasks.clear()

    return Departure(live, lambda: connected, say, within_s, "", 0.0), said


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, ["leaving"]), ({"tasks": 0}, []), ({"connected": False}, []), ({"within_s": 0.0}, [])],
    ids=["tasks", "no task", "no controller", "no time"],
)
def test_who_has_tasks_and_a_controller_hands_them_on(given: dict[str, float], said: list[str]) -> None:
    async def play() -> list[str]:
        departure, found = departed(**given)  # type: ignore[arg-type]
        departure.ask()
        await departure.wait()
        return found

    assert asyncio.run(play()) == said


def test_who_leaves_waits_for_the_next_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GONE_S", 0.0)
    live, looks = LiveTasks(), list[bool]()
    live.started("run/read.0", 1, "v", 0, ("read",))

    def connected() -> bool:
        looks.append(len(looks) not in (1, 2))
        if len(looks) == 5:
            live.tasks.clear()
        return looks[-1]

    async def play() -> bool:
        departure = Departure(live, connected, lambda _message: None, 30.0, "", 0.0)
        departure.ask()
        await departure.wait()
        return departure.leaves

    assert asyncio.run(play())
    assert looks == [True, False, False, True, True]


def test_who_is_to_end_at_once_says_nothing() -> None:
    async def play() -> list[str]:
        departure, found = departed()
        departure.end()
        await departure.wait()
        return found

    assert asyncio.run(play()) == []


def test_tasks_that_nobody_can_have_are_waited_for_no_more() -> None:
    async def play() -> None:
        live = LiveTasks()
        live.started("run/read.0", 1, "v", 0, ("read",))
        departure = Departure(live, lambda: True, lambda _: departure.cannot("no other worker"), 1e6, "", 0.0)
        departure.ask()
        await departure.wait()

    asyncio.run(play())


def test_a_worker_without_a_task_is_given_back(tmp_path: Path) -> None:
    async def play() -> None:
        await Departure(LiveTasks(), lambda: True, lambda _: None, 30.0, str(tmp_path / "notice"), 0.5).wait()

    asyncio.run(play())
