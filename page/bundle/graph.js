// The graph: a box for the tasks that fuse the same stages, and what flows between, with credit and who waits for whom.

import { bytes, counted, h, number, s, seconds, visible } from "./dom.js";

const BOX = 250, ROW = 24, HEAD = 44, GAP_X = 128, GAP_Y = 26, BUSY = 0.75, SMALLEST = 0.66;
const WORDS = { flows: "credit suffices", idle: "nothing flows", short: "some links wait for credit", dry: "most links wait for credit" };

const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

function layers(graph) {
  const depth = new Map(graph.nodes.map((node) => [node.key, 0]));
  for (let round = 0; round < graph.nodes.length; round += 1) {
    let moved = false;
    for (const edge of graph.edges.filter((one) => !one.back)) {
      const wanted = (depth.get(edge.from) ?? 0) + 1;
      if (edge.from !== edge.to && wanted > (depth.get(edge.to) ?? 0) && wanted < graph.nodes.length) { depth.set(edge.to, wanted); moved = true; }
    }
    if (!moved) break;
  }
  return depth;
}

function standing(node, rates) {
  const busiest = Math.max(0, ...node.stages.map((stage) => rates.get(stage)?.busy ?? 0));
  if (node.waits.length) return ["waits", `‖ waits for ${node.waits.join(", ")}`];
  if (node.holds.length) return ["holds", `◆ holds up ${node.holds.join(", ")}`];
  if (busiest >= BUSY) return ["limit", "▲ at its limit"];
  return ["", ""];
}

function box(node, rates, x, y) {
  const [state, words] = standing(node, rates);
  const height = HEAD + node.stages.length * ROW + 24;
  const found = [
    s("rect", { class: `box ${state}`, x, y, width: BOX, height, rx: 8 }),
    s("text", { x: x + 12, y: y + 20, class: "strong" }, node.tasks ? `${number(node.ready)} of ${counted(node.tasks, "task")} ready` : "no task"),
    s("text", { x: x + 12, y: y + 36, class: "faint" }, cut([...node.workers].slice(0, 4).map(visible).join(", ") + (node.workers.size > 4 ? ` and ${node.workers.size - 4} more` : ""), 30)),
  ];
  node.stages.forEach((stage, at) => {
    const rate = rates.get(stage) ?? { records_s: 0, busy: 0, at_batch_s: 0 };
    const top = y + HEAD + at * ROW;
    const long = rate.at_batch_s >= 2 ? `at a batch for ${seconds(rate.at_batch_s)}` : `${number(rate.records_s)}/s`;
    found.push(
      s("text", { x: x + 12, y: top + 14 }, cut(visible(stage), 15)),
      s("text", { x: x + 168, y: top + 14, "text-anchor": "end" }, long),
      s("rect", { class: "track", x: x + 174, y: top + 6, width: 30, height: 8, rx: 2 }),
      s("rect", { class: `fill ${rate.busy >= BUSY ? "high" : ""}`, x: x + 174, y: top + 6, width: 30 * rate.busy, height: 8, rx: 2 }),
      s("text", { x: x + BOX - 6, y: top + 14, "text-anchor": "end", class: "faint" }, `${Math.round(100 * rate.busy)}%`),
    );
  });
  found.push(s("text", { x: x + 12, y: y + height - 9, class: words ? "strong" : "faint" }, words ? cut(visible(words), 31) : node.held ? `holds ${bytes(node.held)}` : ""));
  return [s("g", {}, s("title", {}, visible(`${node.key}\n${words}`)), found), height];
}

