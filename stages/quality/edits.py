"""Stages that change texts: personal data, junk, and the form of characters. What they change is counted as an edit.

The regular expressions that find the few texts to change run over the whole column in Arrow (RE2, linear in time).
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.pipeline import PipelineError
from headrace.stages.runtime import Batch, Transform, as_column, text_of
from headrace.stages.text import Rule, drop, tag, with_texts

EMAIL, ADDRESS, PHONE = "<email>", "<ip-address>", "<phone-number>"
_EMAIL = r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}"
_ADDRESS = r"(?:\d{1,3}\.){3}\d{1,3}|(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}"
#: With a country's code, or as North America writes them.
_PHONE = r"\+\d{1,3}(?:[ .-]?\(?\d{1,4}\)?){2,5}|(?:\(\d{3}\) ?|\b\d{3}[.-])\d{3}[.-]\d{4}"
_EMAILS = re.compile(rf"(?<![A-Za-z0-9._%+@-]){_EMAIL}(?![A-Za-z0-9@])")
_ADDRESSES = re.compile(rf"(?<![\w.:])(?:{_ADDRESS})(?![\w:]|\.\d)")
_PHONES = re.compile(rf"(?<![\w+.-])(?:{_PHONE})(?![\w-]|\.\d)")
PHONE_DIGITS = (8, 15)
#: Of two numbers that touch, the second is found once the first has its placeholder; so many passes at most.
PASSES_MAX = 16

_CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_EACH_CONTROL = re.compile(_CONTROLS)
_TAGS = r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>]{0,500})?/?>|&(?:[a-z]{2,8}|#\d{1,6});"
_NO_SPACES = r"[A-Za-z0-9+/_-]{%d,}={0,2}"


class PersonalData(Transform):
    """Puts typed placeholders for e-mail addresses, public IP addresses and phone numbers."""

    merges = True

    def __init__(self, name: str, email: bool, ip: bool, phone: bool) -> None:
        self.name = name
        kinds = ((email, "@", _EMAILS, EMAIL), (ip, _ADDRESS, _ADDRESSES, ADDRESS), (phone, _PHONE, _PHONES, PHONE))
        self._kinds = [(hint, found, put) for wanted, hint, found, put in kinds if wanted]
        self._hint = "|".join(hint for hint, _, _ in self._kinds)

    def process(self, batch: Batch) -> Batch:
        """The batch with placeholders."""
        return change(batch, self.name, pc.match_substring_regex(text_of(batch, self.name), self._hint), self._redact)

    def _redact(self, text: str) -> str:
        for _ in range(PASSES_MAX):
            before = text
            for _, pattern, placeholder in self._kinds:
                text = pattern.sub(lambda found, put=placeholder: _placeholder(found[0], put), text)  # type: ignore[misc]
            if text == before:
                break
        return text


def _placeholder(found: str, placeholder: str) -> str:
    if placeholder == ADDRESS:
        try:
            return placeholder if ipaddress.ip_address(found).is_global else found
        except ValueError:
            return found
    if placeholder == PHONE:
        digits = sum(character.isdigit() for character in found)
        return placeholder if PHONE_DIGITS[0] <= digits <= PHONE_DIGITS[1] else found
    return placeholder


class Junk(Transform):
    """Takes out control characters and blobs of base64, and filters texts that are mostly markup."""

    merges = True

    def __init__(self, name: str, blob_characters_min: int, markup_max: float, tag: bool = False) -> None:
        self.name = name
        self.tag = tag
        self.markup_max = markup_max
        self._blob = _NO_SPACES % min(blob_characters_min, 1000)
        self._blobs = re.compile(_NO_SPACES % blob_characters_min)

    def process(self, batch: Batch) -> Batch:
        """The batch without junk; with tags, the texts that are markup too."""
        column: Any = text_of(batch, self.name)
        scores = {"markup": markup_share(column)}
        hint = pc.match_substring_regex(column, f"{_CONTROLS}|{self._blob}")
        changed = change(batch, self.name, hint, self._clean)
        return tag(changed, self.name, scores) if self.tag else drop(changed, self.name, self.rules(scores))

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """Each reason, and which texts with these scores it holds for."""
        return [("mostly markup", scores["markup"] > self.markup_max)]

    def _clean(self, text: str) -> str:
        text = _EACH_CONTROL.sub("", text)
        return self._blobs.sub(lambda found: "" if is_blob(found[0]) else found[0], text)


def is_blob(run: str) -> bool:
    """Whether a run without spaces is data: upper case, lower case and digits mixed, and no word among them."""
    kinds = (any(map(str.isupper, run)), any(map(str.islower, run)), any(map(str.isdigit, run)))
    turns = sum(a.isupper() != b.isupper() or a.isdigit() != b.isdigit() for a, b in itertools.pairwise(run))
    return all(kinds) and turns / len(run) > 0.2


def markup_share(column: Any) -> Any:
    """`[n]`: the share of each text's characters that are tags and entities."""
    before = np.asarray(pc.utf8_length(column).to_numpy(zero_copy_only=False), np.float64)
    after = np.asarray(
        pc.utf8_length(pc.replace_substring_regex(column, _TAGS, "")).to_numpy(zero_copy_only=False), np.float64
    )
    return np.divide(before - after, before, out=np.zeros(len(before)), where=before > 0)


class Normalize(Transform):
    """Brings texts into one Unicode form, and repairs those that were decoded by the wrong character set (ftfy)."""

    merges = True

    def __init__(self, name: str, form: str, mojibake: bool) -> None:
        self.name = name
        self.form: Any = form
        self.mojibake = mojibake
        if mojibake:
            try:
                import ftfy.badness
            except ImportError as error:
                raise PipelineError(f'stage "{name}" needs ftfy: pip install "headrace[filters]"') from error
            self._is_bad: Callable[[str], bool] = ftfy.badness.is_bad
            self._fix: Callable[[str], str] = ftfy.fix_encoding

    def process(self, batch: Batch) -> Batch:
        """The batch with its texts in order."""
        column: Any = text_of(batch, self.name)
        beyond_ascii = pc.not_equal(pc.binary_length(column), pc.utf8_length(column))
        return change(batch, self.name, beyond_ascii, self._clean)

    def _clean(self, text: str) -> str:
        if self.mojibake and self._is_bad(text):
            text = self._fix(text)
        if self.form and not unicodedata.is_normalized(self.form, text):
            text = unicodedata.normalize(self.form, text)
        return text


def change(batch: Batch, stage: str, hint: Any, edit: Callable[[str], str]) -> Batch:
    """The batch with `edit(text)` for the texts where `hint` holds."""
    places = np.flatnonzero(np.asarray(hint.to_numpy(zero_copy_only=False), np.bool_))
    if not len(places):
        return batch
    column: Any = text_of(batch, stage)
    new = [edit(text) for text in column.take(as_column(places)).to_pylist()]
    mask = np.zeros(len(column), np.bool_)
    mask[places] = True
    texts: Any = pc.replace_with_mask(column, as_column(mask), pa.array(new, column.type))
    return with_texts(batch, stage, texts, mask)
