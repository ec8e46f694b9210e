"""The audit of a dataset: its numbers against the limits of a gate, and its profile against that of a baseline.

A gate is a TOML file: a table for each number, with `min`, `max` or both, and one named `drift`. Numbers and profile
are sums over closed shards, so a record counts once however often its shard was proposed. Distances are what is left
of them when chance is taken off: a limit is of an effect, not of a significance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.pipeline import plain_problem
from headrace.store.datasets import Dataset, as_shown
from headrace.store.history.address import open_at, version_named, view
from headrace.store.ledger import ClosedShard, balance_of, main_sink
from headrace.store.shards import (
    ALL_FIELDS_MAX,
    ALL_TOKENS_MAX,
    FIELD_STEP,
    PROFILE_BYTES_MAX,
    PROFILE_ROLE,
    TOKEN_STEP_MAX,
    Profile,
    Series,
    SeriesKind,
    decode_profile,
    measure_profile,
    quantile,
    read_table,
)

DRIFT = "drift"
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
#: Kept documents below which drift says nothing.
DOCUMENTS_MIN = 500
#: Lines of a gate, and characters of one: a gate comes with a request.
ROWS_MAX = 1000
GATE_CHARACTERS_MAX = 1 << 16
#: How far a series may be from the baseline's: of numbers by Kolmogorov and Smirnov, of names in the share that
#: changed, of contents by Jensen and Shannon, in bits.
LIMITS = {SeriesKind.NUMBERS: 0.05, SeriesKind.NAMES: 0.05, SeriesKind.HASHES: 0.0025}
#: Tokens of one text are alike: what two draws of as many texts differ by, times their number. Measured: 4 to 6.
_ALIKE = 6.0
#: Numbers that grow while a run flows.
_GROWS = ("records", "records_open", "kept", "duplicate", "tokens", "sequences")
_LIMITS_OF_A_ROW = ("min", "max")
#: Keys that a line of drift names.
_KEYS_SHOWN = 3
#: Characters of a sample, or of its id.
_SAMPLE_CHARACTERS = 60


class GateError(ValueError):
    """What is no gate."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A row of a gate that a dataset does not meet."""

    name: str
    limit: str
    wanted: float
    found: float | None
    #: What it is that differs most.
    detail: str = ""

    def __str__(self) -> str:
        found = "it has none" if self.found is None else f"it is {self.found:g}"
        more = f" ({self.detail})" if self.detail else ""
        return f"{self.name}: {self.limit} {self.wanted:g}, and {found}{more}"


@dataclass(frozen=True, slots=True)
class Gate:
    """What a dataset must meet to be published."""

    rows: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    #: The version that drift is measured from: a number or a tag of the dataset, or an address; "": its newest one.
    baseline: str = ""
    #: How far each series may be from the baseline's, by name; None: drift is not looked at.
    drift: Mapping[str, float] | None = None


def gate_of(text: str) -> dict[str, Any]:
    """The tables of a gate that comes as JSON, none for an empty text. Raises GateError."""
    if len(text) > GATE_CHARACTERS_MAX:
        raise GateError(f"a gate of {len(text)} characters: the limit is {GATE_CHARACTERS_MAX}")
    try:
        plain = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise GateError(f"a gate that is no JSON: {str(error)[:200]}") from error
    if not isinstance(plain, dict):
        raise GateError("a gate that is no table")
    parse_gate(plain)
    return plain


def parse_gate(plain: Mapping[str, Any]) -> Gate:
    """The gate that a TOML file holds. Raises GateError."""
    if problem := plain_problem(plain):
        raise GateError(f"a gate that the ledger cannot hold: {problem}")
    if len(plain) > ROWS_MAX:
        raise GateError(f"a gate of {len(plain)} rows: the limit is {ROWS_MAX}")
    rows = {name: _numbers_in(name, row, _LIMITS_OF_A_ROW) for name, row in plain.items() if name != DRIFT}
    if DRIFT not in plain:
        return Gate(rows)
    drift = plain[DRIFT]
    if not isinstance(drift, Mapping) or not drift.keys() <= {"baseline", "limits"}:
        raise GateError(f"gate {DRIFT!r}: give it a table with baseline, limits or both, not {drift!r:.200}")
    baseline = drift.get("baseline", "")
    if isinstance(baseline, bool) or not isinstance(baseline, (int, str)):
        raise GateError(f"gate {DRIFT!r}: baseline is a version, a tag or an address, not {baseline!r:.200}")
    return Gate(rows, str(baseline), _numbers_in(f"{DRIFT}.limits", drift.get("limits", {}), None))


