/** The lanes of a run on the page: scrolled, clicked, and pointed at. */

import { countUpTo } from "./ascending.js";
import { columnName, onWorker, sizeOf, workerName } from "./columns.js";
import { ColumnsView } from "./columnsview.js";
import { LaneRows, paddingOf } from "./lanerows.js";
import { GUTTER, HEAD, drawLanes } from "./lanes.js";
import { lanesLegend } from "./legend.js";
import { nodesByType } from "./now.js";
import { SvgSurface } from "./surface.js";
import { counted, seconds } from "./words.js";

const LOWEST_ROW = 9; // pixels; rows that would be lower are scrolled
const SCROLL_BAR = 15; // pixels

/** The lanes of one side, in a part of the page that scrolls both ways. */
export class LanesView extends ColumnsView {
  constructor(host, app, look) {
    super("lanes", host, app, look);
    this.listeners = [];
    host.addEventListener("scroll", () => this._scrolled());
    this.canvas.addEventListener("click", (event) => this._clicked(event));
    this.canvas.addEventListener("mousemove", (event) => this._hover(event));
    this.canvas.addEventListener("mouseleave", () => (this.tip.hidden = true));
  }

  /** Call `fn` whenever what is seen has moved. */
  onMove(fn) {
    this.listeners.push(fn);
  }

  get seen() {
    return Math.max(1, (this.size ?? this._measure()).width - GUTTER);
  }

  /** Reads size and scrolling. Call this only when they change: reading makes the browser lay out the page. */
  _measure() {
    const picture = this.canvas.parentElement;
    picture.hidden = true; // one that was larger before would make scroll bars
    const { clientWidth: width, clientHeight: height, scrollTop: top } = this.host;
    picture.hidden = false;
    this.size = { width, height, top };
    return this.size;
  }

  /** Take the height that the rows need, and read the width that is left. */
  measure(model) {
    if (this.rows?.model !== model) {
      this.rows = new LaneRows(model);
      const { title, workers } = model.run;
      const rows = model.ofCells ? `${workers} workers and ${model.requests.length} requests` : `${model.requests.length} requests`;
      this.canvas.setAttribute("aria-label", `${title}: a row for each of ${rows}, ${model.length} columns, an iteration each or a wait. What they do is told in words under "This iteration" and "Story".`);
    }
    const { count } = this.rows;
    const most = Math.max(120, Math.min(window.innerHeight * (this.app.other ? 0.25 : 0.4), 420));
    const usual = count > 40 ? 14 : count > 18 ? 16 : 20;
    const fitting = Math.floor((most - HEAD - 2) / count);
    this.rowHeight = fitting < LOWEST_ROW ? usual : Math.min(usual, fitting); // all rows are seen, if they can be
    const wanted = HEAD + count * this.rowHeight + 2;
    const { fitted } = this.axis();
    this.host.style.height = `${Math.min(wanted, most) + (fitted ? 0 : SCROLL_BAR)}px`;
    this.host.style.overflowX = fitted ? "hidden" : "auto"; // or a scroll bar that is no longer needed would take height
    this.spacer.style.height = `${wanted}px`;
    this._measure();
  }

  /** Draw everything anew: another model, size, zoom or theme. */
  layout(model) {
    this.measure(model);
    const axis = this.axis();
    this.spacer.style.width = `${axisPixels(axis) + GUTTER}px`;
    this._measure();
    this._quietly(axis.left);
    this.draw();
    this.point(this.size);
  }

  /** Scroll sideways, within what the browser allows, so that the position need not be read back. */
  _quietly(left) {
    const axis = this.axis();
    axis.left = Math.round(Math.max(0, Math.min(left, axisPixels(axis) - this.seen)));
    this.host.scrollLeft = axis.left;
  }

  look() {
    const { app } = this;
    const limit = app.limitOf(this.rows.model);
    const look = { palette: app.palette, colour: (r) => app.colour(r), selected: app.request, rowHeight: this.rowHeight, limit };
    return { ...look, ...(this.size ?? this._measure()) };
  }

  draw() {
    if (this.rows) this._drawOn(this.surface, this.look());
  }

  _drawOn(surface, look) {
    surface.begin(look.width, look.height);
    drawLanes(surface, this.rows, this.axis(), look);
  }

  /** All rows, and the columns that are seen. */
  picture() {
    const height = HEAD + this.rows.count * this.rowHeight + 4;
    const surface = new SvgSurface();
    this._drawOn(surface, { ...this.look(), top: 0, height });
    return surface;
  }

  legendEntries() {
    return lanesLegend(this.app);
  }

  /** @param {number} i the column that is selected */
  show(model, i) {
    if (this.rows?.model !== model) this.layout(model);
    const chosen = this.app.request;
    const [across, down] = [this.reveal(i), this._revealRows(i, chosen)];
    const moved = across || down || chosen !== this.chosen;
    this.chosen = chosen;
    this.index = i;
    if (moved) this.draw();
    this.point(this.size);
  }

  /** Scroll so that column i is seen. Returns whether anything moved. */
  reveal(i) {
    const axis = this.axis();
    const [x, end] = [axis.x(i), axis.right(i)];
    const { seen } = this;
    if (x >= axis.left && Math.min(end, x + seen) <= axis.left + seen + 1) return false;
    const back = x < axis.left && axis.left - x < seen / 2;
    this._quietly(back ? Math.min(x, end - seen * 0.9) : x - seen * 0.1);
    for (const fn of this.listeners) fn();
    return true;
  }

