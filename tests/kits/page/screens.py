"""Screens for the docs, of a real run: `python -m tests.kits.page.screens FOLDER` (`make screens`).

It makes text, runs a pipeline of filters with a page, and takes pictures of the page while records flow, of the page of
the dataset, and of what the commands print on a terminal of 100 columns. Texts are made of words of its own; a picture
is of what was there when it was taken, so that two runs differ in their numbers.
"""

from __future__ import annotations

import json
import os
import pty
import random
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.kits.page.browser import CHROMIUM, Browser

COLUMNS, ROWS = 100, 40
WIDTH, HEIGHT = 1280, 800
RECORDS = 12_000
#: Limit on one command, in seconds.
COMMAND_S_MAX = 900
WORDS = tuple(
    """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so said what up its about
water channel wheel mill river stone gate flow field grain flour season village keeper ledger weight measure""".split()  # noqa: SIM905 - a list of sixty is longer
)
PIPELINE = """
from headrace import Pipeline, c4_quality, gopher_quality, gopher_repetition, read_jsonl, write_jsonl


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain(
        "rivers", output, read_jsonl(input), gopher_repetition(), gopher_quality(),
        c4_quality(terminal_punctuation=False), write_jsonl(),
    )
"""
#: A page that looks like a terminal, in fonts of the system.
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body{{margin:0;background:#101418}}
pre{{display:inline-block;margin:0;padding:16px 20px;color:#dfe5ea;font:14px/1.35 "DejaVu Sans Mono",monospace}}
</style><pre>{code}</pre>"""


def write_texts(file: Path) -> None:
    """Texts of which a part is too short, and a part repeats itself."""
    chance = random.Random(1)
    with file.open("w", encoding="utf-8") as lines:
        for number in range(RECORDS):
            many = chance.choice((20, 120, 240, 400))
            words = [chance.choice(WORDS) for _ in range(many)]
            if not number % 9:
                words = words[:12] * (many // 12)
            text = ". ".join(" ".join(words[at : at + 11]).capitalize() for at in range(0, len(words), 11))
            lines.write(json.dumps({"id": f"river-{number:06d}", "text": text + "."}) + "\n")


def on_terminal(command: list[str], folder: Path) -> str:
    """What a command prints on a terminal, with its colours."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with subprocess.Popen(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65536):
                said += part
        except OSError:  # the terminal's other end is closed
            pass
        os.close(ours)
        if process.wait(COMMAND_S_MAX):
            raise SystemExit(f"{' '.join(command)}\n{said.decode()}")
    return said.decode().replace("\r\n", "\n")


def picture_of_terminal(browser: Browser, folder: Path, command: str, said: str, file: Path) -> None:
    """The command and its last screen, as PNG."""
    # Where the cursor goes up, the next state of the screen replaces the last.
    said = re.split(r"\x1b\[\d*A", said)[-1]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-LN-Zhl]", "", said)
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ {command}", style="bold"))
    console.print(Text.from_ansi(plain.rstrip()))
    page = folder / "terminal.html"
    page.write_text(console.export_html(inline_styles=True, code_format=TERMINAL))
    browser.open(page.as_uri())
    width, height = browser.until(
        "[...Object.values(document.querySelector('pre').getBoundingClientRect().toJSON())].slice(2, 4)"
    )
    browser.resize(int(width) + 1, int(height) + 1)
    browser.picture(file)
    browser.resize(WIDTH, HEIGHT)


@contextmanager
def begun(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that runs beside, and ends with the block."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ends = threading.Timer(COMMAND_S_MAX, process.kill)
    ends.start()
    try:
        yield process
    finally:
        ends.cancel()
        process.kill()
        process.wait()


def address_of(process: subprocess.Popen[str]) -> str:
    """The address that a command says its page has."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://\S+", line):
            return found.group()
    raise SystemExit("the command ended without a page")


def main() -> None:
    """Take all pictures."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    if not CHROMIUM:
        raise SystemExit("Chromium is not installed; Debian: apt install chromium")
    headrace = str(Path(sys.executable).with_name("headrace"))
    with tempfile.TemporaryDirectory() as name, Browser(WIDTH, HEIGHT) as browser:
        folder = Path(name)
        write_texts(folder / "rivers.jsonl")
        (folder / "rivers.py").write_text(PIPELINE)
        run = [headrace, "run", "rivers.py", "-p", "input=rivers.jsonl", "-p"]
        with begun([*run, "output=data/seen", "--page", "--no-fuse", "--seal-seconds", "1"], folder) as process:
            browser.open(address_of(process))
            said = "document.getElementById('screen').textContent"
            browser.until(f"/[1-9][0-9.]*[kM]?\\/s/.test({said}) && /[1-9][0-9,]* closed/.test({said})")
            browser.picture(target / "page-overview.png")
        words = "headrace run rivers.py -p input=rivers.jsonl -p output=data/rivers"
        said = on_terminal([*run, "output=data/rivers"], folder)
        picture_of_terminal(browser, folder, words, said, target / "run.png")
        said = on_terminal([headrace, "run", "rivers.py", *run[3:], "output=data/none", "--limit", "300"], folder)
        picture_of_terminal(browser, folder, f"{words} --limit 300", said, target / "preview.png")
        with begun([headrace, "dataset", "page", "data/rivers"], folder) as process:
            browser.open(address_of(process))
            browser.until(
                "document.body.dataset.drawn > 0 && document.getElementById('screen').textContent.length > 200"
            )
            browser.picture(target / "dataset-page.png")


if __name__ == "__main__":
    main()
