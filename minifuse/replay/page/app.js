/**
 * The replay page: what is selected, the views that show it, and what the reader does.
 *
 * A position is what the scrubber stands at: an iteration of run A or, with two runs, also one of B's that come after
 * A's last. Views are told of each change, and ask the models for what they show.
 */

import { RunModel, decodeRecord } from "./model.js";
import { Side, part } from "./side.js";
import { Predict } from "./predict.js";
import { Overview, Pair } from "./compare.js";
import { NowView, sentencesOf, showFacts } from "./now.js";
import { WIDEST } from "./axis.js";
import { readPalette, requestColour } from "./palette.js";
import { addressOf, applyAddress, readAddress } from "./address.js";
import { bindControls, showControls } from "./controls.js";
import { showLegend } from "./legend.js";
import { printSharply } from "./export.js";
import { seconds } from "./words.js";

const ADDRESS_AFTER = 300; // milliseconds: browsers refuse to change the address more often for long
const SPOKEN_AFTER = 400;

/** The state of the page. Views read it; `select`, `selectRequest` and their like change it. */
class App {
  /** @param {object} record */
  constructor(record) {
    this.runs = record.runs.map((run) => new RunModel(run));
    this.main = this.runs[0];
    this.other = null;
    this.pair = null;
    this.position = 0;
    this.request = null;
    this.by = "time";
    this.mode = this.main.ofCells ? "time" : "iterations";
    this.playing = false;
    this.themeChosen = false;
    this.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    this.address = readAddress(location.hash);
    this._listeners = { change: [], theme: [], layout: [] };
    this._guards = [];
    this._faults = [];
  }

