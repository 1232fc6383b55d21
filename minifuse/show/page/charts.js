/** Draws charts along the axis of the lanes: batch size, tokens computed and idle, KV, queue, and a request's gaps. */

import { countUpTo } from "./ascending.js";
import { GUTTER, coverFrom, drawCover, fitted } from "./lanes.js";
import { grouped, seconds } from "./words.js";

const STRIP = 44; // pixels of a chart
const GAPS = "Gaps of "; // a request
const SPACE = 12; // pixels between two charts
const DASHES = { apart: [4, 2], suspended: [1.5, 2.5] }; // of lines, by their colour

/**
 * Draws charts one under the other.
 *
 * @param {import("./surface.js").CanvasSurface | import("./surface.js").SvgSurface} surface
 * @param {object[]} charts as from `chartsOf`
 * @param {{width: number, palette: object, gaps: object[]|null, longest: number, name: string, colour: string,
 *          limit?: number}} look `longest`: seconds of the gap that is as high as its chart
 */
export function drawCharts(surface, model, charts, axis, look) {
  const { width, palette, gaps } = look;
  const end = coverFrom(model, axis, look, GUTTER);
  const [from, to] = axis.visible(end - GUTTER);
  const frame = { tall: STRIP - 2, from, to: Math.min(to, (look.limit ?? Infinity) + 1), shift: GUTTER - axis.left, left: GUTTER, width: end };
  surface.rect(0, 0, width, chartsHeight(charts, gaps), { fill: palette.panel });
  charts.forEach((chart, k) => {
    frame.base = (k + 1) * (STRIP + SPACE);
    frame.top = chart.top;
    chartFrame(surface, chart.name, grouped(chart.top), frame.base, width, palette);
    surface.clip(GUTTER, frame.base - STRIP, end - GUTTER, STRIP + 1);
    for (const one of chart.series) drawSeries(surface, axis, one, frame, palette);
    surface.unclip();
  });
  if (gaps) drawGaps(surface, axis, { ...frame, base: (charts.length + 1) * (STRIP + SPACE) }, look);
  drawCover(surface, end, SPACE, width - end, chartsHeight(charts, gaps) - SPACE, palette);
}

/** Draws the gaps between a request's tokens as bars, in the columns that generated the tokens. */
function drawGaps(surface, axis, { base, from, to, shift, width: end }, { gaps, longest, name, colour, width, palette }) {
  chartFrame(surface, `${GAPS}${fitted(surface, name, GUTTER - 6)}`, seconds(longest), base, width, palette);
  surface.clip(GUTTER, base - STRIP, end - GUTTER, STRIP + 1);
  for (const gap of gaps) {
    if (gap.column < from || gap.column >= to) continue;
    const tall = Math.max(1, (gap.seconds / longest) * (STRIP - 2));
    const [x, w] = [axis.x(gap.column) + shift, Math.max(1, axis.right(gap.column) - axis.x(gap.column))];
    surface.rect(x, base - tall, w > 4 ? w - 1 : w, tall, { fill: colour, pattern: gap.first ? "stripes" : null, ink: palette.onCell });
  }
  if (gaps[0].column >= from && gaps[0].column < to) {
    const label = `TTFT ${seconds(gaps[0].seconds)}`;
    const wide = surface.measure(label, 10) + 6;
    const x = Math.max(GUTTER, Math.min(end - wide, axis.right(gaps[0].column) + shift + 2));
    surface.rect(x, base - STRIP + 2, wide, 13, { fill: palette.panel, alpha: 0.85 });
    surface.text(x + 3, base - STRIP + 9, label, { size: 10, fill: palette.ink });
  }
  surface.unclip();
}

export function chartsHeight(charts, gaps) {
  return (charts.length + (gaps ? 1 : 0)) * (STRIP + SPACE) + 6;
}

function chartFrame(surface, name, top, base, width, palette) {
  surface.line(GUTTER, base + 0.5, width, base + 0.5, { stroke: palette.line });
  surface.line(GUTTER, base - STRIP + 0.5, width, base - STRIP + 0.5, { stroke: palette.grid });
  const cut = name.startsWith(GAPS) ? GAPS.length - 1 : name.lastIndexOf(" ");
  const lines = cut < 0 ? [name] : [name.slice(0, cut), name.slice(cut + 1)];
  lines.forEach((word, k) => surface.text(4, base - STRIP + 8 + 12 * k, word, { size: 11, fill: palette.ink }));
  surface.text(4, base - 6, top, { size: 10, fill: palette.soft });
}

/**
 * Draws a series as an area or a line that goes up and down in steps. Where several steps share a pixel, the largest is
 * drawn. Steps do not overlap, so that x never decreases.
 */
function drawSeries(surface, axis, { values, steps, colour, pattern, line }, frame, palette) {
  const { base, tall, top, from, to, shift, left: edge, width } = frame;
  const inTime = axis.mode === "time";
  const heights = inTime ? steps.values : values;
  const place = (k) => Math.max(edge - 1, Math.min(width + 1, (inTime ? axis.atTime(steps.edges[k]) : axis.x(k)) + shift));
  const first = inTime ? Math.max(0, countUpTo(steps.edges, axis.timeAt(edge - shift)) - 1) : from;
  const last = inTime ? Math.min(heights.length, countUpTo(steps.edges, axis.timeAt(width - shift))) : to;
  const points = [];
  for (let k = first; k < last; ) {
    const x = place(k);
    let value = heights[k++];
    while (k < last && place(k) - x < 1) value = Math.max(value, heights[k++]);
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
 * Draws the memory of a run in small, without names: `tall` pixels high, down to `base`.
 *
 * @param {object[]} series as from `memoryOf`
 * @param {number} top what the upper edge stands for
 */
export function drawSmallMemory(surface, series, axis, { base, tall, top, width, palette }) {
  const [from, to] = axis.visible(width);
  const frame = { base, tall, top, from, to, shift: -axis.left, left: 0, width };
  surface.clip(0, base - tall, width, tall); // what is beyond the scale
  for (const one of series) drawSeries(surface, axis, one, frame, palette);
  surface.unclip();
  surface.line(0, base + 0.5, width, base + 0.5, { stroke: palette.line });
}

/** Draws a sample of a series, of 22 by 11 pixels. */
export function drawSeriesSample(surface, { colour, pattern, line }, palette) {
  if (line) surface.line(0, 5.5, 22, 5.5, { stroke: palette[colour], width: 1.5, dash: DASHES[colour] });
  else if (pattern) surface.path([[1, 11], [1, 2], [21, 2], [21, 11]], { fill: palette[`${colour}Soft`], stroke: palette[colour] });
  else surface.rect(0, 0, 22, 11, { fill: palette[colour] });
}
