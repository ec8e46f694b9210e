// Verdicts by reason, samples of what was removed, and quarantine: of a run, and of a finished dataset.

import { VERDICTS, bars } from "./chart.js";
import { card, counted, h, number, visible } from "./dom.js";

const most = (found) => Object.entries(found ?? {}).sort((a, b) => b[1] - a[1]);

export function recordsOf(balance, found) {
  const closed = balance.records_closed ?? 0;
  const equation = `${number(closed)} = ${VERDICTS.map((verdict) => number(balance[verdict] ?? 0)).join(" + ")}`;
  return h("div", { class: "grid" },
    card("Verdicts", h("p", { class: "mono" }, equation), bars(VERDICTS.map((verdict) => [verdict, balance[verdict] ?? 0]), closed)),
    card("Filtered, by reason", most(balance.filtered_by).length ? bars(most(balance.filtered_by), closed, "filtered") : h("p", { class: "faint" }, "nothing")),
    card("Quarantined, by reason", most(balance.quarantined_by).length ? bars(most(balance.quarantined_by), closed, "quarantined") : h("p", { class: "faint" }, "nothing")),
    most(balance.edited).length ? card("Edited, by reason", bars(most(balance.edited), closed, "kept")) : null,
    found.samples ? h("section", { class: "card wide" }, h("h2", {}, "Samples of filtered records"), samples(found.samples)) : null,
    found.quarantine ? h("section", { class: "card wide" }, h("h2", {}, `Quarantine${found.quarantine_more ? `, the first of ${number(found.quarantine_more)}` : ""}`), quarantine(found.quarantine)) : null,
    found.duplicates?.length ? h("section", { class: "card wide" }, h("h2", {}, "Samples of duplicates"), duplicates(found.duplicates)) : null);
}

const samples = (found) => (Object.keys(found).length ? Object.entries(found).map(([reason, rows]) => h("details", {}, h("summary", {}, `${visible(reason)} · ${counted(rows.length, "sample")}`),
  rows.map((row) => [h("div", { class: "faint mono" }, `${visible(row.id)}  ${visible(row.reason)}`), h("pre", { tabindex: 0 }, visible(row.text ?? ""))]))) : h("p", { class: "faint" }, "none"));

const quarantine = (rows) => (rows.length ? h("table", { class: "small" }, h("thead", {}, h("tr", {}, ["record", "why", "text"].map((title) => h("th", {}, title)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, h("td", { class: "mono" }, visible(row.id)), h("td", {}, visible(`${row.stage}: ${row.reason}`)), h("td", { class: "mono" }, visible(row.raw ?? "")))))) : h("p", { class: "faint" }, "none"));

const duplicates = (pairs) => pairs.map((pair) => h("details", {}, h("summary", {}, `${visible(pair.id)} of ${visible(pair.kept)} · ${visible(pair.reason)}`), h("pre", { tabindex: 0 }, visible(pair.text ?? "")), h("pre", { tabindex: 0 }, visible(pair.kept_text ?? "the kept record has no text in this dataset"))));
