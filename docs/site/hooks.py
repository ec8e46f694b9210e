"""What the site has beyond docs/: the pages at the root, a list of the decisions, and the library for diagrams.

Markdown stays as it reads in the repository. A link to a page at the root leads to that page of the site, a link to any
other file of the repository to its place on the web, and headings have the anchors that they have there.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: Where the files stand that are no pages of the site.
REPOSITORY = "https://github.com/headrace/headrace/blob/main"
#: Pages at the root, and what they are called in the site.
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
DECISIONS = "decisions/index.md"
#: Where the library for diagrams goes.
MERMAID = "site/mermaid.min.js"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```.*?^```[ ]*$)", re.MULTILINE | re.DOTALL)


def anchor_of(title: str, separator: str) -> str:
    """The anchor of a heading, as the repository's host makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make anchors as the links expect them."""
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": anchor_of}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what stands outside docs/."""
    root = Path(config.config_file_path).parent
    for name, page in MOVED.items():
        files.append(File.generated(config, page, content=(root / name).read_text(encoding="utf-8")))
    decisions = [file for file in files.documentation_pages() if file.src_uri.startswith("decisions/0")]
    titles = sorted((file.src_uri.partition("/")[2], file.content_string.partition("\n")[0]) for file in decisions)
    lines = [f"- [{title.lstrip('# ')}]({name})" for name, title in titles]
    files.append(File.generated(config, DECISIONS, content="\n".join(["# Decisions", "", *lines, ""])))
    library = root / config.extra["mermaid"]
    if not library.is_file():
        raise PluginError(f"{library} is not there; `make docs` fetches it once")
    files.append(File.generated(config, MERMAID, abs_src_path=str(library)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has what they name."""
    root = Path(config.config_file_path).parent
    here = page.file.src_uri
    origin = next((name for name, moved in MOVED.items() if moved == here), f"docs/{here}")

    def led(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        name, mark, part = link.partition("#")
        if not name or "://" in link or here == DECISIONS:
            return found.group()
        place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), name))
        if place == "docs/decisions":
            place = f"docs/{DECISIONS}"
        target = MOVED.get(place, place.removeprefix("docs/"))
        if files.get_file_from_path(target) is None:
            # What is nowhere stays as it is, and the strict build says so.
            return f"{before}{REPOSITORY}/{place}{mark}{part}{after}" if (root / place).exists() else found.group()
        return f"{before}{posixpath.relpath(target, posixpath.dirname(here) or '.')}{mark}{part}{after}"

    return "".join(part if part.startswith("```") else LINK.sub(led, part) for part in FENCE.split(markdown))
