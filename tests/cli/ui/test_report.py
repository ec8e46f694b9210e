"""The balance: what it says of a ledger, and how it is shown."""

import io
import json
import os
from dataclasses import replace

import pytest
from rich.console import Console

from headrace.cli.ui import progress_lines
from headrace.cli.ui.deaths import DEATHS_SHOWN, DeathRow
from headrace.cli.ui.page import run_page
from headrace.cli.ui.progress import LivePage, stage_rows
from headrace.cli.ui.progress_lines import (
    START_S,
    Lines,
    Meter,
    at_batch,
    closed_line,
    input_bytes_read,
    input_bytes_stored,
    progress_on,
    start_line,
)
from headrace.cli.ui.report import RunResult, StageSpeed, passed_unseen
from headrace.cli.ui.words import safe, seconds
from headrace.protos import control_pb2 as pb
from headrace.protos.codec import balance_from, balance_to, plain
from headrace.store.ledger.core.balance import Balance, balance_of
from headrace.store.ledger.core.entries import (
    Closed,
    Entry,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
    VersionPublished,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range

FRAGMENT = Fragment.named("read", "file:///a.jsonl", "1-2-3", start=0, end=-1, reader="jsonl/1", size=100)
COUNTS = Counts(
    kept=6,
    filtered=3,
    quarantined=1,
    filtered_by={"words/too few words": 2, "words/too many words": 1},
    quarantined_by={"read/malformed JSON": 1},
    tokens=900,
    sequences=10,
    padding=100,
)


def ledger(*changes: object) -> LedgerState:
    state = LedgerState()
    state.apply(0, Entry(1, (Led(1, {}), FragmentsListed((FRAGMENT,)), *changes)))  # type: ignore[arg-type]
    return state


def closed(first: int, counts: Counts) -> Closed:
    return Closed("write", "v", 0, (Range(FRAGMENT.id, first, counts.records),), (), counts)


def complete(counts: Counts) -> Balance:
    return Balance(counts, shards=1, version=1, complete=True)


def report(**changes: object) -> RunResult:
    balance = balance_of(ledger(closed(0, COUNTS), FragmentEnded(FRAGMENT.id, 10), VersionPublished(1, "completed")))
    made = RunResult(
        pipeline="fineweb",
        dataset="file:///data/out",
        state="completed",
        pipeline_version="0123456789abcdef",
        balance=balance,
        recipes=(),
        bytes_read=158_000_000,
        seconds=12.5,
        first_batch_s=1.4,
        records_resumed=0,
        tokenizer_engine="gigatoken",
        stages=(StageSpeed("read", 10, 0, 158_000_000, 5.0, 2.0), StageSpeed("words", 10, 3, 158_000_000, 1.0, 1.0)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def shown(made: RunResult, width: int = 90) -> str:
    out = Console(file=io.StringIO(), width=width)
    out.print(run_page(made))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_a_closed_fragment_balances_and_is_complete() -> None:
    balance = balance_of(ledger(closed(0, COUNTS), FragmentEnded(FRAGMENT.id, 10)))
    assert (balance.records_read, balance.balanced, balance.complete) == (10, True, True)


def test_records_that_a_source_counted_and_no_sink_closed_are_open() -> None:
    balance = balance_of(ledger(closed(0, COUNTS), FragmentEnded(FRAGMENT.id, 12)))
    assert (balance.records_read, balance.records_closed, balance.records_open) == (12, 10, 2)
    assert (balance.balanced, balance.complete) == (True, False)


def test_equation_and_shares_are_of_what_is_closed_and_open_stands_apart() -> None:
    text = shown(report(balance=balance_of(ledger(closed(0, COUNTS), FragmentEnded(FRAGMENT.id, 12)))))
    for words in (
        "closed",
        "60.0%",
        "balanced so far  10 = 6 + 3 + 0 + 1",
        "open  2 records read and not closed; 1 fra",
    ):
        assert words in text, text
    assert " 12 " not in text


def test_a_dataset_with_nothing_in_it_is_not_complete() -> None:
    assert not balance_of(LedgerState()).complete


def test_input_without_records_is_complete_once_read_to_its_end() -> None:
    assert not balance_of(ledger()).complete
    balance = balance_of(ledger(FragmentEnded(FRAGMENT.id, 0), VersionPublished(1, "completed")))
    assert (balance.records_read, balance.balanced, balance.complete) == (0, True, True)


def test_the_object_has_the_promised_keys_with_their_types() -> None:
    found = json.loads(json.dumps(report().to_dict()))
    integers = ("records_read", "kept", "filtered", "duplicate", "quarantined", "tokens", "shards")
    integers += ("bytes_read", "records_resumed", "padding", "sequences", "version")
    assert all(type(found[key]) is int for key in integers)
    assert found["balanced"] is True
    assert found["filtered_by"] == {"words/too few words": 2, "words/too many words": 1}
    assert found["quarantined_by"] == {"read/malformed JSON": 1}
    assert found["records_read"] == sum(found[key] for key in ("kept", "filtered", "duplicate", "quarantined"))
    assert found["seconds"] == 12.5
    assert found["tokenizer_engine"] == "gigatoken"
    assert found["stages"][0] == {
        "stage": "read",
        "records": 10,
        "dropped": 0,
        "bytes": 158_000_000,
        "busy_s": 5.0,
        "cpu_s": 2.0,
        "mb_s": 79.0,
    }


@pytest.mark.parametrize("width", [72, 80, 100])
def test_the_page_fits_its_width_and_says_everything(width: int) -> None:
    text = shown(report(), width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("✓ balanced", "10 = 6 + 3 + 0 + 1", "words/too few words", "gigatoken", "10.00% padding", "79.0"):
        assert words in text, text


@pytest.mark.parametrize("width", [40, 50, 71])
def test_a_narrow_terminal_breaks_names_and_no_number(width: int) -> None:
    counts = Counts(
        kept=123_456_789, filtered=1_234_567, filtered_by={"a-long-stage/for a reason that is long": 1_234_567}
    )
    balance = complete(counts)
    text = shown(replace(report(), balance=balance), width)
    for words in ("124,691,356", " 99.0%", " 1.0%", "123,456,789", "1,234,567"):
        assert words in text.replace("\n", " "), text


def test_a_balance_that_does_not_hold_is_shown_as_such() -> None:
    made = report()
    text = shown(replace(made, balance=replace(made.balance, balanced=False)))
    assert "NOT balanced" in text
    assert "✓" not in text


def test_the_end_of_a_run_says_how_to_see_the_quarantined() -> None:
    words = " ".join(shown(report()).split())
    assert "note 1 record is quarantined: `headrace dataset show file:///data/out --quarantine` shows them" in words
    nothing = Counts(quarantined=3, quarantined_by={"read/no text": 3})
    bare = shown(replace(report(), balance=complete(nothing)))
    assert "note nothing was kept; 3 records are quarantined: " in " ".join(bare.split())
    clean = shown(replace(report(), balance=complete(Counts(kept=1))))
    assert "quarantined:" not in clean


def test_text_of_records_cannot_command_the_terminal() -> None:
    assert safe("a\x1b[2Jb\x07") == "a\\x1b[2Jb\\x07"
    counts = Counts(kept=1, filtered=1, filtered_by={"f/[bold]x\x1b[31m": 1})
    text = shown(replace(report(), balance=complete(counts)))
    assert "[bold]x\\x1b[31m" in text


def names(*stages: str, **parameters: str) -> PipelineApplied:
    declared = [{"name": name, "parameters": parameters if name == stages[-1] else {}} for name in stages]
    return PipelineApplied("v", {"stages": declared})


@pytest.mark.parametrize(
    ("stages", "parameters", "counters", "words"),
    [
        (
            ("words", "urls"),
            {"url_key": "url"},
            {"urls/without a URL": 6},
            "are without a URL, and were let through without being judged; name the field that holds it with url_key=",
        ),
        (("words", "urls"), {"a_key": "", "b_key": ""}, {"urls/without a URL": 6}, "holds it with a_key= or b_key="),
        (
            ("words", "mine"),
            {},
            {"mine/without a date": 6},
            "without a date, and were let through without being judged",
        ),
        (("words", "urls"), {}, {"urls/without a URL": 5}, None),
        (("urls", "words"), {}, {"urls/without a URL": 6}, None),
        (("read", "words"), {}, {"words/without a letter": 6}, None),
        (("words", "urls"), {}, {"urls/dropped without a URL": 6}, None),
        (("words", "urls"), {}, {"gone/without a URL": 6}, None),
    ],
)
def test_a_stage_that_let_all_pass_unjudged_is_named(
    stages: tuple[str, ...], parameters: dict[str, str], counters: dict[str, int], words: str | None
) -> None:
    counts = replace(COUNTS, filtered=4, quarantined=0, quarantined_by={}, counters=counters)
    counts = replace(counts, filtered_by={"words/too few words": 4})
    found = passed_unseen(ledger(names(*stages, **parameters), closed(0, counts)))
    assert [words in warning for warning in found] == ([True] if words else []), found


def test_counts_of_stages_are_shown_and_no_part_of_the_balance() -> None:
    many = {f"mine/kind {number:02}": 1_000_000 + number for number in range(20)}
    made = report()
    for counters, lines in (({"urls/without a URL": 1_234_567}, []), (many, ["and 12 counters more"])):
        counted = replace(made, balance=replace(made.balance, counts=replace(COUNTS, counters=counters)))
        assert counted.to_dict()["counters"] == counters
        assert counted.to_dict()["edited"] == {}
        text = shown(counted)
        first, count = next(iter(counters.items()))
        for words in ("counted by stages", first, f"{count:,}", *lines, "✓ balanced", "10 = 6 + 3 + 0 + 1"):
            assert words in text, text
    assert "counted by stages" not in shown(made)


def test_spans_of_time_read_as_people_say_them() -> None:
    assert [seconds(value) for value in (0.04, 59.94, 61, 3_660)] == ["0.0 s", "59.9 s", "1 min 01 s", "1 h 01 min"]


def test_a_meter_foretells_the_end_once_it_has_seen_enough() -> None:
    meter = Meter()
    meter.take(0.0, 10)
    meter.take(1.0, 110)
    assert meter.left_s(1.0, 100) is None
    meter.take(3.0, 310)
    assert meter.speed == 100
    assert meter.left_s(3.0, 500) == 5


def test_a_status_shows_the_balance_of_the_ledger_and_what_is_open() -> None:
    balance = balance_of(ledger(closed(0, COUNTS), FragmentEnded(FRAGMENT.id, 12)))
    told = pb.PipelineStatus(pipeline="p", shards=1, balance=balance_to(balance))
    assert plain(told)["balance"].items() >= balance.to_dict().items()
    assert balance_from(told.balance) == balance
    assert closed_line(told) == "10 records, 900 tokens, 1 shard, 10.00% padding"


def test_a_run_without_tokens_says_nothing_of_them() -> None:
    assert closed_line(pb.PipelineStatus(pipeline="p")) == "0 records, 0 shards"


def status() -> pb.PipelineStatus:
    facts = {"bytes_resumed": "50"}
    made = pb.PipelineStatus(pipeline="p", state="running", input_bytes=200, shards=1, facts=facts, sources=["read"])
    made.tasks.append(pb.TaskStatus(task="p/read.0", stages=["read", "words"], state="ready"))
    made.tasks.append(pb.TaskStatus(task="p/write.0", stages=["write"], state="starting"))
    made.links.append(pb.LinkStatus(link="l", sender="p/read.0", receiver="p/write.0"))
    for stage in ("read", "words", "write"):
        stored = 40 if stage == "read" else 0
        made.stages.append(pb.StageProgress(stage=stage, records=5, bytes=100, stored_bytes=stored, busy_s=0.5))
    made.counts["write"].kept = made.balance.kept = 5
    made.balance.shards = 1
    return made


def test_only_what_sources_read_counts_as_input() -> None:
    assert input_bytes_read(status()) == 100


def test_progress_counts_stored_input_and_never_more_than_its_size() -> None:
    made = status()
    assert input_bytes_stored(made) == 50 + 40
    made.stages[0].stored_bytes = 1000
    assert input_bytes_stored(made) == 200


def test_a_stage_long_at_a_batch_says_so_in_lines_and_page() -> None:
    made = status()
    made.tasks[1].state = "ready"
    words = made.stages[1]
    words.busy_s, words.guessed_s, words.at_batch_s, words.batch_records = 6.5, 0.25, 6.75, 512
    out = io.StringIO()
    with Lines(out, "p") as lines:
        lines.update(made)
    assert "words is at 512 records for 6.8 s" in out.getvalue()
    page = Console(file=io.StringIO(), width=80)
    page.print(stage_rows(made, 13.5))
    row = next(line for line in page.file.getvalue().splitlines() if "words" in line)  # type: ignore[attr-defined]
    assert row.rstrip().endswith("50.0%       6.8 s")
    words.at_batch_s = 1.0
    assert at_batch(words) == "", "what is over soon is not told"


def test_mb_a_core_counts_time_of_a_core_and_no_waiting() -> None:
    alone, shared = StageSpeed("words", 10, 0, 50_000_000, 1.0, 1.0), StageSpeed("words", 10, 0, 50_000_000, 2.5, 1.0)
    assert alone.mb_s == shared.mb_s == 50.0
    assert StageSpeed("words", 10, 0, 50_000_000, 2.5, 0.0).mb_s == 0.0, "nothing is known of it"


def test_deaths_and_their_causes_stand_on_page_and_in_object() -> None:
    rows = [
        DeathRow("task", "p/read.0", "the process was killed by signal 9", 3),
        DeathRow("controller", "", "gone", 1),
    ]
    made = report(deaths=tuple(rows))
    text = shown(made)
    assert "died  task p/read.0, 3 times: the process was killed by signal 9" in text
    assert "died  controller: gone" in text
    assert made.to_dict()["deaths"][0] == {
        "what": "task", "name": "p/read.0", "cause": "the process was killed by signal 9", "count": 3,
    }  # fmt: skip
    many = [DeathRow("task", f"p/read.{number}", "exit code 1", 2) for number in range(DEATHS_SHOWN + 3)]
    assert "died  and 6 deaths more" in shown(report(deaths=tuple(many)))


def test_without_a_terminal_progress_is_plain_lines() -> None:
    out = io.StringIO()
    with Lines(out, "p") as lines:
        lines.update(status())
        lines.update(status())
        lines.note("a note")
    text = out.getvalue()
    assert text.count("p: running") == 1
    assert "\x1b" not in text
    assert text.endswith("a note\n")


def test_progress_that_cannot_be_written_ends_no_run() -> None:
    with open("/dev/full", "wb", buffering=0) as raw, io.TextIOWrapper(raw, write_through=True) as full:
        lines = Lines(full, "p")
        with pytest.raises(OSError, match="No space left"):
            full.write("as it is")
        lines.note("a note")
        lines.update(status())


def test_a_line_that_says_nothing_new_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress_lines.time, "monotonic", lambda: clock[0])
    out, made = io.StringIO(), status()
    with Lines(out, "p") as lines:
        for _ in range(9):
            clock[0] += progress_lines.LINE_S
            lines.update(made)
        made.stages[0].stored_bytes += 1_000_000
        clock[0] += progress_lines.LINE_S
        lines.update(made)
    assert len(out.getvalue().splitlines()) == len(set(out.getvalue().splitlines())) <= 3


def test_only_a_terminal_gets_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(progress_on(io.StringIO(), "p"), Lines)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(progress_on(io.StringIO(), "p"), LivePage)
    monkeypatch.delenv("FORCE_COLOR")
    main, other = os.openpty()
    with os.fdopen(main), os.fdopen(other, "w") as terminal:
        assert isinstance(progress_on(terminal, "p"), LivePage)
        monkeypatch.setenv("TERM", "dumb")
        assert isinstance(progress_on(terminal, "p"), Lines)


def test_a_terminal_of_eighty_columns_shows_a_row_a_stage() -> None:
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    page = LivePage(out, "p")
    page.update(status())
    out.print(page._page())
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert all(stage in text for stage in ("read", "words", "write", "1 of 2 tasks", "5 records"))
    assert max(map(len, text.splitlines())) <= 80


def test_a_status_as_json_keeps_integers_and_shows_bytes_as_hex() -> None:
    found = plain(status())
    assert found["input_bytes"] == 200
    assert found["counts"]["write"]["kept"] == 5
    assert found["tasks"][0]["stages"] == ["read", "words"]
    assert plain(pb.Range(fragment=b"\x01\xff"))["fragment"] == "01ff"
    json.dumps(found)


def test_a_start_that_takes_long_is_explained_until_a_task_is_ready() -> None:
    made = pb.PipelineStatus(pipeline="p", state="running")
    made.tasks.append(pb.TaskStatus(task="p/read.0", stages=["read"], state="starting"))
    assert start_line(made, START_S - 0.1) == ""
    assert "compiled at their first use" in start_line(made, START_S)
    made.tasks[0].state = "ready"
    assert start_line(made, START_S) == ""
