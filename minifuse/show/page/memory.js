/** The memory map of the selected column: every slot of both tiers in the colour of its owner, and its moves. */

import { columnName } from "./columns.js";
import { actButton, fillFrom, tag } from "./elements.js";
import { CanvasSurface, SvgSurface } from "./surface.js";
import { formsOf, memoryPanels, slotAt } from "./memory_panels.js";
import { MOST_ARROWS, drawMemory, drawMoveSample, drawStateSample } from "./memory_draw.js";
import { deviceRuns, memoryWords } from "./memory_words.js";
import { MOVE_LOOKS, moveSums } from "./moves.js";
import { counted, grouped } from "./words.js";

const NARROWEST_MAP = 280; // pixels

/** The view of the memory map. */
export class MemoryView {
  constructor(host, app) {
    Object.assign(this, { host, app, layout: null, frame: null, ...fillFrom("memory", host) });
    this.surface = new CanvasSurface(this.canvas);
    this.canvas.addEventListener("mousemove", (event) => this._point(event));
    this.canvas.addEventListener("mouseleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("click", (event) => this._choose(event));
    this.details.addEventListener("toggle", () => this._tell());
    this._marked = null; // the request whose row of the table has the focus
    const observer = new ResizeObserver(() => {
      if (this.frame && Math.abs(host.clientWidth - this._width) > 1) this._draw();
    });
    observer.observe(host);
  }

  show(model, i) {
    this.model = model;
    this.forms = formsOf(model);
    const { tooMany } = this.forms.slots;
    if (tooMany) return this._leaveOut(`The trace names ${grouped(tooMany)} slots, more than can be drawn: memory is left out.`);
    this.frame = this.forms.slots.during(i);
    this._draw();
  }

  /** Shows no map, and why. */
  _leaveOut(why) {
    this.frame = this.layout = null;
    this.words.textContent = why;
    this.canvas.setAttribute("aria-label", why);
    this.surface.begin(1, 1);
    this.legend.replaceChildren();
    this.table.replaceChildren();
    this._legendKey = null;
  }

  _draw() {
    this._width = this.host.clientWidth;
    const width = this._mapWidth();
    this.layout = memoryPanels(this.forms, this.frame, width);
    this.surface.begin(width, this.layout.height);
    this.drawOn(this.surface, width);
    const words = memoryWords(this.forms, this.frame);
    this.words.textContent = words;
    this.canvas.setAttribute("aria-label", `Memory in ${columnName(this.forms.model, this.frame.index)}: ${words}`);
    this._legend();
    this._tell();
  }

  _mapWidth() {
    return Math.max(NARROWEST_MAP, this._width - 2);
  }

  /** Draws the map as it is on any surface, such as one for export. @returns {number} its height */
  drawOn(surface, width) {
    if (!this.frame) return 1;
    const layout = surface === this.surface ? this.layout : memoryPanels(this.forms, this.frame, width);
    const selected = this._marked ?? this.app.request ?? null;
    const how = { width, palette: this.app.palette, colour: (r) => this.app.colour(r), selected };
    drawMemory(surface, this.forms, this.frame, layout, how);
    return layout.height;
  }

  picture() {
    const width = Math.max(NARROWEST_MAP, this.host.clientWidth);
    const surface = new SvgSurface();
    surface.begin(width, 0); // texts keep within the width
    surface.height = this.drawOn(surface, width);
    return surface;
  }

  /** The legend of this column: states of slots, then kinds of moves, each as [name, text, "state" or "move"]. */
  _legendOf() {
    const { frame } = this;
    const held = [...deviceRuns(this.forms, frame), ...frame.host];
    const states = new Set(held.map((run) => run.state));
    const entries = [];
    const add = (key, text, kind = "state") => entries.push([key, text, kind]);
    if (states.has("written")) add("written", "written");
    if (frame.fresh.some((runs) => runs.length)) add("fresh", "written in this iteration");
    if (states.has("reserved")) add("reserved", this.forms.reserves ? "reserved, still empty" : "room in its row, not set aside yet");
    if (states.has("kept")) add("kept", "kept until it is reclaimed");
    if (states.has("copy")) add("copy", "also on the host: may be overwritten");
    if (frame.device.some((run) => run.owners.length > 1)) add("shared", "shared by several");
    const { shape, idle: nodes } = this.model.steps[frame.index];
    const inWaves = shape?.kind === "StateRows" && nodes > 0;
    if (inWaves || frame.idle.length) add("idle", "computed, and needed by no request");
    if (frame.lying.length) add("lying", "padding, and rows that have ended: in use, needed by no request");
    add("free", "free");
    for (const [kind, { moves, tokens }] of moveSums(frame.moves)) {
      const look = MOVE_LOOKS[kind];
      const many = moves > MOST_ARROWS && !frame.waves.length ? `, ${MOST_ARROWS} of them drawn` : "";
      add(kind, `${look?.name ?? kind}: ${counted(tokens, "token")} in ${counted(moves, "move")}${many} (${look?.means ?? ""})`, "move");
    }
    return entries;
  }

  /** The legend as entries, as from `lanesLegend`, with all owners: not all slots are wide enough for a name. */
  legendEntries() {
    if (!this.frame) return [];
    const entries = this._legendOf().map(([name, text, kind]) => {
      const sample = kind === "move" ? drawMoveSample : drawStateSample;
      return { text, draw: (surface) => sample(surface, name, this.app.palette) };
    });
    const { device, host, waves } = this.frame;
    const owners = new Set([...device, ...host, ...waves.flat()].flatMap((run) => run.owners));
    const named = [...owners].sort((a, b) => a - b).map((r, k) => {
      const draw = (surface) => surface.rect(0, 0, 26, 13, { fill: this.app.colour(r) });
      return { text: String(this.model.requests[r].id), draw, newLine: k === 0 };
    });
    return [...entries, ...named];
  }

  _legend() {
    const entries = this._legendOf();
    const key = JSON.stringify(entries);
    if (key === this._legendKey) return;
    this._legendKey = key;
    const items = entries.map(([name, text, kind]) => {
      const move = kind === "move";
      const look = { class: `memory-key memory-${kind}-${name}`, "aria-hidden": "true", ...(move && { style: `color: var(--move-${name})` }) };
      return tag("li", "", tag("span", look, move ? "\u279c" : ""), text);
    });
    this.legend.replaceChildren(...items);
  }

  /** The owners as rows of a table, when it is open. */
  _tell() {
    if (!this.details.open || !this.frame) return;
    const focused = document.activeElement?.dataset?.request;
    const titles = ["request", "on the device", this.forms.reserves ? "reserved" : "room in its row", "kept", "on the host", "slots"];
    const head = tag("tr", "", ...titles.map((title) => tag("th", { scope: "col" }, title)));
    const lines = ownerRows(deviceRuns(this.forms, this.frame), this.frame.host).map(([r, row]) => {
      const look = { "data-request": r, focus: () => this._mark(r), blur: () => this._mark(null) };
      const button = actButton(look, () => this.app.selectRequest(r), String(this.model.requests[r].id));
      const where = row.where.slice(0, 4).map(([tier, from, to]) => `${tier === "host" ? "host " : ""}${from} to ${to - 1}`);
      if (row.where.length > 4) where.push(`${row.where.length - 4} more`);
      const cells = [row.device, row.reserved, row.kept, row.host, where.join(", ")];
      return tag("tr", "", tag("th", { scope: "row" }, button), ...cells.map((value) => tag("td", "", String(value))));
    });
    this.table.replaceChildren(head, ...lines);
    if (focused !== undefined) this.table.querySelector(`button[data-request="${Number(focused)}"]`)?.focus();
  }

  _mark(r) {
    if (this._marked === r) return;
    this._marked = r;
    this.drawOn(this.surface, this._mapWidth());
  }

  _at({ offsetX, offsetY }) {
    return this.layout && slotAt(this.layout.panels, offsetX, offsetY);
  }

  _runAt({ panel, slot }) {
    const runs = panel.tier === "host" ? this.frame.host : panel.kind === "strip" ? this.frame.waves[panel.wave] : this.frame.device;
    return runs.find(({ first, count }) => isWithin(slot, first, count)) ?? null;
  }

  _point(event) {
    const found = this._at(event);
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.textContent = this.wordsAt(found);
    const { offsetX: x, offsetY: y } = event;
    const over = x > this._width / 2;
    this.tip.style.left = over ? "auto" : `${x + 14}px`;
    this.tip.style.right = over ? `${this._width - x + 14}px` : "auto";
    this.tip.style.top = `${y + 14}px`;
  }

  /** The owners, the state and the moves of a slot, in words. @param {{panel: SlotPanel, slot: number}} found */
  wordsAt({ panel, slot }) {
    const { forms, frame, model } = this;
    const run = this._runAt({ panel, slot });
    const where = [panel.tier === "host" ? `slot ${slot} of the host` : `slot ${slot}`];
    if (panel.kind === "blocks" && panel.tier === "device") where.push(`block ${Math.floor(slot / panel.unit)}`);
    if (panel.kind === "region") where.push(`buffer ${Math.floor(slot / panel.unit)}`);
    if (panel.kind === "rectangle") where.push(`row ${Math.floor((slot - panel.first) / panel.unit)}, column ${(slot - panel.first) % panel.unit} of it`);
    if (panel.kind === "strip") where.push(`while ${panel.name} is attended`);
    const parts = [where.join(", ")];
    if (!run) {
      const computed = panel.kind === "strip" ? frame.idleInWave[panel.wave] ?? [] : frame.idle;
      const idle = panel.tier === "device" && computed.some(([first, count]) => isWithin(slot, first, count));
      parts.push(idle ? "computed in this iteration, and needed by no request" : "free");
    } else {
      const names = run.owners.map((r) => model.requests[r].id).join(", ");
      const reserved = forms.reserves ? "reserved and still empty" : "room in its row, not set aside yet";
      const states = { written: "written", reserved, kept: "kept until it is reclaimed", copy: "also on the host, may be overwritten" };
      parts.push(run.owners.length > 1 ? `shared by ${names}` : `of ${names || "a copy on its way"}`);
      if (run.token >= 0) parts.push(`token ${run.token + slot - run.first}`);
      parts.push(states[run.state]);
      if (run.twin >= 0 && run.state !== "copy") parts.push(`the same KV is in slot ${run.twin + slot - run.first} of the ${panel.tier === "host" ? "device" : "host"}`);
    }
    for (const move of frame.moves) {
      const name = MOVE_LOOKS[move.kind]?.name ?? move.kind;
      const { source, target, count, fromTier, toTier } = move;
      const end = (first, tier) => `slot ${first}${tier === panel.tier ? "" : ` of the ${tier}`}`;
      if (fromTier === panel.tier && isWithin(slot, source, count)) parts.push(`${name} from here to ${end(target + slot - source, toTier)}`);
      if (toTier === panel.tier && isWithin(slot, target, count)) parts.push(`${name} to here from ${end(source + slot - target, fromTier)}`);
    }
    return parts.join("; ");
  }

  _choose(event) {
    const found = this._at(event);
    const run = found && this._runAt(found);
    if (run && run.owners.length) this.app.selectRequest(run.owners[0]);
  }
}

function isWithin(slot, first, count) {
  return slot >= first && slot < first + count;
}

/**
 * The rows of the table: how many slots each request has, by tier and state, and where they are.
 *
 * @param {import("./slots.js").SlotRun[]} device
 * @param {import("./slots.js").SlotRun[]} host
 */
function ownerRows(device, host) {
  const rows = new Map();
  for (const [tier, runs] of Object.entries({ device, host })) {
    for (const { first, count, owners, state } of runs) {
      for (const r of owners) {
        const row = rows.get(r) ?? { device: 0, host: 0, reserved: 0, kept: 0, where: [] };
        rows.set(r, row);
        row[tier === "device" && (state === "reserved" || state === "kept") ? state : tier] += count;
        const last = row.where.at(-1);
        if (last && last[0] === tier && last[2] === first) last[2] += count;
        else row.where.push([tier, first, first + count]);
      }
    }
  }
  return [...rows].sort((a, b) => a[0] - b[0]);
}
