"""A headless Chromium, spoken to by its DevTools protocol over two pipes: nothing to install but the browser."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
#: Seconds for an answer, and until something is so.
ANSWER_S, PATIENCE_S = 60.0, 60.0
#: Descriptors at which Chromium reads and writes.
_READ, _WRITE = 3, 4


class Browser:
    """One tab."""

    def __init__(self, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        self._folder = tempfile.mkdtemp(prefix="headrace-page-")
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        # High numbers: the shell that puts them at 3 and 4 must not close one by the other.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 40) for end in (to_read, from_write)]
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        place = f'exec {_READ}<&{theirs[0]} {_WRITE}>&{theirs[1]}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", place, "chromium", CHROMIUM, *flags, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_read, from_write, *theirs):
            os.close(end)
        self._number, self._rest = 0, b""
        #: What the page wrote to its console, raised, or was refused.
        self.complaints: list[str] = []
        pages = [item for item in self._call("Target.getTargets")["targetInfos"] if item["type"] == "page"]
        attached = self._call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._do(f"{domain}.enable")
        self.resize(width, height)
        if dark:
            self._do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, url: str) -> None:
        """Go there."""
        self._do("Page.navigate", url="about:blank")
        self._do("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        """Make the tab that large."""
        self._do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._do("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression once it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):
                if found := self.run(script):
                    return found
            select.select([], [], [], 0.02)
        raise TimeoutError(script)

    def press(self, key: str) -> None:
        """A key, as a person presses it."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            code = {"windowsVirtualKeyCode": 13} if key == "Enter" else {}
            self._do("Input.dispatchKeyEvent", type=kind, key=key, **code, **(text if kind == "keyDown" else {}))

    def before(self, script: str, *, zone: str) -> None:
        """Run this before any page's own scripts, in a zone of time."""
        self._do("Emulation.setTimezoneOverride", timezoneId=zone)
        self._do("Page.addScriptToEvaluateOnNewDocument", source=script)

    def picture(self, file: Path) -> None:
        """Put what is in sight into a file, as PNG."""
        file.write_bytes(self.png())

    def png(self) -> bytes:
        """What is in sight, as PNG."""
        return base64.b64decode(self._do("Page.captureScreenshot")["data"])

    def _do(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._call(method, self._session, **parameters)

    def _call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            told = self._next(deadline)
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(str(told["error"]))
                found: dict[str, Any] = told["result"]
                return found
            self._note(told)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._from, 1 << 20)
            if not part:
                raise EOFError("the browser ended")
            self._rest += part
        told, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(told)
        return found

    def _note(self, told: dict[str, Any]) -> None:
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["params"]["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(told["params"]["args"])[:500])
            case "Log.entryAdded" if told["params"]["entry"]["level"] == "error":
                self.complaints.append(f"{told['params']['entry']['text']} {told['params']['entry'].get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.complaints.append(f"a dialog: {told['params']['message']}")
            case _:
                pass
