"""The page in headless Chromium: what others wrote is text on every screen, and keys reach every screen and act."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands.dataset.page import DatasetPage
from headrace.protos import control_pb2 as pb
from tests.kits.page.browser import CHROMIUM, Browser
from tests.kits.page.large_run import LargeRun
from tests.kits.page.pictures import served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")]

MARKUP = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
HOSTILE = f"{MARKUP}</td>&lt;b&gt;javascript:owned()\u202e"
RUN, DATASET = ("Overview", "Tasks", "Links", "Workers", "Records", "Logs"), ("Card", "Records", "Versions", "Lineage")
SAMPLES = {
    "samples": {f"keep/{HOSTILE}": [{"id": HOSTILE, "reason": HOSTILE, "text": HOSTILE}]},
    "quarantine": [{"id": HOSTILE, "stage": HOSTILE, "reason": HOSTILE, "raw": HOSTILE}],
    "quarantine_more": 7,
    "duplicates": [{"id": HOSTILE, "kept": HOSTILE, "reason": HOSTILE, "text": HOSTILE, "kept_text": None}],
}


class Answers:
    """The page of a large run, whose questions are noted and answered as a test says."""

    def __init__(self, run: LargeRun) -> None:
        self.run, self.asked = run, list[tuple[str, Mapping[str, Any]]]()
        self.answers: dict[str, dict[str, Any]] = {"samples": SAMPLES}
        line = {"time": "2026-05-04T12:30:00.000Z", "level": "error", "process": HOSTILE, "message": HOSTILE}
        self.answers["logs"] = {"lines": [{**line, "cause": HOSTILE, "traceback": HOSTILE}] * 2, "missing": [HOSTILE]}

    def whole(self) -> bytes:
        return self.run.page.whole()

    def change(self) -> bytes:
        return self.run.page.change()

    async def answer(self, question: str, given: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((question, given))
        return self.answers.get(question, {"changes": [HOSTILE]})


def hostile_run() -> Answers:
    large = LargeRun(30, 60, names=("one", HOSTILE))
    large.report(30)
    run = large.stand.run
    assert run.tasks is not None
    first = next(iter(run.tasks))
    first.story = f"{HOSTILE}\n{HOSTILE}"
    run.reason = HOSTILE
    for name, stage in (("run/read.1", "read"), ("run/keep.1", HOSTILE)):
        report = pb.Progress(trouble=HOSTILE, stages=[pb.StageProgress(stage=stage, records=5, at_batch_s=9)])
        report.links.add(link=HOSTILE, via=HOSTILE)
        large.progress.take(pb.TaskEvent(task=name, attempt=1, progress=report))
    large.page.note(1.0)
    run.deaths.note("task", "run/read.0", HOSTILE)
    large.shell.core.lost.note("worker", HOSTILE, HOSTILE)
    large.shell.fault_words.append(HOSTILE)
    large.page.note(2.0)
    sums = dict.fromkeys(("tokens", "position", "batches", "data_wait_s", "elapsed_s"), 1)
    asyncio.run(large.page.answer("loader", {"name": MARKUP, "rank": 0, **sums}))
    return Answers(large)


def show(browser: Browser, screen: str) -> str:
    """Open a screen; its text."""
    browser.run(f"document.getElementById('tab-{screen}').click()")
    browser.until(f"document.getElementById('tab-{screen}').getAttribute('aria-selected') === 'true'")
    return str(browser.run("document.getElementById('screen').textContent"))


def check_harmless(browser: Browser, screen: str) -> None:
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.run("window.owned") is None, screen
    assert browser.run("document.querySelectorAll('main img, main script, main b, main iframe').length") == 0, screen
    assert "\u202e" not in str(browser.run("document.body.textContent")), screen


def test_what_others_wrote_is_text_on_every_screen(tmp_path: Path) -> None:
    source = hostile_run()
    with served(source, tmp_path) as (url, _), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 2")
        for screen in RUN:
            show(browser, screen)
            if screen == "Records":
                browser.run("document.querySelector('[data-key=samples]').click()")
                browser.until("document.querySelectorAll('details').length > 1")
            if screen == "Logs":
                browser.until("document.querySelectorAll('summary').length > 0")
            check_harmless(browser, screen)
            text = browser.run("document.getElementById('screen').textContent")
            assert (MARKUP in text) or screen == "Links", screen
        assert browser.complaints == []


def test_a_hostile_dataset_is_text_on_every_screen(tmp_path: Path) -> None:
    stage = {"name": HOSTILE, "kind": HOSTILE, "target": HOSTILE, "parameters": {HOSTILE: HOSTILE}}
    version = {"version": 1, "at": 1, "reason": HOSTILE, "restores": 0, "complete": True, "tags": [HOSTILE]}
    version |= dict.fromkeys(("kept", "filtered", "duplicate", "quarantined", "tokens", "shards"), 1)
    facts: dict[str, Any] = {
        "dataset": HOSTILE,
        "pipeline": HOSTILE,
        "records_closed": 4,
        "kept": 1,
        "filtered": 1,
        "words": [HOSTILE],
        "filtered_by": {HOSTILE: 1},
        "quarantined_by": {HOSTILE: 1},
        "tokenizer": HOSTILE,
        "card": f"# {HOSTILE}\n",
        "given_up": [{"uri": HOSTILE, "reason": HOSTILE}],
        "versions": [version],
        "objects": 1,
        "inputs": [{"uri": HOSTILE, "records": 4}],
        "recipes": [{"pipeline_version": HOSTILE, "stages": [stage]}],
        **SAMPLES,
    }
    facts["card"] += f"| a | {HOSTILE} |\n|---|---|\n| b | c |\n"
    with served(DatasetPage(facts), tmp_path) as (url, _), Browser(dark=True) as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 0")
        for screen in DATASET:
            assert MARKUP in show(browser, screen), screen
            check_harmless(browser, screen)
        assert browser.complaints == []


def test_keys_reach_every_screen_and_every_act(tmp_path: Path) -> None:
    source = hostile_run()
    with served(source, tmp_path) as (url, _), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 2")
        for number, screen in enumerate(RUN, 1):
            browser.press(str(number))
            selected = "document.querySelector('[aria-selected=true]').id"
            assert browser.until(selected) == f"tab-{screen}"
            if screen == "Logs":
                browser.run("document.activeElement.blur()")
        browser.press("1")
        browser.run("document.querySelector('[aria-selected=true]').focus()")
        browser.press("ArrowRight")
        assert browser.run("document.activeElement.id") == "tab-Tasks"
        browser.press("1")
        for key, question in (("pause", "pause"), ("scale", "scale")):
            browser.until(f"document.querySelector('[data-key={key}]:not(:disabled)')?.focus() === undefined")
            browser.press("Enter")
            if question == "scale":
                browser.until("document.getElementById('dialog').open")
                browser.run("document.querySelector('[name=tasks]').value = 12")
                browser.run("document.querySelector('[name=tasks]').focus()")
                browser.press("Enter")
            browser.until("!document.getElementById('said').hidden")
        browser.until("!document.getElementById('dialog').open")
    assert [question for question, _ in source.asked if question != "logs"] == ["pause", "scale"]
    assert source.asked[-1][1] == {"question": "scale", "pipeline": "run", "stage": "read", "tasks": 12}


def test_the_key_leaves_the_address_and_a_reload_finds_it(tmp_path: Path) -> None:
    with served(hostile_run(), tmp_path) as (url, _), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 0")
        assert browser.run("location.href") == url.partition("#")[0]
        browser.run("window.old = 1; location.reload()")
        browser.until("window.old === undefined && document.getElementById('line')?.className === 'on'")
        browser.run("sessionStorage.clear(); location.reload()")
        browser.until("document.getElementById('line')?.textContent.includes('whole address')")


def test_many_rows_are_few_elements_and_the_last_is_reached(tmp_path: Path) -> None:
    run = LargeRun(2_000, 10_000)
    run.report(2_000)
    with served(Answers(run), tmp_path) as (url, _), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 0")
        for screen, rows in (("Tasks", 2_000), ("Links", 10_000)):
            show(browser, screen)
            browser.until(f"document.querySelector('.table').getAttribute('aria-rowcount') === '{rows}'")
            assert 0 < browser.run("document.querySelectorAll('.row').length") < 100
            browser.run("document.querySelector('.table').scrollTop = 1e9")
            browser.until(f"document.querySelector('[aria-rowindex=\"{rows}\"]') !== null")


def test_the_graph_says_in_words_who_waits_for_whom(tmp_path: Path) -> None:
    run = LargeRun(6, 8)
    run.report(6)
    with served(Answers(run), tmp_path) as (url, _), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 0")
        run.report(60)
        browser.until("document.getElementById('screen').textContent.includes('‖ waits for keep')")
        text = browser.run("document.getElementById('screen').textContent")
        assert "◆ holds up keep" in text
        assert "2 of 2 tasks ready" in text
        assert "most links wait for credit" in text


def test_what_was_seen_last_stays_when_the_page_ends(tmp_path: Path) -> None:
    with served(hostile_run(), tmp_path) as (url, end), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 2")
        end()
        browser.until("document.getElementById('line').className === 'off'")
        assert "tasks ready" in browser.run("document.getElementById('screen').textContent")


def test_another_page_learns_nothing_and_changes_nothing(tmp_path: Path) -> None:
    source = hostile_run()
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with served(source, tmp_path / "one") as (url, _), served(hostile_run(), tmp_path / "two") as (other, _):
        place, _, key = url.partition("/#")
        with Browser() as browser:
            browser.open(other)
            browser.until("document.body.dataset.drawn > 0")
            browser.open("data:text/html,<body></body>")
            browser.until("document.body !== null")
            body = json.dumps({"question": "pause", "pipeline": "run"})
            for headers in ({}, {"Authorization": f"Bearer {key}"}):
                for mode in ("cors", "no-cors"):
                    given = json.dumps({"method": "POST", "body": body, "mode": mode, "headers": headers})
                    script = f"fetch('{place}/api/ask', {given}).then((r) => r.type + r.status, () => 'refused')"
                    assert browser.run(script) in ("refused", "opaque0")
    assert source.asked == []


#: A run whose decider answers those that ask it, as the server would send it.
CYCLE = """
(async () => {
  const { State } = await import("/state.js");
  const { drawGraph } = await import("/graph.js");
  const state = new State();
  const stages = ["read", "keys", "dedup", "write"];
  const tasks = {}, links = {};
  for (const stage of stages) tasks[`run/${stage}.0`] = ["run", [stage], "one", "ready", 1, 0, ""];
  tasks["run/solitary.0"] = ["run", stages, "one", "ready", 1, 0, ""];
  for (const [a, b] of [["read", "keys"], ["keys", "dedup"], ["dedup", "keys"], ["keys", "write"]]) {
    links[`${a}-${b}`] = [`run/${a}.0`, `run/${b}.0`, "ring", 1, "", "run"];
  }
  const graph = stages.map((name) => ({ name, after: [] }));
  state.apply({ pipelines: { run: { pipeline: "run", state: "running", graph } }, tasks, links }, 1);
  const found = state.graph("run", 1);
  const place = document.createElement("div");
  place.append(...drawGraph(found, state.rates("run", 1), 1300).flat());
  const left = Object.fromEntries([...place.querySelectorAll("g:has(> .box)")].map((box) =>
    [box.querySelector("title").textContent.split("\\n")[0], Number(box.querySelector(".box").getAttribute("x"))]));
  return { left, edges: place.querySelectorAll("svg[role=img] .edge").length };
})()
"""
#: Which pipeline the page opens on, of these: name, state, whether the controller knows its graph.
FIRST = """
(async (rows) => {
  const { State } = await import("/state.js");
  const state = new State();
  const pipelines = {};
  for (const [name, of, graph] of rows) pipelines[name] = { state: of, ...(graph ? { graph: [] } : {}) };
  state.apply({ pipelines }, 1);
  return state.firstShown();
})
"""
#: Pairs of texts of one picture of which one lies upon the other, by more than a pixel each way.
UPON = """
[...document.querySelectorAll('main svg[role=img]')].flatMap((picture) => {
  const texts = [...picture.querySelectorAll('text')].filter((one) => one.textContent)
    .map((one) => [one.textContent, one.getBoundingClientRect()]);
  return texts.flatMap(([a, one], at) => texts.slice(at + 1).filter(([, other]) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1 &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 3).map(([b]) => `${a} | ${b}`));
})
"""


def test_who_answers_stands_behind_who_asks(tmp_path: Path) -> None:
    with served(hostile_run(), tmp_path) as (url, _), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 0")
        found = browser.run(CYCLE)
    assert sorted(found["left"], key=found["left"].get) == ["read", "keys", "dedup", "write"], "no solitary task"
    assert found["left"]["dedup"] == found["left"]["write"] > found["left"]["keys"] > found["left"]["read"]
    assert found["edges"] == 3, "answers go along the line of what asks"


def test_the_page_opens_on_the_newest_run_that_goes_on(tmp_path: Path) -> None:
    old, new, gone = ("old", "running", True), ("new", "running", True), ("gone", "failed", False)
    ended = ("ended", "completed", True)
    with served(hostile_run(), tmp_path) as (url, _), Browser() as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 0")
        for rows, first in (
            ((old, new, ended, gone), "new"), ((ended, gone), "ended"), ((gone,), "gone"), ((), ""),
        ):  # fmt: skip
            assert browser.run(f"{FIRST}({json.dumps(rows)})") == first


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_words_of_a_picture_lie_upon_others(tmp_path: Path, dark: bool) -> None:
    run = LargeRun(6, 8)
    for second in range(40):
        run.report(6)
        run.stand.run.deaths.note("task", f"run/read.{second % 2}", f"signal {second}")
        run.page.note(1000.0 + second)
    with served(Answers(run), tmp_path) as (url, _), Browser(dark=dark) as browser:
        browser.open(url)
        browser.until("document.body.dataset.drawn > 2")
        for width in (1400, 1000, 420):
            browser.resize(width, 1000)
            browser.until(f"window.innerWidth === {width}")
            run.report(6)
            drawn = int(browser.run("document.body.dataset.drawn"))
            browser.until(f"document.body.dataset.drawn > {drawn}")
            assert browser.run(UPON) == [], width
            wide = "document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth"
            assert browser.run(wide), f"nothing is cut off at {width}"
