// The screens of a run: overview, tasks, links, workers, records, logs.

import { VERDICTS, bars, drawTime, listMarks, meter } from "./chart.js";
import { bytes, card, clock, counted, facts, h, number, seconds, share, show, visible } from "./dom.js";
import { drawGraph } from "./graph.js";
import { recordsOf } from "./records.js";
import { ENDED } from "./state.js";
import { Table } from "./table.js";

export class RunScreens {
  constructor(app) {
    this.app = app;
    this.names = ["Overview", "Tasks", "Links", "Workers", "Records", "Logs"];
    this.tables = {};
    this.samples = null;
  }

  get state() { return this.app.state; }
  run() { return this.state.tables.pipelines.get(this.app.pipeline); }

  draw(name, place, now) {
    if (!this.run() && name !== "Workers") { show(place, h("p", { class: "faint" }, "no pipeline yet: give it one with `headrace apply`")); return; }
    this[name.toLowerCase()](place, now);
  }

  counts(name) {
    const run = this.run();
    if (name === "Workers") return this.state.tables.workers.size;
    if (name === "Tasks") return run ? this.state.tasksOf(run.pipeline).length : 0;
    if (name === "Links") return run ? [...this.state.links.values()].filter((link) => link.of === run.pipeline).length : 0;
    return null;
  }

  summary(now) {
    const run = this.run();
    if (!run) return "";
    const { left } = this.state.progress(run.pipeline, now);
    const died = (run.deaths ?? []).reduce((all, death) => all + death.count, 0);
    return [run.state, run.elapsed_s && !ENDED.has(run.state) ? seconds(run.elapsed_s) : "", left !== null && !ENDED.has(run.state) ? `about ${seconds(left)} left` : "", died ? counted(died, "death") : ""].filter(Boolean).join(" · ");
  }

  acts() {
    const run = this.run();
    if (!run || !run.graph) return [];
    const name = run.pipeline;
    const act = (words, question, possible) => h("button", { type: "button", "data-key": question, disabled: !possible, onclick: () => this.app.act(question, { pipeline: name }) }, words);
    return [
      act("Pause", "pause", run.state === "running"),
      act("Resume", "resume", run.state === "paused" || run.state === "pausing"),
      h("button", { type: "button", "data-key": "scale", disabled: ENDED.has(run.state), onclick: () => this.scale() }, "Scale…"),
    ];
  }

  scale() {
    const run = this.run();
    const stages = run.graph.map((stage) => stage.name);
    const stage = h("select", { name: "stage" }, stages.map((one) => h("option", { value: one }, visible(one))));
    const tasks = h("input", { type: "number", name: "tasks", min: 1, max: 65536, required: true });
    const fit = () => { tasks.value = this.state.onMainPath(run.pipeline).filter((task) => task.stages.includes(stage.value)).length || 1; };
    stage.addEventListener("change", fit);
    fit();
    this.app.ask("Scale a stage, with the stages fused with it", [h("label", {}, "stage ", stage), h("label", {}, "tasks ", tasks)], "Scale",
      () => this.app.act("scale", { pipeline: run.pipeline, stage: stage.value, tasks: Number(tasks.value) }));
  }

  overview(place, now) {
    const run = this.run(), name = run.pipeline;
    const rates = this.state.rates(name, now);
    const graph = this.state.graph(name, now);
    const points = [...this.state.tables.points.values()].filter((point) => point.pipeline === name).sort((a, b) => a.at - b.at);
    const marks = [...this.state.tables.marks.values()].filter((mark) => mark.of === "" || mark.of === name).sort((a, b) => a.at - b.at);
    const shown = points.length ? marks.filter((mark) => mark.at >= points[0].at - 60) : marks;
    show(place, h("div", { class: "grid" },
      this.troubles(run),
      h("section", { class: "card wide" }, h("h2", {}, "Flow"), drawGraph(graph, rates, place.clientWidth - 74)),
      run.version ? [this.progressCard(run, now), this.balanceCard(run), this.commitCard(run)] : null,
      h("section", { class: "card wide" }, h("h2", {}, "Closed records over time"), drawTime(points, shown, place.clientWidth - 74)),
      card("Events", marks.length ? listMarks(marks) : h("p", { class: "faint" }, "none")), this.deathsCard(run), this.stagesCard(run, rates), this.loadersCard()));
  }

