"""A board for Grafana, and rules for Prometheus: objectives, how fast they burn, and alerts with their reasons.

Both are JSON, which Prometheus reads as YAML. A test holds each expression to what a controller, a worker and a
loader export.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import typer

#: What a range spans: four scrapes of 15 s, the default of Prometheus's own examples.
_SPAN = "1m"
_PIPELINE = 'pipeline=~"$pipeline"'
#: Columns of a board, of a panel, and rows of a panel.
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its title, Grafana's unit, the name of each line, and what it shows; at `warn` it turns red."""

    title: str
    unit: str
    legend: str
    expression: str
    kind: str = "timeseries"
    warn: float | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """A promise: the metric that records its broken share of a span, and how much of the time may be broken."""

    name: str
    words: str
    #: The share of a span that is broken; `@span@` is the span.
    broken: str
    budget: float
    reason: str


def alert(name: str, expression: str, holds: str, severity: str, summary: str, reason: str) -> dict[str, Any]:
    """One alert: for how long its expression must hold, and why this is the threshold."""
    return {
        "alert": name,
        "expr": expression,
        "for": holds,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": reason},
    }


#: The work of a stage, as a share of its tasks' time: the stage next to 1 is the bottleneck, whatever waits for it.
_USE = (
    f"sum by (pipeline, stage) (rate(headrace_stage_busy_seconds_total{{{_PIPELINE}}}[{_SPAN}])) "
    f"/ on (pipeline, stage) clamp_min(headrace_stage_tasks{{{_PIPELINE}}}, 1)"
)
FIRST_ROW = (
    Panel(
        "Records a second",
        "rowsps",
        "{{pipeline}} {{stage}}",
        f"sum by (pipeline, stage) (rate(headrace_stage_records_total{{{_PIPELINE}}}[{_SPAN}]))",
    ),
    Panel("Bottleneck: share of time at work", "percentunit", "{{pipeline}} {{stage}}", f"topk(3, {_USE})", warn=0.75),
    Panel(
        "Sends without credit, by link",
        "percentunit",
        "{{pipeline}} {{link}}",
        f"topk(10, clamp_max(rate(headrace_link_blocked{{{_PIPELINE}}}[{_SPAN}]) "
        f"/ rate(headrace_link_frames{{{_PIPELINE}}}[{_SPAN}]), 1))",
        warn=0.5,
    ),
    Panel(
        "Data wait, by rank",
        "percentunit",
        "rank {{rank}}",
        f"max by (rank) (rate(headrace_loader_data_wait_seconds_total[{_SPAN}]))",
        warn=0.01,
    ),
    Panel(
        "Tokens a second, by rank",
        "short",
        "rank {{rank}}",
        f"sum by (rank) (rate(headrace_loader_tokens_total[{_SPAN}]))",
    ),
    Panel(
        "Time left",
        "s",
        "{{pipeline}}",
        f"(headrace_input_bytes{{{_PIPELINE}}} - headrace_input_read_bytes{{{_PIPELINE}}}) "
        f"/ (deriv(headrace_input_read_bytes{{{_PIPELINE}}}[5m]) > 0)",
        "stat",
    ),
)
SECOND_ROW = (
    Panel(
        "Verdicts by reason",
        "short",
        "{{verdict}} {{reason}}",
        f"topk(20, sum by (verdict, reason) (headrace_verdict_records{{{_PIPELINE}}}))",
        "bargauge",
    ),
    Panel(
        "Records closed a second, by verdict",
        "rowsps",
        "{{verdict}}",
        f"sum by (verdict) (deriv(headrace_closed_records{{{_PIPELINE}}}[5m]))",
    ),
    Panel("Ledger lag", "s", "{{pipeline}}", f"headrace_ledger_lag_seconds{{{_PIPELINE}}}", warn=60),
    Panel(
        "Time until an entry is durable, 99 %",
        "s",
        "p99",
        "histogram_quantile(0.99, sum by (le) (rate(headrace_commit_seconds_bucket[5m])))",
    ),
    Panel("Bytes that sinks hold", "bytes", "{{task}}", f"topk(10, headrace_held_bytes{{{_PIPELINE}}})"),
    Panel(
        "Restarts and lost links",
        "short",
        "{{pipeline}}",
        f"sum by (pipeline) (increase(headrace_worker_task_ends_total{{{_PIPELINE}}}[5m])) "
        f"+ sum by (pipeline) (increase(headrace_worker_link_cuts_total{{{_PIPELINE}}}[5m]))",
    ),
)
OBJECTIVES = (
    Objective(
        "data_wait",
        "A training loop waits for data less than 1 % of its time",
        "max by (rank) (rate(headrace_loader_data_wait_seconds_total[@span@]))",
        0.01,
        "1 % of a month is seven hours of every GPU",
    ),
    Objective(
        "ledger_lag",
        "Records are held for less than 60 s without an entry that closes some, 99 % of the time",
        "avg_over_time((max by (pipeline) (headrace_ledger_lag_seconds) > bool 60)[@span@:15s])",
        0.01,
        "a sink seals what is 30 s old; a store may take as long again",
    ),
)
#: By severity: the long and the short span, how many times faster than allowed, and what that means of 30 days' budget.
BURNS = (
    ("page", "1h", "5m", 14.4, "a fiftieth of a month's budget is gone in an hour"),
    ("ticket", "6h", "30m", 6.0, "a twentieth of a month's budget is gone in six hours"),
)
ALERTS = (
    alert(
        "HeadraceRunFailed",
        'headrace_run_state{state="failed"} == 1',
        "0m",
        "page",
        "{{ $labels.pipeline }} has failed",
        "a failed run does not go on by itself",
    ),
    alert(
        "HeadraceRunWaits",
        "headrace_run_waits > 0",
        "5m",
        "page",
        "{{ $labels.pipeline }} waits; `headrace status` says for what",
        "stores that throttle answer again within minutes; a full disk does not",
    ),
    alert(
        "HeadraceTasksDie",
        "increase(headrace_task_restarts[15m]) > 3",
        "0m",
        "ticket",
        "tasks of {{ $labels.pipeline }} die",
        "eight deaths in a row end a run: this is heard half-way",
    ),
    alert(
        "HeadraceWorkerAway",
        "headrace_worker_connected == 0",
        "2m",
        "ticket",
        "worker {{ $labels.instance }} has no controller",
        "a standby takes over within seconds, and commands retry for 20",
    ),
    alert(
        "HeadraceControllerAway",
        "absent(headrace_commit_seconds_count)",
        "2m",
        "page",
        "no controller is scraped",
        "as long as for a worker; without a controller nothing is closed",
    ),
    alert(
        "HeadraceQuarantineGrows",
        'sum by (pipeline) (deriv(headrace_closed_records{verdict="quarantined"}[15m])) '
        "> 0.01 * sum by (pipeline) (deriv(headrace_closed_records[15m]))",
        "10m",
        "ticket",
        "more than 1 % of the records of {{ $labels.pipeline }} are quarantined",
        "damaged records are rare in a sound corpus; a defect of a stage is not",
    ),
)


