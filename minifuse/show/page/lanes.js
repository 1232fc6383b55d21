/**
 * Draws lanes: a row for each request, from its arrival to its end; in runs of cells, a row for each worker above them.
 *
 * The colour and the pattern of a band show a request's state; solid cells on the band show what was computed for it.
 */

import { countUpTo } from "./ascending.js";
import { workerName } from "./columns.js";
import { FIRST_TASK, IDLED, PREPARED, PROMPTED, rectangleColumns } from "./lanerows.js";

const SORT_COLOURS = ["running", "prompt", "apart", "idle"];
/** Bands of states: the colour of the palette, and the pattern in it. */
const BANDS = {
  waiting: { colour: "waiting", pattern: "dots" },
  preprocessing: { colour: "apart", pattern: "stripes" },
  ready: { colour: "ready", pattern: "bars" },
  running: { colour: "held", pattern: null },
  suspended: { colour: "suspended", pattern: "cross" },
};
export const GUTTER = 76; // pixels on the left, for names
export const HEAD = 18; // pixels above, for the axis
const BOLDER = 1.12; // how much wider bold letters are, about
const MOST_LETTERS = 24; // of a name, however narrow they are
const LOW_ROW = 13; // pixels of a row: lower ones are filled more
const SHOW_EDGES = 5; // pixels of a column from which on its edges are drawn

const TASK_PATTERNS = [null, "stripes", "dots", "cross", "backstripes", "columns", "bars"];
const SORT_PATTERNS = { [IDLED]: "backstripes", [PREPARED]: "stripes", [PROMPTED]: "columns" };

/** @param {number} sort of a segment @returns {import("./surface.js").RectStyle} */
export function sortLook(sort, palette) {
  if (sort === IDLED) return { fill: palette.idleSoft, pattern: SORT_PATTERNS[IDLED], ink: palette.idle };
  const cell = sort - FIRST_TASK;
  if (cell < 0) return { fill: palette[SORT_COLOURS[sort]], pattern: SORT_PATTERNS[sort], ink: palette.onCell };
  return { fill: palette.tasks[cell % palette.tasks.length], pattern: TASK_PATTERNS[cell % TASK_PATTERNS.length], ink: palette.onCell };
}

/** @param {string} state @returns {import("./surface.js").RectStyle|null} null: the state has no band */
export function bandLook(state, palette) {
  const band = BANDS[state];
  return band ? { fill: palette[`${band.colour}Soft`] ?? palette[band.colour], pattern: band.pattern, ink: palette[band.colour] } : null;
}

/**
 * Draws lanes.
 *
 * @param {import("./surface.js").CanvasSurface | import("./surface.js").SvgSurface} surface
 * @param {{width: number, height: number, top: number, rowHeight: number, palette: object, colour: Function,
 *          selected: number|null, limit?: number, small?: boolean}} look `top`: pixels scrolled down; `limit`: the last
 *     column that may be seen; `small`: without names and axis
 */
