"""No secret that a URI carries is shown: not by a command, a log or an error."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.daemon.log_lines import line_of
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.masking import SecretShownError, check_arguments, mask, secret_in
from headrace.stages.runtime.errors import InputError
from headrace.store.contract.errors import InvalidUri, StoreError
from headrace.store.open import open_store

SECRET = "PlantedS3cret"
URIS = [
    f"s3://key:{SECRET}@bucket/x",
    f"s3://bucket/x?X-Amz-Signature={SECRET}",
    f"s3://bucket/x?endpoint=http://user:{SECRET}@127.0.0.1:1",
    f"https://user:{SECRET}@127.0.0.1:1/x.jsonl",
    f"https://127.0.0.1:1/x.jsonl?a=1&x-amz-security-token={SECRET}",
    f"gs://{SECRET}@bucket/x?sig={SECRET}",
    f"abfs://c@account/x?account_key={SECRET}",
    f"abfs://c@account/x?a=1;AccountKey={SECRET}",
    f"https://127.0.0.1:1/x#access_token={SECRET}",
    *(f"sftp://host/x?{name}={SECRET}" for name in ("pwd", "passphrase", "private_key", "jwt", "auth", "x-auth")),
    # A server decodes a name, and frameworks read a list or a table from brackets behind it.
    *(f"https://h/x?a=1&{name}={SECRET}" for name in ("tok%65n", "%74%6F%6B%65%6E", "a.b%2Fpassword", "api+key")),
    *(
        f"https://h/x?{name}={SECRET}&b=2"
        for name in ("token[]", "token%5B0%5D", "a[sig]", "a[pwd][1]", "a" * 160 + "sig")
    ),
]
#: Keys as their makers shape them, made of nothing.
KEYS = [
    "AKIA" + "Q7" * 8,
    "hf_" + "aB3" * 12,
    "ghp_" + "aB3d" * 9,
    "github_pat_" + "aB3d_" * 12,
    "glpat-" + "aB3d-" * 4 + "x",
    "sk-proj-" + "aB3d" * 9,
    "AIza" + "aB3d_" * 7,
    "xoxb-" + "12aB-" * 6 + "c",
    "-----BEGIN RSA PRIVATE KEY-----",
]
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("masked", output, read_jsonl(input), write_documents())
"""


@pytest.mark.parametrize("uri", URIS)
def test_a_text_is_shown_without_the_secrets_of_its_uris(uri: str) -> None:
    shown = mask(f"cannot read {uri!r}: and {uri} see there")
    assert SECRET not in shown
    assert "cannot read" in shown
    assert shown.endswith(" see there")


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a?endpoint=http://h:1&region=eu&kms_key=alias/a",
        "https://h/x?author=a&key=b&text_key=c#part=2",
        "mail a@b.c about -p tokenizer=x.json",
        "file:///data/a=b?c",
        "https://h/x?b[key]=1&tokens=2&a[author]=3&%C3%28=4;d=?e",
        "task-0123456789abcdef0123456789abcdef hf_small sk-learn AKIA",
    ],
)
def test_what_is_no_secret_is_shown_as_it_stands(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_known_by_its_shape(key: str) -> None:
    assert mask(f"login({key!r}) failed") == "login('***') failed"
    with pytest.raises(SecretShownError) as refused:
        check_arguments(["run", f"key={key}"], {})
    assert key not in str(refused.value)


@pytest.mark.parametrize("uri", URIS)
def test_a_secret_in_an_argument_or_variable_is_refused(uri: str) -> None:
    check_arguments(["run", "s3://bucket/x"], {"HEADRACE_STORE": "s3://bucket/x", "OTHER": uri})
    for arguments, environment, where in ((["run", uri], {}, "an argument"), ([], {"HEADRACE_X": uri}, "HEADRACE_X")):
        with pytest.raises(SecretShownError, match=f"^{where} carries a secret") as refused:
            check_arguments(arguments, environment)
        assert SECRET not in str(refused.value)


def test_a_secret_in_data_is_named_by_its_place_and_masked() -> None:
    data = {"a": 1, "stages": [{"uri": "s3://bucket/x"}, {"uri": URIS[0]}, None], "b": (True,)}
    assert secret_in(data) == "stages.uri: 's3://***@bucket/x'"
    assert secret_in({"x": {URIS[0]: 1}}) == "x: 's3://***@bucket/x'"
    assert secret_in((1, URIS[0])) == ": 's3://***@bucket/x'"
    assert secret_in({"a": ["s3://bucket/x", 7, None]}) == ""


def test_a_parameter_is_masked_without_a_scheme_before_it() -> None:
    assert mask("x?token=a&y=1") == "x?token=***&y=1"
    assert mask("x&token=a") == "x&token=***"


@pytest.mark.parametrize("kind", [StoreError, InvalidUri, PipelineError, InputError])
@pytest.mark.parametrize("uri", URIS)
def test_an_error_does_not_show_the_secrets_of_what_it_quotes(kind: type[Exception], uri: str) -> None:
    assert SECRET not in str(kind(f"{uri}: nothing there"))


@pytest.mark.parametrize("uri", URIS)
def test_a_store_is_refused_without_its_secret(uri: str) -> None:
    with pytest.raises(InvalidUri) as refused:
        open_store(uri)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("uri", URIS)
def test_a_log_line_holds_no_secret_in_message_facts_or_traceback(uri: str) -> None:
    try:
        raise ValueError(f"no way to {uri}")
    except ValueError:
        record = logging.LogRecord("headrace", logging.ERROR, "", 0, "cannot open %s", (uri,), sys.exc_info())
    record.facts = {"store": uri}
    line = line_of(record, "worker one")
    assert SECRET.encode() not in line
    assert json.loads(line)["message"].startswith("cannot open ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "masked.py", "-p", "input={uri}", "-p", "output=out"],
        ["run", "masked.py", "-p", "input=in.jsonl", "-p", "output={uri}"],
        ["dataset", "show", "{uri}", "--json"],
    ],
    ids=["input", "output", "dataset"],
)
@pytest.mark.parametrize("uri", [URIS[1], URIS[3]])
def test_a_command_writes_a_secret_nowhere(arguments: list[str], uri: str, tmp_path: Path) -> None:
    (tmp_path / "masked.py").write_text(PIPELINE)
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    given = [argument.replace("{uri}", uri) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "headrace.cli", *given],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "HEADRACE_LOGS": str(tmp_path / "logs")},
        timeout=300,
    )
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(b"headrace: ")
    assert SECRET.encode() not in done.stdout + done.stderr
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in data for data in written)
