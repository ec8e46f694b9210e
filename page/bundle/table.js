// A table of any number of rows: only those in sight are elements.

import { h, number, visible } from "./dom.js";

const ROW = 28, MORE = 8;

export class Table {
  // A column is [title, width, value of a row, how it is shown, whether it is a number].
  constructor(label, columns) {
    this.columns = columns;
    this.rows = [];
    this.sorted = 0;
    this.down = false;
    this.wanted = "";
    const template = columns.map(([, width]) => `${width}px`).join(" ");
    this.template = template;
    this.filter = h("input", { type: "search", placeholder: "filter", "aria-label": `Filter ${label}`, oninput: () => { this.wanted = this.filter.value.toLowerCase(); this.arrange(); } });
    this.count = h("span", { class: "faint", role: "status" });
    this.buttons = columns.map(([title, , , , right], at) => h("button", { type: "button", class: right ? "right" : "", onclick: () => this.sort(at) }, title));
    this.head = h("div", { class: "head", role: "row" }, this.buttons);
    this.body = h("div", { class: "body" });
    this.frame = h("div", { class: "table", role: "table", "aria-label": label, tabindex: 0, onscroll: () => this.draw() }, this.head, this.body);
    this.head.style.gridTemplateColumns = template;
    this.element = h("div", {}, h("div", { class: "tools" }, this.filter, this.count), this.frame);
  }

  sort(at) {
    this.down = this.sorted === at ? !this.down : false;
    this.sorted = at;
    this.arrange();
  }

  show(rows) {
    this.rows = rows;
    this.arrange();
  }

  arrange() {
    const value = this.columns[this.sorted][2];
    const texts = this.columns.filter(([, , , , right]) => !right).map(([, , of]) => of);
    const found = this.wanted ? this.rows.filter((row) => texts.some((of) => String(of(row)).toLowerCase().includes(this.wanted))) : [...this.rows];
    const sign = this.down ? -1 : 1;
    found.sort((a, b) => { const one = value(a), other = value(b); return one < other ? -sign : one > other ? sign : 0; });
    this.found = found;
    this.buttons.forEach((button, at) => button.setAttribute("aria-label", `${this.columns[at][0]}${at === this.sorted ? (this.down ? ", descending" : ", ascending") : ""}`));
    this.count.textContent = found.length === this.rows.length ? number(found.length) : `${number(found.length)} of ${number(this.rows.length)}`;
    this.frame.setAttribute("aria-rowcount", found.length);
    this.body.style.height = `${found.length * ROW}px`;
    this.draw();
  }

  draw() {
    const found = this.found ?? [];
    const begin = Math.max(0, Math.floor(this.frame.scrollTop / ROW) - MORE);
    const end = Math.min(found.length, begin + Math.ceil((this.frame.clientHeight || 600) / ROW) + 2 * MORE);
    const width = this.columns.reduce((sum, [, wide]) => sum + wide, 0);
    this.body.style.width = `${width}px`;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    this.body.replaceChildren(...found.slice(begin, end).map((row, at) => {
      const made = h("div", { class: "row", role: "row", "aria-rowindex": begin + at + 1 }, this.columns.map(([, , value, shown, right]) => {
        const inner = shown ? shown(row) : visible(value(row));
        return h("div", { class: right ? "cell right" : "cell", role: "cell", title: typeof inner === "string" ? inner : undefined }, inner);
      }));
      made.style.top = `${(begin + at) * ROW}px`;
      made.style.gridTemplateColumns = this.template;
      return made;
    }));
    if (focused) [...this.body.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
  }
}
