/**
 * Lanes: a row for each request, from its arrival to its end; in runs of cells, a row for each worker above them.
 *
 * What a request is doing is told by the colour and the pattern of its band, and what was computed for it by solid
 * cells on the band. Cells that lie side by side and are alike are kept as one segment, so that a picture costs as much
 * as what is seen of it, however long the run.
 */

import { countUpTo } from "./model.js";

/** Sorts of segments; from FIRST_TASK on, a type of cells each. */
const [DECODED, PROMPTED, PREPARED, IDLED, FIRST_TASK] = [0, 1, 2, 3, 4];
const SORT_COLOURS = ["running", "prompt", "apart", "idle"];
/** Bands of states: the colour of the palette, and the pattern in it. */
export const BANDS = {
  waiting: { colour: "waiting", pattern: "dots" },
  preprocessing: { colour: "apart", pattern: "stripes" },
  ready: { colour: "ready", pattern: "bars" },
  running: { colour: "held", pattern: null },
  suspended: { colour: "suspended", pattern: "cross" },
};
export const GUTTER = 76; // pixels on the left, for names
export const HEAD = 18; // pixels above, for the axis
const SHOW_EDGES = 5; // pixels of a column from which on its edges are drawn

/** Segments of one row: columns [from, to) of one sort. */
class Segments {
  constructor() {
    this.from = [];
    this.to = [];
    this.sort = [];
  }

  add(column, sort) {
    const last = this.to.length - 1;
    if (last >= 0 && this.to[last] === column && this.sort[last] === sort) this.to[last] = column + 1;
    else if (last < 0 || this.to[last] <= column) {
      this.from.push(column);
      this.to.push(column + 1);
      this.sort.push(sort);
    }
  }
}

/** The rows of a run, made once. */
export class LaneRows {
  /** @param {import("./model.js").RunModel} model */
  constructor(model) {
    this.model = model;
    const { run, requests } = model;
    this.workers = model.ofCells ? run.workers : 0;
    this.tasks = Array.from({ length: this.workers }, () => new Segments());
    this.requests = requests.map(() => new Segments());
    this.padded = []; // columns in which some rows compute fewer tokens than the rectangle has columns
    run.steps.forEach((step, column) => {
      for (const work of step.w ?? []) this.requests[work[0]].add(column, sortOf(model, step, work));
      if (model.ofCells && step.w) this.tasks[step.k ?? 0].add(column, FIRST_TASK + (step.w[0][3] ?? 0));
      if (step.sh && step.i && columnsOf(step.sh) > 1) this.padded.push(column);
    });
    const going = run.workers > 1 ? this._going() : null;
    const beside = going && this._beside(going);
    this.requests = this.requests.map((own, r) => withIdle(own, model.idleColumns(r)));
    /** Of requests, what is drawn in columns of one width. */
    this.beside = beside ? beside.map((own, r) => withIdle(own, alsoDuring(model.idleColumns(r), going))) : this.requests;
    this.count = this.workers + requests.length;
  }

  /** Of each column, those of other workers that are running as it ends. */
  _going() {
    const { model } = this;
    const next = new Map(); // worker -> the first column, from this one on, in which it computes
    const going = model.run.steps.map(() => []);
    for (let i = model.length - 1; i >= 0; i--) {
      const { w, k = 0, wait } = model.run.steps[i];
      if (w) next.set(k, i);
      if (!wait) for (const [worker, j] of next) if (worker !== k && model.starts[j] < model.ends[i]) going[i].push(j);
    }
    return going;
  }

  /**
   * In columns of one width, an iteration of one worker takes a column of its own while another worker computes: what
   * that one computes goes on in it, and is no pause.
   */
  _beside(going) {
    const { model } = this;
    const all = this.requests.map(() => new Segments());
    model.run.steps.forEach((_, i) => {
      for (const j of [i, ...going[i]]) {
        const step = model.run.steps[j];
        for (const work of step.w ?? []) all[work[0]].add(i, sortOf(model, step, work));
      }
    });
    return all;
  }