  troubles(run) {
    const lines = [...(run.waits ?? []).map((words) => `waits: ${words}`), ...(run.changes ?? []).map((words) => `to change: ${words}`)];
    if (run.failure) lines.unshift(`failed: ${run.failure}`);
    if (run.refused_change) lines.push(`refused: ${run.refused_change}`);
    const cluster = this.state.about("cluster");
    if (cluster.trouble) lines.push(`the cluster's log: ${cluster.trouble}`);
    if (cluster.standby) lines.push(`this controller is on standby; ${cluster.leader ? `${cluster.leader} leads` : "nobody leads yet"}`);
    lines.push(...(run.notes ?? []));
    return lines.length ? h("section", { class: "card wide" }, h("ul", { class: "plain" }, lines.map((line) => h("li", { class: run.failure ? "bad" : "warn" }, `▲ ${visible(line)}`)))) : null;
  }

  progressCard(run, now) {
    const { done, closed, whole, speed, left } = this.state.progress(run.pipeline, now);
    const ended = ENDED.has(run.state);
    return card("Progress",
      h("p", { class: "big" }, whole ? `${share(closed, whole)} closed` : run.state),
      meter(`${share(closed, whole)} of the input is closed, ${share(done, whole)} read`, [["read", done], ["shut", closed]], whole),
      facts([
        ["read", `${bytes(done)} of ${whole ? `${bytes(whole)}, ${share(done, whole)}` : "what is not listed yet"}`],
        ["speed", speed && !ended ? `${bytes(speed)}/s` : ""], ["time left", left !== null && !ended ? `about ${seconds(left)}` : ""],
        ["fragments", `${number(run.fragments_done ?? 0)} of ${number(run.fragments ?? 0)} done`],
        ["resumed", run.records_resumed ? counted(run.records_resumed, "record") : ""],
      ]));
  }

  balanceCard(run) {
    const balance = run.balance ?? {};
    const closed = balance.records_closed ?? 0;
    return card("Balance",
      h("p", { class: balance.balanced === false ? "big bad" : "big" }, `${number(closed)} closed`),
      bars(VERDICTS.map((verdict) => [verdict, balance[verdict] ?? 0]), closed),
      facts([["open", counted(balance.records_open ?? 0, "record")], ["tokens", number(balance.tokens ?? 0)], ["sequences", number(balance.sequences ?? 0)],
        ["balanced", balance.balanced === false ? "NO: see `headrace dataset verify`" : "yes"]]));
  }

  commitCard(run) {
    const commits = this.state.about("cluster").commits ?? { buckets: [], total_s: 0 };
    const all = commits.buckets.length ? commits.buckets[commits.buckets.length - 1][1] : 0;
    const within = (part) => (commits.buckets.find(([, count]) => count >= all * part) ?? ["+Inf"])[0];
    const say = (bound) => (bound === "+Inf" ? "over 10 s" : `under ${seconds(Number(bound))}`);
    let held = 0, records = 0, ranges = 0, pending = 0;
    for (const task of this.state.tasksOf(run.pipeline)) {
      const report = this.state.reportOf(task);
      held += report.held_bytes ?? 0; records += report.held_records ?? 0; ranges += report.open_ranges ?? 0; pending += report.pending_fragments ?? 0;
    }
    return card("Commit path", facts([
      ["1 at sources", `${counted(pending, "fragment")} given and not sent`],
      ["2 in sinks", `${counted(records, "record")} in ${counted(ranges, "range")}, ${bytes(held)}`],
      ["3 entries", all ? `${number(all)} written; half ${say(within(0.5))}, 99% ${say(within(0.99))}` : "none written yet"],
      ["4 ledger", `${number(run.ledger_entries ?? 0)} entries, ${counted(run.shards ?? 0, "shard")}, epoch ${run.epoch ?? 0}, term ${run.term ?? 0}`],
      ["5 version", run.balance?.version ? `version ${run.balance.version}` : "none published yet"],
      ["dataset", h("span", { class: "mono" }, visible(run.dataset ?? ""))],
    ]));
  }

