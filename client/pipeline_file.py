"""A pipeline file becomes a Pipeline: its `build` is called with the `-p` parameters of the command line."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.client.errors import CliError, UsageError
from headrace.daemon import said_aside
from headrace.pipeline import MODULES_BYTES_MAX, Pipeline, PipelineError, mask, validate
from headrace.stages.runtime import InputError, environment, forget_modules, progress_to
from headrace.stages.shipping import cell_modules, has_user_code, modules_of
from headrace.stages.sources.objects import with_followed_links

#: The name under which a pipeline file is imported, here and in each task.
MODULE = "pipeline"
#: The folder of the pipeline file in sys.path, where this module has put it there.
_BESIDE: list[str] = []
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


def load(path: Path, given: Sequence[str], *, follow_links: bool = False) -> Pipeline:
    """The checked pipeline that `path` declares, for parameters given as `name=value`.

    With `follow_links`, its sources follow links out of the folders that they are given.
    Raises UsageError for the file and its parameters, PipelineError and InputError for what they declare.
    """
    build = load_build(path)
    arguments = convert(build, parse_parameters(given), path.name)
    try:
        with progress_to(_say), users_code(path):
            pipeline = build(**arguments)
    except Exception as error:
        raise _from_user_code(error, path) from error
    if not isinstance(pipeline, Pipeline):
        kind = type(pipeline).__name__
        raise CliError(
            f"{path.name}: build() returned {kind}, not a Pipeline; end it with `return Pipeline.chain(...)`"
        )
    if follow_links:
        from headrace.stages.sources.objects import SOURCES

        stages = (with_followed_links(stage) if stage.target in SOURCES else stage for stage in pipeline.stages)
        pipeline = replace(pipeline, stages=tuple(stages))
    with users_code(path):
        return complete(pipeline, {MODULE: _text_of(path)})


@contextlib.contextmanager
def users_code(path: Path) -> Iterator[None]:
    """Run code of a pipeline file: what it prints goes to standard error, since standard output is the command's.

    Raises CliError where it asks for the end of the process, which would end the command in silence.
    """
    try:
        with said_aside():
            yield
    except SystemExit as error:
        raise _from_user_code(error, path) from error


def _say(line: str) -> None:
    """Said before there is a run to show: as a note of its progress will be."""
    print(mask(f"headrace: {line}"), file=sys.stderr, flush=True)


def complete(pipeline: Pipeline, modules: Mapping[str, str]) -> Pipeline:
    """The pipeline with an absolute dataset, the user's code that it refers to, and its environment; checked."""
    whole = replace(
        pipeline,
        dataset=absolute_uri(pipeline.dataset),
        modules={**pipeline.modules, **modules_of(pipeline, {**cell_modules(), **modules})},
        environment=environment(everything=has_user_code(pipeline)),
    )
    validate(whole)
    from headrace.stages.sources.objects import preflight

    preflight(whole)
    return whole


def absolute_uri(uri: str) -> str:
    """The URI in the form that means the same in each process. Raises PipelineError, StoreError."""
    if not uri:
        raise PipelineError("the output is empty: give a folder such as ./data/out, or file:///data/out")
    from headrace.store import open_store

    return open_store(uri).uri