  /** @param {number} row @returns {number|null} the request of a row; null: a worker's */
  request(row) {
    return row < this.workers ? null : row - this.workers;
  }
}

/** A row that goes on being computed: between the segments of its request's work, if any follow. */
function withIdle(own, idle) {
  if (!idle.length) return own;
  const all = new Segments();
  let k = 0;
  own.from.forEach((from, at) => {
    while (k < idle.length && idle[k] < from) all.add(idle[k++], IDLED);
    all.from.push(from);
    all.to.push(own.to[at]);
    all.sort.push(own.sort[at]);
  });
  while (k < idle.length) all.add(idle[k++], IDLED);
  return all;
}

/** Some columns, and those during which they are going on. */
function alsoDuring(columns, going) {
  if (!columns.length) return columns;
  const found = new Set(columns);
  going.forEach((list, i) => list.some((j) => found.has(j)) && found.add(i));
  return [...found].sort((a, b) => a - b);
}

/** What sort of segment a piece of work makes. */
function sortOf(model, step, [r, start, stop, cell]) {
  if (model.ofCells) return FIRST_TASK + (cell ?? 0);
  if (step.ph === "preprocessing") return PREPARED;
  return stop - start === 1 && start >= (model.requests[r].prompt ?? 0) ? DECODED : PROMPTED;
}

/** How many tokens, or nodes, a shape computes in each row. */
function columnsOf({ kind, start, stop, steps }) {
  return kind === "Rectangle" ? stop - start : kind === "StateRows" ? steps : 1;
}

/** What colour a segment has. */
function sortColour(sort, palette) {
  return sort < FIRST_TASK ? palette[SORT_COLOURS[sort]] : palette.tasks[(sort - FIRST_TASK) % palette.tasks.length];
}

const TASK_PATTERNS = [null, "stripes", "dots", "cross", "backstripes", "columns", "bars"];

/** What pattern a segment has. */
function sortPattern(sort) {
  if (sort === IDLED) return "backstripes";
  if (sort === PREPARED) return "stripes";
  if (sort === PROMPTED) return "columns";
  return sort < FIRST_TASK ? null : TASK_PATTERNS[(sort - FIRST_TASK) % TASK_PATTERNS.length];
}

/**
 * Draws lanes.
 *
 * @param {import("./surface.js").CanvasSurface | import("./surface.js").SvgSurface} surface
 * @param {LaneRows} rows
 * @param {import("./axis.js").Axis} axis
 * @param {{width: number, height: number, top: number, rowHeight: number, palette: object, colour: Function,
 *          selected: number|null}} look `top`: pixels scrolled down
 */
export function drawLanes(surface, rows, axis, look) {
  const { model } = rows;
  const { width, height, top, rowHeight, palette } = look;
  const [gutter, head] = look.small ? [0, 0] : [GUTTER, HEAD];
  const seen = width - gutter;
  const shift = gutter - axis.left;
  surface.rect(0, 0, width, height, { fill: palette.panel });
  const first = Math.max(0, Math.floor(top / rowHeight));
  const last = Math.min(rows.count, Math.ceil((top + height - head) / rowHeight));
  const [from, to] = axis.visible(seen);
  if (!look.small) {
    surface.clip(gutter, 0, seen, height);
    for (const { x, label } of axis.ticks(seen)) {
      surface.line(x + shift, head - 4, x + shift, height, { stroke: palette.grid });
      surface.text(x + shift + 3, head / 2, label, { size: 10, fill: palette.soft });
    }
    surface.unclip();
  }
  surface.clip(0, head, width, height - head);
  for (let row = first; row < last; row++) {
    const y = head + row * rowHeight - top;
    const r = rows.request(row);
    if (r !== null && r === look.selected) surface.rect(0, y, width, rowHeight, { fill: palette.chosen });
    else if (row % 2) surface.rect(0, y, width, rowHeight, { fill: palette.stripe });
  }
  surface.clip(gutter, head, seen, height - head);
  const margin = look.small ? Math.min(1, rowHeight / 8) : 2;
  const tall = rowHeight - 2 * margin;
  const edges = !look.small && columnWidth(axis, from, to) >= SHOW_EDGES;
  const worked = axis.mode === "time" ? rows.requests : rows.beside;
  for (let row = first; row < last; row++) {
    const y = head + row * rowHeight - top + margin;
    const r = rows.request(row);
    const frame = { y, tall, shift, gutter, width, from, to, edges };
    if (r !== null) drawBands(surface, model, axis, r, frame, palette);
    drawSegments(surface, axis, r === null ? rows.tasks[row] : worked[r], frame, palette);
    if (r !== null && !look.small) drawEnd(surface, model, axis, r, frame, palette);
  }
  if (edges) drawPadding(surface, rows, axis, { first, last, from, to, top: top - head - margin, rowHeight, tall, shift }, palette);
  surface.unclip();
  for (let row = first; row < last; row++) {
    if (look.small) break;
    const y = head + (row + 0.5) * rowHeight - top;
    const r = rows.request(row);
    if (r !== null) surface.rect(4, y - 4, 8, 8, { fill: look.colour(r) });
    const name = r === null ? `worker ${row}` : String(model.requests[r].id);
    const most = 9;
    const shown = name.length > most ? `${name.slice(0, most - 1)}\u2026` : name;
    surface.text(r === null ? 4 : 16, y, shown, { fill: palette.ink, weight: r === look.selected ? "bold" : "normal" });
  }
  surface.unclip();
}