def _numbers_in(name: str, row: object, known: tuple[str, ...] | None) -> dict[str, float]:
    if not isinstance(row, Mapping) or (known is not None and (not row or not row.keys() <= set(known))):
        keys = " or ".join(known) if known else "a number for each series"
        raise GateError(f"gate {name!r}: give it a table with {keys}, not {row!r:.200}")
    if not all(type(value) in (int, float) and math.isfinite(value) for value in row.values()):
        raise GateError(f"gate {name!r}: {row!r:.200} holds what is no number")
    return {str(key): float(value) for key, value in row.items()}


def broken_rows(dataset: Dataset, gate: Gate, *, final: bool = True) -> list[Broken]:
    """The rows of a gate that what is closed of a dataset, or shown by its version, breaks. Raises StoreError.

    Where more will be closed, not `final`, numbers of records and tokens are not looked at.
    """
    whole, dataset = dataset, as_shown(dataset)
    profile = profile_of(dataset)
    found = numbers_of(dataset, profile)
    broken: list[Broken] = []
    for name, row in gate.rows.items():
        if not final and name in _GROWS:
            continue
        value = found.get(name)
        for limit, wanted in row.items():
            if value is None or (value < wanted if limit == "min" else value > wanted):
                broken.append(Broken(name, limit, wanted, value, _removed(dataset, name)))
    if gate.drift is None:
        return broken
    baseline = _baseline(whole, gate.baseline)
    if baseline is None:
        return broken
    known = {shard.number for shard in baseline.shards} if baseline.uri == dataset.uri else set[int]()
    if known:
        profile = profile_of(dataset, without=known)
    found_drift = drifted(profile_of(baseline), profile, gate.drift)
    samples = _documents_of(dataset, known) if found_drift else ""
    return broken + [replace(row, detail=f"{row.detail}; such as {samples}") for row in found_drift]


