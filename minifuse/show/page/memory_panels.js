/**
 * Where every slot is drawn: in panels, whose form depends on the memory.
 *
 * A rectangle has a row of slots in each row; a region has its buffers side by side; blocks and states are a grid;
 * anything else is one long line, broken into rows. With several waves the device is drawn once for each.
 *
 * @typedef {{tier: "device"|"host", name: string, first: number, count: number, unit: number, across: number,
 *            columns: number, x: number, y: number, boxWidth: number, boxHeight: number, gap: number, wave: number,
 *            kind: string, seen: number, more: number, titleAt: number}} SlotPanel
 *     A panel has boxes of `unit` slots, `across` boxes in a row. A box has rows of `columns` slots; its first `seen`
 *     slots are drawn. `more`: slots after the last one drawn; `titleAt`: the middle of the panel's title
 */

import { countUpTo } from "./ascending.js";
import { oncePerModel } from "./model.js";
import { Slots } from "./slots.js";

const SIDE = 56; // pixels on the left, for the names of panels
const HEADLINE = 18; // pixels above a panel, for its title
const GAP_BELOW = 14;
const NARROW = 400; // pixels of a map that stands above another one: it is lower
const AFTER_BREAK = 70; // pixels for the label behind a torn edge
const MOST_SHOWN = 2 ** 22; // the most slots that are all drawn, used or not
const MOST_STRIPS = 24;
const STRIP_HEIGHT = 24;
const STRIP_GAP = 16; // room for arrows; strips without arrows are lower and closer
const [LOW_STRIP, LOW_GAP] = [15, 3];

/** The form of a run's memory. */
class MemoryForms {
  constructor(model) {
    this.model = model;
    this.slots = new Slots(model);
    this.rectangles = []; // columns whose shape is the batch's rectangle
    const { block = 0, shared = 0 } = model.run.slots;
    this.blockSize = block;
    this.width = 0; // of a buffer
    /** The first slot that layers share, each of which holds the KV of one layer at a time; 0: there is none. */
    this.shared = shared;
    /** Whether slots are set aside before they are written; in rows that grow by columns they are not. */
    this.reserves = model.steps.some(({ memory }) => memory.reserved > memory.used);
    this._written = new Map(); // size of a row or buffer -> how many of its first slots the run ever writes
    model.steps.forEach(({ shape, phase, fresh }, i) => {
      if (shape?.kind === "Region") this.width = shape.width;
      if (!shape || phase === "preprocessing") return;
      if (shape.kind === "Rectangle") this.rectangles.push(i);
      this._reach(shape, fresh);
    });
    const { device: size, host } = this.slots.sizes;
    const unit = this.width || this.blockSize || 1;
    const { capacity } = model.run;
    const whole = Math.floor(capacity / unit) * unit || size;
    // If the run uses less than half of a memory, only that part is drawn; buffers are all drawn unless too many.
    this.shown = (this.width && whole < MOST_SHOWN) || whole <= 2 * size ? Math.max(whole, size) : Math.ceil(size / unit) * unit;
    this.hostShown = host;
  }

  /** Notes how far rows or buffers are written in a column. */
  _reach(shape, fresh) {
    const { kind, stride, stop, width, begin = 0 } = shape;
    const unit = kind === "Rectangle" ? stride : width;
    if (!unit) return;
    let most = this._written.get(unit) ?? 0;
    if (kind === "Rectangle") most = Math.max(most, begin < 0 ? stride : Math.min(stride, stop));
    else for (const runs of fresh) for (let k = 0; k < runs.length; k += 2) most = Math.max(most, ((runs[k] + runs[k + 1] - 1) % width) + 1);
    this._written.set(unit, most);
  }

  /**
   * How many slots of a row or buffer are drawn: those that the run ever writes, and a few more.
   *
   *     rows of 4,095 slots, of which column 39 is the last that is written: 45; rows of 60: all 60
   *
   * @param {number} unit slots of a row or buffer
   */
  seenOf(unit) {
    const written = this._written.get(unit) ?? unit;
    return 2 * written >= unit ? unit : written + Math.ceil(written / 8);
  }

  /** The rectangle of the batch in a column: that of the last iteration that had one. */
  rectangle(i) {
    const last = Math.max(0, countUpTo(this.rectangles, i) - 1);
    return this.rectangles.length ? this.model.steps[this.rectangles[last]].shape : null;
  }
}