  stagesCard(run, rates) {
    return h("section", { class: "card wide" }, h("h2", {}, "Stages"), h("div", { class: "scroll" }, h("table", { class: "small" },
      h("thead", {}, h("tr", {}, ["stage", "records", "removed", "records/s", "input/s", "a core gets through", "at work"].map((title) => h("th", {}, title)))),
      h("tbody", {}, [...rates.values()].map((rate) => h("tr", {}, [visible(rate.stage), number(rate.records), number(rate.dropped), number(rate.records_s), `${bytes(rate.bytes_s)}/s`,
        rate.cpu_s > 0 ? `${bytes(rate.bytes / rate.cpu_s)}/s` : "", `${Math.round(100 * rate.busy)}%`].map((cell) => h("td", {}, cell))))))));
  }

  loadersCard() {
    const rows = [...(this.state.tables.loaders ?? new Map()).values()].sort((a, b) => a.rank - b.rank || (a.name < b.name ? -1 : 1));
    if (!rows.length) return null;
    const wait = (row) => (row.wait === undefined || row.wait === null ? "" : h("span", { class: row.wait > 0.01 ? "warn" : "good" }, `${row.wait > 0.01 ? "▲" : "●"} ${(100 * row.wait).toFixed(1)}%`));
    return h("section", { class: "card wide" }, h("h2", {}, counted(rows.length, "loader")), h("div", { class: "scroll" }, h("table", { class: "small" },
      h("thead", {}, h("tr", {}, ["rank", "process", "data wait", "tokens/s", "position", "batches"].map((title) => h("th", {}, title)))),
      h("tbody", {}, rows.slice(0, 500).map((row) => h("tr", {}, [number(row.rank), visible(row.name), wait(row), row.tokens_s === undefined ? "" : number(row.tokens_s), number(row.position), number(row.batches)].map((cell) => h("td", {}, cell))))))));
  }

  deathsCard(run) {
    const known = new Set((run.deaths ?? []).map((death) => `${death.what} ${death.name}`));
    const deaths = [...(run.deaths ?? []), ...(this.state.about("cluster").lost ?? []).filter((death) => !known.has(`${death.what} ${death.name}`))];
    return h("section", { class: "card rest" }, h("h2", {}, "Dead"), deaths.length
      ? h("table", { class: "small" }, h("tbody", {}, deaths.map((death) => h("tr", {}, h("td", {}, `${death.what} ${visible(death.name)}`), h("td", {}, `${number(death.count)}×`), h("td", { class: "bad" }, `✕ ${visible(death.cause)}`)))))
      : h("p", { class: "faint" }, "no task and no worker has died"));
  }

  table(name, place, label, columns, rows) {
    const table = (this.tables[name] ??= new Table(label, columns));
    if (table.element.parentElement !== place) place.replaceChildren(table.element);
    table.show(rows);
  }

  tasks(place) {
    const report = (task) => this.state.reportOf(task);
    const records = (task) => Math.max(0, ...(report(task).stages ?? []).map((stage) => stage.records ?? 0));
    const busy = (task) => (report(task).stages ?? []).reduce((sum, stage) => sum + (stage.busy_s ?? 0), 0);
    const state = (task) => h("span", { class: task.state === "ready" ? "good" : "warn" }, `${{ ready: "●", starting: "◐", waiting: "○", stopped: "■" }[task.state] ?? "·"} ${task.state}`);
    this.table("tasks", place, "tasks", [
      ["task", 210, (task) => task.task], ["stages", 200, (task) => task.stages.join(" + ")], ["worker", 110, (task) => task.worker],
      ["state", 90, (task) => task.state, state], ["attempt", 70, (task) => task.attempt, (task) => number(task.attempt % 2 ** 20), true], ["restarts", 80, (task) => task.restarts, (task) => number(task.restarts), true],
      ["records", 90, records, (task) => number(records(task)), true], ["busy", 70, busy, (task) => seconds(busy(task)), true],
      ["holds", 90, (task) => report(task).held_bytes ?? 0, (task) => bytes(report(task).held_bytes ?? 0), true],
      ["waits, or how it died last", 340, (task) => report(task).trouble || task.story, (task) => h("span", { class: report(task).trouble ? "warn" : "bad", title: visible(task.story) }, visible(report(task).trouble || task.story.trim().split("\n").pop()))],
    ], this.state.tasksOf(this.app.pipeline));
  }