def _documents_of(dataset: Dataset, without: Collection[int]) -> str:
    """Ids of some documents of the newest shard that is not left out."""
    for shard in reversed(dataset.shards):
        documents = shard.object("documents")
        if documents is not None and shard.number not in without and shard.closed.counts.kept:
            ids = read_table(dataset.store, documents.key, ["id"]).column("id")
            places = sorted({0, len(ids) // 2, len(ids) - 1})
            return ", ".join(str(ids[place].as_py())[:_SAMPLE_CHARACTERS] for place in places)
    return "none"


def _removed(dataset: Dataset, name: str) -> str:
    """Samples of what a stage removed, where a row is about that; "" for another row."""
    if not name.startswith(("removed.", "kept_", "filtered_")):
        return ""
    for shard in reversed(dataset.shards):
        samples = shard.object("samples")
        rows = [] if samples is None else read_table(dataset.store, samples.key).to_pylist()
        wanted = name.removeprefix("removed.").rpartition("/")[2] if name.startswith("removed.") else ""
        fits = [row for row in rows if wanted in str(row["reason"])][:_KEYS_SHOWN]
        if fits:
            return "; ".join(
                f"{str(row['id'])[:_SAMPLE_CHARACTERS]} {row['text'][:_SAMPLE_CHARACTERS]!r}" for row in fits
            )
    return ""


def _baseline(dataset: Dataset, name: str) -> Dataset | None:
    """The version that drift is measured from; None where the dataset has none yet, and no other is named."""
    if name and not name.isdigit() and "/" in name:
        return open_at(name)
    state = dataset.state
    if name:
        return view(dataset, version_named(dataset.store, state, name))
    before = sorted(state.published) if state.unshown else sorted(state.published)[:-1]
    return view(dataset, before[-1]) if before else None


def profile_of(dataset: Dataset, without: Collection[int] = ()) -> Profile:
    """The sum of the profiles of shards of the main sink, but for those of entries that are left out.

    A shard without a profile is measured. Raises StoreError.
    """
    sink = main_sink(dataset.state.counts)
    found = Profile()
    for shard in dataset.shards:
        if shard.closed.sink == sink and shard.number not in without:
            found.add(_profile_of_shard(dataset, shard))
    return found


def _profile_of_shard(dataset: Dataset, shard: ClosedShard) -> Profile:
    stored = shard.object(PROFILE_ROLE)
    if stored is not None and stored.size <= PROFILE_BYTES_MAX:
        return decode_profile(dataset.store.get(stored.key), f"{dataset.uri}: {stored.key!r}")
    tokens, documents = shard.object("tokens"), shard.object("documents")
    return measure_profile(
        dataset.store,
        "" if tokens is None else tokens.key,
        None if documents is None else read_table(dataset.store, documents.key),
        shard.closed.counts.by_fate,
        shard.closed.counts.tokens,
    )


def numbers_of(dataset: Dataset, profile: Profile) -> dict[str, float]:
    """What a gate may limit, by name."""
    balance = balance_of(dataset.state)
    found, tokens = balance.numbers(), balance.counts.tokens
    length = profile.get("length")
    if length is not None and tokens:
        found["tokens_mean"] = tokens / length.total
        found |= {f"tokens_p{round(100 * share)}": quantile(length, share) for share in QUANTILES}
    languages = profile.get("language")
    if languages is not None:
        whole = max(languages.total, 1)
        found |= {f"language.{name}": count / whole for name, count in languages.counts.items() if name}
    return found


def drifted(before: Profile, after: Profile, limits: Mapping[str, float]) -> list[Broken]:
    """The series that are further from a baseline's than their limits; none of too few documents."""
    documents = [_documents(profile) for profile in (before, after)]
    if min(documents) < DOCUMENTS_MIN:
        return []
    broken: list[Broken] = []
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            one, other = one or _absent(other, documents[0]), other or _absent(one, documents[1])
        limit = limits.get(name, LIMITS[one.kind])
        if one.kind is not other.kind:
            broken.append(Broken(f"{DRIFT}.{name}", "max", limit, None))
            continue
        found, detail = distance(one, other, documents)
        if found > limit:
            broken.append(Broken(f"{DRIFT}.{name}", "max", limit, round(found, 4), detail))
    return broken


def _documents(profile: Profile) -> int:
    return max((profile[name].total for name in ("length", "source") if name in profile), default=0)


def _absent(other: Series | None, documents: int) -> Series:
    """What stands for a series that a profile has not: no value in any document."""
    assert other is not None
    missing = Series(other.kind)
    missing.counts["(none)" if other.kind is SeriesKind.NAMES else 0] = documents
    return missing


def distance(one: Series, other: Series, documents: Sequence[int]) -> tuple[float, str]:
    """How far two series of one kind are from one another beyond chance, and what differs most, in words."""
    keys = sorted({*one.counts, *other.counts})
    counts = np.array([[series.counts.get(key, 0) for key in keys] for series in (one, other)], np.float64)
    totals = counts.sum(axis=1)
    if not totals.all():
        return 0.0, ""
    shares = counts / totals[:, None]
    change: npt.NDArray[np.float64] = shares[1] - shares[0]
    # Of much not all is counted: so many were, at least.
    least, step = (ALL_TOKENS_MAX, TOKEN_STEP_MAX) if one.kind is SeriesKind.HASHES else (ALL_FIELDS_MAX, FIELD_STEP)
    drawn = np.maximum(totals / step, np.minimum(totals, least))
    spread = float((1 / drawn).sum())
    if one.kind is SeriesKind.NUMBERS:
        middle = [quantile(series, 0.5) for series in (one, other)]
        far = float(np.abs(np.cumsum(change)).max()) - 2 * math.sqrt(spread)
        return max(far, 0.0), f"median {middle[0]:g} before, {middle[1]:g} now"
    if one.kind is SeriesKind.NAMES:
        pooled = counts.sum(axis=0) / counts.sum()
        chance = float(np.sqrt(pooled * (1 - pooled) * spread / (2 * math.pi)).sum())
        most = np.argsort(-np.abs(change))[:_KEYS_SHOWN].tolist()
        words = ", ".join(f"{keys[at]} {shares[0, at]:.1%} before, {shares[1, at]:.1%} now" for at in most)
        return max(float(np.abs(change).sum()) / 2 - 1.5 * chance, 0.0), words
    chance = (len(keys) - 1) / (8 * math.log(2)) * spread
    chance += _ALIKE * sum(1 / count for count in documents)
    return max(_jensen_shannon(shares) - chance, 0.0), "the texts have other contents"


def _jensen_shannon(shares: npt.NDArray[np.float64]) -> float:
    """The divergence of two distributions `[2, keys]`, in bits."""
    middle = shares.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(shares > 0, shares * np.log2(shares / middle), 0.0)
    return float(terms.sum()) / 2
