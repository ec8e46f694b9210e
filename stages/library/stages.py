"""The ready-made stages as a pipeline file declares them. Light: no stage's own libraries are imported here.

Each function returns a declaration; `name` is what the stage is called in verdicts, counts and status.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import pathlib
import shlex
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from headrace.pipeline import PipelineError, Stage, StageKind, fingerprint
from headrace.stages.runtime import check_integer, check_number, check_path, check_text
from headrace.stages.shipping import as_module, cell_modules, travels_as_text
from headrace.stages.tokenizer import TokenizerFacts, choose_engine, resolve_tokenizer

MIB = 1 << 20
#: The fact of a `tokenize` stage that says what encodes, with versions. The sink behind it does not ask.
_ENGINE = "tokenizer_engine"


def tokenize(tokenizer: str | os.PathLike[str], *, eos: str | None = "auto", name: str = "tokenize") -> Stage:
    """Turn text into tokens, those of Hugging Face tokenizers without special tokens, and `eos` behind each text.

    `tokenizer` is the path of a tokenizer.json or a name (`headrace.stages.tokenizer.vocabulary`). `eos` is a token,
    "auto" for the one that the tokenizer names, or None.
    """
    facts = _facts(name, tokenizer, eos)
    choice = choose_engine(facts.path, facts.sha256)
    return Stage(
        name,
        StageKind.TRANSFORM,
        "headrace.stages.tokenizer.tokenize:Tokenize",
        {"tokenizer": facts.path, "sha256": facts.sha256, "eos_id": facts.eos_id, "choice": choice.to_dict()},
        identity={**_identity(facts), _ENGINE: choice.engine},
        volatile=("tokenizer", "sha256", "eos_id", "choice"),
    )


def write_tokens(
    tokenizer: Stage | str | os.PathLike[str],
    *,
    seq_len: int = 2048,
    overlap: int = 0,
    shard_bytes: int = 32 * MIB,
    eos: str | None = "auto",
    name: str = "write",
) -> Stage:
    """Pack documents into sequences of `seq_len` tokens and write shards of about `shard_bytes` of tokens.

    `tokenizer` is the `tokenize` stage before it, or the tokenizer's name and its `eos`. Of a document longer than
    `seq_len`, each piece but the first begins with the last `overlap` tokens of the piece before it, as context.
    """
    check_integer(name, "seq_len", seq_len, 2, 1 << 24)
    check_integer(name, "overlap", overlap, 0, seq_len - 1)
    check_integer(name, "shard_bytes", shard_bytes, 1 << 10, 1 << 32)
    if isinstance(tokenizer, Stage):
        missing = [fact for fact in ("tokenizer_sha256", "vocab_size") if fact not in tokenizer.identity]
        if missing:
            raise PipelineError(f'stage "{name}": {tokenizer.name!r} is no tokenize stage: it has no {missing[0]}')
        identity = {fact: value for fact, value in tokenizer.identity.items() if fact != _ENGINE}
    else:
        identity = _identity(_facts(name, tokenizer, eos))
    parameters = {"seq_len": seq_len, "shard_bytes": shard_bytes, **identity}
    parameters |= {"overlap": overlap} if overlap else {}
    target = "headrace.stages.sinks.tokens:TokenSink"
    return Stage(name, StageKind.SINK, target, parameters, identity=identity, volatile=("shard_bytes",))


def write_documents(*, shard_bytes: int = 256 * MIB, name: str = "documents") -> Stage:
    """Write the text as Parquet, a row a kept record, in shards of about `shard_bytes` bytes of text.

    It stands before `tokenize`, or beside it as a second sink.
    """
    return _text_sink("DocumentSink", shard_bytes, name)


def write_jsonl(*, shard_bytes: int = 256 * MIB, name: str = "lines") -> Stage:
    """Write the text as JSON Lines under zstd: {"id", "text", "metadata"} a line; else as `write_documents`."""
    return _text_sink("JsonlSink", shard_bytes, name)


def _text_sink(kind: str, shard_bytes: int, name: str) -> Stage:
    check_integer(name, "shard_bytes", shard_bytes, 1 << 10, 1 << 32)
    target, parameters = f"headrace.stages.sinks.texts:{kind}", {"shard_bytes": shard_bytes}
    return Stage(name, StageKind.SINK, target, parameters, volatile=("shard_bytes",))


def map_records(function: Callable[[dict[str, Any]], Any] | str, *, splits: bool = False, name: str = "") -> Stage:
    """Call `function(record) -> record | str | None` on each record: {"id", "text", "metadata"}.

    A string filters the record, and is the reason in its verdict; None filters it too.
    `function` stands at the top level of the pipeline file or of a module, or is its import path; one of a notebook
    travels as text, with what it uses. With
    `splits` it returns a list of records, the parts of this one (none, or None: filtered); part n is called `<id>/<n>`.
    """
    return _custom("split:SplitRecords" if splits else "functions:MapRecords", function, name)


def filter_records(function: Callable[[dict[str, Any]], bool] | str, *, name: str = "") -> Stage:
    """Keep each record for which `function(record)` is true; see `map_records`."""
    return _custom("functions:FilterRecords", function, name)


def map_batches(function: Callable[[Any], Any] | str, *, splits: bool = False, name: str = "") -> Stage:
    """Call `function(rows) -> rows` on Arrow record batches; rows that it leaves out are filtered.

    The rows have the columns `__row`, `id`, `text` and `metadata`; `__row` ties a row to its record. With `splits`
    a row may be given back any number of times: as the parts of its record, in that order.
    """
    return _custom("split:SplitBatches" if splits else "functions:MapBatches", function, name)


def command(
    line: str | Sequence[str],
    *,
    seconds: float = 30.0,
    succeeds: Sequence[int] = (0,),
    name: str = "",
    arrow: bool = False,
) -> Stage:
    """Give each record to an executable, as a line of JSON, and take the line that it gives back.

    `line` is split as a shell would and run without one; a list is taken as it is. A record goes in as `{"__row", "id",
    "text", "metadata"}` and comes out in the same order, with `__row` and `id` as they were; one that does not come
    out is filtered. `seconds` is how long the command may be silent while it has records to answer; `succeeds` are the
    exit codes that mean that all is well. What it fails on is quarantined alone. With `arrow=True` standard input
    and output are Arrow IPC streams of the same columns: the answer to a batch is one batch, which may be empty.
    """
    try:
        arguments = shlex.split(line) if isinstance(line, str) else [str(part) for part in line]
    except ValueError as error:
        raise PipelineError(f'stage "{name or "command"}": {line!r} cannot be split into words: {error}') from error
    if not arguments:
        raise PipelineError(f'stage "{name or "command"}": a command has at least one word')
    called = name or pathlib.PurePath(arguments[0]).name
    check_number(called, "seconds", seconds, 0.1, 86400)
    codes = list(succeeds)
    for code in codes:
        check_integer(called, "succeeds", code, 0, 255)
    parameters: dict[str, Any] = {"arguments": arguments, "seconds": float(seconds), "succeeds": codes}
    if arrow:
        parameters["arrow"] = True
    target = "headrace.stages.commands.command:Command"
    identity = _files_identity(arguments)
    return Stage(called, StageKind.TRANSFORM, target, parameters, identity=identity, volatile=("seconds",))


def _files_identity(arguments: Sequence[str]) -> dict[str, str]:
    """The hash of the executable and of each file that is named, so that another script is another pipeline."""
    state = hashlib.sha256()
    found = [shutil.which(arguments[0]), *(word for word in arguments[1:] if os.path.isfile(word))]
    for path in found:
        if path is not None:
            with open(path, "rb") as file:
                state.update(hashlib.file_digest(file, "sha256").digest())
    return {"command_sha256": state.hexdigest()[:16]} if any(found) else {}


def _facts(stage: str, tokenizer: str | os.PathLike[str], eos: str | None) -> TokenizerFacts:
    name = check_path(stage, "tokenizer", tokenizer)
    if eos is not None:
        check_text(stage, "eos", eos)
    return resolve_tokenizer(name, eos)


def _identity(facts: TokenizerFacts) -> dict[str, Any]:
    return {
        "tokenizer_sha256": facts.sha256,
        "vocab_size": facts.vocab_size,
        "eos_id": facts.eos_id,
        "pad_id": facts.pad_id,
    }


def _custom(kind: str, function: Callable[..., Any] | str, name: str) -> Stage:
    if not isinstance(function, str) and travels_as_text(function):
        function = as_module(function)
    path = function if isinstance(function, str) else _import_path(function)
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise PipelineError(f'function "{path}" is not of the form package.module:function')
    called = name or attribute.rpartition(".")[2].strip("_").lower()
    target, identity = f"headrace.stages.functions.{kind}", _source_identity(module, function)
    return Stage(called, StageKind.TRANSFORM, target, {"function": path}, identity=identity)


def _import_path(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    qualified = getattr(function, "__qualname__", None)
    if not callable(function) or not module or not qualified:
        raise PipelineError(f"{function!r} is not a function: give one that is defined with def, or its import path")
    if "<" in qualified or module == "__main__":
        raise PipelineError(
            f"function {qualified!r} cannot be found by its name in another process: "
            "define it with def at the top level of the pipeline file or of a module"
        )
    return f"{module}:{qualified}"


def _source_identity(module: str, function: Callable[..., Any] | str) -> dict[str, str]:
    """What decides in the module's text, so that other code is another pipeline; none where it cannot be read."""
    if module in cell_modules():
        return {"function_code": fingerprint(cell_modules()[module])}
    try:
        if isinstance(function, str):
            spec = importlib.util.find_spec(module)
            source = spec.origin if spec else None
        else:
            source = inspect.getsourcefile(function)
        data = pathlib.Path(source or "").read_bytes()
    except (OSError, ImportError, TypeError, ValueError):
        return {}
    try:
        return {"function_code": fingerprint(importlib.util.decode_source(data))}
    except (SyntaxError, UnicodeDecodeError):
        return {"function_code": hashlib.sha256(data).hexdigest()[:16]}
