"""Scores by models from files: what they say of a text, and that a host holds each model once."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.graph import Pipeline, Stage
from headrace.stages.library import fasttext_classifier, onnx_classifier, perplexity
from headrace.stages.quality.models.model_host import LINGER_S
from headrace.stages.quality.models.models import plain_form
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import build_stage, process_safely
from tests.kits.stages.models import write_arpa, write_fasttext, write_text_onnx, write_token_onnx
from tests.kits.stages.quality import make_batch

SENTENCES = ["the mill grinds the barley", "the wheel turns the mill", "the stream turns the wheel"]
STRANGE = "barley barley wheel grinds qqqq"
GOOD = {"mill": [4.0, -4.0], "wheel": [4.0, -4.0], "casino": [-4.0, 4.0]}
DEADLINE_S = 300.0


@pytest.fixture
def built() -> Iterator[Callable[[Stage], object]]:
    """Builds stages, and ends the models' processes behind the test: they would linger for seconds."""
    made: list[object] = []

    def build(stage: Stage) -> object:
        made.append(build_stage(stage, {}))
        return made[-1]

    yield build
    for stage in made:
        pids = hosts(stage)
        stage._model.close()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def hosts(stage: object) -> list[int]:
    """The processes of a stage's model: the host and its children. Their titles end like its socket."""
    name = stage._model.socket.stem[-12:].encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if name in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def run(stage: object, texts: list[str]) -> Batch:
    return process_safely(stage, make_batch(texts), "score")


def scores_of(batch: Batch, column: str) -> list[float]:
    return batch.rows.column(column).to_pylist()


@pytest.fixture
def arpa(tmp_path: pathlib.Path) -> str:
    return str(write_arpa(tmp_path / "model.arpa", SENTENCES))


@pytest.fixture
def fasttext_model(tmp_path: pathlib.Path) -> str:
    write_fasttext(tmp_path / "model.bin", GOOD, ["fine", "spam"])
    return str(tmp_path / "model.bin")


def test_perplexity_is_that_of_the_models_probabilities(arpa: str, built: Callable[[Stage], object]) -> None:
    stage = built(perplexity(arpa, tag=True))
    texts = ["the mill grinds the barley", STRANGE, "", "the mill\n\nthe mill"]
    found = scores_of(run(stage, texts), "score.perplexity.perplexity")
    # the: 3 of 3 after <s>; mill 2 of 6, grinds 1 of 2, the 1 of 1, barley 1 of 6, </s> 1 of 1, each times 0.9.
    expected = math.prod(0.9 * share for share in (3 / 3, 2 / 6, 1 / 2, 1 / 1, 1 / 6, 1 / 1)) ** (-1 / 6)
    assert found[0] == pytest.approx(expected, rel=1e-4)
    assert found[1] > 10 * found[0]
    assert math.isinf(found[2])
    assert found[3] == pytest.approx(scores_of(run(stage, ["the mill"]), "score.perplexity.perplexity")[0])


def test_texts_that_surprise_the_model_are_filtered(arpa: str, built: Callable[[Stage], object]) -> None:
    answer = run(built(perplexity(arpa, perplexity_max=50)), ["the mill grinds the barley", STRANGE, ""])
    assert answer.rows.num_rows == 1
    assert answer.verdicts.column("reason").to_pylist() == ["perplexity too high"] * 2


def test_a_text_in_the_models_plain_form_is_what_it_knows(arpa: str, built: Callable[[Stage], object]) -> None:
    assert plain_form("Élan 1984") == "elan 0000"
    stage = built(perplexity(arpa, normalize=True, tag=True))
    found = scores_of(run(stage, ["The MÍLL grinds", "the mill grinds"]), "score.perplexity.perplexity")
    assert found[0] == found[1]


def test_a_fasttext_label_is_scored_and_filtered_by(fasttext_model: str, built: Callable[[Stage], object]) -> None:
    texts = ["mill wheel", "mill\nwheel\0", "casino", "mill casino", ""]
    found = scores_of(
        run(built(fasttext_classifier(fasttext_model, "fine", tag=True)), texts), "score.classifier.score"
    )
    assert found[0] == found[1] > 0.99
    assert found[2] < 0.05
    assert found[3] == pytest.approx(0.5, abs=1e-3)
    answer = run(built(fasttext_classifier(fasttext_model, "__label__fine", score_min=0.9)), texts)
    assert answer.rows.column("text").to_pylist() == texts[:2]
    assert set(answer.verdicts.column("reason").to_pylist()) == {"score too low"}


