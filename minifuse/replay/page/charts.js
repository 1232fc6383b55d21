/** Charts of a run under the axis of its lanes: batch size, tokens computed and idle, KV, the queue; and of a request. */

import { CanvasSurface } from "./surface.js";
import { countUpTo } from "./model.js";
import { GUTTER } from "./lanes.js";
import { grouped, seconds } from "./words.js";

const STRIP = 44; // pixels of a chart
const SPACE = 12; // between two
const DASHES = { apart: [4, 2], suspended: [1.5, 2.5] }; // of lines, by colour

/**
 * What each moment of a run has of something: the sum over the iterations that run then. Of one worker that is what
 * columns have; those of several workers lie over each other in time.
 *
 *     // iteration 0 from 0 to 3 s computes 8 tokens, iteration 1 from 2 to 4 s computes 1
 *     sumInTime(model, model.computed)  // {edges: [0, 2, 3, 4], values: [8, 9, 1]}
 *
 * @param {import("./model.js").RunModel} model @param {ArrayLike<number>} values by column
 * @returns {{edges: Float64Array, values: Float64Array}} values[k] from edges[k] to edges[k + 1] seconds, ascending
 */
function sumInTime(model, values) {
  const changes = [];
  for (let i = 0; i < model.length; i++) changes.push([model.starts[i], values[i]], [model.ends[i], -values[i]]);
  changes.sort((a, b) => a[0] - b[0]);
  const [edges, sums] = [[], []];
  let now = 0;
  for (const [at, change] of changes) {
    now += change;
    if (edges.length && edges.at(-1) === at) sums[sums.length - 1] = now;
    else {
      edges.push(at);
      sums.push(now);
    }
  }
  return { edges: Float64Array.from(edges), values: Float64Array.from(sums).subarray(0, Math.max(0, sums.length - 1)) };
}

/**
 * What each moment of a run has of something that lasts, such as memory or a queue: what the iteration tells that is
 * the next to end.
 *
 * @param {import("./model.js").RunModel} model @param {ArrayLike<number>} values by column
 * @returns {{edges: Float64Array, values: ArrayLike<number>}} as of `sumInTime`
 */
function lastInTime(model, values) {
  const edges = new Float64Array(model.length + 1);
  edges.set(model.passed, 1);
  if (model.length) edges[0] = Math.min(model.passed[0], model.starts.reduce((a, b) => Math.min(a, b), Infinity));
  return { edges, values };
}

/**
 * The charts of a run: each has series, drawn on top of each other as areas, and the value at its upper edge.
 *
 * @param {import("./model.js").RunModel} model
 * @param {"iterations"|"time"} mode of columns
 * @returns {{name: string, unit: string, top: number, series: {label: string, colour: string, values: ArrayLike<number>,
 *            steps: {edges: Float64Array, values: ArrayLike<number>}, pattern?: string, line?: boolean}[]}[]}
 */
export function chartsOf(model, mode) {
  const most = ({ values, steps }) => (mode === "time" ? steps.values : values).reduce((a, b) => Math.max(a, b), 0) || 1;
  const sum = (values) => ({ values, steps: sumInTime(model, values) });
  const [batch, computed, idle] = [model.batch, model.computed, model.idle].map(sum);
  const queue = { values: model.queue, steps: lastInTime(model, model.queue) };
  const noun = model.ofCells ? "nodes" : "tokens";
  const memory = memoryOf(model);
  const idleShare = { label: "idle", colour: "idle", pattern: "backstripes", ...idle };
  return [
    { name: "Batch size", unit: "requests", top: most(batch), series: [{ label: "requests", colour: "running", ...batch }] },
    { name: `${noun[0].toUpperCase()}${noun.slice(1)} computed`, unit: noun, top: most(computed), series: [{ label: "computed", colour: "prompt", ...computed }, ...(model.idle.some(Boolean) ? [idleShare] : [])] },
    { name: model.ofCells ? "States" : "KV", unit: model.ofCells ? "states" : "slots", top: memoryTop(model), series: memory },
    { name: "Queue", unit: "requests", top: most(queue), series: [{ label: "waiting or suspended", colour: "waiting", pattern: "dots", ...queue }] },
  ];
}