/** Pixels of a column that is seen, as a rule. */
function columnWidth(axis, from, to) {
  return to > from ? (axis.right(to - 1) - axis.x(from)) / (to - from) : 0;
}

function drawBands(surface, model, axis, r, { y, tall, shift, gutter, width }, palette) {
  const { arrival } = model.requests[r];
  for (const { from, to, state } of model.spans(r)) {
    const band = BANDS[state];
    if (!band || from >= to) continue;
    const begins = state === "waiting" && axis.mode === "time" && arrival !== null ? axis.atTime(arrival) : axis.x(from);
    const [x, end] = [begins + shift, edge(model, axis, to) + shift];
    if (end < gutter || x > width) continue;
    const left = Math.max(x, gutter - 2);
    const w = Math.max(1, Math.min(end, width) - left);
    const inset = state === "running" ? tall * 0.36 : tall * 0.18;
    const fill = palette[`${band.colour}Soft`] ?? palette[band.colour];
    surface.rect(left, y + inset, w, tall - 2 * inset, { fill, pattern: band.pattern, ink: palette[band.colour] });
  }
}

/** Where a span ends that lasts up to a column. */
function edge(model, axis, to) {
  return axis.mode === "time" ? (model.passed[to - 1] - axis.origin) * axis.scale : axis.right(to - 1);
}

function drawSegments(surface, axis, segments, { y, tall, shift, gutter, width, from, to, edges }, palette) {
  const { from: starts, to: stops, sort: sorts } = segments;
  let drawn = -Infinity; // up to which pixel
  for (let k = countUpTo(stops, from); k < starts.length && starts[k] < to; k++) {
    const x = Math.max(axis.x(starts[k]) + shift, gutter - 2);
    const end = Math.min(axis.right(stops[k] - 1) + shift, width + 2);
    if (end <= drawn + 0.5 && end - x < 1) continue;
    const sort = sorts[k];
    const pattern = sortPattern(sort);
    const fill = sort === IDLED ? palette.idleSoft : sortColour(sort, palette);
    const ink = sort === IDLED ? palette.idle : palette.onCell;
    surface.rect(x, y, Math.max(0.7, end - x), tall, { fill, pattern: end - x > 2 ? pattern : null, ink });
    drawn = end;
    if (!edges) continue;
    const last = Math.min(stops[k], to);
    for (let i = Math.max(starts[k], from); i < last; i++) {
      surface.rect(axis.right(i) + shift - 1, y, 1, tall, { fill: palette.panel });
    }
  }
}

