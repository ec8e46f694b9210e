"""Sizing a cluster before there is one: formulas over named numbers, each of which a person may give instead. Pure.

A formula is text that is evaluated as it stands, so that what is shown is what was computed. Its names are inputs or
results of formulas above it. What a person gives stands in the place of the input or the result of that name.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: What a number may be.
VALUE_MAX = 1e30


class SizingError(ValueError):
    """Why a cluster cannot be sized with these numbers, in one line."""


@dataclass(frozen=True, slots=True)
class Input:
    """A number that a person or a fact gives; `fact` is the name of that in the facts of a host."""

    unit: str
    default: float
    says: str
    fact: str = ""


@dataclass(frozen=True, slots=True)
class Formula:
    """A number that follows from others."""

    unit: str
    text: str
    says: str


@dataclass(frozen=True, slots=True)
class Check:
    """Where `need` is above `have`, the cluster is too small for it, and `remedy` says what to do."""

    need: str
    have: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Sized:
    """A number of the answer: `by` is "given", "fact", "default" or the formula."""

    name: str
    value: float
    unit: str
    says: str
    by: str


#: What is asked, with what is taken where nobody says: GPU of 989 TFLOP/s in bf16, of which training reaches 40 %.
INPUTS: Mapping[str, Input] = {
    "gpus": Input("GPUs", 8, "GPUs that train"),
    "gpus_a_host": Input("GPUs", 8, "GPUs of one host"),
    "params": Input("", 1e9, "parameters of the model that a token passes"),
    "gpu_flops": Input("FLOP/s", 989e12, "peak of one GPU in the precision of training"),
    "mfu": Input("share", 0.4, "share of the peak that training reaches"),
    "tokens_a_param": Input("tokens", 20, "tokens of the budget for each parameter (compute-optimal: 20)"),
    "passes_max": Input("", 4, "passes over one token that still teach (about 4)"),
    "token_bytes": Input("B", 2, "bytes of a stored token: 2 up to 65,536 tokens of vocabulary, else 4"),
    "seq_len": Input("tokens", 2048, "tokens of a sequence"),
    "sequences_a_gpu": Input("", 16, "sequences of a GPU in one step"),
    "text_bytes_token": Input("B", 4, "bytes of text in a token", "text_bytes_token"),
    "kept": Input("share", 0.3, "share of the input's bytes that filters and dedup keep"),
    "prepare_days": Input("days", 1, "days in which the data must be prepared"),
    "reader_bytes_s": Input("B/s", 50e6, "input that a core reads and decodes", "reader_bytes_s"),
    "filters_bytes_s": Input("B/s", 10e6, "text that a core filters", "filters_bytes_s"),
    "tokenizer_bytes_s": Input("B/s", 20e6, "text that a core tokenizes", "tokenizer_bytes_s"),
    "cores_a_worker": Input("cores", 16, "cores of a worker", "cores"),
    "busy": Input("share", 0.8, "share of the time that a core works"),
    "shard_bytes": Input("B", 128e6, "bytes of a shard"),
    "parts": Input("", 4, "data parts of erasure coding"),
    "parity": Input("", 2, "parity parts: as many hosts may be lost"),
    "host_disk_bytes": Input("B", 2e12, "disk of a store's host"),
    "disk_full": Input("share", 0.7, "share of a disk that is filled"),
    "cache_bytes": Input("B", 500e9, "disk for the cache of a GPU host"),
    "loader_tokens_s": Input("tokens/s", 100e6, "tokens that a loader's process makes", "loader_tokens_s"),
    "store_bytes_s": Input("B/s", 200e6, "one reader's rate from the store", "store_read_bytes_s"),
    "net_bytes_s": Input("B/s", 1.25e9, "network of a host", "net_bytes_s"),
    "burst": Input("", 3, "peak over mean of what a host fetches"),
}

#: What follows, in the order in which it is computed.
FORMULAS: Mapping[str, Formula] = {
    "hosts": Formula("hosts", "ceil(gpus / gpus_a_host)", "hosts that train"),
    "gpu_tokens_s": Formula("tokens/s", "gpu_flops * mfu / (6 * params)", "tokens of one GPU: 6 FLOP a parameter"),
    "train_tokens_s": Formula("tokens/s", "gpus * gpu_tokens_s", "tokens of all GPUs"),
    "budget_tokens": Formula("tokens", "tokens_a_param * params", "tokens that the model is trained on"),
    "train_days": Formula("days", "budget_tokens / train_tokens_s / 86400", "days of training"),
    "dataset_tokens": Formula("tokens", "budget_tokens / passes_max", "tokens that the dataset needs at least"),
    "step_tokens": Formula("tokens", "gpus * sequences_a_gpu * seq_len", "tokens of a step"),
    "steps": Formula("steps", "ceil(budget_tokens / step_tokens)", "steps of training"),
    "text_bytes": Formula("B", "dataset_tokens * text_bytes_token", "text of the dataset"),
    "input_bytes": Formula("B", "text_bytes / kept", "input to be read"),
    "core_s": Formula(
        "s",
        "input_bytes / reader_bytes_s + input_bytes / filters_bytes_s + text_bytes / tokenizer_bytes_s",
        "seconds of a core for reading, filtering and tokenizing",
    ),
    "prepare_cores": Formula("cores", "ceil(core_s / (prepare_days * 86400 * busy))", "cores that prepare it in time"),
    "workers": Formula("workers", "ceil(prepare_cores / cores_a_worker)", "workers with so many cores"),
    "worker_bytes_s": Formula("B/s", "input_bytes / (prepare_days * 86400) / workers", "input of one worker"),
    "stored_bytes": Formula("B", "dataset_tokens * token_bytes", "shards of the dataset"),
    "shards": Formula("shards", "ceil(stored_bytes / shard_bytes)", "shards"),
    "raw_bytes": Formula("B", "stored_bytes * (parts + parity) / parts", "disk that erasure coding takes"),
    "store_hosts": Formula(
        "hosts", "max(parts + parity, ceil(raw_bytes / (host_disk_bytes * disk_full)))", "hosts of the store"
    ),
    "repair_bytes": Formula("B", "raw_bytes / store_hosts * parts", "bytes read to make a lost host's parts again"),
    "host_tokens_s": Formula("tokens/s", "train_tokens_s / hosts", "tokens of one GPU host"),
    "host_bytes_s": Formula("B/s", "host_tokens_s * token_bytes * burst", "what a GPU host fetches at its peak"),
    "read_bytes_s": Formula("B/s", "train_tokens_s * token_bytes", "what all GPU hosts read from the store"),
    "cached": Formula(
        "", "min(1, cache_bytes / (stored_bytes / hosts))", "share of its pass that a host's cache holds"
    ),
    "again_bytes_s": Formula("B/s", "read_bytes_s * (1 - cached)", "what they read in each later pass"),
    "loaders": Formula("", "ceil(host_tokens_s / loader_tokens_s)", "loader processes that a GPU host needs"),
}

#: What must hold.
CHECKS: tuple[Check, ...] = (
    Check("host_bytes_s", "net_bytes_s", "a faster network, or fewer GPUs a host"),
    Check("host_bytes_s", "store_bytes_s", "a faster store, a cache in front of it, or shards on local disks"),
    Check("worker_bytes_s", "net_bytes_s", "more workers, or more days for preparing"),
    Check("loaders", "gpus_a_host", "fewer fields, or a host with faster cores: a rank has one loader"),
    Check("shard_bytes", "stored_bytes", "smaller shards: all of the dataset fits one"),
    Check("hosts", "shards", "smaller shards: each host reads some of its own"),
)

_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: float.__add__,
    ast.Sub: float.__sub__,
    ast.Mult: float.__mul__,
    ast.Div: float.__truediv__,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {"ceil": math.ceil, "min": min, "max": max}


def size_cluster(given: Mapping[str, float], facts: Mapping[str, float]) -> list[Sized]:
    """All numbers, inputs first. `given` overrides by name; `facts` of a host stand in for defaults.

    Raises SizingError for a name that is none, a number that is not above 0, and what no formula can compute.
    """
    for name, value in given.items():
        if name not in INPUTS and name not in FORMULAS:
            raise SizingError(f"{name!r} is no number of a cluster; the inputs are {', '.join(INPUTS)}")
        if not 0 < value <= VALUE_MAX:
            raise SizingError(f"{name} is {value:g}; give a number above 0 and up to {VALUE_MAX:g}")
        if name in INPUTS and INPUTS[name].unit == "share" and value > 1:
            raise SizingError(f"{name} is {value:g}, and a share is at most 1")
    found: list[Sized] = []
    for name, one in INPUTS.items():
        value, by = one.default, "default"
        if one.fact in facts and 0 < facts[one.fact] <= VALUE_MAX:
            value, by = facts[one.fact], "fact"
        value, by = (given[name], "given") if name in given else (value, by)
        found.append(Sized(name, value, one.unit, one.says, by))
    values = {one.name: float(one.value) for one in found}
    for name, formula in FORMULAS.items():
        by = "given" if name in given else formula.text
        values[name] = float(given[name]) if name in given else _computed(name, formula.text, values)
        found.append(Sized(name, values[name], formula.unit, formula.says, by))
    return found


def too_small(sized: list[Sized]) -> list[tuple[Check, float]]:
    """The checks that do not hold, each with how many times too small the cluster is; the worst first."""
    values = {one.name: one.value for one in sized}
    broken = [(check, values[check.need] / values[check.have]) for check in CHECKS]
    return sorted((one for one in broken if one[1] > 1), key=lambda one: -one[1])


def names_in(text: str) -> set[str]:
    """The numbers that a formula takes."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} - _FUNCTIONS.keys()


def _computed(name: str, text: str, values: Mapping[str, float]) -> float:
    try:
        value = float(_value(ast.parse(text, mode="eval").body, values))
    except (ZeroDivisionError, OverflowError) as error:
        raise SizingError(f"{name} = {text} cannot be computed: {error}") from error
    if not 0 <= value <= VALUE_MAX:
        shown = ", ".join(f"{one} = {values[one]:g}" for one in sorted(names_in(text)))
        raise SizingError(f"{name} = {text} is {value:g} with {shown}; check these numbers")
    return value


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=function), args=given):
            return float(_FUNCTIONS[function](*(_value(one, values) for one in given)))
        case _:
            raise SyntaxError(f"{ast.unparse(node)!r} is none of a formula's")