/** The series of memory: set aside, in use, and if there are any kept and on the host. @returns {object[]} as of `chartsOf` */
export function memoryOf(model) {
  const last = (values) => ({ values, steps: lastInTime(model, values) });
  const found = [
    { label: "set aside", colour: "held", ...last(model.reserved) },
    { label: "in use", colour: "running", ...last(model.used) },
  ];
  if (model.kept.some(Boolean)) found.push({ label: "kept", colour: "apart", ...last(model.kept), line: true });
  if (model.host.some(Boolean)) found.push({ label: "on the host", colour: "suspended", ...last(model.host), line: true });
  return found;
}

/** The most slots that any series of memory has. @param {import("./model.js").RunModel} model @returns {number} */
export function memoryTop(model) {
  const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
  return Math.max(1, ...[model.reserved, model.used, model.host, model.kept].map(most));
}

/**
 * The gaps of a request: how long it waited for each of its tokens, the first since its arrival (TTFT).
 *
 * @param {import("./model.js").RunModel} model @param {number} r
 * @returns {{column: number, seconds: number, first: boolean}[]}
 */
export function gapsOf(model, r) {
  const { arrival } = model.requests[r];
  let before = arrival ?? 0;
  return model.tokenColumns(r).map((column, k) => {
    const gap = { column, seconds: model.ends[column] - before, first: k === 0 };
    before = model.ends[column];
    return gap;
  });
}

/**
 * Draws charts one under the other.
 *
 * @param {CanvasSurface | import("./surface.js").SvgSurface} surface
 * @param {import("./model.js").RunModel} model @param {object[]} charts as from `chartsOf`
 * @param {import("./axis.js").Axis} axis
 * @param {{width: number, palette: object, gaps: object[]|null, name: string, colour: string}} look
 */
export function drawCharts(surface, model, charts, axis, { width, palette, gaps, name, colour }) {
  const seen = width - GUTTER;
  const [from, to] = axis.visible(seen);
  const shift = GUTTER - axis.left;
  surface.rect(0, 0, width, chartsHeight(charts, gaps), { fill: palette.panel });
  charts.forEach((chart, k) => {
    const base = (k + 1) * (STRIP + SPACE);
    chartFrame(surface, chart.name, grouped(chart.top), base, width, palette);
    surface.clip(GUTTER, base - STRIP, seen, STRIP + 1);
    const frame = { base, tall: STRIP - 2, top: chart.top, from, to, shift, left: GUTTER, width };
    for (const one of chart.series) drawSeries(surface, axis, one, frame, palette);
    surface.unclip();
  });
  if (!gaps) return;
  const base = (charts.length + 1) * (STRIP + SPACE);
  const longest = gaps.reduce((most, gap) => Math.max(most, gap.seconds), 0) || 1;
  chartFrame(surface, `Gaps of ${name.slice(0, 7)}`, seconds(longest), base, width, palette);
  surface.clip(GUTTER, base - STRIP, seen, STRIP + 1);
  for (const gap of gaps) {
    if (gap.column < from || gap.column >= to) continue;
    const tall = Math.max(1, (gap.seconds / longest) * (STRIP - 2));
    const [x, w] = [axis.x(gap.column) + shift, Math.max(1, axis.right(gap.column) - axis.x(gap.column))];
    surface.rect(x, base - tall, w > 4 ? w - 1 : w, tall, { fill: colour, pattern: gap.first ? "stripes" : null, ink: palette.onCell });
  }
  if (gaps[0].column >= from && gaps[0].column < to) {
    const label = `TTFT ${seconds(gaps[0].seconds)}`;
    const wide = surface.measure(label, 10) + 6;
    const x = Math.max(GUTTER, Math.min(width - wide, axis.right(gaps[0].column) + shift + 2));
    surface.rect(x, base - STRIP + 2, wide, 13, { fill: palette.panel, alpha: 0.85 });
    surface.text(x + 3, base - STRIP + 9, label, { size: 10, fill: palette.ink });
  }
  surface.unclip();
}

