// The state that the server sends, as rows by table, and what follows from it: sums of stages, rates, credit.

const TEXT = new TextDecoder();
const AVERAGE_S = 10;
// Sinks close in steps of many seconds.
const CLOSING_S = 60;
// Tasks that read suspect records alone, off the main path.
const ALONE = /\/solitary\.[0-9]+$/;
const BLOCKED_S = 3;
const SUMS = ["records", "bytes", "busy_s", "cpu_s", "dropped", "skipped_bytes", "stored_bytes"];

// A message of tasks as they wrote it (protobuf), by the fields that the server names.
export function decode(data, schema, name) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const fields = schema[name] ?? {};
  const found = {};
  let at = 0;
  const varint = () => {
    let value = 0;
    let scale = 1;
    for (;;) {
      const byte = view.getUint8(at);
      at += 1;
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
  };
  while (at < data.byteLength) {
    const tag = varint();
    const [field, kind] = fields[Math.floor(tag / 8)] ?? [];
    let value;
    switch (tag % 8) {
      case 0: value = varint(); break;
      case 1: value = view.getFloat64(at, true); at += 8; break;
      case 2: {
        const end = varint() + at;
        const part = data.subarray(at, end);
        at = end;
        if (kind === "text") value = TEXT.decode(part);
        else if (kind !== "number" && kind) value = decode(part, schema, kind);
        break;
      }
      case 5: value = view.getFloat32(at, true); at += 4; break;
      default: throw new Error(`a field of type ${tag % 8}`);
    }
    if (!field) continue;
    if (schema[kind]) (found[field] ??= []).push(value);
    else found[field] = value;
  }
  return found;
}

function fromBase64(text) {
  const found = atob(text);
  const data = new Uint8Array(found.length);
  for (let at = 0; at < found.length; at += 1) data[at] = found.charCodeAt(at);
  return data;
}

export class State {
  constructor() { this.clear(); }

  clear() {
    this.tables = { about: new Map(), pipelines: new Map(), workers: new Map(), points: new Map(), marks: new Map() };
    this.tasks = new Map();
    this.links = new Map();
    this.reports = new Map();
    this.credit = new Map();
    this.past = new Map();
    this.meters = new Map();
  }

  about(key) { return this.tables.about.get(key) ?? {}; }

  apply(change, now) {
    const order = ["about", "tasks", "links", "progress"];
    const names = Object.keys(change).sort((a, b) => order.indexOf(a) - order.indexOf(b));
    for (const name of names) {
      for (const [key, row] of Object.entries(change[name])) {
        if (name === "tasks") this.task(key, row);
        else if (name === "links") this.link(key, row);
        else if (name === "progress") this.report(key, row, now);
        else {
          const table = (this.tables[name] ??= new Map());
          if (row === null) table.delete(key);
          else table.set(key, row);
        }
      }
    }
  }

  task(key, row) {
    if (row === null) { this.tasks.delete(key); return; }
    const [of, stages, worker, state, attempt, restarts, story] = row;
    this.tasks.set(key, { task: key, of, stages, chain: stages.join("+"), worker, state, attempt, restarts, story });
  }

  link(key, row) {
    if (row === null) { this.links.delete(key); this.credit.delete(key); return; }
    const [sender, receiver, transport, generation, trouble, of] = row;
    this.links.set(key, { link: key, sender, receiver, transport, generation, trouble, of });
  }

  report(key, row, now) {
    if (row === null) { this.reports.delete(key); return; }
    let found;
    try { found = decode(fromBase64(row), this.about("page").schema ?? {}, "Progress"); } catch { return; }
    const at = key.lastIndexOf("@");
    found.task = key.slice(0, at);
    found.attempt = Number(key.slice(at + 1));
    found.of = found.task.slice(0, found.task.indexOf("/"));
    this.reports.set(key, found);
    for (const one of found.links ?? []) {
      const link = this.links.get(one.link);
      if (!link || link.sender !== found.task) continue;
      const before = this.credit.get(one.link);
      const blocked = one.blocked ?? 0;
      const short = before && blocked > before.blocked ? now : before?.short ?? -Infinity;
      this.credit.set(one.link, { bytes: one.bytes ?? 0, flying: one.in_flight_bytes ?? 0, blocked, short, via: one.via ?? "" });
    }
  }

