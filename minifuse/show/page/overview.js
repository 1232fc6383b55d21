/** All runs of the page at a glance. */

import { Axis } from "./axis.js";
import { LaneRows } from "./lanerows.js";
import { drawLanes } from "./lanes.js";
import { drawSmallMemory } from "./charts.js";
import { actionsOf, unusedIdea } from "./actions.js";
import { actButton, tag } from "./elements.js";
import { memoryOf, memoryTop } from "./series.js";
import { CanvasSurface } from "./surface.js";
import { counted, grouped, seconds } from "./words.js";

/** The figures on the card of a run. */
function figures(model) {
  const { length, run, steps } = model;
  if (!length) return [];
  const computed = model.computed.reduce((sum, one) => sum + one, 0);
  const idle = model.idle.reduce((sum, one) => sum + one, 0);
  const total = model.totalTokens[length - 1];
  const begin = model.requests.reduce((least, one) => Math.min(least, one.arrival ?? Infinity), Infinity);
  const lasted = model.passed[length - 1] - (Number.isFinite(begin) ? begin : 0);
  const waits = model.requests
    .map((request, r) => ({ request, column: model.tokenColumns(r)[0] }))
    .filter(({ request, column }) => column !== undefined && (request.outcome === "stop" || request.outcome === "length"))
    .map(({ request, column }) => model.ends[column] - request.arrival)
    .sort((x, y) => x - y);
  const iterations = steps.filter(({ work }) => work.length);
  const apart = iterations.filter(({ phase }) => phase === "preprocessing").length;
  const also = apart ? ` and ${grouped(apart)} of pre-processing` : ""; // counted apart, as in the tables of the command line
  const found = [`${counted(iterations.length - apart, "iteration")}${also} in ${seconds(lasted)}`];
  if (run.notice) found.unshift("cut off");
  if (total && lasted > 0) found.push(`${grouped(total / lasted)} tokens/s`);
  if (waits.length) found.push(`median TTFT ${seconds((waits[(waits.length - 1) >> 1] + waits[waits.length >> 1]) / 2)}`);
  found.push(computed ? `${((100 * idle) / computed).toFixed(idle ? 1 : 0)}% idle` : "nothing computed");
  const refused = model.requests.filter((request) => request.refused).length;
  if (refused) found.push(`${refused} refused`);
  return found;
}

/** An action in words, with the colour of its marks. */
function actionWords({ words, colour }) {
  return tag("span", "", tag("i", { style: `background: var(--${colour})` }), words);
}

const LINES = { kept: "dashed", "on the host": "dotted" };
const FAR_MORE = 3; // times the median of the runs' largest memory: beyond, each card has its own scale
const CARD_HEIGHT = 92; // pixels of lanes
const CARD_ACTION = 6; // pixels of a row of marks below them
const CARD_MEMORY = 22; // pixels of the chart of memory below these

/** A card for each run of the page: its lanes and memory in small, on one scale, and what it does in a sentence. */
export class Overview {
  constructor(host, app) {
    this.host = host;
    this.app = app;
    const longest = Math.max(...app.runs.map((model) => (model.length ? model.passed[model.length - 1] : 0)));
    this.cards = app.runs.map((model) => this._card(model, longest));
    this.actionRows = Math.max(...this.cards.map(({ actions }) => actions.length)); // of all cards, so that charts are level
    host.append(...this.cards.map((card) => card.root));
    const tops = app.runs.map(memoryTop).sort((x, y) => x - y);
    this.top = tops.at(-1) > FAR_MORE * tops[(tops.length - 1) >> 1] ? null : tops.at(-1);
    const what = app.main.ofCells ? "states" : "KV";
    const scale = this.top === null ? `; ${what} on a scale of each card, the number is its top` : ", on one scale";
    const lines = new Set(this.cards.flatMap(({ memory }) => memory.filter(({ line }) => line).map(({ label }) => label)));
    const also = [...lines].map((label) => `, ${label} (${LINES[label]} line)`).join("");
    host.parentElement.querySelector("summary").textContent =
      `All runs at a glance: lanes, and below them ${what} in use (dark), set aside (light)${also}${scale}`;
  }

