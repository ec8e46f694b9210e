"""A secret in a URI is refused where it comes in, at every option of every command, and is shown nowhere.

The options are asked of the parsers, so that a new one is tried as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headrace.chaos.live.scenario.scenario_file import scenario_of
from headrace.cli import __main__ as entry
from headrace.cli.main import app, invoke
from headrace.client.errors import UsageError
from headrace.controller import server
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.pipeline.masking import mask
from headrace.pipeline.validation import validate
from headrace.worker import daemon
from headrace.worker.spool import server as spool_server

SECRET = "PlantedS3cret"
URIS = [
    f"s3://key:{SECRET}@bucket/x",
    f"s3://AKIA:{SECRET}/with/slashes+and==@bucket/x",
    f"s3://bucket/x?X-Amz-Signature={SECRET}",
    f"s3://bucket/x?endpoint=http://user:{SECRET}@127.0.0.1:1",
    f"file://user:{SECRET}@host/data",
    f"https://user:{SECRET}@127.0.0.1:1/x.jsonl",
]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the parser, below all groups."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))
#: Every option and argument that takes text, as (command, how it is given).
PLACES = [
    (path, parameter.opts[-1] if parameter.param_type_name == "option" else "")
    for path, command in COMMANDS.items()
    for parameter in command.params
    if not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
]


def test_the_parser_was_asked() -> None:
    assert len(COMMANDS) > 25
    assert {(("run",), "--parameter"), (("dataset", "show"), ""), (("controller",), "--root")} <= set(PLACES)


@pytest.mark.parametrize(
    ("path", "option"), PLACES, ids=lambda item: " ".join(item) if isinstance(item, tuple) else item
)
def test_an_option_refuses_a_secret_and_does_not_show_it(
    path: tuple[str, ...], option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for uri in URIS:
        for value in (uri, f"name={uri}"):
            given = [*path, option, value] if option else [*path, value]
            assert invoke(given) == 2
            if option.startswith("--"):
                assert invoke([*path, f"{option}={value}"]) == 2
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err
    assert "carries a secret in a URI" in said.err


@pytest.mark.parametrize("uri", URIS)
def test_a_variable_of_headrace_is_refused_by_its_name(
    uri: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ROOT", uri)
    assert invoke(["status"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("headrace: HEADRACE_ROOT carries a secret")
    assert SECRET not in said


@pytest.mark.parametrize("main", [server.main, daemon.main, spool_server.main], ids=["controller", "worker", "spool"])
def test_every_process_of_headrace_refuses_it(
    main: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: list[str] = []
    parse = argparse.ArgumentParser.parse_args

    def note(parser: argparse.ArgumentParser, *_: Any) -> Any:
        options.extend(action.option_strings[-1] if action.option_strings else "" for action in parser._actions)
        raise SystemExit(2)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", note)
    with pytest.raises(SystemExit):
        main([])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    assert len(options) > 5
    for option in options:
        for uri in URIS:
            with pytest.raises(SystemExit) as ended:
                main([option, uri] if option else [uri])
            assert ended.value.code == 2
    assert SECRET not in "".join(capfd.readouterr())


def test_no_child_is_started_before_the_refusal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", "run", "x.py", "-p", f"input={URIS[0]}"])
    monkeypatch.setattr(entry, "_starts_processes", lambda _: pytest.fail("it began"))
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2
    assert SECRET not in "".join(capfd.readouterr())


def pipeline(**more: Any) -> Pipeline:
    stages = (
        Stage(
            "read", StageKind.SOURCE, "headrace.stages.sources.jsonl:JsonlSource", {"input": ["/data/*.jsonl"], **more}
        ),
        Stage("write", StageKind.SINK, "headrace.stages.sinks.texts:DocumentSink", {}),
    )
    return Pipeline.chain("planted", "file:///data/out", *stages)


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("where", ["dataset", "parameter", "key", "nested", "identity", "place"])
def test_a_pipeline_that_holds_one_is_refused_before_it_stands_anywhere(uri: str, where: str) -> None:
    given = pipeline()
    read, write = given.stages
    planted = {
        "dataset": replace(given, dataset=uri),
        "parameter": pipeline(extra=uri),
        "key": pipeline(extra={uri: 1}),
        "nested": pipeline(extra=[{"a": ["b", {"c": f"--from {uri} now"}]}]),
        "identity": replace(given, stages=(replace(read, identity={"of": uri}), write)),
        "place": replace(given, stages=(replace(read, on=uri), write)),
    }[where]
    validate(given)
    with pytest.raises(PipelineError) as refused:
        validate(planted)
    assert "carries a secret" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("secret", [URIS[0], "hf_" + "aB3" * 12])
def test_a_secret_in_shipped_code_is_refused_by_its_line(secret: str) -> None:
    given = pipeline()
    code = f"import os\n\ndef keep(text):\n    key = '{secret}'\n    return True\n"
    with pytest.raises(PipelineError) as refused:
        validate(replace(given, modules={"mine": code}))
    assert "the code of 'mine', line 4: \"    key = '" in str(refused.value)
    assert secret not in str(refused.value)


PIPELINE = f"""
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import command, read_jsonl, write_documents


def build(output: str) -> Pipeline:
    fetch = command(["cat", "{URIS[0]}"], name="fetch")
    return Pipeline.chain("planted", output, read_jsonl("in.jsonl"), fetch, write_documents())
"""


def test_a_run_of_a_file_that_holds_one_leaves_it_nowhere(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PIPELINE)
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "headrace.cli", "run", "planted.py", "-p", "output=out", "--json"],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "HEADRACE_LOGS": str(tmp_path / "logs")},
        timeout=300,
    )
    assert done.returncode == 1
    assert b"stage \"fetch\".parameters.arguments: 's3://***@bucket/x' carries a secret" in done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "planted.py"]
    assert SECRET.encode() not in done.stdout + done.stderr + b"".join(path.read_bytes() for path in written)


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8080/a@b",
        "s3://bucket/a@b.c",
        "s3://bucket/a:b@c",
        "insecure-tcp:127.0.0.1:7420",
        "unix:/run/headrace/controller.sock",
        "file:///home/a:b@c/x.jsonl",
    ],
)
def test_what_is_no_secret_is_let_be(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize("uri", URIS)
def test_a_scenario_that_holds_one_is_refused(uri: str) -> None:
    with pytest.raises(UsageError) as refused:
        scenario_of({"about": uri, "fault": [{"kind": "kill"}]}, "planted.toml")
    assert "carries a secret" in str(refused.value)
    assert SECRET not in str(refused.value)