  reportOf(task) { return this.reports.get(`${task.task}@${task.attempt}`) ?? {}; }

  // The newest pipeline that goes on; else the newest of this controller, whose graph is known; else the newest.
  firstShown() {
    const runs = [...this.tables.pipelines].reverse();
    const shown = runs.find(([, run]) => run.graph && !ENDED.has(run.state)) ?? runs.find(([, run]) => run.graph) ?? runs[0];
    return shown?.[0] ?? "";
  }

  tasksOf(name) { return [...this.tasks.values()].filter((task) => task.of === name); }
  onMainPath(name) { return this.tasksOf(name).filter((task) => !ALONE.test(task.task)); }

  // What each stage did in this run, dead attempts included, in the order of the graph.
  totals(name) {
    const found = new Map();
    for (const stage of this.tables.pipelines.get(name)?.graph ?? []) found.set(stage.name, this.nothing(stage.name));
    for (const report of this.reports.values()) {
      if (report.of !== name) continue;
      const living = this.tasks.get(report.task)?.attempt === report.attempt;
      for (const part of report.stages ?? []) {
        let sum = found.get(part.stage);
        if (!sum) found.set(part.stage, (sum = this.nothing(part.stage)));
        for (const field of SUMS) sum[field] += part[field] ?? 0;
        if (living && (part.at_batch_s ?? 0) > sum.at_batch_s) {
          sum.at_batch_s = part.at_batch_s;
          sum.batch_records = part.batch_records ?? 0;
        }
      }
    }
    return found;
  }

  nothing(stage) {
    return { stage, ...Object.fromEntries(SUMS.map((field) => [field, 0])), at_batch_s: 0, batch_records: 0 };
  }

  // Rates of each stage over the last seconds.
  rates(name, now) {
    const totals = this.totals(name);
    let past = this.past.get(name) ?? [];
    const last = past[past.length - 1];
    if (last && [...totals].some(([stage, sum]) => sum.busy_s < (last.totals.get(stage)?.busy_s ?? 0))) past = [];
    if (!past.length || now >= past[past.length - 1].now + 0.9) past = [...past, { now, totals }];
    while (past.length > 2 && past[1].now <= now - AVERAGE_S) past.shift();
    this.past.set(name, past);
    const first = past[0];
    const span = now - first.now;
    const ready = new Map();
    for (const task of this.tasks.values()) {
      if (task.of === name && task.state === "ready") for (const stage of task.stages) ready.set(stage, (ready.get(stage) ?? 0) + 1);
    }
    const ended = ENDED.has(this.tables.pipelines.get(name)?.state);
    for (const [stage, sum] of totals) {
      const before = first.totals.get(stage) ?? this.nothing(stage);
      const over = (field) => (span > 0.5 && !ended ? Math.max(0, (sum[field] - before[field]) / span) : 0);
      sum.tasks = ready.get(stage) ?? 0;
      sum.records_s = over("records");
      sum.bytes_s = over("bytes");
      sum.busy = Math.min(1, over("busy_s") / Math.max(1, sum.tasks));
    }
    return totals;
  }

