"""`headrace metrics`: the board and the rules name what is exported, and say why."""

import json
import re
from collections.abc import Iterable

import pytest
from prometheus_client.core import Metric

from headrace.cli.commands.cluster.metrics import BURNS, FIRST_ROW, OBJECTIVES, SECOND_ROW, board, burn_of, rules
from headrace.cli.main import invoke
from headrace.controller.effects.progress import ReportedProgress
from headrace.controller.metrics import REASONS_MAX, families
from headrace.controller.shell import CommitTimes
from headrace.loader.statistics import LoaderCollector, LoaderStatistics
from headrace.protos import control_pb2 as pb
from headrace.worker.metrics import Counters, families as worker_families
from tests.kits.metrics import asked_for, exported

NAMES_OF = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",), "gauge": ("",)}


class Rank:
    def statistics(self) -> LoaderStatistics:
        return LoaderStatistics(2, 6, 90, 1.0, 0.5, 0, 0, elapsed_s=10.0, position=12)


def labels_of(found: Iterable[Metric]) -> dict[str, set[str]]:
    """The labels of each metric that these families have."""
    return {
        family.name + ending: {*family._labelnames, *(("le",) if family.type == "histogram" else ())}
        for family in found
        for ending in NAMES_OF[family.type]
    }


KNOWN = (
    labels_of(families(pb.StatusReply(), CommitTimes()))
    | labels_of(worker_families(Counters(), lambda task: 0, connected=True))
    | labels_of(LoaderCollector(Rank(), rank="0").collect())
    | {rule["record"]: set() for rule in rules()["groups"][0]["rules"]}
)


@pytest.mark.parametrize(("name", "labels"), sorted((name, tuple(sorted(of))) for name, of in asked_for()))
def test_each_metric_that_is_asked_for_has_these_labels(name: str, labels: tuple[str, ...]) -> None:
    assert name in KNOWN
    assert set(labels) <= KNOWN[name]


@pytest.mark.parametrize("panel", [*FIRST_ROW, *SECOND_ROW], ids=lambda panel: panel.title)
def test_a_line_is_called_by_labels_that_it_has(panel) -> None:
    inner = [KNOWN[name] for name in re.findall(r"headrace_\w+", panel.expression)]
    for label in re.findall(r"{{(\w+)}}", panel.legend):
        assert all(label in labels for labels in inner), label


def test_the_board_has_a_row_of_flow_and_one_of_verdicts() -> None:
    rows = [panel["title"] for panel in board()["panels"] if panel["type"] == "row"]
    assert rows == ["Flow", "Verdicts and the ledger"]
    assert len({panel["id"] for panel in board()["panels"]}) == len(board()["panels"])
    places = [tuple(panel["gridPos"].values()) for panel in board()["panels"]]
    taken = [(x + i, y + j) for x, y, width, height in places for i in range(width) for j in range(height)]
    assert len(set(taken)) == len(taken), "panels lie on one another"


def test_an_objective_burns_over_a_long_and_a_short_span() -> None:
    groups = rules()["groups"]
    recorded = {rule["record"] for rule in groups[0]["rules"]}
    for objective in OBJECTIVES:
        for severity, long, short, times, _ in BURNS:
            assert {burn_of(objective, long), burn_of(objective, short)} <= recorded
            asks = f"{burn_of(objective, long)} > {times} and {burn_of(objective, short)} > {times}"
            (alert,) = [rule for rule in groups[1]["rules"] if rule["expr"] == asks]
            assert alert["labels"] == {"severity": severity}
    assert all(rule["annotations"]["description"] for rule in groups[1]["rules"])


def test_what_it_prints_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["metrics", "board"]) == 0
    assert json.loads(capsys.readouterr().out) == board()
    assert invoke(["metrics", "bored"]) == 2
    assert "give board or rules" in capsys.readouterr().err


def test_a_ledger_lags_while_records_are_held_and_none_are_closed() -> None:
    progress, living = ReportedProgress(), {("p/write.0", 1)}
    said = pb.TaskEvent(task="p/write.0", attempt=1, progress=pb.Progress(held_records=5))
    assert progress.ledger_lag_s(living, 100.0) == 0.0
    progress.take(said)
    since = progress.held_since["p/write.0", 1]
    progress.take(said)
    assert progress.ledger_lag_s(living, since + 40.0) == 40.0
    progress.closed_at = since + 30.0
    assert progress.ledger_lag_s(living, since + 40.0) == 10.0
    assert progress.ledger_lag_s(set(), since + 40.0) == 0.0, "what a dead task held is read again"
    said.progress.held_records = 0
    progress.take(said)
    assert progress.ledger_lag_s(living, since + 90.0) == 0.0


def test_reasons_without_end_make_no_metrics_without_end() -> None:
    status = pb.PipelineStatus(pipeline="p")
    for number in range(REASONS_MAX + 50):
        status.balance.filtered_by[f"rule/{number}"] = 1 + number
    (family,) = [
        one
        for one in families(pb.StatusReply(pipelines=[status]), CommitTimes())
        if one.name == "headrace_verdict_records"
    ]
    assert len(family.samples) == REASONS_MAX + 1
    assert sum(sample.value for sample in family.samples) == sum(range(1, REASONS_MAX + 51))
    assert exported("a", "counter").name == "a_total"
