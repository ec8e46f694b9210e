// The screens of a finished dataset: card, records, versions, lineage.

import { bytes, card, counted, facts, h, number, show, visible } from "./dom.js";
import { bars } from "./chart.js";
import { recordsOf } from "./records.js";

export class DatasetScreens {
  constructor(app) {
    this.app = app;
    this.names = ["Card", "Records", "Versions", "Lineage"];
  }

  get found() { return Object.fromEntries(this.app.state.tables.dataset ?? []); }
  counts(name) { return name === "Versions" ? (this.found.versions ?? []).length : null; }
  acts() { return []; }
  summary() { return visible(this.found.dataset ?? ""); }
  draw(name, place) { show(place, this[name.toLowerCase()](this.found)); }

  card(found) {
    const rows = found.card ?? "";
    return h("div", { class: "grid" },
      card("Dataset", facts([
        ["address", h("span", { class: "mono" }, visible(found.dataset ?? ""))], ["pipeline", visible(`${found.pipeline ?? ""} ${found.pipeline_version ?? ""}`)],
        ["version", found.version ? number(found.version) : "none published yet"], ["complete", found.complete ? "yes" : "no"],
        ["tokens", `${number(found.tokens ?? 0)} in ${counted(found.sequences ?? 0, "sequence")}`], ["shards", `${number(found.shards ?? 0)}, ${bytes(found.bytes ?? 0)}`],
        ["seq_len", String(found.seq_len ?? "")], ["tokenizer", h("span", { class: "mono" }, visible(found.tokenizer ?? "unknown"))],
        ["retracted", found.retracted ? counted(found.retracted, "document") : ""], ["ledger", `${number(found.ledger_entries ?? 0)} entries, term ${found.term ?? 0}`],
      ])),
      (found.words ?? []).length ? card("To know", h("ul", { class: "plain" }, found.words.map((words) => h("li", { class: "warn" }, `▲ ${visible(words)}`)))) : null,
      rows.length ? h("section", { class: "card wide" }, h("h2", {}, "Scorecard"), markdown(rows)) : null,
      (found.given_up ?? []).length ? card("Given up", h("ul", { class: "plain" }, found.given_up.map((item) => h("li", { class: "warn" }, `▲ ${visible(item.uri)}: ${visible(item.reason)}`)))) : null);
  }

  records(found) { return recordsOf(found, found); }

  versions(found) {
    const rows = [...(found.versions ?? [])].reverse();
    return h("section", { class: "card scroll" }, h("table", { class: "small" },
      h("thead", {}, h("tr", {}, ["version", "tags", "published", "why", "kept", "filtered", "duplicate", "quarantined", "tokens", "shards", "complete"].map((title) => h("th", {}, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, [number(row.version), visible((row.tags ?? []).join(", ")), row.at ? new Date(row.at * 1000).toLocaleString("en-GB") : "", visible(row.reason) + (row.restores ? ` of ${row.restores}` : ""),
        number(row.kept), number(row.filtered), number(row.duplicate), number(row.quarantined), number(row.tokens), number(row.shards), row.complete ? "yes" : "no"].map((cell) => h("td", {}, cell)))))));
  }

  lineage(found) {
    return h("div", { class: "grid" },
      h("section", { class: "card wide" }, h("h2", {}, `Input: ${counted(found.objects ?? 0, "object")}${found.inputs_more ? `, the largest ${found.inputs.length}` : ""}`),
        (found.inputs ?? []).length ? bars(found.inputs.map((item) => [item.uri, item.records]), found.records_closed, "kept") : h("p", { class: "faint" }, "none")),
      (found.recipes ?? []).map((recipe) => h("section", { class: "card wide" }, h("h2", {}, visible(`Recipe ${recipe.pipeline_version}`)),
        h("ol", {}, recipe.stages.map((stage) => h("li", {}, h("details", {}, h("summary", {}, visible(`${stage.name} · ${stage.kind} · ${stage.target}`)), h("pre", { tabindex: 0 }, visible(JSON.stringify(stage.parameters, null, 2))))))))));
  }
}

// The card's Markdown as it is written: headings, tables and lines; nothing in it is markup here.
function markdown(text) {
  const parts = [];
  let rows = [];
  const end = () => { if (rows.length) parts.push(h("table", { class: "small" }, h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, visible(cell.trim().replace(/\\(.)/g, "$1"))))))))); rows = []; };
  for (const line of text.split("\n")) {
    if (/^\|[-| :]+\|$/.test(line)) continue;
    if (line.startsWith("|")) { rows.push(line.slice(1, -1).split(/(?<!\\)\|/)); continue; }
    end();
    if (line.startsWith("#")) parts.push(h("h3", {}, visible(line.replace(/^#+ /, ""))));
    else if (line.trim()) parts.push(h("div", {}, visible(line)));
  }
  end();
  return parts;
}