  _card(model, longest) {
    const { app } = this;
    const { title, summary, notice } = model.run;
    const figuresText = figures(model).join(" \u00b7 ");
    const actions = actionsOf(model);
    const done = tag("p", "actions", ...actions.map(actionWords), unusedIdea(model, actions) ?? "");
    done.hidden = !done.textContent;
    const canvas = tag("canvas", { role: "img", "aria-label": `${title} in small: ${figuresText}`, click: () => app.setMain(model) });
    const choose = ["A", "B"].map((side) => {
      const look = { "aria-label": `Show ${title} as ${side}` };
      return actButton(look, () => (side === "A" ? app.setMain(model) : app.setOther(model)), `Show as ${side}`);
    });
    const root = tag(
      "article",
      notice ? { class: "card is-cut", title: notice } : "card",
      tag("h3", "", title),
      tag("p", "", summary ?? ""),
      done,
      canvas,
      tag("p", "figures", figuresText),
      tag("div", "choose", ...choose),
    );
    return { root, canvas, model, actions, choose, longest, rows: new LaneRows(model), memory: memoryOf(model), surface: new CanvasSurface(canvas) };
  }

  /** Draw the cards anew. */
  layout() {
    for (const card of this.cards) this.drawCard(card, card.surface, card.root.clientWidth - 18);
    this.show();
  }

  drawCard(card, surface, width) {
    const { app } = this;
    const axis = new Axis(card.model);
    axis.mode = "time";
    axis.origin = Math.min(...app.runs.map((model) => model.requests.reduce((least, one) => Math.min(least, one.arrival ?? Infinity), Infinity)), axis.origin);
    axis.width = ((width - 2) / Math.max(1e-9, card.longest - axis.origin)) * axis.median;
    const rowHeight = Math.max(1.5, Math.min(8, CARD_HEIGHT / Math.max(1, card.rows.count)));
    const height = Math.min(CARD_HEIGHT, card.rows.count * rowHeight);
    const base = height + 3 + this.actionRows * CARD_ACTION + 3 + CARD_MEMORY;
    surface.begin(width, base + 1);
    const look = { palette: app.palette, colour: (r) => app.colour(r), selected: null, rowHeight, width, height, top: 0, small: true };
    drawLanes(surface, card.rows, axis, look);
    card.actions.forEach(({ columns, colour }, k) => {
      let last = -1;
      for (const column of columns) {
        const x = Math.max(axis.x(column) - axis.left, last); // marks side by side, not one upon the other
        if (x > width) break;
        surface.rect(x, height + 3 + k * CARD_ACTION, 2, CARD_ACTION - 2, { fill: app.palette[colour] });
        last = x + 2;
      }
    });
    const top = this.top ?? memoryTop(card.model);
    drawSmallMemory(surface, card.memory, axis, { base, tall: CARD_MEMORY, top, width, palette: app.palette });
    if (this.top !== null) return;
    const label = counted(top, card.model.nouns.slot);
    const wide = surface.measure(label, 10) + 6;
    surface.rect(width - wide, base - CARD_MEMORY, wide, 12, { fill: app.palette.panel, alpha: 0.85 });
    surface.text(width - 3, base - CARD_MEMORY + 6, label, { size: 10, fill: app.palette.ink, anchor: "end" });
  }

  /** Mark which runs are A and B. */
  show() {
    for (const { root, model, choose } of this.cards) {
      root.classList.toggle("is-a", model === this.app.main);
      root.classList.toggle("is-b", model === this.app.other);
      choose[0].setAttribute("aria-pressed", String(model === this.app.main));
      choose[1].setAttribute("aria-pressed", String(model === this.app.other));
      choose[1].disabled = model === this.app.main;
    }
  }
}