def load_build(path: Path) -> Callable[..., Any]:
    """The function `build` of a pipeline file, which is imported under the name `pipeline`."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not exist"
        raise UsageError(f"pipeline file {str(path)!r} {what}: give the path of a Python file with a function build()")
    forget_modules()
    _search_beside(path)
    module = types.ModuleType(MODULE)
    module.__file__ = str(path.resolve())
    text = _text_of(path)
    try:
        code = compile(text, str(path), "exec", dont_inherit=True)
        linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
        sys.modules[MODULE] = module
        with users_code(path):
            exec(code, module.__dict__)  # noqa: S102 - running the user's pipeline file is what was asked for
    except Exception as error:
        raise _from_user_code(error, path) from error
    build = getattr(module, "build", None)
    if not callable(build):
        raise UsageError(
            f"{path.name} has no function build(): define `def build(input: str, output: str) -> Pipeline`"
        )
    return typing.cast("Callable[..., Any]", build)


def _text_of(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        try:
            text = file.read(MODULES_BYTES_MAX + 1)
        except UnicodeDecodeError as error:
            raise UsageError(f"pipeline file {str(path)!r} is not UTF-8 text: {error}") from error
    if len(text) > MODULES_BYTES_MAX:
        raise UsageError(
            f"pipeline file {str(path)!r} has more than {MODULES_BYTES_MAX} characters, which is the limit"
        )
    return text


def _search_beside(path: Path) -> None:
    """Let the file import what lies beside it, and no longer what lay beside the file before it."""
    while _BESIDE:
        sys.path.remove(_BESIDE.pop())
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        # At the end: it hides nothing that is installed.
        sys.path.append(folder)
        _BESIDE.append(folder)


def parse_parameters(given: Sequence[str]) -> dict[str, str]:
    """`name=value` pairs as a mapping; UsageError for anything else, and for a name given twice."""
    found: dict[str, str] = {}
    for pair in given:
        name, separator, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name.isidentifier():
            raise UsageError(f"parameter {pair!r} is not of the form name=value")
        if name in found:
            raise UsageError(f"parameter {name!r} is given twice: {found[name]!r} and {value!r}")
        found[name] = value
    return found


def convert(build: Callable[..., Any], given: Mapping[str, str], where: str) -> dict[str, Any]:
    """The arguments of `build`, each converted to the type that its signature names. Raises UsageError."""
    try:
        parameters = inspect.signature(build, eval_str=True).parameters
    except Exception as error:
        raise CliError(f"{where}: the signature of build() cannot be read: {type(error).__name__}: {error}") from error
    open_ended = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
    named = {
        name: item
        for name, item in parameters.items()
        if item.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }
    unknown = [name for name in given if name not in named]
    if unknown and not open_ended:
        raise UsageError(f"{where} has no parameter {unknown[0]!r}; it takes: {describe(named)}")
    missing = [name for name, item in named.items() if item.default is item.empty and name not in given]
    if missing:
        needed = " ".join(f"-p {name}=..." for name in missing)
        raise UsageError(f"{where} needs {needed}; it takes: {describe(named)}")
    return {name: _convert(name, text, named[name]) if name in named else text for name, text in given.items()}


def describe(parameters: Mapping[str, inspect.Parameter]) -> str:
    """The parameters with their types and defaults, in one line."""
    parts: list[str] = []
    for name, item in parameters.items():
        default = "" if item.default is item.empty else f" = {item.default!r}"
        parts.append(f"{name}: {_type_name(_expected(item))}{default}")
    return ", ".join(parts) or "no parameters"


def _convert(name: str, text: str, parameter: inspect.Parameter) -> Any:
    expected = _expected(parameter)
    try:
        return convert_value(text, expected)
    except ValueError:
        message = f"parameter {name!r} is {text!r}, expected {_type_name(expected)}"
        raise UsageError(message) from None


def convert_value(text: str, expected: Any) -> Any:
    """`text` as the annotation `expected` has it; ValueError where it cannot be read as that."""
    origin = typing.get_origin(expected)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(text, typing.get_args(expected))
    if origin is typing.Literal:
        for choice in typing.get_args(expected):
            if text == str(choice):
                return choice
        raise ValueError(text)
    if origin in (list, tuple, Sequence):
        inner = typing.get_args(expected)[0] if typing.get_args(expected) else str
        items = [convert_value(part, inner) for part in text.split(",") if part]
        return tuple(items) if origin is tuple else items
    if expected is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ValueError(text)
    if expected is type(None):
        if text.lower() in ("none", ""):
            return None
        raise ValueError(text)
    if expected in (int, float, Path):
        return expected(text)
    return text


def _convert_union(text: str, choices: Sequence[Any]) -> Any:
    """None first, since a word would swallow it; str last, since it takes anything."""
    for choice in sorted(choices, key=lambda kind: (kind is not type(None), kind is str)):
        try:
            return convert_value(text, choice)
        except ValueError:
            continue
    raise ValueError(text)


def _expected(parameter: inspect.Parameter) -> Any:
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    unknown = parameter.default is parameter.empty or parameter.default is None
    return str if unknown else type(parameter.default)


def _type_name(kind: Any) -> str:
    if kind is bool:
        return "bool (true or false)"
    if isinstance(kind, type):
        return kind.__name__
    return str(kind).replace("typing.", "").replace("NoneType", "None")


def _from_user_code(error: Exception | SystemExit, path: Path) -> Exception:
    """An error raised by the user's file, with the line where it came from; our own errors as they are."""
    if isinstance(error, (CliError, PipelineError, InputError)):
        return error
    if isinstance(error, SyntaxError):
        return CliError(f"{path.name}:{error.lineno}: {error.msg}: {(error.text or '').strip()}")
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_code.co_filename == str(path)]
    where = f"{path.name}:{lines[-1]}" if lines else path.name
    return CliError(f"{where}: {type(error).__name__}: {error}")
