"""`headrace examples`: the examples that come with this installation, listed, shown or written to a file."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import headrace
from headrace.client import CliError, UsageError

#: Where examples lie below the package, or beside it in a checkout, and what is left out of their names.
FOLDERS = ("examples", "systemd")
_ENDINGS = {".py", ".toml", ".ipynb", ".service", ".env", ".conf"}
#: What a file says of itself, where it is no Python.
_ABOUT = re.compile(r'^(?:name = "(.*)"|Description=(.*)|# ?(.*))$', re.MULTILINE)


def known_examples() -> dict[str, Path]:
    """Every example by its name: `plain`, `chaos/tasks`, `systemd/headrace-worker.service`."""
    return dict(sorted(_found(), key=lambda item: ("/" in item[0], item[0])))


def _found() -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        roots = [path for base in headrace.__path__ if (path := Path(base) / folder).is_dir()]
        for file in sorted(roots[0].rglob("*")) if roots else ():
            if file.suffix in _ENDINGS and file.is_file():
                name = file.relative_to(roots[0] if folder == "examples" else roots[0].parent)
                yield str(name.with_suffix("") if file.suffix in (".py", ".toml", ".ipynb") else name), file


def about(file: Path) -> str:
    """What an example shows, in a line."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if file.suffix == ".ipynb":
        return "".join(json.loads(text)["cells"][0]["source"]).partition("\n")[0].lstrip("# ")
    found = _ABOUT.search(text)
    return next((part for part in found.groups() if part), "") if found else ""


def example_like(path: Path) -> str:
    """The name of the example that a path which is not there was meant to be; empty if none."""
    return path.stem if path.suffix == ".py" and path.stem in known_examples() else ""


def _list(shown: Mapping[str, Path]) -> None:
    width = max(map(len, shown))
    for each, file in shown.items():
        print(f"{each:<{width}}  {about(file)}")


def show_examples(name: str, to: str | None) -> int:
    """List the examples or those of a group, show one, or write one to a file or folder, or a group into a folder.

    A folder is one that is there, or a path that ends with a slash. A group keeps its name and its folders there.
    """
    known = known_examples()
    if not name:
        if to is not None:
            raise UsageError("--to needs the name of an example; `headrace examples` lists them")
        _list(known)
        return 0
    chosen = known.get(name) or known.get(Path(name).with_suffix("").as_posix().removeprefix("examples/"))
    group = {each: file for each, file in known.items() if each.startswith(f"{name.rstrip('/')}/")}
    if chosen is None and not group:
        raise UsageError(f"no example is called {name!r}; there are: {', '.join(known)}")
    if to is None:
        if chosen is None:
            _list(group)
        else:
            print(chosen.read_text(encoding="utf-8"), end="")
        return 0
    into = to.endswith("/") or Path(to).is_dir()
    if chosen is not None:
        _write({Path(to) / chosen.name if into else Path(to): chosen})
    elif into:
        _write({Path(to) / Path(each).with_suffix(file.suffix): file for each, file in group.items()})
    else:
        raise UsageError(f"{name} is a group of {len(group)} examples: write it into a folder: --to {to}/")
    return 0


def _write(files: Mapping[Path, Path]) -> None:
    """Write each example to its target, or nothing if a target is there."""
    for target, example in files.items():
        if target.suffix != example.suffix:
            wanted = target.with_suffix(example.suffix)
            raise UsageError(f"{example.stem} is a {example.suffix} file: write it to {wanted}")
        if os.path.lexists(target):
            raise CliError(f"{target} is there already and is not replaced; choose another place with --to")
    for target, example in files.items():
        text = example.read_text(encoding="utf-8")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as out:
                out.write(text)
        except OSError as error:
            raise CliError(f"cannot write {target}: {error.strerror}") from error
        print(f"{target} is written; {_next(example, text, shlex.quote(str(target)))}")


def _next(example: Path, text: str, target: str) -> str:
    """What is done with an example of this kind."""
    match example.suffix:
        case ".py" if needed := _needed(text):
            return f"run it: headrace run {target} {needed}"
        case ".py":
            return f"its first lines say how to run it: head -20 {target}"
        case ".toml":
            return f"run it: headrace chaos run {target} PIPELINE.py -p ..."
        case ".ipynb":
            return f"run it: jupyter lab {target}"
        case _:
            return "how to install it: headrace examples systemd/headrace.env"


def _needed(text: str) -> str:
    """The parameters of `build()` without a default, as options; empty if there is no such function."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "build":
            needed = node.args.args[: len(node.args.args) - len(node.args.defaults)]
            return " ".join(f"-p {each.arg}=..." for each in needed)
    return ""