function chartsHeight(charts, gaps) {
  return (charts.length + (gaps ? 1 : 0)) * (STRIP + SPACE) + 6;
}

function chartFrame(surface, name, top, base, width, palette) {
  surface.line(GUTTER, base + 0.5, width, base + 0.5, { stroke: palette.line });
  surface.line(GUTTER, base - STRIP + 0.5, width, base - STRIP + 0.5, { stroke: palette.grid });
  const cut = name.lastIndexOf(" ");
  const lines = cut < 0 ? [name] : [name.slice(0, cut), name.slice(cut + 1)];
  lines.forEach((word, k) => surface.text(4, base - STRIP + 8 + 12 * k, word, { size: 11, fill: palette.ink }));
  surface.text(4, base - 6, top, { size: 10, fill: palette.soft });
}

/**
 * An area of steps, or a line of steps; of steps narrower than a pixel, the largest of each pixel. Steps lie beside
 * each other, in columns as in time, so that x never decreases.
 */
function drawSeries(surface, axis, { values, steps, colour, pattern, line }, frame, palette) {
  const { base, tall, top, from, to, shift, left: edge, width } = frame;
  const inTime = axis.mode === "time";
  const told = inTime ? steps.values : values;
  const place = (k) => Math.max(edge - 1, Math.min(width + 1, (inTime ? axis.atTime(steps.edges[k]) : axis.x(k)) + shift));
  const first = inTime ? Math.max(0, countUpTo(steps.edges, axis.timeAt(edge - shift)) - 1) : from;
  const last = inTime ? Math.min(told.length, countUpTo(steps.edges, axis.timeAt(width - shift))) : to;
  const points = [];
  for (let k = first; k < last; ) {
    const x = place(k);
    let value = told[k++];
    while (k < last && place(k) - x < 1) value = Math.max(value, told[k++]);
    const y = base - (value / top) * tall;
    points.push([x, y], [k < last ? place(k) : Math.max(x, inTime ? place(k) : axis.right(k - 1) + shift), y]);
  }
  if (!points.length) return;
  if (line) {
    surface.path(points, { stroke: palette[colour], width: 1.5, dash: DASHES[colour] });
    return;
  }
  const outline = [[points[0][0], base], ...points, [points.at(-1)[0], base]];
  if (pattern) {
    surface.path(outline, { fill: palette[`${colour}Soft`] ?? palette[colour], stroke: palette[colour] });
  } else surface.path(outline, { fill: palette[colour] });
}

/**
 * The memory of a run in small, `tall` pixels down to `base`, with nothing beside it.
 *
 * @param {object[]} series as from `memoryOf` @param {number} top what the upper edge stands for
 */
export function drawSmallMemory(surface, series, axis, { base, tall, top, width, palette }) {
  const [from, to] = axis.visible(width);
  const frame = { base, tall, top, from, to, shift: -axis.left, left: 0, width };
  for (const one of series) drawSeries(surface, axis, one, frame, palette);
  surface.line(0, base + 0.5, width, base + 0.5, { stroke: palette.line });
}

/** What the colours and lines of charts mean that draw more than one thing. */
function showKey(host, charts, palette) {
  const items = charts.filter(({ series }) => series.length > 1).flatMap(({ name, series }) => series.map((one) => [name, one]));
  host.replaceChildren(
    ...items.map(([name, { label, colour, pattern, line }]) => {
      const item = document.createElement("li");
      const canvas = document.createElement("canvas");
      canvas.setAttribute("aria-hidden", "true");
      item.append(canvas, document.createTextNode(`${name}: ${label}`));
      const surface = new CanvasSurface(canvas);
      surface.begin(22, 11);
      if (line) surface.line(0, 5.5, 22, 5.5, { stroke: palette[colour], width: 1.5, dash: DASHES[colour] });
      else if (pattern) surface.path([[1, 11], [1, 2], [21, 2], [21, 11]], { fill: palette[`${colour}Soft`], stroke: palette[colour] });
      else surface.rect(0, 0, 22, 11, { fill: palette[colour] });
      return item;
    }),
  );
}

