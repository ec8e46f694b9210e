"""The docs: no link leads nowhere, no page is unlinked, and no command is shown with an option that it has not."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from headrace.cli.main import app

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs/decisions"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
SHOWN = re.compile(r"^(?:\$ )?headrace .*(?:\\\n.*)*|`headrace [^`]*`", re.MULTILINE)
FENCED = re.compile(r"^```(?:sh[^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^ *(?:\$ )?(headrace (?:.*\\\n)*.*)", re.MULTILINE)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
TOP: Any = get_command(app)
QUOTED = re.compile(r"`([^`\n]+)`")
#: Constants and classes, and files of ours, as pages quote them.
NAME = re.compile(r"[A-Z][A-Z0-9_]{3,}|[A-Z][a-z]+[A-Z]\w+|[a-z]\w+(?:_max|_bytes)")
PLACE = re.compile(r"(?:[a-z_]+/)+(?:[\w.-]+\.\w+)?")
#: What others have named: the kernel, servers, and what a page speaks against.
OTHERS = {"PR_SET_PDEATHSIG", "O_DIRECT", "SlowDownRead"}


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    for link in LINK.findall(page.read_text()):
        if "://" not in link and not link.startswith("mailto:"):
            name, _, part = link.partition("#")
            yield link, (page.parent / name).resolve() if name else page, part


def headings(page: Path) -> set[str]:
    text = page.read_text()
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link, target, part in links(page):
        assert target.exists(), link
        assert not part or target.suffix != ".md" or part in headings(target), link


@pytest.mark.parametrize("pattern", [LINK, SHOWN, TABLE], ids=["links", "commands", "tables"])
def test_what_is_looked_for_is_found(pattern: re.Pattern[str]) -> None:
    assert sum(len(pattern.findall(page.read_text())) for page in PAGES) > 30


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        ahead += [target for _, target, _ in links(page) if target.is_file()]
    unlinked = [page for page in PAGES if page not in seen and page.parent != DECISIONS]
    assert unlinked == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_of_a_command_that_is_shown_exists(page: Path) -> None:
    for shown in SHOWN.findall(page.read_text()):
        command, rest = TOP, shown.strip("`$ ").split()[1:]
        while rest and rest[0].rstrip(",") in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0).rstrip(",")]
        known = {option for param in command.params for option in [*param.opts, *param.secondary_opts]} | {"--help"}
        used = {word.strip("[],.").partition("=")[0] for word in rest if word.startswith(("--", "[--"))}
        assert used <= known | {"--"}, shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_begins_with_its_head(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for table in TABLE.findall(text):
        head, rule, *_ = [*table.splitlines(), ""]
        assert re.fullmatch(r"\|( *:?-+:? *\|)+", rule), head


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_in_a_block_is_understood(page: Path) -> None:
    lines = [line for block in FENCED.findall(page.read_text()) for line in LINE.findall(block)]
    for line in (line for line in lines if "[-" not in line):
        words = shlex.split(line.replace("\\\n", " "), comments=True)[1:]
        end = next((place for place, word in enumerate(words) if word[0] in "|>;&<"), len(words))
        command, rest = TOP, words[:end]
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        with command.make_context("headrace", rest):
            pass


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Each word of the code."""
    files = [ROOT / "Makefile", *(file for kind in ("py", "toml", "env") for file in ROOT.glob(f"[a-z]*/**/*.{kind}"))]
    return {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_quotes_exists(page: Path, names: set[str]) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    quoted = set(QUOTED.findall(text)) - OTHERS
    gone = {name for name in quoted if NAME.fullmatch(name) and name not in names}
    places = {place for place in quoted if PLACE.fullmatch(place) and (ROOT / place.partition("/")[0]).is_dir()}
    gone |= {place for place in places if not (ROOT / place).exists()}
    assert gone == set(), "name it as the code does now"


def test_the_docs_have_at_most_forty_thousand_words() -> None:
    generated = ROOT / "docs" / "reference" / "commands.md"
    written = [page for page in PAGES if page != generated]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in written) <= 40_000
