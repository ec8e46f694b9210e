"""Pipelines run from Python, as a notebook or a script does it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import Pipeline, read, write_documents
from headrace.client import Client
from headrace.stages.library import warm

TEXTS = [f"Text number {number} is long enough to be kept." for number in range(50)]
#: Limit on the start of a daemon, in seconds.
START_S = 120


def misspells(record: dict[str, Any]) -> bool:
    return bool(record["txt"])


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    lines = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(TEXTS)]
    (tmp_path / "corpus.jsonl").write_text("\n".join([*lines, "no record", ""]))
    return Pipeline.chain("texts", str(tmp_path / "out"), read(str(tmp_path / "corpus.jsonl")), write_documents())


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    """The address of a controller whose only worker has registered and is frozen: what is applied goes on."""
    address = f"unix:{tmp_path}/c"
    serve, work = ("controller", "--listen", address), ("worker", "--controller", address, "--cores", "1")
    with ended(*serve) as process, ended(*work) as worker:
        assert process.stderr is not None
        assert any("serves on" in line for line in process.stderr), "the controller ended before it served"
        with Client(address) as client:
            client.wait_for_worker(START_S, lambda: None)
        worker.send_signal(signal.SIGSTOP)
        yield address


@contextlib.contextmanager
def ended(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon that is killed at the end."""
    command = [sys.executable, "-m", "headrace", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=START_S)