/** The charts of one side. */
export class ChartsView {
  /** @param {HTMLElement} host @param {object} app @param {{side: string, axis: () => object}} options */
  constructor(host, app, { side, axis }) {
    this.host = host;
    this.app = app;
    this.side = side;
    this.axis = axis;
    host.classList.add("charts");
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.cursor = document.createElement("div");
    this.cursor.className = "cursor";
    this.told = document.createElement("p");
    this.told.className = "values";
    this.frame = document.createElement("div");
    this.frame.className = "pin";
    this.frame.append(this.canvas, this.cursor);
    this.key = document.createElement("ul");
    this.key.className = "chart-key";
    this.key.setAttribute("aria-label", "What the charts draw");
    host.append(this.frame, this.key, this.told);
    this.surface = new CanvasSurface(this.canvas);
    this.index = -1;
    this.canvas.addEventListener("click", (event) => {
      const at = event.clientX - this.canvas.getBoundingClientRect().left - GUTTER;
      if (at >= 0) app.selectIn(side, this.axis().column(at + this.axis().left));
    });
  }

  layout(model) {
    const { mode } = this.axis();
    if (this.model !== model || this.mode !== mode) {
      this.model = model;
      this.mode = mode;
      this.charts = chartsOf(model, mode);
      this.request = undefined;
      showKey(this.key, this.charts, this.app.palette);
      this.keyTheme = this.app.worn;
    }
    if (this.keyTheme !== this.app.worn) {
      this.keyTheme = this.app.worn;
      showKey(this.key, this.charts, this.app.palette);
    }
    this.width = this.host.clientWidth; // asked for once, since asking makes the browser lay the page out
    this._choose();
    this.draw();
  }

  _choose() {
    const r = this.app.request;
    if (r === this.request) return false;
    this.request = r;
    this.gaps = r === null ? null : gapsOf(this.model, r);
    if (this.gaps && !this.gaps.length) this.gaps = null;
    return true;
  }

  look() {
    const { app, request } = this;
    const name = request === null ? "" : String(this.model.requests[request].id);
    const colour = request === null ? "" : app.colour(request);
    return { width: this.width, palette: app.palette, gaps: this.gaps, name, colour };
  }

  get height() {
    return chartsHeight(this.charts, this.gaps);
  }

  draw() {
    if (!this.model) return;
    const look = this.look();
    this.surface.begin(look.width, this.height);
    drawCharts(this.surface, this.model, this.charts, this.axis(), look);
    this.point();
  }

  show(model, i) {
    if (this.model !== model) this.layout(model);
    if (this._choose()) this.draw();
    this.index = i;
    this.point();
    const parts = this.charts.map(({ name, unit, series }) => {
      if (series.length > 1) return `${name}: ${series.map(({ label, values }) => `${grouped(values[i])} ${label}`).join(", ")}`;
      const [{ values }] = series;
      return `${name}: ${grouped(values[i])} ${values[i] === 1 ? unit.replace(/s$/, "") : unit}`;
    });
    if (this.gaps) {
      const longest = this.gaps.slice(1).reduce((a, b) => (b.seconds > a.seconds ? b : a), { seconds: 0 });
      const more = longest.seconds ? `, longest gap ${seconds(longest.seconds)} in iteration ${longest.column}` : "";
      parts.push(`${model.requests[this.request].id}: TTFT ${seconds(this.gaps[0].seconds)}${more}`);
    }
    const text = parts.join(" \u00b7 ");
    if (this.told.textContent !== text) {
      this.told.textContent = text;
      this.canvas.setAttribute("aria-label", `Charts of ${model.run.title}. In iteration ${i}: ${parts.join("; ")}`);
    }
  }

  point() {
    if (this.index < 0) return;
    const axis = this.axis();
    const x = axis.x(this.index) + GUTTER - axis.left;
    const width = Math.max(2, axis.right(this.index) - axis.x(this.index));
    this.cursor.hidden = x + width < GUTTER || x > this.width;
    this.cursor.style.transform = `translateX(${x}px)`;
    this.cursor.style.width = `${width}px`;
    this.cursor.style.height = `${this.height}px`;
  }
}
