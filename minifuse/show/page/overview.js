/** All runs of the page at a glance. */

import { Axis } from "./axis.js";
import { LaneRows } from "./lanerows.js";
import { drawLanes } from "./lanes.js";
import { drawSmallMemory } from "./charts.js";
import { actionsOf, unusedIdea } from "./actions.js";
import { actButton, part, setText, tag } from "./elements.js";
import { memoryOf, memoryTop } from "./series.js";
import { CanvasSurface } from "./surface.js";
import { firstArrival, totalsOf } from "./totals.js";
import { counted, grouped, seconds } from "./words.js";

/** The figures on the card of a run. */
function figures(model) {
  if (!model.length) return [];
  const { lasted, iterations, apart, computed, idleShare, tokens, refused } = totalsOf(model);
  const waits = model.requests
    .map((request, r) => ({ request, column: model.tokenColumns(r)[0] }))
    .filter(({ request, column }) => column !== undefined && (request.outcome === "stop" || request.outcome === "length"))
    .map(({ request, column }) => model.ends[column] - request.arrival)
    .sort((x, y) => x - y);
  const also = apart ? ` and ${grouped(apart)} of pre-processing` : ""; // counted apart, as in the tables of the command line
  const found = [seconds(lasted), `${counted(iterations, "iteration")}${also}`];
  if (model.run.notice) found.unshift("cut off");
  if (tokens && lasted > 0) found.push(`${grouped(tokens / lasted)} tokens/s`);
  if (waits.length) found.push(`median TTFT ${seconds((waits[(waits.length - 1) >> 1] + waits[waits.length >> 1]) / 2)}`);
  found.push(computed ? `${(100 * idleShare).toFixed(idleShare ? 1 : 0)}% idle` : "nothing computed");
  if (refused) found.push(`${refused} refused`);
  return found;
}

/** When the first request of a run arrived, or the first column began. */
function beginOf(model) {
  return model.starts.reduce((least, one) => Math.min(least, one), firstArrival(model));
}

/** An action in words, with the colour of its marks. */
function actionWords({ words, colour }) {
  return tag("span", "", tag("i", { style: `background: var(--${colour})` }), words);
}

const LINES = { kept: "dashed", "on the host": "dotted" };
const FAR_MORE = 3; // times the median of the runs' largest memory: more than this is beyond the scale of all cards
/** Pixels of lanes and of the chart of memory below them, in low cards and in those that tell more. */
const LOW = { lanes: 36, memory: 14 };
const HIGH = { lanes: 92, memory: 22 };
const CARD_ACTION = 6; // pixels of a row of marks between them

/**
 * A card for each run of the page: its lanes and memory in small, on one scale, and what it does in a sentence.
 *
 * A line in each card is at the moment that is shown. It is an element that a property of the host moves, so nothing is
 * drawn for it.
 */
export class Overview {
  constructor(host, app) {
    this.host = host;
    this.app = app;
    /** The moments at the left and at the right edge of all cards. */
    this.origin = Math.min(...app.runs.map(beginOf));
    this.last = Math.max(...app.runs.map(({ length, passed }) => passed[length - 1]));
    const tops = app.runs.map((model) => memoryTop(model)).sort((x, y) => x - y);
    /** The slots that the upper edge of memory stands for, in all cards. */
    this.top = Math.max(...tops.filter((top) => top <= FAR_MORE * tops[(tops.length - 1) >> 1]));
    this.cards = app.runs.map((model) => this._card(model));
    this.actionRows = Math.max(...this.cards.map(({ actions }) => actions.length)); // of all cards, so that charts are level
    host.append(...this.cards.map((card) => card.root));
    const lines = new Set(this.cards.flatMap(({ memory }) => memory.filter(({ line }) => line).map(({ label }) => label)));
    const also = [...lines].map((label) => `, ${label} (${LINES[label]} line)`).join("");
    host.parentElement.querySelector("summary").textContent =
      `All runs at a glance: lanes, and below them ${app.main.ofCells ? "states" : "KV"} in use (dark), set aside (light)${also}, on one scale`;
    this.high = false;
    part("more").addEventListener("click", () => this.turn());
  }

  _card(model) {
    const { app } = this;
    const { title, summary, notice } = model.run;
    const figuresText = figures(model).join(" \u00b7 ");
    const actions = actionsOf(model);
    const unused = unusedIdea(model, actions);
    const done = tag("p", "actions", ...actions.map(actionWords), ...(unused ? [tag("span", "", unused)] : []));
    done.hidden = !done.textContent;
    done.title = done.textContent;
    const canvas = tag("canvas", { role: "img", "aria-label": `${title} in small: ${figuresText}`, click: () => app.setMain(model) });
    const choose = ["A", "B"].map((side) => {
      const look = { "aria-label": `Show ${title} as ${side}`, title: `Show ${title} as ${side}` };
      return actButton(look, () => (side === "A" ? app.setMain(model) : app.setOther(model)), side);
    });
    const most = memoryTop(model);
    const beyond = tag("p", "beyond", `${counted(most, model.nouns.slot)} at most: beyond the scale`);
    beyond.hidden = most <= this.top;
    const root = tag(
      "article",
      notice ? { class: "card is-cut", title: notice } : "card",
      tag("div", "card-line", tag("h3", "", title), done),
      tag("p", "idea", summary ?? ""),
      tag("div", "card-stage", canvas, tag("div", "moment")),
      beyond,
      tag("div", "card-line", tag("p", { class: "figures", title: figuresText }, figuresText), tag("div", "choose", ...choose)),
    );
    return { root, canvas, model, actions, choose, rows: new LaneRows(model), memory: memoryOf(model), surface: new CanvasSurface(canvas) };
  }

  /** Make the cards high, with all that they tell, or low again. */
  turn() {
    this.high = !this.high;
    part("overview").classList.toggle("is-high", this.high);
    part("more").setAttribute("aria-expanded", String(this.high));
    setText(part("more"), this.high ? "Less" : "More");
    this.layout();
  }

  /** Draw the cards anew. */
  layout() {
    for (const card of this.cards) this.drawCard(card, card.surface, card.root.clientWidth - 18);
    this.show();
  }

  drawCard(card, surface, width) {
    const { app, origin } = this;
    const size = this.high ? HIGH : LOW;
    const axis = new Axis(card.model);
    axis.mode = "time";
    axis.origin = origin;
    axis.width = ((width - 2) / Math.max(1e-9, this.last - origin)) * axis.median;
    const rowHeight = Math.max(1.5, Math.min(8, size.lanes / Math.max(1, card.rows.count)));
    const height = Math.min(size.lanes, card.rows.count * rowHeight);
    const base = height + 3 + this.actionRows * CARD_ACTION + 3 + size.memory;
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
    drawSmallMemory(surface, card.memory, axis, { base, tall: size.memory, top: this.top, width, palette: app.palette });
  }

  /** Mark which runs are A and B, and the moment that is shown. */
  show() {
    const { app, origin, last } = this;
    const share = (app.moment - origin) / Math.max(1e-9, last - origin);
    this.host.style.setProperty("--moment", String(Math.max(0, Math.min(1, share))));
    for (const { root, model, choose } of this.cards) {
      root.classList.toggle("is-a", model === app.main);
      root.classList.toggle("is-b", model === app.other);
      choose[0].setAttribute("aria-pressed", String(model === app.main));
      choose[1].setAttribute("aria-pressed", String(model === app.other));
      choose[1].disabled = model === app.main;
    }
  }
}