def test_run_gives_a_report(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    report = headrace.run(pipeline, progress=False)
    assert report.state == "completed"
    assert report.balance.counts.kept == len(TEXTS)
    assert report.balance.counts.quarantined == 1
    assert report.seconds < 60, "seconds of the run and not of the process"
    assert capfd.readouterr() == ("", "")


def test_a_function_is_told_how_far_it_is(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[headrace.RunProgress] = []
    report = headrace.run(pipeline, progress=told.append)
    assert told[-1].state == report.state == "completed"
    assert told[-1].records_closed == len(TEXTS) + 1
    assert told[-1].share == 1.0
    assert capfd.readouterr() == ("", "")


def test_a_notebook_shows_the_page_of_the_command(pipeline: Pipeline) -> None:
    report = headrace.run(pipeline, progress=False)
    page = report._repr_html_()
    assert page.startswith("<pre")
    assert "balanced" in page
    assert repr(report).startswith("<RunResult 'texts' completed in ")


def test_the_same_run_again_reads_nothing(pipeline: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    headrace.run(pipeline)
    assert "texts: completed" in capfd.readouterr().err
    again = headrace.run(pipeline, headrace.RunOptions(replicas=1))
    assert again.bytes_read == 0
    assert again.balance.counts.kept == len(TEXTS)


def test_a_run_that_fails_raises(pipeline: Pipeline) -> None:
    with pytest.raises(headrace.CliError, match="quarantined"):
        headrace.run(pipeline, headrace.RunOptions(quarantined_max=0), progress=False)


def test_a_pipeline_without_input_raises_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(headrace.InputError, match="no file matches"):
        headrace.run(Pipeline.chain("none", str(tmp_path), read(str(tmp_path / "*.jsonl")), write_documents()))


def test_a_preview_counts_and_writes_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    shown = headrace.preview(pipeline, limit=10)
    assert (shown.records_read, shown.kept) == (10, 10)
    assert not (tmp_path / "out").exists()
    assert repr(shown).startswith("<PreviewResult 'texts': 10 records, 10 kept, 0 filtered, ")
    assert "preview of 10 records; nothing is written" in shown._repr_html_()
    assert "Text number 1 is long" in shown._repr_html_(), "samples as the command shows them"


def test_a_preview_says_what_an_error_of_a_function_was(pipeline: Pipeline) -> None:
    source, sink = pipeline.stages
    shown = headrace.preview(Pipeline.chain("t", pipeline.dataset, source, headrace.filter_records(misspells), sink))
    (removed,) = (item for item in shown.removed.values() if item.stage == "misspells")
    assert (removed.reason, removed.count) == ("KeyError", len(TEXTS))
    assert removed.example == "KeyError: 'txt'"
    assert "for example KeyError: &#x27;txt&#x27;" in shown._repr_html_()


@pytest.mark.parametrize("progress", [True, False])
def test_a_preview_says_what_is_compiled_first(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], progress: bool
) -> None:
    ended = [sys.executable, "-c", ""]
    monkeypatch.setattr(warm, "is_prepared", lambda _name: False)
    monkeypatch.setattr(warm, "is_kept", lambda: True)
    monkeypatch.setattr(warm, "_start", lambda _names: subprocess.Popen(ended))
    source, sink = pipeline.stages
    headrace.preview(Pipeline.chain("t", "out", source, headrace.gopher_quality(), sink), 1, progress=progress)
    told = "headrace: compiling gopher, once on this machine; 0 of 1 done\n"
    assert capfd.readouterr() == ("", told if progress else "")


def test_what_is_no_pipeline_is_refused_with_what_to_pass() -> None:
    for call in (headrace.run, headrace.preview, headrace.apply):
        with pytest.raises(headrace.PipelineError, match=r"'plain.py' is no Pipeline: import its build\(\)"):
            call("plain.py")  # type: ignore[operator]


def test_options_and_limits_of_another_kind_are_refused(pipeline: Pipeline) -> None:
    with pytest.raises(headrace.UsageError, match=r"options are dict; give them as headrace.RunOptions\("):
        headrace.run(pipeline, {"replicas": 2}, progress=False)  # type: ignore[arg-type]
    with pytest.raises(headrace.PipelineError, match="limit is 0; a preview is of 1 record at least"):
        headrace.preview(pipeline, 0)


def test_an_applied_pipeline_is_joined_by_the_same_call(pipeline: Pipeline, controller: str) -> None:
    applied = headrace.apply(pipeline, controller=controller)
    assert (applied.pipeline, applied.warnings) == ("texts", ())
    again = headrace.apply(pipeline, controller=controller)
    assert again.version == applied.version
    assert "already" in again.warnings[0]


def test_a_pipeline_that_a_controller_runs_is_followed_to_its_end(pipeline: Pipeline, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/c"
    serve, work = ("controller", "--listen", address), ("worker", "--controller", address, "--cores", "1")
    with ended(*serve) as process, ended(*work):
        assert process.stderr is not None
        assert any("serves on" in line for line in process.stderr), "the controller ended before it served"
        with Client(address) as client:
            client.wait_for_worker(START_S, lambda: None)
        applied = headrace.apply(pipeline, controller=address)
        told: list[headrace.RunProgress] = []
        result = headrace.attach(applied, controller=address, progress=told.append)
        assert told[-1].state == result.state == "completed"
        assert result.balance.counts.kept == len(TEXTS)
        assert result.dataset == applied.dataset
        for known in ("texts", pipeline):
            assert headrace.attach(known, controller=address, progress=False).balance == result.balance
        with pytest.raises(headrace.CliError, match="knows no pipeline 'other'; it knows: texts"):
            headrace.attach("other", controller=address)


def test_another_pipeline_for_the_same_dataset_is_refused(pipeline: Pipeline, controller: str, tmp_path: Path) -> None:
    headrace.apply(pipeline, controller=controller)
    source = read(str(tmp_path / "corpus.jsonl"), id_key="other")
    other = Pipeline.chain("texts", pipeline.dataset, source, write_documents())
    with pytest.raises(headrace.ApplyRefused):
        headrace.apply(other, controller=controller)


def test_an_absent_controller_is_a_typed_error(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(headrace.ControllerSilent, match="no controller answers"):
        headrace.apply(pipeline, controller=f"unix:{tmp_path}/none")


def test_what_a_run_wrote_is_opened_and_loaded(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps({"id": text, "text": text}) for text in TEXTS))
    tokens = headrace.tokenize("deepseek")
    sink = headrace.write_tokens(tokens, seq_len=64)
    ran = headrace.run(Pipeline.chain("t", str(tmp_path / "out"), read(str(tmp_path / "corpus.jsonl")), tokens, sink))
    opened = headrace.open_dataset(tmp_path / "out")
    assert opened.seq_len == 64
    (version,) = opened.log().read_all().to_pylist()
    assert (version["version"], version["complete"], version["restores"]) == (1, True, None)
    assert (version["records"], version["kept"], version["objects"]) == (len(TEXTS), len(TEXTS), 1)
    assert ran.log().read_all().to_pylist() == [version]
    loader = headrace.Loader(str(tmp_path / "out"), batch_size=2, seed=1)
    assert next(iter(loader))["tokens"].shape == (2, 64)
    assert len(loader) == loader.steps_left + loader.step
    assert repr(loader).startswith("<Loader of [<TokenDataset 't' at ")
    loader.close()