export const formsOf = oncePerModel((model) => new MemoryForms(model));

/** A line of slots, broken into rows so that a slot stays visible as long as it can. */
function lineOf(count, width, height) {
  const rows = Math.max(1, Math.min(Math.floor(height / 5), Math.ceil((count * 6) / width)));
  const columns = Math.ceil(count / rows);
  const boxHeight = Math.max(5, Math.min(20, Math.floor(height / rows)));
  return { unit: columns, across: 1, columns, boxWidth: Math.min(width, columns * 24), boxHeight, gap: 1 };
}

/** Boxes of so many slots in a grid, about `aspect` times as wide as high. */
function gridOf(count, unit, width, height, aspect, most) {
  const boxes = Math.ceil(count / unit);
  const rows = Math.max(1, Math.round(Math.sqrt((boxes * height * aspect) / width)));
  let across = Math.ceil(boxes / rows);
  if (width / across > most) across = Math.min(boxes, Math.ceil(width / most));
  const lines = Math.ceil(boxes / across);
  // Many boxes have whole pixels: they are drawn several times as fast.
  const wide = Math.min(most, width / across);
  const boxWidth = boxes > 300 && wide >= 2 ? Math.floor(wide) : wide;
  const boxHeight = Math.max(3, Math.min(26, Math.floor(height / lines)));
  const gap = boxHeight > 7 && boxWidth > 7 ? 2 : boxWidth >= 4 ? 1 : 0;
  return { unit, across, columns: unit, boxWidth, boxHeight, gap };
}

/** Buffers side by side, in each of which slots go on from row to row. */
function regionOf(count, unit, seen, width, height) {
  const buffers = Math.max(1, Math.floor(count / unit));
  const across = Math.min(buffers, Math.max(1, Math.floor(width / 40)));
  const lines = Math.ceil(buffers / across);
  const boxWidth = Math.min(130, width / across);
  const boxHeight = Math.max(24, Math.min(110, Math.floor(height / lines)));
  const columns = Math.max(1, Math.min(seen, Math.round(Math.sqrt((seen * boxWidth) / boxHeight / 2))));
  return { unit, seen, across, columns, boxWidth, boxHeight, gap: 4 };
}

/**
 * Where every slot is drawn.
 *
 * @param {number} width pixels
 * @returns {{panels: SlotPanel[], height: number, hidden: number}} `hidden`: waves for which there is no room
 */
export function memoryPanels(forms, frame, width) {
  const { model } = forms;
  const inner = Math.max(120, width - SIDE - 8);
  const panels = [];
  let y = 2;
  const put = (tier, name, kind, first, count, form, more = 0) => {
    // Arrows come into lower panels from above, so these panels have their titles below.
    if (!panels.length) y += HEADLINE;
    const lines = Math.ceil(Math.ceil(count / form.unit) / form.across);
    const at = { tier, name, kind, first, count, wave: 0, more, seen: form.unit, x: SIDE, y, ...form };
    const high = lines * (form.boxHeight + (form.across > 1 ? form.gap : 1));
    panels.push({ ...at, titleAt: panels.length ? y + high + 8 : y - 11 });
    y += high + GAP_BELOW + (kind === "region" ? 12 : 0) + (panels.length > 1 ? HEADLINE - 2 : 0);
  };
  const most = width < NARROW ? 150 : 230;
  const shape = forms.rectangle(frame.index);
  const strips = Math.min(frame.waves.length, MOST_STRIPS);
  if (strips > 0) {
    const unit = forms.blockSize || 1;
    const boxWidth = Math.min(96, inner / Math.ceil(forms.shown / unit));
    const [boxHeight, space] = frame.moves.length ? [STRIP_HEIGHT, STRIP_GAP] : [LOW_STRIP, LOW_GAP];
    const form = { unit, across: Math.ceil(forms.shown / unit), columns: unit, boxWidth, boxHeight };
    y += HEADLINE;
    for (let wave = 0; wave < strips; wave++) {
      const strip = { tier: "device", name: `wave ${wave + 1}`, kind: "strip", first: 0, count: forms.shown, wave };
      panels.push({ ...strip, seen: unit, more: 0, titleAt: y - 10, x: SIDE, y, ...form, gap: boxWidth > 6 ? 2 : 0.5 });
      y += boxHeight + space;
    }
    y += 8;
  } else if (shape) {
    const { offset, rows, stride } = shape;
    const stop = offset + rows * stride;
    const boxHeight = Math.max(5, Math.min(24, Math.floor(most / rows)));
    const seen = forms.seenOf(stride);
    const boxWidth = Math.min(seen < stride ? inner - AFTER_BREAK : inner, seen * 26);
    put("device", "device", "rectangle", offset, rows * stride, { unit: stride, seen, across: 1, columns: seen, boxWidth, boxHeight, gap: 2 });
    const rest = forms.shown - stop;
    const used = Math.max(0, forms.slots.sizes.device - stop);
    const drawn = 2 * used < rest ? used : rest;
    if (drawn > 0) put("device", "", "rest", stop, drawn, lineOf(drawn, inner - (drawn < rest ? AFTER_BREAK : 0), 90), rest - drawn);
  } else if (forms.width) {
    put("device", "device", "region", 0, forms.shown, regionOf(forms.shown, forms.width, forms.seenOf(forms.width), inner, most));
  } else if (model.ofCells) {
    put("device", "device", "states", 0, forms.shown, gridOf(forms.shown, 1, inner, most, 1.2, 34));
  } else if (forms.blockSize) {
    put("device", "device", "blocks", 0, forms.shown, gridOf(forms.shown, forms.blockSize, inner, most, 2.6, 96));
  } else put("device", "device", "line", 0, forms.shown, lineOf(forms.shown, inner, most));
  if (forms.hostShown) {
    const { hostShown, blockSize } = forms;
    const form = blockSize ? gridOf(hostShown, blockSize, inner, 110, 2.6, 96) : lineOf(hostShown, inner, 90);
    put("host", "host", blockSize ? "blocks" : "line", 0, hostShown, form);
  }
  return { panels, height: y, hidden: Math.max(0, frame.waves.length - MOST_STRIPS) };
}

