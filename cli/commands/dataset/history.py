"""`headrace dataset log`, `tag`, `rollback`, `publish`, `diff`, `bisect`: versions, their names, and what changed."""

from __future__ import annotations

import gc
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from headrace.cli.ui import FAINT, console, number, print_json, safe, title
from headrace.client import CliError, UsageError
from headrace.pipeline import recipe_difference
from headrace.store import counted
from headrace.store.datasets import Dataset
from headrace.store.history import VersionFacts, history_of, open_at, split_address, version_named
from headrace.store.ledger import ROLLBACKS_MAX, VersionPublished, lacks_input, main_sink

if TYPE_CHECKING:
    from headrace.controller import OfflineWriter


#: Of a version, lines of a difference, reasons and objects that are shown to people; `--json` gives all of them.
LINES_SHOWN = 10
#: Characters of a parameter that are shown.
VALUE_SHOWN = 60
_FIELDS = [name for name in VersionFacts.__dataclass_fields__ if name not in ("pipeline", "inputs")]


def show_log(uri: str, *, limit: int, as_json: bool) -> int:
    """Show the newest `limit` versions of a dataset, the newest first (0: all); the exit code."""
    gc.disable()  # what is read stays until the command ends
    dataset = Dataset.open(uri)
    gc.freeze()
    gc.enable()
    versions = history_of(dataset.state, main_sink(dataset.state.counts))
    rows = [_row(one, before) for one, before in zip(versions, [None, *versions], strict=False)]
    shown = rows[::-1][: limit or None]
    if as_json:
        return print_json({"dataset": dataset.uri, "version": dataset.state.version, "versions": shown})
    out = console()
    if not rows:
        out.print(title(dataset.uri, "no version is published yet: a run goes on, or ended before it had any"))
    for row in shown:
        _print_version(out, row)
    if len(shown) < len(rows):
        out.print(f"  {counted(len(rows) - len(shown), 'version')} before it; `--limit 0` shows all", style=FAINT)
    return 0


def list_tags(uri: str, *, as_json: bool) -> int:
    """Show the tags of a dataset; the exit code."""
    from headrace.store.history import read_tags, stands_for

    dataset = Dataset.open(uri)
    tags = {
        name: {"version": tag.version, "entry": tag.entry, "removed": not stands_for(dataset.state, tag)}
        for name, tag in sorted(read_tags(dataset.store).items())
    }
    if as_json:
        return print_json({"dataset": dataset.uri, "tags": tags})
    out = console()
    for name, tag in tags.items():
        gone = ", of a dataset that was removed" if tag["removed"] else ""
        out.print(f"  {name}  version {tag['version']}{gone}", markup=False)
    if not tags:
        out.print(f"  {dataset.uri} has no tag: `headrace dataset tag URI NAME` sets one", style=FAINT, markup=False)
    return 0


def change_tag(uri: str, name: str, *, delete: bool, move: bool, as_json: bool) -> int:
    """Set a tag to the version that an address names, or delete it; the exit code."""
    from headrace.store.history import delete_tag, set_tag

    place, wanted = split_address(uri)
    dataset = Dataset.open(place)
    version = version_named(dataset.store, dataset.state, wanted) if wanted else dataset.version
    if delete:
        tag = delete_tag(dataset.store, name)
    elif not version:
        raise CliError(f"{dataset.uri} has no version yet that a tag could name: run it to its end")
    else:
        tag = set_tag(dataset.store, dataset.state, name, version, move=move)
    if as_json:
        return print_json({"dataset": dataset.uri, "tag": name, "version": tag.version, "deleted": delete})
    what = (
        f"tag {name} is deleted; version {tag.version} stays" if delete else f"tag {name} names version {tag.version}"
    )
    console().print(title(dataset.uri, what))
    return 0


def roll_back(address: str, *, as_json: bool) -> int:
    """Publish a version that shows what an earlier one showed; the exit code. After a kill, the next call continues."""
    # Here, since a log is shown without any of it, in half the time.
    from headrace.cli.commands.maintenance import write_manifest
    from headrace.controller import with_offline_writer

    uri, name = split_address(address)
    if not name:
        raise UsageError("name the version to go back to: URI@VERSION or URI@TAG; `headrace dataset log` lists them")
    dataset = Dataset.open(uri)
    version = version_named(dataset.store, dataset.state, name)

    async def rolled(writer: OfflineWriter) -> int:
        state = writer.ledger
        shown, newest = state.published[version], state.newest
        if newest is None or (version != state.version and newest.restores(state.version) != version):
            if len(shown.rollbacks) >= ROLLBACKS_MAX:
                raise CliError(
                    f"{dataset.uri}: version {version} restores others {ROLLBACKS_MAX:,} deep; name one of them "
                    "that no rollback made: `headrace dataset log` lists them"
                )
            restored = VersionPublished(state.version + 1, "rollback", shown.shows, shown.complete, restores=version)
            await writer.commit(restored)
        # Also where that is done: an earlier call may have been killed before it came to this.
        await write_manifest(writer, dataset.store)
        return writer.ledger.version

    made = with_offline_writer(dataset.uri, rolled)
    if as_json:
        return print_json({"dataset": dataset.uri, "version": made, "restores": version})
    console().print(title(dataset.uri, f"version {made} shows what version {version} showed"))
    return 0


