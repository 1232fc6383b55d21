/**
 * The replay page: what is selected, and the views that show it.
 *
 * A position of the scrubber is a column of run A. With two runs, columns of B that come after A's last are positions,
 * too. Each change calls the views, which ask the models for what they show.
 *
 * When the page is shown, the document gets an event "replay" with the app as its `detail`, for tests and other scripts.
 */

import { RunModel, decodeRecord } from "./model.js";
import { Side } from "./side.js";
import { Predict } from "./predict.js";
import { Pair } from "./pair.js";
import { Player } from "./player.js";
import { Overview } from "./overview.js";
import { NowView, showFacts } from "./now.js";
import { Scales } from "./scales.js";
import { Announcer } from "./announcer.js";
import { Theme, requestColour } from "./theme.js";
import { applyAddress, readAddress } from "./address.js";
import { firstMoment, firstToDiffer, leavesOpen } from "./opening.js";
import { verdictLine } from "./verdictline.js";
import { Tour } from "./tour.js";
import { bindControls, showControls } from "./controls.js";
import { part, tag } from "./elements.js";
import { lanesLegend, showEntries } from "./legend.js";
import { printSharply } from "./export.js";

/** The state of the page. Views read it; `select`, `selectRequest` and their like change it. */
class App {
  /** @param {object} record */
  constructor(record) {
    this.runs = record.runs.map((run) => new RunModel(run));
    this.main = this.runs[0];
    this.other = null;
    this.pair = null;
    this.position = 0;
    /** The column of B that is shown instead of the pair's for this position; null: the pair's. */
    this.beside = null;
    this.request = null;
    this.by = "time";
    this.mode = this.main.ofCells ? "time" : "iterations";
    this.address = readAddress(location.hash || document.documentElement.dataset.address);
    this.faults = [];
  }

  start() {
    this.theme = new Theme(() => this._redraw());
    this.scales = new Scales(this);
    this.a = new Side("A", this);
    this.b = new Side("B", this);
    this.now = new NowView(part("now"), this);
    this.overview = this.runs.length > 1 ? new Overview(part("overview").querySelector(".cards"), this) : null;
    part("overview").hidden = !this.overview;
    part("overview").open = !("i" in this.address);
    this.player = new Player(this, () => Number(part("speed").value), () => showControls(this));
    this.announcer = new Announcer(this);
    this.tour = new Tour(part("tour-dialog"));
    bindControls(this);
    part("verdict").textContent = verdictLine(this.runs);
    this.predict = new Predict(this);
    printSharply(this);
    this._take();
    if (leavesOpen(this.address)) this._open();
    window.addEventListener("hashchange", () => {
      if (location.hash === this.announcer.address) return;
      this.address = readAddress(location.hash);
      this.predict.leave();
      this.predict.read();
      this._take();
    });
    let width = document.body.clientWidth;
    new ResizeObserver(() => {
      if (document.body.clientWidth === width) return;
      width = document.body.clientWidth;
      this.layout();
    }).observe(document.body);
    part("overview").addEventListener("toggle", () => this.overview && part("overview").open && this.overview.layout());
  }

  /** Read the address, and show what it names. */
  _take() {
    this.faults = applyAddress(this, this.address);
    for (const side of this.sides()) side.axis.mode = this.mode;
    this._redraw();
  }

  /** Show what is worth seeing first. */
  _open() {
    const other = firstToDiffer(this.runs);
    if (!other) return this.select(firstMoment(this.main));
    this.setOther(other);
    this.difference(0);
  }

  /** The column of A that is shown; `indexOther` is that of B. */
  get index() {
    return this.pair ? this.pair.at(this.position).a : this.position;
  }

  get indexOther() {
    return this.pair ? this.beside ?? this.pair.at(this.position).b : null;
  }

  /** The moment that is shown, in seconds: the end of A's column or, after A's last, of B's. */
  get moment() {
    const [model, i] = this.position < this.main.length ? [this.main, this.index] : [this.other, this.indexOther];
    return model.passed[i];
  }

  /** How many positions the scrubber has. */
  get positions() {
    return this.pair ? this.pair.length : this.main.length;
  }

  sides() {
    return this.other ? [this.a, this.b] : [this.a];
  }

  get palette() {
    return this.theme.palette;
  }

  colour(r) {
    return requestColour(this.runs[0].requests[r].colour ?? r);
  }

  /** The last column of a run that may be shown: a question may be open about the next one. */
  limitOf(model) {
    return this.predict?.limitOf(model) ?? Infinity;
  }

