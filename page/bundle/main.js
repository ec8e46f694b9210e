// Begin: the key from the address, the stream of the state, screens, and questions.

import { DatasetScreens } from "./dataset.js";
import { h, number, show, visible } from "./dom.js";
import { RunScreens } from "./run.js";
import { State } from "./state.js";

const AGAIN_MS = [500, 1000, 2000, 5000];
const FRAME_MS = 120;
const $ = (id) => document.getElementById(id);

class App {
  constructor() {
    this.state = new State();
    this.pipeline = "";
    this.screen = "";
    this.tries = 0;
    this.screens = null;
    this.waiting = false;
    this.key = this.takeKey();
    $("theme").addEventListener("click", () => this.turn());
    $("pipeline").addEventListener("change", () => { this.pipeline = $("pipeline").value; this.draw(); });
    document.addEventListener("keydown", (event) => this.pressed(event));
    try { this.theme(localStorage.getItem("theme")); } catch { /* nothing is kept */ }
  }

  // The key leaves the address, so that nobody reads it over a shoulder or in a history; a reload finds it.
  takeKey() {
    const given = location.hash.slice(1);
    try {
      if (given) sessionStorage.setItem("key", given);
      history.replaceState(null, "", location.pathname);
      return given || sessionStorage.getItem("key") || "";
    } catch { return given; }
  }

  theme(name) { if (name === "light" || name === "dark") document.documentElement.dataset.theme = name; }

  turn() {
    const dark = (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    this.theme(dark ? "light" : "dark");
    try { localStorage.setItem("theme", dark ? "light" : "dark"); } catch { /* nothing is kept */ }
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || $("dialog").open) return;
    const names = this.screens?.names ?? [];
    if (/^[1-9]$/.test(event.key) && names[event.key - 1]) this.open(names[event.key - 1]);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.target.getAttribute("role") === "tab") {
      this.open(names[(names.indexOf(this.screen) + step + names.length) % names.length]);
      $("tabs").querySelector('[aria-selected="true"]').focus();
      event.preventDefault();
    }
  }

  async stream() {
    for (;;) {
      try {
        const answer = await fetch("/api/state", { headers: { Authorization: `Bearer ${this.key}` }, cache: "no-store" });
        if (answer.status === 401) { this.line(false, "open the page by its whole address: the key stands behind its #"); return; }
        if (!answer.ok) throw new Error((await answer.json()).error);
        await this.read(answer.body.getReader());
        this.line(false, "the connection ended; what you see is how it was");
      } catch (error) {
        this.line(false, `not connected; what you see is how it was (${visible(error.message)})`);
      }
      await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(this.tries, AGAIN_MS.length - 1)]));
      this.tries += 1;
    }
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let parts = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const text = decoder.decode(value, { stream: true });
      parts.push(text);
      if (!text.includes("\n")) continue;
      const events = parts.join("").split("\n\n");
      parts = [events.pop()];
      for (const event of events) this.take(event);
    }
  }

  take(event) {
    this.tries = 0;
    this.line(true, "live");
    const found = /^event: (whole|change)\ndata: (.*)$/s.exec(event);
    if (!found) return;
    if (found[1] === "whole") {
      const past = this.state.past;
      this.state.clear();
      this.state.past = past;
    }
    this.state.apply(JSON.parse(found[2]), performance.now() / 1000);
    this.soon();
  }

  line(on, words) {
    const line = $("line");
    line.className = on ? "on" : "off";
    if (line.textContent !== words) line.textContent = words;
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    const wait = Math.max(0, (this.drawnAt ?? -FRAME_MS) + FRAME_MS - performance.now());
    setTimeout(() => { this.waiting = false; this.draw(); }, wait);
  }

  draw() {
    this.drawnAt = performance.now();
    if (!performance.getEntriesByName("drawn").length && this.state.about("page").kind) requestAnimationFrame(() => performance.mark("drawn"));
    const about = this.state.about("page");
    if (!about.kind) return;
    if (this.screens?.kind !== about.kind) {
      this.screens = about.kind === "run" ? new RunScreens(this) : new DatasetScreens(this);
      this.screens.kind = about.kind;
      this.open(this.screens.names[0]);
      return;
    }
    this.choose();
    const now = performance.now() / 1000;
    const summary = this.screens.summary(now);
    if ($("summary").textContent !== summary) $("summary").textContent = summary;
    show($("acts"), ...this.screens.acts());
    this.drawTabs();
    this.screens.draw(this.screen, $("screen"), now);
    document.title = `${this.screens.kind === "run" ? this.pipeline || "no pipeline" : this.screens.summary()} · Headrace`;
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
  }

  choose() {
    const names = [...this.state.tables.pipelines.keys()];
    if (!names.includes(this.pipeline)) this.pipeline = this.state.firstShown();
    const select = $("pipeline");
    if (JSON.stringify([...select.options].map((one) => one.value)) !== JSON.stringify(names)) select.replaceChildren(...names.map((name) => h("option", { value: name }, visible(name))));
    select.value = this.pipeline;
    $("which").hidden = names.length === 0;
  }

  drawTabs() {
    const tabs = $("tabs");
    const made = this.screens.names.map((name) => {
      const count = this.screens.counts(name);
      return h("button", { type: "button", role: "tab", id: `tab-${name}`, "data-key": name, "aria-controls": "screen", "aria-selected": name === this.screen ? "true" : "false", tabindex: name === this.screen ? 0 : -1, onclick: () => this.open(name) },
        name, count === null ? null : h("small", {}, number(count)));
    });
    show(tabs, ...made);
    $("screen").setAttribute("aria-labelledby", `tab-${this.screen}`);
  }

  open(name) {
    if (name !== this.screen) $("screen").replaceChildren();
    this.screen = name;
    this.draw();
  }

  async question(question, given) {
    try {
      const answer = await fetch("/api/ask", { method: "POST", headers: { Authorization: `Bearer ${this.key}`, "Content-Type": "application/json" }, body: JSON.stringify({ ...given, question }) });
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error);
      return found;
    } catch (error) {
      this.say(visible(error.message), true);
      return null;
    }
  }

  async act(question, given) {
    const found = await this.question(question, given);
    if (found) this.say(visible(`${question}: ${found.changes.join(", ") || "accepted"}`), false);
  }

  say(words, bad) {
    $("said").hidden = false;
    $("said").className = bad ? "bad" : "";
    $("said").textContent = `${bad ? "▲" : "●"} ${words}`;
    clearTimeout(this.silent);
    this.silent = setTimeout(() => { $("said").hidden = true; }, 12000);
  }

  ask(title, fields, yes, then) {
    const dialog = $("dialog");
    const submit = (event) => { event.preventDefault(); dialog.close(); then(); };
    dialog.replaceChildren(h("form", { onsubmit: submit }, h("h2", {}, title), fields, h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), h("button", { type: "submit", autofocus: true }, yes))));
    dialog.showModal();
  }
}

const app = new App();
window.addEventListener("hashchange", () => location.reload());
app.stream();