export function drawLanes(surface, rows, axis, look) {
  const { model } = rows;
  const { width, height, top, rowHeight, palette } = look;
  const [gutter, head] = look.small ? [0, 0] : [GUTTER, HEAD];
  const end = coverFrom(model, axis, look, gutter);
  surface.rect(0, 0, width, height, { fill: palette.panel });
  const first = Math.max(0, Math.floor(top / rowHeight));
  const last = Math.min(rows.count, Math.ceil((top + height - head) / rowHeight));
  const [from, to] = axis.visible(end - gutter);
  if (!look.small) drawTicks(surface, axis, { gutter, head, end, height }, palette);
  surface.clip(0, head, width, height - head);
  for (let row = first; row < last; row++) {
    const y = head + row * rowHeight - top;
    const r = rows.request(row);
    if (r !== null && r === look.selected) surface.rect(0, y, width, rowHeight, { fill: palette.chosen });
    else if (row % 2) surface.rect(0, y, width, rowHeight, { fill: palette.stripe });
  }
  surface.clip(gutter, head, width - gutter, height - head);
  const margin = look.small ? Math.min(1, rowHeight / 8) : rowHeight < LOW_ROW ? 1 : 2;
  const edges = !look.small && columnWidth(axis, from, to) >= SHOW_EDGES;
  // What other workers compute meanwhile ends later, so it is not shown while later columns are covered.
  const worked = axis.mode === "time" || end < width ? rows.requests : rows.beside;
  const until = (look.limit ?? Infinity) + 1;
  const frame = { tall: rowHeight - 2 * margin, shift: gutter - axis.left, gutter, width: end, from, to: Math.min(to, until), until, edges };
  for (let row = first; row < last; row++) {
    frame.y = head + row * rowHeight - top + margin;
    const r = rows.request(row);
    if (r !== null) drawBands(surface, model, axis, r, frame, palette);
    drawSegments(surface, axis, r === null ? rows.tasks[row] : worked[r], frame, palette);
    if (r !== null && !look.small) drawEnd(surface, model, axis, r, frame, palette);
  }
  if (edges) drawPadding(surface, rows, axis, { ...frame, first, last, top: top - head - margin, rowHeight }, palette);
  drawCover(surface, end, head, width - end, Math.min(height - head, rows.count * rowHeight), palette);
  surface.unclip();
  if (!look.small) for (let row = first; row < last; row++) drawName(surface, rows, row, head + (row + 0.5) * rowHeight - top, look);
  surface.unclip();
}

function drawTicks(surface, axis, { gutter, head, end, height }, palette) {
  surface.clip(gutter, 0, end - gutter, height);
  for (const { x, label } of axis.ticks(end - gutter)) {
    const at = x + gutter - axis.left;
    surface.line(at, head - 4, at, height, { stroke: palette.grid });
    surface.text(at + 3, head / 2, label, { size: 10, fill: palette.soft });
  }
  surface.unclip();
}

/** The name of a row, in the middle of its height. */
function drawName(surface, rows, row, y, look) {
  const r = rows.request(row);
  const mark = Math.min(8, look.rowHeight - 2);
  if (r !== null) surface.rect(4, y - mark / 2, mark, mark, { fill: look.colour(r) });
  const name = r === null ? workerName(rows.model, row) : String(rows.model.requests[r].id);
  const left = r === null ? 4 : 16;
  const weight = r !== null && r === look.selected ? "bold" : "normal";
  const size = Math.min(11, look.rowHeight);
  surface.text(left, y, fitted(surface, name, GUTTER - 2 - left, weight), { fill: look.palette.ink, weight, size });
}

/** As much of a name as fits into so many pixels, in letters of 11. */
export function fitted(surface, name, width, weight = "normal") {
  const room = weight === "bold" ? width / BOLDER : width;
  if (name.length * 11 <= room || surface.measure(name.slice(0, MOST_LETTERS)) <= room) return name.slice(0, MOST_LETTERS);
  let end = Math.min(name.length, MOST_LETTERS) - 1;
  while (end > 1 && surface.measure(`${name.slice(0, end)}\u2026`) > room) end--;
  return `${name.slice(0, end)}\u2026`;
}

/** The mean pixels of a column. */
function columnWidth(axis, from, to) {
  return to > from ? (axis.right(to - 1) - axis.x(from)) / (to - from) : 0;
}

function drawBands(surface, model, axis, r, { y, tall, shift, gutter, width }, palette) {
  const { arrival } = model.requests[r];
  for (const { from, to, state } of model.spans(r)) {
    const look = bandLook(state, palette);
    if (!look || from >= to) continue;
    const begins = state === "waiting" && axis.mode === "time" && arrival !== null ? axis.atTime(arrival) : axis.x(from);
    const [x, end] = [begins + shift, edge(model, axis, to) + shift];
    if (end < gutter || x >= width) continue;
    const left = Math.max(x, gutter - 2);
    const w = Math.max(1, Math.min(end, width) - left);
    const inset = state === "running" ? tall * 0.36 : tall * 0.18;
    surface.rect(left, y + inset, w, tall - 2 * inset, look);
  }
}

/** Where a span is drawn to end, if it ends before column `to`. */
function edge(model, axis, to) {
  return axis.mode === "time" ? (model.passed[to - 1] - axis.origin) * axis.scale : axis.right(to - 1);
}

