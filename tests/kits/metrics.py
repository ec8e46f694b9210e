"""What the board and the rules ask Prometheus for: each metric, and the labels that are used of it."""

from collections.abc import Iterator
from typing import Any

import promql_parser as promql
from prometheus_client.samples import Sample

from headrace.cli.commands.cluster.metrics import board, rules


def exported(name: str, kind: str) -> Sample:
    """A family without a value, as a sample of the name that it would have."""
    return Sample(f"{name}_total" if kind == "counter" else name, {}, 0.0)


def expressions() -> list[str]:
    """Every expression; a variable of the board is any text."""
    shown = [target["expr"] for panel in board()["panels"] for target in panel.get("targets", ())]
    groups = rules()["groups"]
    return [*shown, *(rule["expr"] for group in groups for rule in group["rules"])]


def asked_for() -> set[tuple[str, frozenset[str]]]:
    """Each metric with the labels by which it is chosen or grouped."""
    return {found for text in expressions() for found in _walk(promql.parse(text), frozenset())}


def _walk(node: Any, by: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    match node:
        case promql.VectorSelector():
            yield node.name, by | {matcher.name for matcher in node.matchers.matchers}
        case promql.AggregateExpr():
            labels = node.modifier.labels if node.modifier is not None else ()
            yield from _walk(node.expr, by | set(labels))
            if node.param is not None:
                yield from _walk(node.param, by)
        case promql.BinaryExpr():
            for side in (node.lhs, node.rhs):
                yield from _walk(side, by)
        case promql.Call():
            for argument in node.args:
                yield from _walk(argument, by)
        case promql.MatrixSelector():
            yield from _walk(node.vector_selector, by)
        case promql.SubqueryExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield from _walk(node.expr, by)
        case promql.NumberLiteral() | promql.StringLiteral():
            pass
        case _:
            raise AssertionError(f"{type(node).__name__} is not walked")