  // Tasks by the stages that they fuse, and what flows between: who waits for whom.
  graph(name, now) {
    const nodes = new Map();
    const edges = new Map();
    const order = (this.tables.pipelines.get(name)?.graph ?? []).map((stage) => stage.name);
    for (const task of this.onMainPath(name)) {
      let node = nodes.get(task.chain);
      if (!node) nodes.set(task.chain, (node = { key: task.chain, stages: task.stages, tasks: 0, ready: 0, workers: new Set(), waits: [], holds: [], held: 0 }));
      node.tasks += 1;
      node.ready += task.state === "ready";
      node.held += this.reportOf(task).held_bytes ?? 0;
      if (node.workers.size < 100) node.workers.add(task.worker);
    }
    for (const link of this.links.values()) {
      if (link.of !== name) continue;
      const from = this.tasks.get(link.sender)?.chain;
      const to = this.tasks.get(link.receiver)?.chain;
      if (from === undefined || to === undefined) continue;
      const key = JSON.stringify([from, to]);
      let edge = edges.get(key);
      if (!edge) edges.set(key, (edge = { from, to, links: 0, short: 0, flying: 0, bytes: 0, cut: 0, relayed: 0, transports: new Map() }));
      const credit = this.credit.get(link.link);
      edge.links += 1;
      edge.cut += link.trouble !== "";
      edge.transports.set(link.transport, (edge.transports.get(link.transport) ?? 0) + 1);
      if (!credit) continue;
      edge.short += now - credit.short < BLOCKED_S;
      edge.flying += credit.flying;
      edge.bytes += credit.bytes;
      edge.relayed += credit.via !== "";
    }
    if (!nodes.size) {
      for (const stage of this.tables.pipelines.get(name)?.graph ?? []) {
        nodes.set(stage.name, { key: stage.name, stages: [stage.name], tasks: 0, ready: 0, workers: new Set(), waits: [], holds: [], held: 0 });
        for (const before of stage.after) edges.set(JSON.stringify([before, stage.name]), { from: before, to: stage.name, links: 0, short: 0, flying: 0, bytes: 0, cut: 0, relayed: 0, transports: new Map() });
      }
    }
    for (const edge of edges.values()) {
      edge.state = edge.short === 0 ? (edge.flying > 0 || edge.bytes > 0 ? "flows" : "idle") : edge.short >= edge.links / 2 ? "dry" : "short";
      if (edge.state !== "dry" && edge.state !== "short") continue;
      nodes.get(edge.from)?.waits.push(edge.to);
      nodes.get(edge.to)?.holds.push(edge.from);
    }
    const place = (node) => Math.min(...node.stages.map((stage) => (order.indexOf(stage) + order.length + 1) % (order.length + 1)));
    // Answers go back to who asked: they are no step forward.
    for (const edge of edges.values()) {
      const [from, to] = [nodes.get(edge.from), nodes.get(edge.to)];
      edge.back = from !== undefined && to !== undefined && place(from) > place(to);
    }
    return { nodes: [...nodes.values()].sort((a, b) => place(a) - place(b)), edges: [...edges.values()] };
  }

  // Bytes of the input as it is stored: read, closed (by the share of the records that are), whole, and seconds left.
  progress(name, now) {
    const run = this.tables.pipelines.get(name) ?? {};
    const before = /^[0-9]{1,15}$/.test(run.facts?.bytes_resumed ?? "") ? Number(run.facts.bytes_resumed) : 0;
    let done = before;
    for (const [stage, sum] of this.totals(name)) if ((run.sources ?? []).includes(stage)) done += sum.stored_bytes;
    const whole = run.input_bytes ?? 0;
    if (whole) done = Math.min(done, whole);
    const { records_closed: shut = 0, records_open: open = 0 } = run.balance ?? {};
    const closed = shut + open > 0 ? (done * shut) / (shut + open) : 0;
    const points = (this.meters.get(name) ?? []).filter((point) => point.now > now - CLOSING_S && point.done <= done);
    if (!points.length || now >= points[points.length - 1].now + 0.5) points.push({ now, done, closed });
    this.meters.set(name, points);
    const over = (seconds, field, value) => {
      const first = points.find((point) => point.now > now - seconds) ?? { now };
      return now - first.now > 2 ? Math.max(0, (value - first[field]) / (now - first.now)) : 0;
    };
    const speed = over(AVERAGE_S, "done", done), pace = over(CLOSING_S, "closed", closed);
    const toRead = speed > 0 && whole > done ? (whole - done) / speed : null;
    const toClose = pace > 0 && whole > closed ? (whole - closed) / pace : null;
    return { done, closed, whole, speed, left: toRead === null && toClose === null ? null : Math.max(toRead ?? 0, toClose ?? 0) };
  }
}

export const ENDED = new Set(["completed", "stopped", "cancelled", "failed"]);
