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

#: What Python raises of a text that it cannot parse. MemoryError: of more brackets within one another than it holds.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


@functools.lru_cache(maxsize=REMEMBERED)
def fingerprint(text: str) -> str:
    """What decides in a module, as 16 hex digits; of a text that this Python cannot read, the text does."""
    digest = hashlib.sha256()
    try:
        tree = ast.parse(text)
        parts = _tree(tree, telling=_reads_itself(tree))
        for part in parts:
            digest.update(part.encode("utf-8", "surrogatepass"))
    except UNREADABLE:
        digest = hashlib.sha256(b"text\0" + text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=REMEMBERED)
def fingerprint_of(text: str, name: str) -> str:
    """What decides in a module for one of its functions: all but functions of its top level that this one cannot reach.

    The whole module counts where it looks names up as it runs, or has no function of that name.
    """
    try:
        tree = ast.parse(text)
    except UNREADABLE:
        return fingerprint(text)
    functions = {node.name: node for node in tree.body if isinstance(node, _FUNCTION) and _only_defines(node)}
    defined = [node.name for node in tree.body if isinstance(node, (*_FUNCTION, ast.ClassDef))]
    name = name.partition(".")[0]
    if name not in functions or len(defined) != len(set(defined)) or not _SEEKERS.isdisjoint(_names_in(tree)):
        return fingerprint(text)
    reached = {name}
    pending: list[ast.AST] = [
        node for node in tree.body if not (isinstance(node, _FUNCTION) and node.name in functions)
    ]
    pending.append(functions[name])
    while pending:
        for other in _names_in(pending.pop()) & functions.keys() - reached:
            reached.add(other)
            pending.append(functions[other])
    kept = [node for node in tree.body if not (isinstance(node, _FUNCTION) and node.name in functions.keys() - reached)]
    try:
        return fingerprint(ast.unparse(ast.Module(kept, [])))
    except (ValueError, RecursionError):
        return fingerprint(text)


_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
#: What finds a function by other means than its name.
_SEEKERS = frozenset({"globals", "locals", "vars", "eval", "exec", "getattr", "__import__", "modules", "import_module"})


def _only_defines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether the statement of a function does nothing else: no decorator, no call in a default."""
    defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    return not node.decorator_list and not any(isinstance(part, ast.Call) for one in defaults for part in ast.walk(one))


def _names_in(node: ast.AST) -> set[str]:
    """The names, attributes and imports below a node."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.alias):
            found |= {part.name.rpartition(".")[2], *filter(None, (part.asname,))}
    return found


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
