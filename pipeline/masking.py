"""Texts without the secrets in them: URIs' user information and parameters named as secrets are, keys by their shape.

Every line that Headrace logs or ends a command with goes through `mask`, and so do its errors of stores and pipelines,
whatever text they quote. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

HIDDEN = "***"
#: Characters of one user's information, and of a parameter's name on either side of the word that gives it away.
_USER_MAX, _NAME_MAX = 1024, 64
_USER = re.compile(rf"(?<=://)[^\s/@'\"?#&]{{1,{_USER_MAX}}}@")
#: A key that holds slashes, as those of AWS do: NAME:KEY@, where what follows the colon is no port.
_KEY = re.compile(rf"(?<=://)[^\s/@:'\"?#&]{{1,{_NAME_MAX}}}:(?!\d{{1,5}}[/?#])[^\s@'\"]{{1,{_USER_MAX}}}@")
_WORDS = (
    "signature|sig|secret|token|password|passwd|passphrase|pwd|credential|auth|jwt|"
    "(?:access|account|api|private|secret).?key"
)
_BEFORE = "?&;#"
#: A parameter's name as it stands, where a character of it may be three; as it is meant, it ends in a word of those, or
#: in one of them and brackets; its value.
_NAME = re.compile(rf"[{_BEFORE}]([^\s=?&;#'\"\\]{{1,{3 * _NAME_MAX}}})=")
_NAMED_SECRET = re.compile(rf"(?:{_WORDS})\]?(?:\[[^\[\]]{{0,{_NAME_MAX}}}\])?\Z", re.IGNORECASE)
_VALUE = re.compile(r"[^\s&'\"#\\]+")
#: Keys and tokens that say by their beginning what they are.
_SHAPE = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{16}|hf_[A-Za-z0-9]{30,64}|gh[opsu]_[A-Za-z0-9]{36,64}|github_pat_[A-Za-z0-9_]{40,128}"
    r"|glpat-[\w-]{20,64}|sk-[A-Za-z0-9_-]{32,200}|AIza[\w-]{35}|xox[abprs]-[A-Za-z0-9-]{20,128})(?![\w-])"
    r"|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----"
)
#: What each of these holds.
_SHAPE_PARTS = ("AKIA", "ASIA", "hf_", "gh", "github_pat_", "glpat-", "sk-", "AIza", "xox", "PRIVATE KEY")


def mask(text: str) -> str:
    """The text with three stars in the place of each secret of a URI in it, and of each key known by its shape."""
    if "://" in text:
        text = _KEY.sub(HIDDEN + "@", _USER.sub(HIDDEN + "@", text))
    if "=" in text and any(mark in text for mark in _BEFORE):
        text = _parameters_masked(text)
    if any(part in text for part in _SHAPE_PARTS):
        text = _SHAPE.sub(HIDDEN, text)
    return text


def _parameters_masked(text: str) -> str:
    parts, at = list[str](), 0
    for name in _NAME.finditer(text):
        if name.start() < at or not _NAMED_SECRET.search(unquote(name[1])):
            continue
        if value := _VALUE.match(text, name.end()):
            parts += (text[at : name.end()], HIDDEN)
            at = value.end()
    return "".join([*parts, text[at:]])


class SecretShownError(ValueError):
    """A secret stands where it would be shown; the message is without it."""


def check_arguments(arguments: Iterable[str], environment: Mapping[str, str]) -> None:
    """Raise SecretShownError where an argument, or a variable of Headrace's, holds a secret that `mask` hides."""
    shown = [("an argument", item) for item in arguments]
    shown += [(name, value) for name, value in environment.items() if name.startswith("HEADRACE_")]
    for what, text in shown:
        if mask(text) != text:
            where = " in a URI" if "://" in text else ""
            raise SecretShownError(
                f"{what} carries a secret{where}, {mask(text)!r}: every user of a host reads command lines, and URIs "
                "stand in logs, in status and in ledgers; give credentials in files or in variables of their own "
                "(docs/guide/store.md)"
            )


class SecretBrokenError(ValueError):
    """What is there cannot be a secret; the message names the place, and is without it."""


def whole_secret(value: object, where: str, *, ascii_only: bool = True) -> str:
    """A secret without the white space around it; "" for none. Raises SecretBrokenError for what no header holds.

    A client that is given such a header repeats it in its error. `ascii_only` is for what is itself in a header.
    """
    text = value.strip() if isinstance(value, str) else ""
    is_whole = text.isprintable() and (text.isascii() or not ascii_only)
    if not is_whole or not (value is None or isinstance(value, str)):
        raise SecretBrokenError(
            f"{where} holds a line break, or something else that no key or token has in it: put it there anew, whole "
            "and in one line"
        )
    return text


def secret_in(value: Any, where: str = "") -> str:
    """Where the first text with a secret stands in data as JSON has it, and that text masked; empty where none does."""
    if isinstance(value, str):
        return f"{where}: {mask(value)!r}" if mask(value) != value else ""
    parts: list[tuple[object, str]] = []
    if isinstance(value, Mapping):
        inner = cast("Mapping[object, object]", value)
        parts = [(part, f"{where}.{name}" if where else str(name)) for name, part in inner.items()]
        parts += [(name, where) for name in inner]
    elif isinstance(value, list | tuple):
        parts = [(part, where) for part in cast("Sequence[object]", value)]
    return next(filter(None, (secret_in(part, name) for part, name in parts)), "")