function drawSegments(surface, axis, segments, { y, tall, shift, gutter, width, from, to, edges }, palette) {
  const { from: starts, to: stops, sort: sorts } = segments;
  let drawn = -Infinity; // up to which pixel
  for (let k = countUpTo(stops, from); k < starts.length && starts[k] < to; k++) {
    const last = Math.min(stops[k], to);
    const x = Math.max(axis.begin(starts[k]) + shift, gutter - 2);
    const end = Math.min(axis.end(last) + shift, width + 2);
    if (end <= drawn + 0.5 && end - x < 1) continue;
    const { fill, pattern, ink } = sortLook(sorts[k], palette);
    surface.rect(x, y, Math.max(0.7, end - x), tall, { fill, pattern: end - x > 2 ? pattern : null, ink });
    drawn = end;
    if (!edges) continue;
    for (let i = Math.max(Math.floor(starts[k]), from); i + 1 <= last; i++) {
      surface.rect(axis.right(i) + shift - 1, y, 1, tall, { fill: palette.panel });
    }
  }
}

/** Draws a mark where a request ends, and a word if it did not finish. */
function drawEnd(surface, model, axis, r, { y, tall, shift, gutter, width, until }, palette) {
  const last = model.spans(r).at(-1);
  if (!last || last.from > until) return;
  const middle = y + tall / 2;
  if (last.state === "refused") {
    const x = Math.min(width - 60, Math.max(gutter + 4, (last.from < model.length ? axis.x(last.from) : axis.total) + shift + 4));
    surface.text(x, middle, "refused", { size: 10, fill: palette.warn });
    return;
  }
  if (last.state !== "finished" || !last.from) return;
  const x = edge(model, axis, last.from) + shift;
  if (x < gutter || x > width) return;
  const { outcome } = model.requests[r];
  const whole = outcome === "stop" || outcome === "length";
  surface.rect(x - 1, y - 1, 2, tall + 2, { fill: whole ? palette.ink : palette.warn });
  if (!whole && outcome) surface.text(x + 4, middle, outcome, { size: 10, fill: palette.warn });
}

/** Draws padding in the cells of rectangles, as a share of their height from above. */
function drawPadding(surface, rows, axis, { first, last, from, to, top, rowHeight, tall, shift }, palette) {
  const look = sortLook(IDLED, palette);
  for (let k = countUpTo(rows.padded, from - 1); k < rows.padded.length && rows.padded[k] < to; k++) {
    const i = rows.padded[k];
    const step = rows.model.steps[i];
    const computed = new Map();
    for (const [r, start, stop] of step.work) computed.set(r, (computed.get(r) ?? 0) + stop - start);
    for (const [r, count] of computed) {
      const share = 1 - count / rectangleColumns(step);
      if (r < first || r >= last || share <= 0) continue;
      surface.rect(axis.x(i) + shift, r * rowHeight - top, axis.right(i) - axis.x(i), tall * share, look);
    }
  }
}

/**
 * Where the part that may be seen ends.
 *
 * @param {{limit?: number, width: number}} look `limit`: the last column that may be shown
 * @param {number} left pixels on the left, for names
 * @returns {number} pixels from the left; `width`: nothing is covered
 */
export function coverFrom(model, axis, { limit = Infinity, width }, left) {
  if (limit >= model.length - 1) return width;
  return Math.max(left, Math.min(width, axis.right(limit) + left - axis.left));
}

/** Covers a part of a picture. */
export function drawCover(surface, x, y, w, h, palette) {
  if (w < 1) return;
  surface.rect(x, y, w, h, { fill: palette.panel, pattern: "backstripes", ink: palette.grid });
  surface.rect(x, y, 2, h, { fill: palette.accent });
  const words = "not to be seen yet";
  const [wide, middle] = [surface.measure(words, 12) + 12, x + w / 2];
  if (w < wide) return;
  surface.rect(middle - wide / 2, y + h / 2 - 10, wide, 20, { fill: palette.panel });
  surface.text(middle, y + h / 2, words, { anchor: "middle", size: 12, fill: palette.soft });
}
