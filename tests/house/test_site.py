"""The site: its navigation has every page, it is built in strict mode, and it fetches nothing of others."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
#: Limit on building the site, in seconds.
BUILD_S_MAX = 400.0
#: What a page fetches by itself; a link fetches when it is followed.
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="((?:https?:)?//[^"]+)"')


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions and variables."""


Loader.add_multi_constructor("", lambda _loader, suffix, _node: suffix)


def named(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from named(part)


def test_the_navigation_has_each_page_once() -> None:
    found = sorted(named(yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    made = {"index.md", "contributing.md", "changelog.md", "decisions/index.md"}
    assert found == sorted({page for page in pages if not page.startswith("decisions/")} | made)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "mermaid.js").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder / "out")],
        cwd=ROOT,
        env={**os.environ, "MERMAID": str(folder / "mermaid.js"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


@pytest.mark.slow
def test_each_page_becomes_one_of_the_site(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert pages | {Path("index.html")} <= {page.relative_to(site) for page in site.rglob("*.html")}


@pytest.mark.slow
def test_no_page_of_the_site_fetches_from_others(site: Path) -> None:
    assert {link for page in site.rglob("*.html") for link in FETCHED.findall(page.read_text())} == set()


@pytest.mark.slow
def test_anchors_are_those_of_the_repository(site: Path) -> None:
    assert 'href="design/ledger.html#invariants"' in (site / "architecture.html").read_text()
    assert 'id="invariants"' in (site / "design" / "ledger.html").read_text()
