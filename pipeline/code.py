"""What decides in a module's text: its syntax tree, without what changes nothing.

Comments, blank lines, line endings, quotes, brackets and where a line breaks leave no trace in the tree. Docstrings and
`pass` do, and are left out, unless the module itself reads docstrings. Everything else counts: a constant, a default, a
name, an order. The fingerprint is the same under each version of Python that can read the text: what a newer one
adds to its trees is empty where the text does not use it, and what is empty is left out.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from typing import cast

#: Modules whose fingerprints are kept: an identity is asked for several times, and a tree takes a while.
REMEMBERED = 512
#: What reads a docstring, as a name or as an attribute.
_READERS = frozenset({"__doc__", "getdoc", "getcomments", "getsource", "getsourcelines"})
#: How a string was written, and comments of types: nothing that is run.
_SILENT = frozenset({"kind", "type_comment", "type_ignores"})


@functools.lru_cache(maxsize=REMEMBERED)
def fingerprint(text: str) -> str:
    """What decides in a module, as 16 hex digits; of a text that this Python cannot read, the text does."""
    digest = hashlib.sha256()
    try:
        tree = ast.parse(text)
        parts = _tree(tree, telling=_reads_itself(tree))
        for part in parts:
            digest.update(part.encode("utf-8", "surrogatepass"))
    except (SyntaxError, ValueError, RecursionError):
        digest = hashlib.sha256(b"text\0" + text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _reads_itself(tree: ast.AST) -> bool:
    """Whether a module may act by the words of its docstrings, or of its whole text."""
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in _READERS or (isinstance(node, ast.alias) and node.name.rpartition(".")[2] in _READERS):
            return True
    return False


def _tree(node: object, *, telling: bool) -> Iterator[str]:
    """A node and what is below it, in words that no other tree has."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is None and not isinstance(node, ast.Constant):
                continue
            if name in _SILENT or value == []:
                continue
            yield f" {name}="
            yield from _tree(value, telling=telling)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in cast("list[object]", node):
            if not _is_silent(item, telling=telling):
                yield from _tree(item, telling=telling)
        yield "]"
    else:
        yield f"{type(node).__name__}:{node!r};"


def _is_silent(node: object, *, telling: bool) -> bool:
    """Whether a statement does nothing: a constant that stands alone, as docstrings do, or `pass`."""
    if isinstance(node, ast.Pass):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not telling