/** The rectangles that slots [first, first + count) take in a panel, as [x, y, width, height]; slots that are not drawn have none. */
export function slotBoxes(panel, first, count) {
  const start = Math.max(first, panel.first) - panel.first;
  const stop = Math.min(first + count, panel.first + panel.count) - panel.first;
  const { unit, seen, across, columns, boxWidth, boxHeight, gap } = panel;
  const [down, wide] = [boxHeight + (across > 1 ? gap : 1), boxWidth - (across > 1 ? gap : 0)];
  const lines = Math.ceil(seen / columns);
  const [cellWidth, cellHeight] = [wide / columns, boxHeight / lines];
  const found = [];
  for (let at = start; at < stop; ) {
    const box = Math.floor(at / unit);
    const end = Math.min(stop, (box + 1) * unit);
    const [x, y] = [panel.x + (box % across) * boxWidth, panel.y + Math.floor(box / across) * down];
    for (let a = at - box * unit, z = Math.min(seen, end - box * unit); a < z; ) {
      const line = Math.floor(a / columns);
      const column = a - line * columns;
      // Whole lines are one rectangle.
      const whole = column === 0 ? Math.floor((z - a) / columns) : 0;
      const taken = whole > 1 ? whole * columns : Math.min(z - a, columns - column);
      found.push([x + column * cellWidth, y + line * cellHeight, (whole > 1 ? columns : taken) * cellWidth, Math.max(1, whole) * cellHeight]);
      a += taken;
    }
    at = end;
  }
  return found;
}

/** The slot that is drawn at a point, and its panel. @returns {{panel: SlotPanel, slot: number}|null} */
export function slotAt(panels, x, y) {
  for (const panel of panels) {
    const { unit, seen, across, columns, boxWidth, boxHeight, gap } = panel;
    const [dx, dy] = [x - panel.x, y - panel.y];
    const down = boxHeight + (across > 1 ? gap : 1);
    const [column, row] = [Math.floor(dx / boxWidth), Math.floor(dy / down)];
    if (dx < 0 || dy < 0 || column >= across || dy - row * down > boxHeight) continue;
    const wide = boxWidth - (across > 1 ? gap : 0);
    const inX = Math.min(columns - 1, Math.floor(((dx - column * boxWidth) / wide) * columns));
    const inY = Math.floor(((dy - row * down) / boxHeight) * Math.ceil(seen / columns));
    const inside = inY * columns + inX;
    const slot = (row * across + column) * unit + inside;
    if (inside < seen && slot < panel.count) return { panel, slot: panel.first + slot };
  }
  return null;
}
