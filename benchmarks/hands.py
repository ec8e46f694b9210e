"""What the page costs for a run of 2,000 tasks and 10,000 links: time to its first picture, updates, share of a core.

Method: a process serves the page of a controller whose run has TASKS tasks and LINKS links, and takes REPORTS reports
of tasks a second. Its processor time is read over SECONDS without a viewer and with one, in headless Chromium: the
difference is the page's. `first` is the worst of three times from the navigation until all tasks and links are shown,
by the browser's own clock; the browser has started before, and nobody had looked at the page before the first. An
update is a change that has been drawn.

    python benchmarks/hands.py --json

It needs Chromium (Debian: apt install chromium). Limits: 0.5 s, 5 a second, 3 % of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headrace.page import serve_page
from tests.kits.page.browser import CHROMIUM, Browser
from tests.kits.page.large_run import LargeRun

TASKS, LINKS, REPORTS = 2_000, 10_000, 2_000
SECONDS = 10.0
#: Whether the browser shows all links, and so all tasks.
SHOWN = f"document.getElementById('tab-Links')?.textContent === 'Links{LINKS:,}'"
LIMITS = {"first_s": 0.5, "updates_a_second": 5.0, "share_of_a_core": 0.03}


async def serve(file: Path) -> None:
    """Serve such a page until this process is killed."""
    run = LargeRun(TASKS, LINKS)
    run.report(TASKS)
    await serve_page(run.page, "127.0.0.1:0", file)
    print("serves", flush=True)
    await run.keep_reporting(REPORTS)


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int) -> float:
    began, before = time.monotonic(), processor_s(pid)
    time.sleep(SECONDS)
    return (processor_s(pid) - before) / (time.monotonic() - began)


def measure() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.url"
        command = [sys.executable, __file__, "--serve", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, Browser() as browser:
            try:
                assert server.stdout is not None
                assert server.stdout.readline() == "serves\n"
                alone = share(server.pid)
                firsts = []
                for _ in range(3):
                    browser.open(file.read_text(encoding="ascii").strip())
                    firsts.append(browser.until(f"{SHOWN} && performance.now()") / 1000)
                browser.until("Number(document.body.dataset.drawn) > 20")
                began, drawn = time.monotonic(), int(browser.run("document.body.dataset.drawn"))
                watched = share(server.pid)
                drawn = int(browser.run("document.body.dataset.drawn")) - drawn
                seconds = time.monotonic() - began
            finally:
                server.kill()
    return {
        "first_s": round(max(firsts), 3),
        "updates_a_second": round(drawn / seconds, 2),
        "share_of_a_core": round(watched - alone, 4),
        "share_without_a_viewer": round(alone, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve))
    if not CHROMIUM:
        print("hands: Chromium is not installed", file=sys.stderr)
        return 2
    found = {"page": measure(), "limits": LIMITS, "tasks": TASKS, "links": LINKS, "reports_a_second": REPORTS}
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
