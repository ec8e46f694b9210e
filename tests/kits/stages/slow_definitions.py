"""Each definition again, plain and slow, over Python strings and lists."""

# ruff: noqa: RUF001

from __future__ import annotations

import re
from collections import Counter

from headrace.stages.quality.gopher import STOP_WORDS
from headrace.stages.text import characters as ch
from headrace.stages.text.affixes import UNITS
from headrace.stages.text.specials import special_words

FLAGS = ch.flags_table()
SPECIAL = special_words()
MEASURES = set(UNITS.split())


def has(character: str, flag: int) -> bool:
    return bool(FLAGS[ord(character)] & flag)


def prefix(piece: str) -> int:
    if has(piece[0], ch.PREFIX):
        return 1
    if piece[0] == "+":
        return 0 if re.match(r"\+[0-9]", piece) else 1
    found = re.match(r"\.\.+|US\$|[CA]\$", piece)
    return found.end() if found else 0


def suffix(piece: str) -> int:
    if not piece:
        return 0
    lengths = [0]
    tail = re.search(r"(?<=[0-9])[^0-9]{1,4}$", piece)
    if tail and (tail[0] in MEASURES or (len(tail[0]) == 1 and has(tail[0], ch.CURRENCY))):
        lengths.append(len(tail[0]))
    if found := re.search(r"\.\.+$|……$|['’][sS]$|(?<=[0-9])\+$|(?<=°[CFK])\.$", piece):
        lengths.append(len(found[0]))
    if has(piece[-1], ch.SUFFIX):
        lengths.append(1)
    if piece.endswith("."):
        before = piece[:-1]
        if before and has(before[-1], ch.BEFORE_STOP):
            lengths.append(1)
        if len(before) >= 2 and has(before[-1], ch.UPPER) and has(before[-2], ch.UPPER):
            lengths.append(1)
    return max(lengths)


def infix(piece: str, at: int) -> int:
    if has(piece[at], ch.ICON) or piece[at] == "…":
        return 1
    if found := re.match(r"\.\.+", piece[at:]):
        return found.end()
    if at == 0 or at + 1 == len(piece):
        return 0
    before, this, after = piece[at - 1], piece[at], piece[at + 1]
    digit, letter = before in "0123456789", has(before, ch.LETTER)
    if digit and this in "+-*^" and after in "0123456789-":
        return 1
    if this == "." and has(before, ch.LOWER | ch.QUOTE) and has(after, ch.UPPER | ch.QUOTE):
        return 1
    if this == "," and letter and has(after, ch.LETTER):
        return 1
    if (digit or letter) and this in ":<>=/" and has(after, ch.LETTER):
        return 1
    if digit or letter:
        for hyphen in ("-", "–", "—", "~", "--", "---", "——"):
            behind = piece[at + len(hyphen) :]
            if piece.startswith(hyphen, at) and behind and has(behind[0], ch.LETTER):
                return len(hyphen)
    return 0


def is_url(piece: str) -> bool:
    starts = [0, *(found.end() for found in re.finditer("@", piece) if found.start() > 0)]
    starts += [at + 3 for at in range(2, len(piece)) if piece.startswith("://", at) and _is_scheme(piece[:at])]
    return any(_is_host(piece[start:]) for start in starts)


def _is_scheme(text: str) -> bool:
    return all(has(c, ch.ALPHA) or c in "0123456789_+-." for c in text)


def _is_host(text: str) -> bool:
    plain = "[A-Za-z0-9\u00a1-\uffff]"
    found = re.match(rf"((?:{plain}|[._-])+)(:[0-9]{{2,5}})?(?:[/?#].*)?$", text, re.DOTALL)
    if found is None:
        return False
    *labels, top = found[1].split(".")
    if not labels or not 2 <= len(top) <= 63 or not all(has(c, ch.LOWER) for c in top):
        return False
    label = re.compile(rf"{plain}(?:(?:{plain}|[_-]){{0,62}}{plain})?")
    return all(label.fullmatch(part) for part in labels)


def cut(piece: str) -> list[str]:
    head: list[str] = []
    tail: list[str] = []
    while piece and piece not in SPECIAL:
        first = prefix(piece)
        if first and piece[first:] in SPECIAL:
            head.append(piece[:first])
            piece = piece[first:]
            break
        last = suffix(piece[first:])
        if last and piece[:-last] in SPECIAL:
            tail.append(piece[-last:])
            piece = piece[:-last]
            break
        if not first and not last:
            break
        head += [piece[:first]] if first else []
        tail += [piece[-last:]] if last else []
        piece = piece[first : len(piece) - last]
    return joined([*head, *middle(piece), *reversed(tail)])


