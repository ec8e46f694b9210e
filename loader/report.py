"""A rank that reports to the page of a run: data wait, tokens a second, position. It changes nothing of the loop."""

import http.client
import json
import os
import re
import threading
from pathlib import Path
from typing import Final, Self

from headrace.loader.statistics import HasStatistics

#: Seconds between two reports, for one of them, and the longest pause after some that were not taken.
REPORT_S: Final = 1.0
REQUEST_S: Final = 5.0
PAUSE_S_MAX: Final = 30.0
_ADDRESS = re.compile(r"http://(127\.[0-9.]{5,11}|\[::1\]):([0-9]{1,5})/#([A-Za-z0-9_-]{43})\n?")
_FILE_BYTES_MAX: Final = 256


class LoaderReport:
    """Reports a loader to a page while it is open: `with LoaderReport(loader, "page.url"): train()`.

    `page` is the page's address with its key, or the file that holds it, which is read before each report: a page that
    is served again has another key. What the page does not take is dropped, and `missed` counts it. Raises ValueError
    for what is no such address, OSError where the file cannot be read.
    """

    def __init__(self, loader: HasStatistics, page: str, name: str = "") -> None:
        self._page = page
        self._address()
        self._loader, self._name = loader, name or f"{os.uname().nodename}:{os.getpid()}"
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._report, name="headrace loader report", daemon=True)
        self.sent = self.missed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(REPORT_S)

    def _report(self) -> None:
        pause = REPORT_S
        while not self._closing.wait(pause):
            try:
                self._send()
            except (OSError, ValueError, http.client.HTTPException):
                self.missed += 1
                pause = min(PAUSE_S_MAX, 2 * pause)
            else:
                self.sent += 1
                pause = REPORT_S

    def _address(self) -> tuple[str, int, str]:
        """Host, port and key."""
        text = self._page
        if "://" not in text:
            with Path(text).open("rb") as file:
                text = file.read(_FILE_BYTES_MAX).decode("latin-1")
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ValueError("page is the whole address of a page, with the key behind its #, or the file that has it")
        return found[1].strip("[]"), int(found[2]), found[3]

    def _send(self) -> None:
        now = self._loader.statistics()
        counts = {"tokens": now.tokens, "position": now.position, "batches": now.batches}
        facts = {**counts, "data_wait_s": now.data_wait_s, "elapsed_s": now.elapsed_s}
        body = json.dumps({"question": "loader", "name": self._name, "rank": now.rank, **facts})
        host, port, key = self._address()
        connection = http.client.HTTPConnection(host, port, timeout=REQUEST_S)
        try:
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            connection.request("POST", "/api/ask", body, headers)
            if connection.getresponse().status != http.client.OK:
                raise OSError("the page takes no report")
        finally:
            connection.close()