def test_an_onnx_model_scores_texts(tmp_path: pathlib.Path, built: Callable[[Stage], object]) -> None:
    write_text_onnx(tmp_path / "m.onnx", ["good", "élan"])
    stage = onnx_classifier(str(tmp_path / "m.onnx"), label=1, activation="softmax", score_min=0.9)
    answer = run(built(stage), ["good", "bad", "élan", ""])
    assert answer.rows.column("text").to_pylist() == ["good", "élan"]


def test_an_onnx_model_scores_tokens(tmp_path: pathlib.Path, built: Callable[[Stage], object], deepseek: str) -> None:
    vectors = np.zeros((130_000, 1), np.float32)
    from tokenizers import Tokenizer

    good = Tokenizer.from_file(deepseek).encode("good").ids
    vectors[good] = 1.0
    write_token_onnx(tmp_path / "m.onnx", vectors)
    stage = onnx_classifier(str(tmp_path / "m.onnx"), tokenizer=deepseek, tokens_max=8, activation="sigmoid", tag=True)
    found = scores_of(run(built(stage), ["good", "bad", "", "good" + " bad" * 99]), "score.classifier.score")
    assert found[0] == pytest.approx(1 / (1 + math.exp(-1)), abs=0.06)
    assert found[1] == found[2] == 0.5
    assert 0.5 < found[3] < found[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: fasttext_classifier(path, "none", score_min=0.5), "no label '__label__none'"),
        (lambda path: perplexity(path, perplexity_max=1), "cannot load"),
        (lambda path: onnx_classifier(path, score_min=0.5), "cannot load"),
    ],
)
def test_a_model_that_is_none_ends_the_run_with_one_line(
    fasttext_model: str, built: Callable[[Stage], object], make: Callable[[str], Stage], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        run(built(make(fasttext_model)), ["a"])


def test_a_model_that_changed_since_it_was_declared_is_refused(
    fasttext_model: str, built: Callable[[Stage], object]
) -> None:
    stage = built(fasttext_classifier(fasttext_model, "fine", score_min=0.5))
    pathlib.Path(fasttext_model).write_bytes(pathlib.Path(fasttext_model).read_bytes() + b"\0")
    with pytest.raises(PipelineError, match="is not the file that the pipeline was declared with"):
        run(stage, ["a"])


def test_a_stage_that_would_do_nothing_is_refused(fasttext_model: str) -> None:
    with pytest.raises(PipelineError, match="score_min, score_max or tag=True"):
        fasttext_classifier(fasttext_model, "fine")
    with pytest.raises(PipelineError, match="cannot read the model"):
        perplexity("/nowhere", perplexity_max=1)


def test_a_models_content_is_in_the_version_its_place_not(tmp_path: pathlib.Path) -> None:
    for name, spam in (("a", -4.0), ("b", -4.0), ("c", -3.0)):
        write_fasttext(tmp_path / name, {"mill": [4.0, spam]}, ["fine", "spam"])
    stages = [fasttext_classifier(str(tmp_path / name), "fine", score_min=0.5) for name in "abc"]
    versions = [Pipeline.chain("p", "d", stage).version() for stage in stages]
    assert versions[0] == versions[1] != versions[2]


def test_a_model_process_that_dies_is_started_again(fasttext_model: str, built: Callable[[Stage], object]) -> None:
    stage = built(fasttext_classifier(fasttext_model, "fine", tag=True))
    before = scores_of(run(stage, ["mill"]), "score.classifier.score")
    for pid in hosts(stage):
        os.kill(pid, signal.SIGKILL)
    assert scores_of(run(stage, ["mill"]), "score.classifier.score") == before


TASK = """
import json, sys
from headrace.stages.quality.models.shared_model import SharedModel
order = json.loads(sys.argv[1])
digests = dict(zip(order["files"], order["digests"]))
model = SharedModel("score", order["kind"], order["model"], digests, order["options"])
print(float(model.scores(order["texts"]).sum()), flush=True)
sys.stdin.read()
"""


def proportional_bytes(pids: list[int]) -> int:
    """What these processes cost the machine: each page is divided by those that share it."""
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            total += int(line.split()[1]) << 10 if line.startswith("Pss:") else 0
    return total


def large_model(kind: str, folder: pathlib.Path, deepseek: str) -> Stage:
    path = folder / "large"
    if kind == "fasttext":
        words = {word: [*vector, 0.0, 0.0] for word, vector in GOOD.items()}
        write_fasttext(path, words, ["fine", "spam", "news", "code"], buckets=8_000_000)
        return fasttext_classifier(str(path), "fine", tag=True)
    if kind == "kenlm":
        write_arpa(path, SENTENCES, fillers=4_000_000)
        return perplexity(str(path), tag=True)
    write_token_onnx(path, np.random.default_rng(1).random((130_000, 256), np.float32))
    return onnx_classifier(str(path), tokenizer=deepseek, tag=True)


@pytest.mark.parametrize("kind", ["kenlm", "fasttext", "onnx"])
def test_a_second_task_costs_less_than_a_tenth_of_the_model(
    tmp_path: pathlib.Path, built: Callable[[Stage], object], deepseek: str, kind: str
) -> None:
    stage = large_model(kind, tmp_path, deepseek)
    texts = ["the mill grinds the barley " * 20, "casino " * 50] * 20
    order = json.dumps({**stage.parameters, "texts": texts})
    watched = built(stage)
    costs: list[int] = []
    tasks: list[subprocess.Popen[str]] = []
    answers: list[str] = []
    try:
        for _ in range(2):
            pipe = subprocess.PIPE
            task = subprocess.Popen([sys.executable, "-c", TASK, order], stdin=pipe, stdout=pipe, text=True)
            tasks.append(task)
            assert task.stdout is not None
            answers.append(task.stdout.readline())
            costs.append(proportional_bytes(hosts(watched)))
    finally:
        for task in tasks:
            task.kill()
            task.communicate()
    assert answers[0] == answers[1] != ""
    assert costs[0] > 90e6
    assert costs[1] - costs[0] < 0.1 * costs[0], f"{costs[0] / 1e6:.0f} MB with one task, {costs[1] / 1e6:.0f} with two"


def test_a_process_at_a_text_ends_with_its_dying_task(fasttext_model: str, built: Callable[[Stage], object]) -> None:
    stage = built(fasttext_classifier(fasttext_model, "fine", tag=True))
    run(stage, ["mill"])
    for child in (pid for pid in hosts(stage) if parent_of(pid) in hosts(stage)):
        os.kill(child, signal.SIGSTOP)  # as one that does not look up from its text
    stage._model.close()
    deadline = time.monotonic() + DEADLINE_S
    while len(hosts(stage)) == 2:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)