function line(edge, from, to, part) {
  const x0 = from.x + BOX, y0 = from.y + from.height / 2, x1 = to.x, y1 = to.y + to.height / 2;
  const middle = (x0 + x1) / 2;
  const width = edge.links ? 2 + Math.min(5, Math.log2(1 + edge.links)) : 1.5;
  const transports = [...edge.transports].map(([name, count]) => `${number(count)} ${name}`).join(", ");
  const waiting = edge.short ? `${edge.state === "dry" ? "▲ " : "△ "}${number(edge.short)} wait` : "";
  const answers = edge.answers;
  const words = [transports, edge.flying ? `${bytes(edge.flying)} in flight` : "", waiting, edge.cut ? `${number(edge.cut)} cut` : "", edge.relayed ? `${number(edge.relayed)} relayed` : "", answers?.flying ? `⇠ ${bytes(answers.flying)} of answers` : ""].filter(Boolean);
  return s("g", {},
    s("title", {}, visible(`${edge.from} → ${edge.to}: ${counted(edge.links, "link")}; ${WORDS[edge.state]}; ${words.join("; ")}`)),
    s("path", { class: `edge ${edge.state}`, d: `M${x0} ${y0} C${middle} ${y0} ${middle} ${y1} ${x1 - 8} ${y1}`, "stroke-width": width }),
    s("path", { class: `tip ${edge.state}`, d: `M${x1 - 10} ${y1 - 6} L${x1} ${y1} L${x1 - 10} ${y1 + 6} Z` }),
    words.map((word, at) => s("text", { x: middle, y: y0 + (y1 - y0) * part - 8 - 15 * (words.length - 1 - at), "text-anchor": "middle", class: word === waiting ? "said strong" : "said faint" }, word)),
  );
}

const sample = (state, width) => s("svg", { viewBox: "0 0 14 12", "aria-hidden": "true" }, s("path", { class: `edge ${state}`, d: "M1 6 H13", "stroke-width": width }));

// Answers go along the line of what asks.
function forward(edges) {
  const kept = edges.filter((edge) => edge.from !== edge.to);
  for (const edge of kept) edge.answers = kept.find((other) => other.back && other.from === edge.to && other.to === edge.from);
  const said = new Set(kept.filter((edge) => !edge.back).map((edge) => edge.answers));
  return kept.filter((edge) => !said.has(edge));
}

// How far along an edge its words stand: where it does not meet others.
function partOf(edge, edges) {
  const [out, into] = ["from", "to"].map((end) => edges.filter((other) => other[end] === edge[end]).length > 1);
  return out === into ? 0.5 : out ? 0.85 : 0.15;
}

export function drawGraph(graph, rates, wide) {
  const depth = layers(graph);
  const columns = [];
  for (const node of graph.nodes) (columns[depth.get(node.key)] ??= []).push(node);
  const places = new Map();
  const boxes = [];
  let height = 0;
  columns.filter(Boolean).forEach((column, at) => {
    let y = 12;
    for (const node of column) {
      const x = 8 + at * (BOX + GAP_X);
      const [drawn, tall] = box(node, rates, x, y);
      places.set(node.key, { x, y, height: tall });
      boxes.push(drawn);
      y += tall + GAP_Y;
    }
    height = Math.max(height, y);
  });
  const width = columns.filter(Boolean).length * (BOX + GAP_X) - GAP_X + 16;
  const edges = forward(graph.edges).filter((edge) => places.has(edge.from) && places.has(edge.to));
  const lines = edges.map((edge) => line(edge, places.get(edge.from), places.get(edge.to), partOf(edge, edges)));
  const scale = Math.min(1, Math.max(SMALLEST, wide / width));
  return [
    h("div", { class: "scroll" }, s("svg", { width: Math.floor(width * scale), height: Math.ceil(height * scale), viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The graph of stages" }, lines, boxes)),
    h("p", { class: "key" },
      h("span", {}, sample("flows", 3), "credit suffices"), h("span", {}, sample("short", 3), "△ some links wait for credit"),
      h("span", {}, sample("dry", 3), "▲ most links wait for credit"), h("span", {}, sample("idle", 2), "nothing flows"),
      h("span", {}, "◆ others wait for it"), h("span", {}, "‖ it waits"), h("span", {}, "bar: share of time at work")),
  ];
}