def board() -> dict[str, Any]:
    """The board, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    for title, row in (("Flow", FIRST_ROW), ("Verdicts and the ledger", SECOND_ROW)):
        top = len(panels) * _HEIGHT
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, _COLUMNS, 1)})
        for number, panel in enumerate(row):
            down, across = divmod(number, _COLUMNS // _WIDTH)
            panels.append(_panel(panel, _place(across * _WIDTH, top + 1 + down * _HEIGHT, _WIDTH, _HEIGHT)))
    for number, item in enumerate(panels, 1):
        item["id"] = number
    variable: dict[str, Any] = {
        "name": "pipeline",
        "type": "query",
        "query": "label_values(headrace_stage_tasks, pipeline)",
    }
    variable |= {"datasource": _SOURCE, "includeAll": True, "allValue": ".*", "multi": True, "refresh": 2}
    source = {"name": "source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "headrace",
        "title": "Headrace",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "15s",
        "templating": {"list": [source, variable]},
        "panels": panels,
    }


_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.warn is not None:
        steps.append({"color": "red", "value": panel.warn})
    return {
        "type": panel.kind,
        "title": panel.title,
        "gridPos": place,
        "datasource": _SOURCE,
        "targets": [{"refId": "A", "expr": panel.expression, "legendFormat": panel.legend, "datasource": _SOURCE}],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
    }


def rules() -> dict[str, Any]:
    """The rules, as Prometheus loads them: the burn of each objective over four spans, and alerts."""
    recorded: list[dict[str, Any]] = []
    alerts = [*ALERTS]
    for objective in OBJECTIVES:
        recorded += [
            {"record": burn_of(objective, span), "expr": f"({_over(objective, span)}) / {objective.budget}"}
            for span in sorted({span for _, *spans, _, _ in BURNS for span in spans})
        ]
        for severity, long, short, times, why in BURNS:
            name = "".join(word.title() for word in objective.name.split("_"))
            alerts.append(
                alert(
                    f"Headrace{name}Burns{severity.title()}",
                    f"{burn_of(objective, long)} > {times} and {burn_of(objective, short)} > {times}",
                    "0m",
                    severity,
                    f"{objective.words}: not so now",
                    f"{times:g} times faster than allowed: {why}; {objective.reason}",
                )
            )
    return {"groups": [{"name": "headrace-objectives", "rules": recorded}, {"name": "headrace", "rules": alerts}]}


def burn_of(objective: Objective, span: str) -> str:
    """The name under which the burn of an objective over a span is recorded."""
    return f"headrace:{objective.name}_burn:{span}"


def _over(objective: Objective, span: str) -> str:
    return objective.broken.replace("@span@", span)


def metrics(
    what: str = typer.Argument(metavar="WHAT", help="board (for Grafana) or rules (for Prometheus)."),
) -> int:
    """Print a board for Grafana, or objectives and alerts for Prometheus, as JSON."""
    from headrace.client import UsageError

    found = {"board": board, "rules": rules}.get(what)
    if found is None:
        raise UsageError(f"{what!r}: give board or rules")
    print(json.dumps(found(), indent=2))
    return 0