def test_a_host_ends_with_the_last_worker_whose_tasks_came(
    tmp_path: pathlib.Path, built: Callable[[Stage], object]
) -> None:
    write_fasttext(tmp_path / "other", GOOD, ["fine", "spam"], buckets=7)
    stage = fasttext_classifier(str(tmp_path / "other"), "fine", tag=True)
    order = json.dumps({**stage.parameters, "texts": ["mill"]})
    shell = ["/bin/sh", "-c", '"$0" "$@"; :', sys.executable, "-c", TASK, order]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline()
        model = built(stage)
        assert len(hosts(model)) == 2
        os.killpg(worker.pid, signal.SIGKILL)
        killed_at = time.monotonic()
    while hosts(model):
        assert time.monotonic() < killed_at + LINGER_S, "it stayed, as one whose tasks are gone and whose worker is not"
        select.select([], [], [], 0.02)


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        return int(stat[stat.rindex(")") + 2 :].split()[1])
    return 0


def test_a_task_that_leaves_takes_its_process_with_it(fasttext_model: str, built: Callable[[Stage], object]) -> None:
    stage = built(fasttext_classifier(fasttext_model, "fine", tag=True))
    run(stage, ["mill"])
    assert len(hosts(stage)) == 2
    stage._model.close()
    deadline = time.monotonic() + DEADLINE_S
    while len(hosts(stage)) == 2:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.02)
