"""Pictures of the page from fixed data, to compare: `python -m tests.kits.page.pictures` makes the golden ones anew.

Clock, fonts and movements are pinned: every character is a box (`square_font`), the clock stands and is moved on by
hand. So a golden picture shows places, sizes and colours, and is the same wherever Chromium is; what the words say is a
matter of other tests.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from headrace.cli.commands.dataset.page import DatasetPage
from headrace.page import serve_page
from headrace.page.server import PageSource
from headrace.protos import control_pb2 as pb
from tests.kits.page.browser import Browser
from tests.kits.page.large_run import LargeRun
from tests.kits.page.square_font import square_font

FOLDER = Path(__file__).parents[2] / "page" / "golden"
WIDTH, HEIGHT = 1000, 900
#: A pixel differs if one of its colours does by more than this, of 255; a picture, if more than this share of it does.
COLOUR_STEPS_MAX, PIXELS_SHARE_MAX = 24, 0.002
#: The moment at which the clock stands, in seconds since 1970, and seconds between the two states of a run.
NOW_S, LATER_S = 1_780_000_000, 10
#: Name, kind, screen and whether it is dark.
PICTURES = (
    ("overview-light", "run", "Overview", False),
    ("overview-dark", "run", "Overview", True),
    ("workers-dark", "run", "Workers", True),
    ("records-light", "run", "Records", False),
    ("card-light", "dataset", "Card", False),
    ("versions-dark", "dataset", "Versions", True),
)
#: Before anything of a page runs: the clock stands, nothing moves, and text is boxes.
PINNED = """
(() => {
  let passed = 1000;
  performance.now = () => passed;
  const Real = Date;
  window.Date = class extends Real { constructor(...given) { given.length ? super(...given) : super(%(now)d); } };
  window.Date.now = () => %(now)d;
  window.pass = (ms) => { passed += ms; };
  const bytes = Uint8Array.from(atob("%(font)s"), (one) => one.charCodeAt(0));
  window.squares = new FontFace("Square", bytes.buffer);
  document.fonts.add(window.squares);
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`*, *::before, *::after { font-family: Square !important; font-weight: 400 !important;
    font-variant: normal !important; animation: none !important; transition: none !important;
    caret-color: transparent !important; outline: none !important; scrollbar-width: none !important; }`);
  document.adoptedStyleSheets = [sheet];
})()
"""
#: The share of pixels that differ between two pictures; 1 where they have other sizes.
COMPARE = """
(async () => {
  const load = async (data) => {
    const picture = new Image();
    picture.src = `data:image/png;base64,${data}`;
    await picture.decode();
    const canvas = new OffscreenCanvas(picture.width, picture.height);
    const context = canvas.getContext("2d");
    context.drawImage(picture, 0, 0);
    return context.getImageData(0, 0, picture.width, picture.height);
  };
  const [one, other] = [await load("%(one)s"), await load("%(other)s")];
  if (one.width !== other.width || one.height !== other.height) return 1;
  let found = 0;
  for (let at = 0; at < one.data.length; at += 4) {
    found += [0, 1, 2].some((colour) => Math.abs(one.data[at + colour] - other.data[at + colour]) > %(steps)d);
  }
  return found / (one.data.length / 4);
})()
"""


class FixedRun:
    """A run as the server tells it, at two moments."""

    def __init__(self) -> None:
        large = LargeRun(6, 8)
        large.page.note(NOW_S)
        about = orjson.loads(large.page.whole())["about"]
        about["page"]["version"] = "1.0"
        self._state: dict[str, Any] = {"about": about, **_run_rows()}
        self._later: list[bytes] = []

    def whole(self) -> bytes:
        """See `PageSource`."""
        return orjson.dumps({**self._state, "progress": _progress(1)})

    def change(self) -> bytes:
        """See `PageSource`."""
        return self._later.pop() if self._later else b""

    def go_on(self) -> None:
        """The next change is what tasks have done since."""
        self._later.append(orjson.dumps({"progress": _progress(2)}))

    async def answer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """See `PageSource`."""
        raise AssertionError(f"nobody asks {question}: {given}")


def _run_rows() -> dict[str, Any]:
    stages, workers = ("read", "keep", "write"), ("alder", "birch")
    balance = {"kept": 61_000, "filtered": 24_000, "duplicate": 9_000, "quarantined": 1_000, "records_closed": 95_000}
    balance |= {"records_open": 5_000, "tokens": 41_000_000, "sequences": 20_000, "balanced": True, "version": 2}
    run = {"pipeline": "rivers", "state": "running", "dataset": "s3://bucket/rivers", "sources": ["read"]}
    run |= {
        "graph": [
            {"name": name, "after": [before] if before else []}
            for before, name in zip(("", *stages), stages, strict=False)
        ]
    }
    run |= {"balance": balance, "input_bytes": 900_000_000, "fragments": 40, "fragments_done": 22, "shards": 31}
    run |= {"ledger_entries": 312, "epoch": 7, "term": 2, "elapsed_s": 75, "sinks": ["write"]}
    run |= {"filtered_by": {"keep: too short": 15_000, "keep: repeats itself": 9_000}, "notes": ["one task was lost"]}
    run["deaths"] = [{"what": "task", "name": "rivers/keep.1", "cause": "signal 9", "count": 2}]
    tasks = {
        f"rivers/{stage}.{number}": ["rivers", [stage], workers[number], "ready", 1, number, ""]
        for stage in stages
        for number in range(2)
    }
    links = {
        f"{one}.{number}": [f"rivers/{one}.{number}", f"rivers/{other}.{number}", kind, 1, "", "rivers"]
        for one, other, kind in (("read", "keep", "ring"), ("keep", "write", "quic"))
        for number in range(2)
    }
    points = {
        f"rivers#{at}": {"pipeline": "rivers", "at": NOW_S - 75 + 5 * at, "kept": 4_000 * at, "filtered": 1_600 * at}
        | {"duplicate": 600 * at, "quarantined": 60 * at, "open": 5_000, "shards": 2 * at}
        for at in range(16)
    }
    marks = {
        "1": {"at": NOW_S - 75, "kind": "state", "words": "run is running", "of": "rivers"},
        "2": {"at": NOW_S - 30, "kind": "death", "words": "task rivers/keep.1 died", "of": "rivers"},
    }
    worker = {"state": "registered", "cores": 4, "cores_reserved": 2, "labels": ["disk=ssd"], "addresses": ["10.0.0.1"]}
    known = {name: {**worker, "worker": name, "host": f"{name}.example"} for name in workers}
    return {"pipelines": {"rivers": run}, "tasks": tasks, "links": links, "points": points, "marks": marks} | {
        "workers": known
    }


def _progress(times: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, (stage, busy) in enumerate((("read", 2.0), ("keep", 9.0), ("write", 4.0))):
        for number in range(2):
            done = pb.StageProgress(stage=stage, records=50_000 * times, bytes=times << 27, stored_bytes=times << 26)
            done.busy_s, done.cpu_s, done.dropped = busy * times, 0.9 * busy * times, 11_000 * times * (place == 1)
            report = pb.Progress(stages=[done], held_bytes=place << 20, busy_s=busy * times)
            if place < 2:
                link = report.links.add(link=f"{stage}.{number}", frames=90 * times, bytes=times << 27)
                link.in_flight_bytes, link.blocked = 700_000, 12 * times * (place == 0)
            found[f"rivers/{stage}.{number}@1"] = base64.b64encode(report.SerializeToString()).decode()
    return found


def fixed_dataset() -> DatasetPage:
    """A finished dataset."""
    counts = {"kept": 61_000, "filtered": 24_000, "duplicate": 9_000, "quarantined": 1_000, "tokens": 41_000_000}
    version = {"at": NOW_S, "restores": 0, "complete": True, "reason": "completed", "shards": 31, **counts}
    return DatasetPage(
        {
            "dataset": "s3://bucket/rivers",
            "pipeline": "rivers",
            "records_closed": 95_000,
            **{name: counts[name] for name in ("kept", "filtered", "duplicate", "quarantined")},
            "words": ["one fragment was given up"],
            "filtered_by": {"keep: too short": 15_000, "keep: repeats itself": 9_000},
            "quarantined_by": {"keep: no text": 1_000},
            "tokenizer": "bpe-32k",
            "card": "# Rivers\n\nText of rivers.\n\n| field | is |\n|---|---|\n| id | a name |\n",
            "given_up": [{"uri": "s3://in/7.jsonl", "reason": "it is cut off"}],
            "versions": [{**version, "version": 1, "tags": []}, {**version, "version": 2, "tags": ["best"]}],
            "objects": 124,
            "inputs": [{"uri": "s3://in/", "records": 95_000}],
            "recipes": [],
            "samples": {},
            "quarantine": [],
            "quarantine_more": 0,
            "duplicates": [],
        }
    )


@contextlib.contextmanager
def served(source: PageSource, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Serve it on a loop of its own; the address, and what ends the serving."""
    loop, file = asyncio.new_event_loop(), folder / "page.url"
    folder.chmod(0o700)
    page = loop.run_until_complete(serve_page(source, "127.0.0.1:0", file))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def end() -> None:
        asyncio.run_coroutine_threadsafe(page.close(), loop).result(30)

    try:
        yield page.address.url, end
    finally:
        end()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def opened(kind: str, *, dark: bool) -> Iterator[Browser]:
    """A browser in which a run, or a dataset, has been drawn for the last time."""
    source = FixedRun() if kind == "run" else fixed_dataset()
    with (
        tempfile.TemporaryDirectory() as name,
        served(source, Path(name)) as (url, _),
        Browser(WIDTH, HEIGHT, dark=dark) as browser,
    ):
        font = base64.b64encode(square_font()).decode()
        browser.before(PINNED % {"now": NOW_S * 1000, "font": font}, zone="UTC")
        browser.open(url)
        browser.until("document.body.dataset.drawn > 0")
        browser.run("squares.load()")
        browser.until("document.fonts.check('14px Square')")
        if isinstance(source, FixedRun):
            drawn = browser.run(f"pass({LATER_S * 1000}), Number(document.body.dataset.drawn)")
            source.go_on()
            browser.until(f"document.body.dataset.drawn > {drawn}")
        yield browser


def take(browser: Browser, screen: str) -> bytes:
    """One screen, as PNG."""
    browser.run(f"document.getElementById('tab-{screen}').click()")
    browser.until(f"document.getElementById('tab-{screen}').getAttribute('aria-selected') === 'true'")
    browser.run("document.activeElement.blur(), new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return browser.png()


def share_of_difference(browser: Browser, one: bytes, other: bytes) -> float:
    """The share of the pixels that differ."""
    given = {"one": base64.b64encode(one).decode(), "other": base64.b64encode(other).decode()}
    return float(browser.run(COMPARE % {**given, "steps": COLOUR_STEPS_MAX}))


def main() -> None:
    """Make all golden pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, kind, screen, dark in PICTURES:
        with opened(kind, dark=dark) as browser:
            (FOLDER / f"{name}.png").write_bytes(take(browser, screen))


if __name__ == "__main__":
    main()