/** A mark where a request ends, and in words why one was refused. */
function drawEnd(surface, model, axis, r, { y, tall, shift, gutter, width }, palette) {
  const request = model.requests[r];
  const middle = y + tall / 2;
  const spans = model.spans(r);
  const last = spans.at(-1);
  if (!last) return;
  if (last.state === "refused") {
    const x = Math.min(width - 60, Math.max(gutter + 4, (last.from < model.length ? axis.x(last.from) : axis.total) + shift + 4));
    surface.text(x, middle, "refused", { size: 10, fill: palette.warn });
    return;
  }
  if (last.state !== "finished" || !last.from) return;
  const x = edge(model, axis, last.from) + shift;
  if (x < gutter || x > width) return;
  const whole = request.outcome === "stop" || request.outcome === "length";
  surface.rect(x - 1, y - 1, 2, tall + 2, { fill: whole ? palette.ink : palette.warn });
  if (!whole && request.outcome) surface.text(x + 4, middle, request.outcome, { size: 10, fill: palette.warn });
}

/** In columns that compute whole rows, the part of a cell that is padding: above a text, behind a chain of nodes. */
function drawPadding(surface, rows, axis, { first, last, from, to, top, rowHeight, tall, shift }, palette) {
  const look = { fill: palette.idleSoft, pattern: "backstripes", ink: palette.idle };
  for (let k = countUpTo(rows.padded, from - 1); k < rows.padded.length && rows.padded[k] < to; k++) {
    const i = rows.padded[k];
    const { w, sh } = rows.model.run.steps[i];
    const computed = new Map();
    for (const [r, start, stop] of w) computed.set(r, (computed.get(r) ?? 0) + stop - start);
    const [x, end] = [axis.x(i) + shift, axis.right(i) + shift];
    for (const [r, count] of computed) {
      const row = r + rows.workers;
      const share = 1 - count / columnsOf(sh);
      if (row < first || row >= last || share <= 0) continue;
      const y = row * rowHeight - top;
      if (sh.kind === "Rectangle") surface.rect(x, y, end - x, tall * share, look);
      else surface.rect(end - (end - x) * share, y, (end - x) * share, tall, look);
    }
  }
}

/**
 * What the legend shows for some runs: what occurs in them, in the order of a request's life.
 *
 * @param {import("./model.js").RunModel[]} models
 * @returns {{name: string, state?: string, sort?: number}[]}
 */
export function samplesOf(models) {
  const states = new Set();
  const idle = models.some((model) => model.idle.some(Boolean));
  for (const model of models) model.requests.forEach((_, r) => model.spans(r).forEach(({ state }) => states.add(state)));
  const found = [];
  const add = (name, of) => found.push({ name, ...of });
  if (states.has("waiting")) add("waiting", { state: "waiting" });
  if (states.has("preprocessing")) add("pre-processing: prompt computed apart", { sort: PREPARED });
  if (states.has("ready")) add("ready, prompt computed", { state: "ready" });
  if (models.some((model) => model.ofCells)) {
    [...new Set(models.flatMap((model) => model.run.cells))].forEach((cell, k) => add(`task of ${cell}`, { sort: FIRST_TASK + k }));
  } else {
    add("running: prompt", { sort: PROMPTED });
    add("running: a token", { sort: DECODED });
  }
  if (states.has("running")) add("running, left out", { state: "running" });
  if (states.has("suspended")) add("suspended", { state: "suspended" });
  if (idle) add("idle computation", { sort: IDLED });
  if (states.has("finished")) add("finished", { end: true });
  return found;
}

/** Draws a sample of 26 by 13 pixels. */
export function drawSample(surface, { state, sort, end }, palette) {
  if (end) surface.rect(12, 0, 2, 13, { fill: palette.ink });
  else if (state) {
    const band = BANDS[state];
    surface.rect(0, 2, 26, 9, { fill: palette[`${band.colour}Soft`] ?? palette[band.colour], pattern: band.pattern, ink: palette[band.colour] });
  } else {
    const idle = sort === IDLED;
    surface.rect(0, 0, 26, 13, { fill: idle ? palette.idleSoft : sortColour(sort, palette), pattern: sortPattern(sort), ink: idle ? palette.idle : palette.onCell });
  }
}