  /**
   * Go to a position, or to the nearest one that exists and may be shown.
   *
   * @param {number|null} [beside] the column of B to be shown there; null: the pair's
   */
  select(i, beside = null) {
    const to = this._allowed(this.position, i);
    const most = this.other ? this.limitOf(this.other) : 0;
    const kept = to !== i || !this.pair || beside === null || beside > most || beside === this.pair.at(to).b ? null : beside;
    if (to === this.position && kept === this.beside) return;
    this.position = to;
    this.beside = kept;
    this.changed();
  }

  /** The position that is reached on the way from one to another: a stop may lie between them. */
  _allowed(from, to) {
    const there = Math.max(0, Math.min(this.positions - 1, to));
    return this.predict ? this.predict.allow(from, there) : there;
  }

  /** Select a column of one side. @param {"A"|"B"} side */
  selectIn(side, column) {
    if (side === "B" && this.pair) this.select(this.pair.positionOfB(column), column);
    else this.select(column);
  }

  selectRequest(r) {
    if (r === this.request) return;
    this.request = r;
    this.changed();
  }

  /** Make a run A; if it was B, A becomes B. */
  setMain(model) {
    this.setRuns(model, model === this.other ? this.main : this.other);
  }

  setOther(model) {
    this.setRuns(this.main, model);
  }

  /**
   * Choose A and B. A new A is shown at the time of the old one, or before its own first stop if that is earlier.
   *
   * @param {RunModel} main
   * @param {RunModel|null} other
   * @param {number} [position] to begin at
   */
  setRuns(main, other, position) {
    if (main === this.main && other === this.other && this.a.model) return;
    const moment = this.main.passed[Math.min(this.position, this.main.length - 1)] ?? 0;
    const changed = main !== this.main;
    if (changed) this.predict?.leave();
    this.main = main;
    this.other = other;
    this._pairUp();
    if (changed) this.position = this._allowed(0, position ?? main.at(moment * (1 - 1e-12)));
    document.body.classList.toggle("two-runs", Boolean(other));
    document.body.classList.toggle("one-run", !other);
    this.a.model = main;
    this.b.model = other;
    for (const side of this.sides()) side.titles();
    this.scales.renew();
    showFacts(part("about"), main);
    this._redraw();
  }

  /** @param {"time"|"token"} by how B follows A */
  setBy(by) {
    this.by = by;
    this._pairUp();
    this.changed();
  }

  _pairUp() {
    this.pair = this.other ? new Pair(this.main, this.other, this.by, this.pair) : null;
    this.beside = null;
    this.position = Math.min(this.position, this.positions - 1);
  }

  /** @param {"iterations"|"time"} mode of columns */
  setMode(mode) {
    this.mode = mode;
    this.scales.setMode(mode);
    this._redraw();
  }

  /** Make columns wider by a factor; 0: show the whole run. */
  zoom(factor) {
    this.scales.zoom(factor);
    this.layout();
  }

  /** Go to the next decision in which A and B differ (1), the previous one (-1), or the first (0). */
  difference(way) {
    const to = this.pair?.difference(way, { position: this.position, b: this.indexOther });
    this.player.pause();
    if (to) this.select(to.position, to.b);
  }

  _redraw() {
    this.layout();
    this.changed();
  }

  /** Draw everything anew. */
  layout() {
    if (!this.a?.model) return;
    for (const { lanes, model } of this.sides()) lanes.measure(model);
    this.scales.fit();
    for (const { lanes, charts, model } of this.sides()) {
      lanes.layout(model);
      charts.layout(model);
    }
    showEntries(part("legend"), lanesLegend(this), 26, 13);
    if (this.overview && part("overview").open) this.overview.layout();
  }

  /** Show what is selected now. */
  changed() {
    if (!this.a?.model) return;
    const { index, indexOther } = this;
    for (const view of this.a.views) view.show(this.main, index);
    if (this.other) for (const view of this.b.views) view.show(this.other, indexOther);
    this.now.show();
    this.overview?.show();
    part("difference").textContent = this.pair?.alike ?? this.pair?.sentences(this.position, this.indexOther) ?? "";
    showControls(this);
    this.announcer.announce();
    this.predict?.render();
  }
}

try {
  const app = new App(await decodeRecord(part("record").textContent));
  app.start();
  document.documentElement.dataset.ready = "yes";
  document.dispatchEvent(new CustomEvent("replay", { detail: app }));
} catch (error) {
  const line = `This page could not be shown (${error.message}): open it in a current version of Chrome, Edge, Firefox or Safari.`;
  part("notices").replaceChildren(tag("p", "", line));
  throw error;
}