  links(place, now) {
    const credit = (link) => this.state.credit.get(link.link) ?? { bytes: 0, flying: 0, blocked: 0, short: -Infinity, via: "" };
    const state = (link) => (link.trouble ? "✕ cut" : now - credit(link).short < 3 ? "▲ waits for credit" : credit(link).bytes ? "● flows" : "○ idle");
    this.table("links", place, "links", [
      ["sender", 190, (link) => link.sender], ["receiver", 190, (link) => link.receiver], ["transport", 75, (link) => link.transport],
      ["state", 150, state, (link) => h("span", { class: link.trouble ? "bad" : now - credit(link).short < 3 ? "warn" : "" }, state(link))],
      ["sent", 90, (link) => credit(link).bytes, (link) => bytes(credit(link).bytes), true], ["in flight", 90, (link) => credit(link).flying, (link) => bytes(credit(link).flying), true],
      ["found no credit", 120, (link) => credit(link).blocked, (link) => number(credit(link).blocked), true],
      ["made", 60, (link) => link.generation, (link) => number(link.generation % 2 ** 20), true], ["relayed by", 120, (link) => credit(link).via], ["why it was cut", 240, (link) => link.trouble],
    ], [...this.state.links.values()].filter((link) => link.of === this.app.pipeline));
  }

  workers(place) {
    const alive = [...this.state.tables.workers.values()];
    const tasks = new Map();
    for (const task of this.state.tasks.values()) tasks.set(task.worker, (tasks.get(task.worker) ?? 0) + 1);
    const lost = this.state.about("cluster").lost ?? [];
    const act = (worker) => {
      const drained = worker.state !== "registered";
      return h("button", { type: "button", "data-key": `worker ${worker.worker}`, onclick: () => (drained ? this.app.act("undrain", { worker: worker.worker }) : this.drain(worker.worker)) }, drained ? "Admit tasks" : "Drain…");
    };
    const columns = [["worker", (worker) => visible(worker.worker)], ["state", (worker) => h("span", { class: worker.state === "registered" ? "good" : "warn" }, `${worker.state === "registered" ? "●" : "◐"} ${worker.state}`)],
      ["host", (worker) => visible(worker.host)], ["cores", (worker) => `${number(worker.cores_reserved)} of ${number(worker.cores)} reserved`], ["tasks", (worker) => number(tasks.get(worker.worker) ?? 0)],
      ["labels", (worker) => visible(worker.labels.join(", "))], ["addresses", (worker) => visible(worker.addresses.join(", "))], ["", act]]
      .filter(([title]) => !["labels", "addresses"].includes(title) || alive.some((worker) => worker[title].length));
    show(place, h("div", { class: "grid" },
      h("section", { class: "card wide scroll" }, h("h2", {}, counted(alive.length, "worker")), h("table", { class: "small" },
        h("thead", {}, h("tr", {}, columns.map(([title]) => h("th", {}, title)))),
        h("tbody", {}, alive.slice(0, 500).map((worker) => h("tr", {}, columns.map(([, cell]) => h("td", {}, cell(worker)))))))),
      card("Lost workers", lost.length ? h("ul", { class: "plain" }, lost.map((death) => h("li", { class: "bad" }, `✕ ${visible(death.name)} (${number(death.count)}×): ${visible(death.cause)}`))) : h("p", { class: "faint" }, "none"))));
  }

  drain(worker) {
    this.app.ask(`Move all tasks off worker ${visible(worker)}?`, [], "Drain", () => this.app.act("drain", { worker }));
  }