  /** Scroll to the row of the request that was just selected, or else of one that column i computes for. */
  _revealRows(i, chosen) {
    const { height, top } = this.size;
    const seen = height - HEAD;
    if (this.rows.count * this.rowHeight <= seen) return false;
    const inside = (r) => {
      const y = (this.rows.workers + r) * this.rowHeight - top;
      return y >= 0 && y + this.rowHeight <= seen;
    };
    let wanted = null;
    if (chosen !== null && chosen !== this.chosen) wanted = inside(chosen) ? null : chosen;
    else if (i !== this.index) {
      const { work } = this.rows.model.steps[i];
      if (work.length && !work.some(([r]) => inside(r))) wanted = Math.min(...work.map(([r]) => r));
    }
    if (wanted === null) return false;
    this.host.scrollTop = Math.max(0, (this.rows.workers + wanted - 1) * this.rowHeight);
    this.size.top = this.host.scrollTop;
    return true;
  }

  /** Draws again if the reader has scrolled. When the page scrolls, it has drawn already. */
  _scrolled() {
    const axis = this.axis();
    const { scrollLeft, scrollTop } = this.host;
    if (!this.size || (Math.abs(scrollLeft - axis.left) < 1 && scrollTop === this.size.top)) return; // browsers may round it
    this.size.top = scrollTop;
    axis.left = scrollLeft;
    this.draw();
    this.point(this.size);
    for (const fn of this.listeners) fn();
  }

  /** The row under the pointer, and its request; null: there is none. */
  _rowAt({ offsetY: y }) {
    const row = y < HEAD ? -1 : Math.floor((y - HEAD + this.host.scrollTop) / this.rowHeight);
    return row >= 0 && row < this.rows.count ? { row, r: this.rows.request(row) } : null;
  }

  _clicked(event) {
    const found = this._rowAt(event);
    const column = this.columnAt(event);
    if (found && found.r !== null) this.app.selectRequest(found.r);
    if (column !== null) this.app.selectIn(this.side, column);
  }

  _hover(event) {
    const found = this._rowAt(event);
    const column = this.columnAt(event);
    const { model } = this.rows;
    const limit = this.app.limitOf(model);
    this.tip.hidden = !found || column === null || column > limit;
    if (this.tip.hidden) return;
    const { row, r } = found;
    const words = r === null ? `${workerName(model, row)}: ${computing(model, column, row)}` : `${model.requests[r].id}: ${doing(model, column, r, limit)}`;
    this.tip.textContent = `${words}; ${columnName(model, column)}, ${seconds(model.starts[column])}`;
    const { offsetX: x, offsetY: y } = event;
    const { width, height } = this.size;
    const [left, top] = [Math.max(0, Math.min(x + 12, width - this.tip.offsetWidth)), y + 56 > height ? y - 34 : y + 16];
    this.tip.style.transform = `translate(${left}px, ${top}px)`;
  }
}

/** The width of all columns in whole pixels: browsers do not scroll by parts of a pixel. */
function axisPixels(axis) {
  return Math.floor(axis.total + 1e-6);
}

/** What a worker of a model of cells computes in a column, in words. */
function computing(model, i, worker) {
  const { work, worker: own, idle, isWait } = model.steps[i];
  if (isWait || own !== worker || !work.length) return "no task ends on it here";
  return `${nodesByType(model, work)}${idle ? `, and ${counted(idle, "node")} idle` : ""}`;
}

/** What a request does in a column, in words; nothing of columns after `limit`. */
function doing(model, i, r, limit) {
  const state = model.stateAt(i, r);
  const step = model.steps[i];
  const work = step.work.filter((one) => one[0] === r);
  if (work.length && model.ofCells) {
    const idle = paddingOf(step, work);
    return `${state}, ${nodesByType(model, work)} computed${idle > 0 ? `, and ${counted(idle, "node")} of padding` : ""}`;
  }
  if (work.length) return `${state}, ${counted(sizeOf(work), "token")} computed`;
  const idle = model.idleColumns(r);
  const at = countUpTo(idle, i);
  if (at && idle[at - 1] === i) return `${state}, its row computed idly`;
  if (state !== "running") return state;
  const beside = besideOf(model, i, r);
  if (beside > limit) return state; // may not be shown yet
  if (beside !== null) return `running, in ${columnName(model, beside)}${onWorker(model, model.steps[beside].worker)}`;
  const own = model.workColumns(r);
  const last = own[Math.max(0, countUpTo(own, i) - 1)];
  if (step.isWait || (model.steps[last]?.worker ?? 0) !== step.worker) return state;
  if (step.phase === "preprocessing") return "running, not while prompts are computed apart";
  return "running, not in this iteration";
}

/** The iteration of another worker, running as column i ends, that computes for a request; null: there is none. */
function besideOf(model, i, r) {
  const own = model.workColumns(r);
  const j = own[countUpTo(own, i)];
  if (j === undefined || model.starts[j] >= model.ends[i]) return null;
  return model.steps[j].worker === model.steps[i].worker ? null : j;
}