#: The reason of a version that was published against its gate.
ANYWAY = "published anyway"


def publish_held(uri: str, *, anyway: bool, as_json: bool) -> int:
    """Publish the version that a gate holds; the exit code. After a kill, the next call continues."""
    from headrace.cli.commands.maintenance import write_manifest
    from headrace.controller import with_offline_writer

    dataset = Dataset.open(uri)
    if dataset.state.held and not anyway:
        raise CliError(f"{dataset.uri}: {dataset.completeness().words[0]}; --anyway publishes it")
    newest = dataset.state.newest
    if not dataset.state.held and (newest is None or newest.reason != ANYWAY):
        raise CliError(f"{dataset.uri}: no version is held; `headrace run` publishes what it closes")

    async def published(writer: OfflineWriter) -> int:
        state = writer.ledger
        if state.held:
            closed = all(fragment.done(tuple(state.counts)) for fragment in state.fragments.values())
            whole = closed and not lacks_input(state)
            await writer.commit(VersionPublished(state.version + 1, ANYWAY, complete=whole))
        # Also where that is done: an earlier call may have been killed before it came to this.
        await write_manifest(writer, dataset.store)
        return writer.ledger.version

    made = with_offline_writer(dataset.uri, published)
    if as_json:
        return print_json({"dataset": dataset.uri, "version": made, "held": list(dataset.state.held)})
    console().print(title(dataset.uri, f"version {made} is published against its gate"))
    return 0


def show_differences(before: str, after: str, *, as_json: bool) -> int:
    """Show the records whose fate or text is another one in `after`; the exit code."""
    from headrace.store.history import differences

    found = differences(open_at(before), open_at(after))
    ranked = sorted(found.changed.items(), key=lambda item: (-item[1], item[0]))
    changed = sum(found.changed.values())
    if as_json:
        rows = [
            {
                "before": kind[0],
                "after": kind[1],
                "records": count,
                "samples": [asdict(one) for one in found.samples[kind]],
            }
            for kind, count in ranked
        ]
        facts = {"before": before, "after": after, "records": found.records, "changed": changed}
        return print_json({**facts, "texts_compared": found.texts, "changes": rows})
    out = console()
    out.print(title(f"{before} and {after}", f"{number(changed)} of {counted(found.records, 'record')} differ"))
    if not found.texts:
        out.print("  of two tokenizers, or of tokens and texts: texts are not compared", style="yellow")
    for kind, count in ranked:
        out.print(Text.assemble(f"  {safe(kind[0])} -> {safe(kind[1])}", f"  {number(count)}"))
        _print_lines(out, [f"{one.id}  {one.source} record {one.row}" for one in found.samples[kind]])
    return 0