  records(place) {
    const run = this.run();
    const read = h("button", { type: "button", "data-key": "samples", onclick: () => this.readSamples() }, this.samples ? "Read samples again" : "Read samples");
    const found = this.samples?.of === run.pipeline ? this.samples : null;
    show(place, h("div", { class: "tools" }, read, h("span", { class: "faint" }, found?.words ?? "samples are what sinks have committed")), recordsOf(run.balance ?? {}, found?.found ?? {}));
  }

  async readSamples() {
    const of = this.run().pipeline;
    this.samples = { of, words: "reading…", found: this.samples?.of === of ? this.samples.found : {} };
    this.app.soon();
    const found = await this.app.question("samples", { pipeline: of });
    this.samples = found ? { of, words: `read at ${clock(Date.now() / 1000)}`, found } : null;
    this.app.soon();
  }

  async search() {
    const given = Object.fromEntries(["task", "cause", "level"].map((name) => [name, this.fields[name].value.trim()]));
    const found = await this.app.question("logs", { pipeline: this.fields.only.checked ? this.app.pipeline : "", ...given });
    if (found) { this.found = found; this.drawLogs(); }
  }

  drawLogs() {
    const lines = this.found.lines;
    const follow = (cause) => h("button", { type: "button", onclick: () => { this.fields.cause.value = cause; this.search(); } }, visible(cause));
    const row = (line) => [h("span", { class: "faint" }, visible(String(line.time).slice(11, 23))), h("span", { class: { warning: "warn", error: "bad" }[line.level] ?? "faint" }, visible(line.level)),
      h("span", {}, visible(line.task || line.process)), h("span", { class: "message" }, visible(line.message), line.traceback ? `\n${visible(line.traceback)}` : "", line.cause && !this.fields.group.checked ? h("span", {}, "  ", follow(line.cause)) : null)];
    const parts = [];
    if (this.found.missing.length) parts.push(h("p", { class: "warn" }, `▲ no answer from ${this.found.missing.map(visible).join(", ")}`));
    if (this.fields.group.checked) {
      const causes = new Map();
      for (const line of lines) causes.set(line.cause ?? "", [...(causes.get(line.cause ?? "") ?? []), line]);
      for (const [cause, of] of [...causes].reverse()) {
        const worst = of.some((line) => line.level === "error") ? "bad" : of.some((line) => line.level === "warning") ? "warn" : "";
        parts.push(h("details", {}, h("summary", { class: worst }, `${visible(String(of[0].time).slice(11, 19))} ${cause ? visible(cause) : "without a cause"} · ${counted(of.length, "line")} · ${visible(of[0].message).slice(0, 120)}`), h("div", { class: "log" }, of.map(row))));
      }
    } else parts.push(h("div", { class: "log" }, lines.map(row)));
    if (!lines.length) parts.push(h("p", { class: "faint" }, "no line is like that"));
    this.output.replaceChildren(...parts);
  }

  logs(place) {
    if (!this.fields) {
      const field = (name, placeholder) => h("input", { type: "search", placeholder, "aria-label": name, onkeydown: (event) => { if (event.key === "Enter") this.search(); } });
      this.fields = {
        task: field("task", "task, such as plain/read.0"), cause: field("cause", "cause"),
        level: h("select", { "aria-label": "lowest level" }, ["", "debug", "info", "warning", "error"].map((level) => h("option", { value: level }, level || "any level"))),
        only: h("input", { type: "checkbox", checked: true }), group: h("input", { type: "checkbox", checked: true, onchange: () => this.found && this.drawLogs() }),
      };
      this.output = h("div", { class: "card" }, h("p", { class: "faint" }, "…"));
      this.form = h("div", {}, h("div", { class: "tools" }, this.fields.task, this.fields.cause, this.fields.level, h("label", {}, this.fields.only, " this pipeline"), h("label", {}, this.fields.group, " by cause"),
        h("button", { type: "button", onclick: () => this.search() }, "Search")), this.output);
    }
    if (this.form.parentElement !== place) { place.replaceChildren(this.form); this.search(); }
  }
}
