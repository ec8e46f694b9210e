// The balance over time as areas, with marks of what happened; bars of verdicts by reason.

import { clock, h, number, s, share, visible } from "./dom.js";

export const VERDICTS = ["kept", "filtered", "duplicate", "quarantined"];
const HEIGHT = 198, LEFT = 64, TOP = 26, BOTTOM = 20, APART = 26, NAMED = 12;
const GLYPHS = { death: "✕", fault: "⚡", state: "●", change: "◇", worker: "▣", asked: "▸" };

export function drawTime(points, marks, wide) {
  const WIDTH = Math.max(480, wide);
  const times = [...points.map((point) => point.at), ...marks.map((mark) => mark.at)];
  if (points.length < 2) return [h("p", { class: "faint" }, "nothing yet")];
  const begin = Math.min(...times), end = Math.max(...times, begin + 1);
  const top = Math.max(1, ...points.map((point) => VERDICTS.reduce((sum, verdict) => sum + point[verdict], 0)));
  const x = (at) => LEFT + ((at - begin) / (end - begin)) * (WIDTH - LEFT - 10);
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - TOP);
  let floor = points.map(() => 0);
  const areas = VERDICTS.map((verdict) => {
    const roof = points.map((point, at) => floor[at] + point[verdict]);
    const along = points.map((point, at) => `${x(point.at).toFixed(1)} ${y(roof[at]).toFixed(1)}`);
    const back = points.map((point, at) => `${x(point.at).toFixed(1)} ${y(floor[at]).toFixed(1)}`).reverse();
    floor = roof;
    return s("path", { class: verdict, d: `M${along.join(" L")} L${back.join(" L")} Z` }, s("title", {}, verdict));
  });
  const levels = (top < 2 ? [0, 1] : [0, 0.5, 1]).map((part) => [
    s("line", { class: "axis", x1: LEFT, x2: WIDTH - 10, y1: y(top * part), y2: y(top * part) }),
    s("text", { class: "faint", x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, number(top * part)),
  ]);
  const drawn = clusters(marks, x).map((one) => s("g", {},
    s("title", {}, [...one.marks.slice(0, NAMED).map((mark) => visible(`${clock(mark.at)} ${mark.words}`)), one.marks.length > NAMED ? `and ${number(one.marks.length - NAMED)} more` : ""].join("\n")),
    s("line", { class: `mark ${one.kind}`, x1: one.x, x2: one.x, y1: 16, y2: HEIGHT - BOTTOM }),
    s("text", { x: one.x, y: 12, "text-anchor": "middle" }, `${GLYPHS[one.kind] ?? "·"}${one.marks.length > 1 ? number(one.marks.length) : ""}`)));
  const last = points[points.length - 1];
  return [
    h("div", { class: "scroll" }, s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": "Closed records over time" },
      areas, levels, drawn,
      s("text", { class: "faint", x: LEFT, y: HEIGHT - 4 }, clock(begin)),
      s("text", { class: "faint", x: WIDTH - 10, y: HEIGHT - 4, "text-anchor": "end" }, clock(end)))),
    h("p", { class: "key" }, VERDICTS.map((verdict) => h("span", {}, s("svg", { viewBox: "0 0 14 12", "aria-hidden": "true" }, s("rect", { class: verdict, width: 12, height: 12, rx: 2 })), `${verdict} ${number(last[verdict])}`))),
  ];
}

// Parts of a whole, one upon the other, with words for who does not see them.
export const meter = (words, parts, whole) => s("svg", { class: "meter", viewBox: "0 0 100 12", preserveAspectRatio: "none", role: "img", "aria-label": words },
  s("rect", { class: "track", width: 100, height: 12 }), parts.map(([name, value]) => s("rect", { class: name, width: whole > 0 ? (100 * value) / whole : 0, height: 12 })));

// Marks that would lie upon one another are one, with their number; the gravest says what it is.
const GRAVE = ["death", "fault", "change", "asked", "worker", "state"];
function clusters(marks, x) {
  const found = [];
  for (const mark of marks) {
    const last = found[found.length - 1];
    if (last && x(mark.at) - last.x < APART) last.marks.push(mark);
    else found.push({ x: x(mark.at), marks: [mark] });
  }
  return found.map((one) => ({ ...one, kind: GRAVE.find((kind) => one.marks.some((mark) => mark.kind === kind)) ?? "" }));
}

export const listMarks = (marks) => h("ul", { class: "plain marks", tabindex: 0, "aria-label": "What happened, newest first" },
  [...marks].reverse().map((mark) => h("li", { class: mark.kind === "death" || mark.kind === "fault" ? "bad" : "" }, h("span", { class: "faint mono" }, clock(mark.at)), ` ${GLYPHS[mark.kind] ?? "·"} `, visible(mark.words))));

export function bars(rows, whole, kind) {
  const most = Math.max(1, ...rows.map(([, count]) => count));
  return h("div", { class: "bars" }, rows.map(([name, count]) => [
    h("span", { class: "name" }, visible(name)),
    s("svg", { viewBox: "0 0 100 12", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: kind ?? name, width: (100 * count) / most, height: 12 })),
    h("span", { class: "count" }, `${number(count)} ${share(count, whole)}`),
  ]));
}

