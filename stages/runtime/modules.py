"""The user's modules in a process that may not have their files: imported from the text that came with the pipeline."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import linecache
import sys
import types
from collections.abc import Mapping, Sequence


def install_modules(modules: Mapping[str, str]) -> None:
    """Make the user's modules importable from their text, for this process; the same text is loaded once."""
    finder = next((item for item in sys.meta_path if isinstance(item, Shipped)), None)
    if finder is None:
        finder = Shipped()
        sys.meta_path.insert(0, finder)
    for name, text in modules.items():
        if finder.texts.get(name) != text:
            finder.texts[name] = text
            sys.modules.pop(name, None)
            # So that a traceback shows the lines of a file that this machine may not have.
            linecache.cache[_filename(name)] = (len(text), None, text.splitlines(keepends=True), _filename(name))


def _filename(module: str) -> str:
    return f"{module}.py (shipped)"


def forget_modules() -> None:
    """Undo `install_modules`: what is imported next is what stands on this machine."""
    for finder in [item for item in sys.meta_path if isinstance(item, Shipped)]:
        sys.meta_path.remove(finder)
        for name in finder.texts:
            sys.modules.pop(name, None)
    importlib.invalidate_caches()


class Shipped(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads modules whose text travelled with the pipeline."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module, if its text is here."""
        del path, target
        if fullname not in self.texts:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in self.texts)
        return importlib.machinery.ModuleSpec(fullname, self, origin=_filename(fullname), is_package=is_package)

    def get_source(self, fullname: str) -> str:
        """The module's text."""
        return self.texts[fullname]

    def get_code(self, fullname: str) -> types.CodeType:
        """The module's text, compiled under the name that tracebacks show."""
        return compile(self.texts[fullname], _filename(fullname), "exec", dont_inherit=True)