  start() {
    this._dress(this.theme);
    this.a = new Side("A", this);
    this.b = new Side("B", this);
    this.now = new NowView(part("now"), this);
    this.overview = this.runs.length > 1 ? new Overview(part("overview").querySelector(".cards"), this) : null;
    part("overview").hidden = !this.overview;
    part("overview").open = !("i" in this.address);
    bindControls(this);
    this.predict = new Predict(this);
    printSharply(this);
    this._take();
    window.addEventListener("hashchange", () => {
      if (location.hash === this._told) return;
      this.address = readAddress(location.hash);
      this._take();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => {
      if (!this.themeChosen) this._setTheme(matches ? "dark" : "light");
    });
    let width = document.body.clientWidth;
    new ResizeObserver(() => {
      if (document.body.clientWidth === width) return;
      width = document.body.clientWidth;
      this.layout();
    }).observe(document.body);
    part("overview").addEventListener("toggle", () => this.overview && part("overview").open && this.overview.layout());
  }

  /** Take the address, and show what it names. */
  _take() {
    this._faults = applyAddress(this, this.address);
    if (this.pair && this.pair.by !== this.by) this.setBy(this.by);
    for (const side of this.sides()) side.axis.mode = this.mode;
    this.layout();
    this._changed();
  }

  /** The iteration of A, and that of B, at the position. */
  get index() {
    return this.pair ? this.pair.at(this.position).a : this.position;
  }

  get indexOther() {
    return this.pair ? this.pair.at(this.position).b : null;
  }

  /** How many positions the scrubber has. */
  get positions() {
    return this.pair ? this.pair.length : this.main.length;
  }

  sides() {
    return this.other ? [this.a, this.b] : [this.a];
  }

  colour(r) {
    return requestColour(r);
  }

  /**
   * Call `fn` after each change of what is selected ("change"), of the theme ("theme"), or of sizes ("layout").
   *
   * @param {"change"|"theme"|"layout"} event @param {() => void} fn
   */
  on(event, fn) {
    this._listeners[event].push(fn);
  }

  /**
   * Ask `guard` before the position changes: it is given the position and the one wanted, and returns the one allowed.
   *
   * @param {(from: number, to: number) => number} guard
   */
  guard(guard) {
    this._guards.push(guard);
  }

  /** @param {number} i the position to go to; outside of the run: the nearest there is */
  select(i) {
    let to = Math.max(0, Math.min(this.positions - 1, i));
    for (const guard of this._guards) to = guard(this.position, to);
    if (to === this.position) return;
    this.position = to;
    this._changed();
  }

  /** Select a column of one side. @param {"A"|"B"} side @param {number} column */
  selectIn(side, column) {
    this.select(side === "B" && this.pair ? this.pair.positionOfB(column) : column);
  }

  /** @param {number|null} r */
  selectRequest(r) {
    if (r === this.request) return;
    this.request = r;
    for (const { charts, lanes } of this.sides()) {
      charts.layout(charts.model ?? this.main);
      if (lanes.rows) lanes.draw();
    }
    this._changed();
  }

  /** Make a run A; if it was B, A becomes B. */
  setMain(model) {
    this.setRuns(model, model === this.other ? this.main : this.other);
  }

  setOther(model) {
    this.setRuns(this.main, model);
  }

  /** @param {RunModel} main @param {RunModel|null} other */
  setRuns(main, other) {
    if (main === this.main && other === this.other && this.a.model) return;
    const moment = this.main.length ? this.main.passed[Math.min(this.position, this.main.length - 1)] : 0;
    const changed = main !== this.main;
    this.main = main;
    this.other = other;
    this._pairUp();
    if (changed) this.position = main.at(moment * (1 - 1e-12));
    this.position = Math.min(this.position, this.positions - 1);
    document.body.classList.toggle("two-runs", Boolean(other));
    document.body.classList.toggle("one-run", !other);
    this.a.model = main;
    this.b.model = other;
    for (const side of this.sides()) {
      side.axis.mode = this.mode;
      side.titles();
    }
    if (other && this.mode === "time") for (const { axis } of this.sides()) axis.fitted = WIDEST;
    showLegend(part("legend"), this);
    showFacts(part("about"), main);
    this.layout();
    this._changed();
  }

  setBy(by) {
    this.by = by;
    this._pairUp();
    this.position = Math.min(this.position, this.positions - 1);
    this._changed();
  }

  _pairUp() {
    this.pair = this.other ? new Pair(this.main, this.other, this.by) : null;
  }

  /** @param {"iterations"|"time"} mode of columns */
  setMode(mode) {
    this.mode = mode;
    for (const side of this.sides()) {
      side.axis.mode = mode;
      if (side.axis.fitted) continue;
      const at = side === this.a ? this.index : this.indexOther;
      side.axis.left = Math.max(0, side.axis.x(at) - side.lanes.seen / 2);
    }
    this._together(this.a);
    this.layout();
    this._changed();
  }

  /** Make columns wider by a factor; 0: show the whole run. The selected one stays where it is. */
  zoom(factor) {
    if (!factor) for (const { axis } of this.sides()) axis.fitted = WIDEST;
    else {
      for (const side of this.sides()) {
        const { axis, lanes } = side;
        const at = side === this.a ? this.index : this.indexOther;
        const stays = axis.x(at) - axis.left;
        axis.zoomTo(axis.width * factor);
        axis.left = Math.max(0, axis.x(at) - Math.max(0, Math.min(lanes.seen * 0.9, stays)));
      }
      this._together(this.a);
    }
    this.layout();
  }

  /** In time, A and B have one scale and show the same moments. */
  _together(side) {
    if (!this.other || this.mode !== "time") return;
    const beside = side === this.a ? this.b : this.a;
    const origin = Math.min(side.axis.origin, beside.axis.origin);
    side.axis.origin = beside.axis.origin = origin;
    beside.axis.width = side.axis.scale * beside.axis.median;
    beside.axis.left = side.axis.left;
    beside.axis.fitted = side.axis.fitted;
  }

  /** Where the whole of the runs is to be shown, do so: in time, of the longer one. */
  _fit() {
    const sides = this.sides();
    const inTime = this.mode === "time";
    if (inTime && this.other) this._together(this.a);
    const last = Math.max(...sides.map(({ model }) => (model.length ? model.passed[model.length - 1] : 0)));
    for (const { axis, lanes } of sides) {
      if (axis.fitted) axis.fit(lanes.seen, { widest: axis.fitted, ...(inTime ? { last } : {}) });
    }
  }

  /** What a side shows has been moved sideways. */
  moved(side) {
    if (!this.other || this.mode !== "time" || this._moving) return;
    this._moving = true;
    const beside = side === this.a ? this.b : this.a;
    if (Math.abs(beside.axis.left - side.axis.left) > 1) {
      beside.axis.left = side.axis.left;
      beside.lanes.layout(beside.model);
      beside.charts.draw();
    }
    this._moving = false;
  }

  setTheme(theme) {
    this.themeChosen = true;
    this._setTheme(theme);
  }

  _setTheme(theme) {
    this.theme = theme;
    this.wear(theme);
    this._changed();
  }

  /** Show the page in the colours of a theme, whichever is chosen: while it is printed, those of the light one. */
  wear(theme) {
    this._dress(theme);
    for (const fn of this._listeners.theme) fn();
    this.layout();
    if (!this.a?.model) return;
    for (const view of [this.a.memory, ...(this.other ? [this.b.memory] : [])]) {
      view.show(view === this.a.memory ? this.main : this.other, view === this.a.memory ? this.index : this.indexOther);
    }
  }

  _dress(theme) {
    this.worn = theme;
    document.documentElement.dataset.theme = theme;
    this.palette = readPalette();
  }

  /** Draw everything anew. */
  layout() {
    if (!this.a?.model) return;
    for (const { lanes, model } of this.sides()) lanes.measure(model);
    this._fit();
    for (const { lanes, charts, model } of this.sides()) {
      lanes.layout(model);
      charts.layout(model);
    }
    showLegend(part("legend"), this);
    if (this.overview && part("overview").open) this.overview.layout();
    for (const fn of this._listeners.layout) fn();
  }

  /** Show what is selected now. */
  _changed() {
    if (!this.a?.model) return;
    const { index, indexOther } = this;
    for (const view of this.a.views) view.show(this.main, index);
    if (this.other) for (const view of this.b.views) view.show(this.other, indexOther);
    this.now.show();
    this.overview?.show();
    part("difference").textContent = this.pair ? this._differing() : "";
    showControls(this);
    this._tell();
    for (const fn of this._listeners.change) fn();
  }

  _differing() {
    const told = this.pair.told(this.position);
    if (told) return told;
    if (!this.pair.first) return `${this.main.run.title} and ${this.other.run.title} decide alike, in every iteration.`;
    return "";
  }

  /** Notices, the address, and what a screen reader says: after the picture, and not for every frame. */
  _tell() {
    const notices = [...this.sides().map(({ model }) => model.run.notice && `${model.run.title}: ${model.run.notice}`), ...this._faults].filter(Boolean);
    const key = notices.join("\n");
    if (key !== this._noticed) {
      this._noticed = key;
      const lines = notices.map((notice) => {
        const line = document.createElement("p");
        line.textContent = notice;
        return line;
      });
      part("notices").replaceChildren(...lines);
    }
    clearTimeout(this._addressTimer);
    this._addressTimer = setTimeout(() => {
      this._told = addressOf(this, this.address);
      if (location.hash !== this._told) history.replaceState(null, "", this._told);
    }, ADDRESS_AFTER);
    clearTimeout(this._spokenTimer);
    this._spokenTimer = setTimeout(() => {
      const chosen = this.request === null ? "" : ` ${this.main.requests[this.request].id} is ${this.main.stateAt(this.index, this.request)}.`;
      part("live").textContent = `Iteration ${this.index} of ${this.main.run.title}, at ${seconds(this.main.starts[this.index])}. ${sentencesOf(this.main, this.index).join(" ")}${chosen}`;
    }, SPOKEN_AFTER);
  }

  /** Play or pause, a number of iterations a second. */
  play(on = !this.playing) {
    if (on === this.playing) return;
    this.playing = on;
    if (on && this.position >= this.positions - 1) this.select(0);
    showControls(this);
    if (!on) return;
    let last = performance.now();
    let due = 0;
    const turn = (now) => {
      if (!this.playing) return;
      due += ((now - last) / 1000) * this.speed;
      last = now;
      const steps = Math.floor(due);
      due -= steps;
      if (steps) {
        const before = this.position;
        this.select(this.position + steps);
        if (this.position < before + steps) this.play(false); // the end, or a stop
      }
      if (this.playing) requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
  }

  get speed() {
    return Number(part("speed").value);
  }

  /** Go to the next decision in which A and B differ (1), the previous one (-1), or the first (0). */
  difference(way) {
    if (!this.pair) return;
    const { differences } = this.pair;
    const to = way > 0 ? this.pair.next(this.position) : way < 0 ? this.pair.previous(this.position) : this.pair.first?.a ?? differences[0]?.position;
    if (to !== null && to !== undefined) this.select(to);
  }
}

try {
  const app = new App(await decodeRecord(part("record").textContent));
  window.app = app;
  app.start();
  document.documentElement.dataset.ready = "yes";
} catch (error) {
  const line = document.createElement("p");
  line.textContent = `This page could not be shown (${error.message}): open it in a current version of Chrome, Edge, Firefox or Safari.`;
  part("notices").replaceChildren(line);
  throw error;
}
