/** Draws the memory map: slots in the colours of their owners, idle computation, the shape, and moves as arrows. */

import { slotBoxes } from "./memory_panels.js";
import { MOVE_LOOKS } from "./moves.js";
import { counted, grouped } from "./words.js";

export const MOST_ARROWS = 60;
const MOST_LABELS = 500;
const LETTER = 0.6; // the width of a letter, as a part of its size
const BOLD = 1.15; // how much wider bold letters are, at most

/** White or black, whichever has more contrast with a colour, #rrggbb. */
function inkOn(colour) {
  const parts = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16) / 255);
  const [red, green, blue] = parts.map((part) => (part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.3 ? "#000000" : "#ffffff";
}

/** Draws the map. @param {{width: number, palette: object, colour: (r: number) => string, selected: number|null}} how */
export function drawMemory(surface, forms, frame, layout, how) {
  const { model } = forms;
  const { palette, colour } = how;
  const step = model.steps[frame.index];
  surface.rect(0, 0, how.width, layout.height, { fill: palette.panel });
  const { shape } = step;
  const labels = [];
  for (const panel of layout.panels) {
    drawGround(surface, panel, forms, frame, how, layout);
    const strip = panel.kind === "strip";
    const runs = panel.tier === "host" ? frame.host : strip ? frame.waves[panel.wave] : frame.device;
    const last = panel.first + panel.count;
    for (const run of runs) {
      if (run.first >= last || run.first + run.count <= panel.first) continue;
      drawRun(surface, panel, run, model, how, labels);
    }
    if (panel.tier === "device") {
      const idle = strip ? frame.idleInWave[panel.wave] ?? [] : frame.idle;
      if (!strip) for (const [first, count] of frame.lying) fillSlots(surface, panel, first, count, { pattern: "dots", ink: palette.lying });
      for (const [first, count] of idle) {
        fillSlots(surface, panel, first, count, { fill: palette.idleSoft, pattern: "backstripes", ink: palette.idle });
      }
      for (const [first, count] of strip ? frame.fresh[panel.wave] : frame.fresh.flat()) {
        for (const [x, y, w, h] of slotBoxes(panel, first, count)) {
          surface.rect(x, y + h - Math.min(3, h / 3), Math.max(w, 1), Math.min(3, h / 3), { fill: palette.fresh });
        }
      }
    }
  }
  for (const panel of layout.panels) drawBreak(surface, panel, palette);
  drawShape(surface, layout, shape, step, palette);
  if (frame.waves.length) drawTransfers(surface, layout, frame, how);
  else drawMoves(surface, layout, frame, how);
  drawLabels(surface, labels, palette);
}

/** A sample of what the map draws, for a legend: 26 by 13 pixels. @param {string} what a state of slots, or a mark */
export function drawStateSample(surface, what, palette) {
  const box = [0, 0, 26, 13];
  const [own, other] = palette.tasks;
  if (what === "idle") surface.rect(...box, { fill: palette.idleSoft, pattern: "backstripes", ink: palette.idle });
  else if (what === "lying") surface.rect(...box, { stroke: palette.line, pattern: "dots", ink: palette.lying });
  else if (what === "free") surface.rect(...box, { fill: palette.stripe, stroke: palette.line });
  else drawState(surface, box, what, what === "shared" ? [own, other] : [own]);
  if (what === "fresh") surface.rect(0, 10, 26, 3, { fill: palette.fresh });
}

/** Draws a box of slots in a state. @param {string[]} colours of its owners */
function drawState(surface, [x, y, w, h], state, colours, faded = false) {
  const [own] = colours;
  if (state === "reserved") {
    surface.rect(x, y, w, h, { fill: own, alpha: 0.2 });
    if (w > 5 && h > 5) surface.rect(x, y, w, h, { stroke: own, alpha: 0.6 });
  } else if (state === "kept" || state === "copy") {
    surface.rect(x, y, w, h, { fill: own, alpha: faded ? 0.18 : 0.34 });
    surface.rect(x, y, w, h, { pattern: state === "kept" ? "dots" : "stripes", ink: own, alpha: faded ? 0.45 : 0.9 });
  } else {
    const share = h / colours.length;
    colours.forEach((fill, k) => surface.rect(x, y + k * share, w, share, { fill }));
  }
}

/** A sample of a kind of moves: its arrow, from left to right. */
export function drawMoveSample(surface, kind, palette) {
  surface.arrow(1, 6.5, 25, 6.5, { stroke: palette.moves[kind], width: 2, head: 7, dash: MOVE_LOOKS[kind]?.dash });
}

/** The names of owners, above everything else. */
function drawLabels(surface, labels, palette) {
  for (const { x, y, w, text, size, solid, own, bare } of labels) {
    if (!bare) {
      const wide = Math.min(w, surface.measure(text, size) + 4);
      surface.rect(x - wide / 2, y - size / 2 - 0.5, wide, size + 1, solid ? { fill: own } : { fill: palette.panel, alpha: 0.75 });
    }
    surface.text(x, y, text, { anchor: "middle", size, fill: solid ? inkOn(own) : palette.ink });
  }
}

/** What lies under the slots of a panel: its name and free slots. */
function drawGround(surface, panel, forms, frame, { palette }, layout) {
  const { model } = forms;
  const { tier, name, kind, x, y, seen, unit } = panel;
  const inRow = panel.across * panel.boxWidth;
  surface.text(x - 8, y + Math.min(11, panel.boxHeight / 2), name, { anchor: "end", size: 10, fill: palette.ink, weight: "bold" });
  const part = seen < unit ? `; the first ${grouped(seen)} of each are drawn, further than this run writes` : "";
  const titles = {
    rectangle: `${counted(panel.count / unit, "row")} of ${counted(unit, "slot")}: one rectangle is computed whole${part}`,
    rest: model.run.facts.some(([key, value]) => key === "memory" && value === "embedded") ? "prompts computed apart, until they join" : "slots outside the rectangle",
    region: `${counted(Math.floor(panel.count / unit), "slot")} of ${counted(unit, "token")}, side by side${part}`,
    blocks: `blocks of ${counted(unit, "token")}`,
    states: "a slot for the states of one node each",
    line: tier === "host" ? "KV that waits or is kept on the host" : "one slot a token, in one line",
  };
  if (titles[kind] && tier === "device") surface.text(x, panel.titleAt, titles[kind], { size: 10, fill: palette.soft });
  if (tier === "host") surface.text(x, panel.titleAt, `KV on the host${kind === "blocks" ? `, drawn in blocks of ${panel.unit}` : ""}`, { size: 10, fill: palette.soft });
  if (kind === "strip" && panel.wave === 0) {
    const hidden = layout.hidden ? `; ${layout.hidden} more are not drawn` : "";
    const { length } = frame.waves;
    const waves = length > 1 ? `each of ${length} waves is attended, one after the other` : "the one wave is attended";
    const layers = forms.shared ? `; in slots from ${grouped(forms.shared)} on, the KV of one layer at a time` : "";
    surface.text(x, panel.titleAt, `the device while ${waves}${layers}${hidden}`, { size: 10, fill: palette.soft });
  }
  if (panel.across > 1) drawGrid(surface, panel, palette);
  else fillSlots(surface, panel, panel.first, panel.count, { fill: palette.stripe });
}

/** Draws empty boxes as one rectangle with gaps over it: fewer strokes than a rectangle for each box. */
function drawGrid(surface, panel, palette) {
  const { x, y, across, boxWidth, boxHeight, gap } = panel;
  const boxes = Math.ceil(panel.count / panel.unit);
  const [full, last] = [Math.floor(boxes / across), boxes % across];
  const down = boxHeight + gap;
  const edge = boxWidth > 8 && boxHeight > 8 ? 1 : 0;
  for (const [top, lines, wide] of [[y, full, across], [y + full * down, 1, last]]) {
    if (!lines || !wide) continue;
    const [width, height] = [wide * boxWidth - gap, lines * down - gap];
    surface.rect(x, top, width, height, { fill: palette.stripe, stroke: edge ? palette.line : undefined });
    if (!gap) continue;
    const bands = (more, fill) => {
      for (let k = 1; k < wide; k++) surface.rect(x + k * boxWidth - gap - more, top, gap + 2 * more, height, { fill });
      for (let k = 1; k < lines; k++) surface.rect(x, top + k * down - gap - more, width, gap + 2 * more, { fill });
    };
    if (edge) bands(edge, palette.line);
    bands(0, palette.panel);
  }
}

/** Draws a torn edge where rows, buffers or a line are cut off, and their length. */
function drawBreak(surface, panel, palette) {
  const { x, y, unit, seen, more, across, boxWidth, boxHeight, gap } = panel;
  if (seen >= unit && !more) return;
  const boxes = Math.ceil(panel.count / unit);
  if (across > 1) {
    for (let box = 0; box < boxes; box++) {
      const left = x + (box % across) * boxWidth;
      const bottom = y + Math.floor(box / across) * (boxHeight + gap) + boxHeight;
      torn(surface, left, boxWidth - gap, (along, out) => [along, bottom + out], palette);
    }
    return;
  }
  const high = boxes * (boxHeight + 1) - 1;
  const end = more ? x + ((panel.count - 1) % unit + 1) * (boxWidth / unit) : x + boxWidth;
  const top = more ? y + high - boxHeight : y;
  torn(surface, top, more ? boxHeight : high, (along, out) => [end + out, along], palette);
  const label = more ? `${grouped(more)} more` : `to ${grouped(unit - 1)}`;
  surface.text(end + 8, top + Math.min(11, boxHeight / 2), label, { size: 10, fill: palette.soft });
}

/** Draws a zigzag line. */
function torn(surface, start, length, at, palette) {
  const teeth = Math.max(2, Math.round(length / 6));
  const points = Array.from({ length: teeth + 1 }, (_, k) => at(start + (k * length) / teeth, k % 2 ? 2 : -2));
  surface.path(points, { stroke: palette.panel, width: 5 });
  surface.path(points, { stroke: palette.soft, width: 1 });
}

function fillSlots(surface, panel, first, count, style) {
  for (const [x, y, w, h] of slotBoxes(panel, first, count)) surface.rect(x, y, w, h, style);
}

function drawRun(surface, panel, run, model, how, labels) {
  const { palette, colour, selected } = how;
  const { owners, state } = run;
  const r = owners[0];
  const chosen = selected !== null && owners.includes(selected);
  const colours = r === undefined ? [palette.soft] : owners.map(colour);
  const [own] = colours;
  const faded = panel.kind === "strip" && state === "copy";
  const boxes = slotBoxes(panel, run.first, run.count);
  const named = panel.kind === "region" && boxes.length ? [largestOf(boxes)] : boxes; // a buffer of several lines has one name
  for (const box of boxes) {
    const [x, y, w, h] = box;
    drawState(surface, box, state, colours, faded);
    if (state === "written" && w > 12 && panel.across === 1) surface.rect(x + w - 0.5, y, 0.5, h, { fill: palette.panel });
    if (chosen) surface.rect(x, y, w, h, { stroke: palette.ink });
    if (labels.length >= MOST_LABELS || h < 9 || r === undefined || faded || !named.includes(box)) continue;
    const id = String(model.requests[r].id);
    const name = owners.length > 1 ? `${id}+${owners.length - 1}` : id;
    const size = Math.min(11, h - 1, (w - 2) / (name.length * LETTER));
    const most = Math.floor((w - 2) / (8 * LETTER));
    if (size < 8 && (most < 4 || name.length > 2 * most)) continue;
    const text = size < 8 ? `${name.slice(0, most - 1)}\u2026` : name;
    const solid = state === "written";
    const bare = solid && owners.length < 2 && h > 12; // the name fits on one colour, above the mark of new slots
    labels.push({ x: x + w / 2, y: y + Math.min(h / 2, 12), w, text, size: Math.max(8, size), solid, own, bare });
  }
}

/**
 * The slots that columns [start, stop) take in the first row of a rectangle, which is a ring, as runs [first, count].
 *
 *     ringRuns({offset: 10, stride: 8}, -1, 2)  // [[17, 1], [10, 2]]: the row's last slot, and its first two
 */
function ringRuns({ offset, stride }, start, stop) {
  const count = Math.min(stride, stop - start);
  const at = ((start % stride) + stride) % stride;
  const before = Math.min(count, stride - at);
  return [[offset + at, before], [offset, count - before]].filter((run) => run[1] > 0);
}

/** Draws a bracket along the rectangle or region that is computed. */
function drawShape(surface, layout, shape, step, palette) {
  if (!shape || !step.work.length) return;
  const panel = layout.panels.find((one) => one.kind === "region" || (one.kind === "rectangle" && one.first === shape.offset));
  if (!panel) return;
  if (shape.kind === "Region") {
    const [first] = slotBoxes(panel, shape.offset * shape.width, 1);
    if (!first || panel.across < shape.offset + shape.size) return;
    const [x, end] = [first[0], first[0] + shape.size * panel.boxWidth - panel.gap];
    const under = panel.y + panel.boxHeight + 1;
    surface.path([[x, under + 2], [x, under + 6], [end, under + 6], [end, under + 2]], { stroke: palette.ink, width: 2 });
    const label = shape.size === 1 ? "the region: 1 slot" : `the region: ${shape.size} slots side by side, computed together`;
    const wide = surface.measure(label, 10) * BOLD;
    surface.text(Math.max(panel.x, Math.min(x, surface.width - wide - 6)), under + 15, label, { size: 10, fill: palette.ink, weight: "bold" });
    return;
  }
  // A ring that wraps has two brackets.
  for (const [first, count] of ringRuns(shape, shape.start, shape.stop)) {
    const cell = panel.boxWidth / panel.columns;
    const [x, to] = [panel.x + (first - panel.first) * cell, panel.x + (first - panel.first + count) * cell];
    surface.path([[x, panel.y - 1], [x, panel.y - 4], [to, panel.y - 4], [to, panel.y - 1]], { stroke: palette.ink, width: 2 });
  }
}

function largestOf(boxes) {
  return boxes.reduce((best, box) => (box[2] * box[3] > best[2] * best[3] ? box : best));
}

function centre(boxes) {
  const [x, y, w, h] = largestOf(boxes);
  return [x + w / 2, y + h / 2];
}

function panelOf(layout, tier, slot) {
  return layout.panels.find((panel) => panel.tier === tier && slot >= panel.first && slot < panel.first + panel.count);
}

/** Draws the moves of a column as arrows from their source to their target. */
function drawMoves(surface, layout, frame, { palette, colour }) {
  frame.moves.slice(0, MOST_ARROWS).forEach((move, k) => {
    const [from, to] = [panelOf(layout, move.fromTier, move.source), panelOf(layout, move.toTier, move.target)];
    if (!from || !to) return;
    const [sources, targets] = [slotBoxes(from, move.source, move.count), slotBoxes(to, move.target, move.count)];
    if (!sources.length || !targets.length) return;
    const stroke = palette.moves[move.kind];
    const own = move.owners.length ? colour(move.owners[0]) : stroke;
    for (const [x, y, w, h] of sources) {
      surface.path([[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]], { stroke: own, width: 1.5, dash: [3, 2] });
    }
    for (const [x, y, w, h] of targets) surface.rect(x - 1, y - 1, w + 2, h + 2, { stroke });
    const [x1, y1] = centre(sources);
    const [x2, y2] = centre(targets);
    // Within a tier an arrow bends down, away from the names; from tier to tier arrows fan out a little.
    const far = Math.hypot(x2 - x1, y2 - y1);
    const bend = move.fromTier === move.toTier ? Math.sign(x1 - x2 || 1) * (16 + Math.min(70, far * 0.25)) : (k % 5) * 5 - 10;
    surface.arrow(x1, y1, x2, y2, { stroke: palette.panel, width: 4.5, bend, head: 9 });
    surface.arrow(x1, y1, x2, y2, { stroke, width: 2, bend, head: 7, dash: MOVE_LOOKS[move.kind]?.dash });
  });
}

/** Draws moves between waves: arrows of KV into a wave's strip before the wave, and out of it afterwards. */
function drawTransfers(surface, layout, frame, { palette }) {
  const strips = layout.panels.filter((panel) => panel.kind === "strip");
  const sums = strips.map(() => ({ upload: 0, offload: 0 }));
  for (const move of frame.moves) {
    const up = move.toTier === "device";
    const strip = strips[up ? move.wave : move.moment === "before" ? Math.max(0, move.wave - 1) : move.wave];
    if (!strip || move.fromTier === move.toTier) continue;
    sums[strip.wave][up ? "upload" : "offload"] += move.count;
    const stroke = palette.moves[move.kind];
    for (const [x, y, w, h] of slotBoxes(strip, up ? move.target : move.source, move.count)) {
      const at = x + w / 2;
      if (up) surface.arrow(at, y + h + 12, at, y + h - 1, { stroke, width: 1.5, head: 4 });
      else surface.arrow(at, y + h - 2, at, y + h + 13, { stroke, width: 1.5, head: 4, dash: MOVE_LOOKS[move.kind]?.dash });
      surface.rect(x, y, w, h, { stroke });
    }
  }
}