def _row(facts: VersionFacts, before: VersionFacts | None) -> dict[str, Any]:
    """A version as JSON: its facts, its recipe with parameters, and what changed since the version before it."""
    row: dict[str, Any] = {name: getattr(facts, name) for name in _FIELDS}
    row["inputs"] = [{"uri": one.uri, "version": one.version, "records": one.records} for one in facts.inputs]
    row["at"] = datetime.fromtimestamp(facts.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if facts.at else None
    row["recipe"] = [
        {"stage": str(stage.get("name", "")), "parameters": stage.get("parameters", {})}
        for stage in facts.pipeline.get("stages", ())
        if isinstance(stage, Mapping)
    ]
    row["base"] = facts.pipeline.get("base")
    changed = before is not None and before.recipes[-1:] != facts.recipes[-1:]
    row["difference"] = recipe_difference(before.pipeline, facts.pipeline) if before is not None and changed else []
    return row


def _print_version(out: Console, row: dict[str, Any]) -> None:
    what = f"restores version {row['restores']}" if row["restores"] else row["reason"] or "reason unknown"
    when = row["at"] or "at an unknown time"
    state = "" if row["complete"] else ", incomplete"
    out.print(title(f"version {row['version']}", f"{what}{state}, {when}, entry {row['entry']}", good=row["complete"]))
    verdicts = ", ".join(f"{number(row[name])} {name}" for name in ("kept", "filtered", "duplicate", "quarantined"))
    hidden = f", {number(row['retracted'])} retracted" if row["retracted"] else ""
    tokens = f"{counted(row['tokens'], 'token')} in {counted(row['shards'], 'shard')}"
    out.print(f"  {counted(row['records'], 'record')}: {verdicts}{hidden}; {tokens}", markup=False)
    recipe = row["recipes"][-1] if row["recipes"] else "none"
    several = f", {len(row['recipes'])} recipes in all" if len(row["recipes"]) > 1 else ""
    out.print(f"  recipe {recipe}{several}", markup=False)
    if base := row["base"]:
        first = f", first changed stage {base['changed']}" if base["changed"] else ""
        again = ", what it quarantined judged again" if base["again"] else ""
        out.print(f"  from {safe(str(base['dataset']))}@{base['version']}{first}{again}", markup=False)
    if row["version"] == 1:
        _print_lines(out, [f"{stage['stage']}  {_parameters(stage['parameters'])}" for stage in row["recipe"]])
    _print_lines(out, row["difference"])
    fresh = row["inputs"]
    out.print(f"  input  {counted(row['objects'], 'object')}, {number(len(fresh))} of them new or read further")
    _print_lines(out, [f"{one['uri']}  {one['version']}  {counted(one['records'], 'record')}" for one in fresh])
    out.print()


def _parameters(given: Mapping[str, Any]) -> str:
    """Parameters in a line; of a long value the beginning, `--json` gives it whole."""
    values = {name: json.dumps(value, sort_keys=True) for name, value in sorted(given.items())}
    shown = {
        name: text if len(text) <= VALUE_SHOWN else f"{text[: VALUE_SHOWN - 3]}..." for name, text in values.items()
    }
    return " ".join(f"{name}={text}" for name, text in shown.items())


def _print_lines(out: Console, lines: list[str]) -> None:
    for line in lines[:LINES_SHOWN]:
        out.print(Text(f"    {safe(line)}", style=FAINT))
    if len(lines) > LINES_SHOWN:
        out.print(Text(f"    and {number(len(lines) - LINES_SHOWN)} more; `--json` gives all of them", style=FAINT))


#: What a command ends with for a version that it cannot judge, as in git.
SKIPPED = 125
#: The highest status by which a command says that a version is bad; beyond it, it was killed.
BAD_MAX = 127
#: The variable in which the command finds the version's address.
VARIABLE = "HEADRACE_DATASET"


def bisect(uri: str, command: str, *, good: str, bad: str, as_json: bool) -> int:
    """Run a command on versions between a good and a bad one, and name the first bad one; the exit code."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--run {command!r}: {error}") from error
    if not words:
        raise UsageError("give the command by --run, with {} for the version's address")
    dataset = Dataset.open(uri)
    first, last = (version_named(dataset.store, dataset.state, name) for name in (good, bad or str(dataset.version)))
    if first >= last:
        raise UsageError(f"the good version {first} is not before the bad one {last}")
    versions = [version for version in sorted(dataset.state.published) if first <= version <= last]

    def judge(version: int) -> bool | None:
        address = f"{uri}@{version}"
        status = _status([word.replace("{}", address) for word in words], address)
        verdict = None if status == SKIPPED else status == 0
        print(f"version {version}: {_WORDS[verdict]}", file=sys.stderr, flush=True)
        return verdict

    candidates = first_bad(versions, judge)
    # Nothing has found these good, or bad, yet.
    if candidates[0] == versions[1] and judge(first) is False:
        raise CliError(
            f"{dataset.uri}: version {first} is bad as well: the command fails at all versions that it tried"
        )
    if candidates[-1] == last and judge(last):
        raise CliError(f"{dataset.uri}: version {last} is good as well: the command fails at no version that it tried")
    if as_json:
        return print_json({"dataset": dataset.uri, "good": first, "bad": last, "first_bad": candidates})
    found = " or ".join(map(str, candidates))
    skipped = "; those between were skipped" if len(candidates) > 1 else ""
    console().print(title(dataset.uri, f"version {found} is the first bad one{skipped}"))
    return 0


_WORDS = {True: "good", False: "bad", None: "skipped"}


def first_bad(versions: Sequence[int], judge: Callable[[int], bool | None]) -> list[int]:
    """The first bad one of versions, of which the first is good and the last is bad.

    Several, where those that `judge` skips (None) lie between. Each is judged once at most.
    """
    good, bad = 0, len(versions) - 1
    skipped: set[int] = set()
    while True:
        middle = (good + bad) // 2
        untried = [place for place in range(good + 1, bad) if place not in skipped]
        if not untried:
            return [versions[place] for place in range(good + 1, bad + 1)]
        place = min(untried, key=lambda one: (abs(one - middle), one))
        verdict = judge(versions[place])
        if verdict is None:
            skipped.add(place)
        elif verdict:
            good = place
        else:
            bad = place


def _status(words: list[str], address: str) -> int:
    """What the command ends with; its output goes to standard error. Raises CliError where it did not end by itself."""
    try:
        done = subprocess.run(  # noqa: S603 - the command is the user's own
            words, stdout=sys.stderr, env={**os.environ, VARIABLE: address}, check=False
        )
    except OSError as error:
        raise CliError(f"cannot run {safe(words[0])}: {error.strerror}") from error
    if not 0 <= done.returncode <= BAD_MAX:
        raise CliError(f"{safe(words[0])} ended with {done.returncode} at {address}: it judged nothing")
    return done.returncode