def joined(parts: list[str]) -> list[str]:
    """Neighbours that are a special word become it again, the longest first."""
    found: list[str] = []
    while parts:
        length = next(
            (n for n in range(6, 1, -1) if n <= len(parts) and len(SPECIAL.get("".join(parts[:n]), "")) == 1), 1
        )
        found.append("".join(parts[:length]))
        parts = parts[length:]
    return found


def middle(piece: str) -> list[str]:
    if not piece:
        return []
    if piece in SPECIAL:
        return list(SPECIAL[piece])
    if is_url(piece):
        return [piece]
    parts, begin, at = [], 0, 0
    while at < len(piece):
        length = infix(piece, at)
        if length and at:
            parts += [piece[begin:at]] if at > begin else []
            parts.append(piece[at : at + length])
            begin = at + length
        at += length or 1
    return parts + ([piece[begin:]] if begin < len(piece) else [])


def words(text: str) -> list[str]:
    return [word for piece in text.split() for word in cut(piece)]


def duplicates(parts: list[str]) -> tuple[float, int]:
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        seen.add(part)
    return count / len(parts), characters


def repetition(text: str) -> list[float]:
    size = len(text) or 1
    paragraphs, paragraph_characters = duplicates(re.split(r"\n{2,}", text.strip()))
    lines, line_characters = duplicates(re.split(r"\n+", text))
    found = words(text)
    shares = [paragraphs, paragraph_characters / size, lines, line_characters / size]
    for length in (2, 3, 4):
        grams = Counter(tuple(found[at : at + length]) for at in range(len(found) - length + 1))
        top, count = grams.most_common(1)[0] if grams else (("",), 0)
        shares.append(len(" ".join(top)) * count / size)
    for length in range(5, 11):
        seen, at, characters = set(), 0, 0
        while at + length <= len(found):
            gram = tuple(found[at : at + length])
            if gram in seen:
                characters += len("".join(gram))
                at += length
            else:
                seen.add(gram)
                at += 1
        shares.append(characters / size)
    return shares


def gopher(text: str) -> list[float]:
    found, lines = words(text), text.splitlines()
    plain = [word for word in found if any(not has(c, ch.SYMBOL) for c in word)]
    count = len(found) or 1
    return [
        len(plain),
        sum(map(len, plain)) / (len(plain) or 1),
        text.count("#") / count if found else 0,
        (text.count("...") + text.count("…")) / count if found else 0,
        sum(line.lstrip().startswith(("•", "-")) for line in lines) / (len(lines) or 1),
        sum(line.rstrip().endswith(("...", "…")) for line in lines) / (len(lines) or 1),
        sum(any(c.isalpha() for c in word) for word in found) / count,
        len(set(found) & set(STOP_WORDS)),
    ]


def lowered(text: str) -> str:
    return "".join(c.lower() if c.isascii() else c for c in text)


def sentences(line: str) -> int:
    count, ended = 1, False
    for word in words(line):
        if len(word) == 1 and has(word, ch.SENTENCE_END):
            ended = True
        elif ended and not all(has(c, ch.PUNCTUATION) for c in word):
            count, ended = count + 1, False
    return count


POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


def c4(text: str, punctuated: bool = False) -> tuple[int, int, int, str]:
    """Sentences, outcome, lines dropped, text."""
    count = dropped = 0
    kept: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        pieces = line.split()
        dropped += bool(line)
        if any(len(piece) > 1000 for piece in pieces):
            continue
        line = re.sub(r"\[[0-9]*\]|\[edit\]|\[citation needed\]", "", line)
        if punctuated and (not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...")):
            continue
        if len(pieces) < 3:
            continue
        low = lowered(line)
        if "lorem ipsum" in low:
            return 0, 1, dropped - bool(pieces), ""
        if "javascript" in low:
            continue
        if "{" in line:
            return 0, 2, dropped - bool(pieces), ""
        if any(policy in low for policy in POLICIES):
            continue
        dropped -= bool(pieces)
        count += sentences(line)
        kept.append(line)
    return count, 0, dropped, "\n".join(kept).strip()


def fineweb(text: str, short: int = 30) -> list[float]:
    lines = [line for line in text.split("\n") if line.strip()]
    count = len(lines) or 1
    return [
        len(lines),
        sum(has(line[-1], ch.LINE_END) for line in lines) / count,
        sum(len(line) <= short for line in lines) / count,
        (duplicates(lines)[1] / (len(text) - text.count("\n"))) if lines else 0,
        text.count("\n") / (len(words(text)) or 1) if words(text) else 0,
    ]
