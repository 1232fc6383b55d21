/** Two runs of one workload, A and B, with one scrubber; and all runs of the page at a glance. */

import { Axis } from "./axis.js";
import { LaneRows, drawLanes } from "./lanes.js";
import { drawSmallMemory, memoryOf, memoryTop } from "./charts.js";
import { CanvasSurface } from "./surface.js";
import { counted, grouped, seconds } from "./words.js";

/**
 * A and B, side by side. A position of the scrubber is an iteration of A or, once A has ended, one of B that follows.
 *
 * By time, B shows what it does when A's iteration ends; by token, the iteration with which B had generated as many
 * tokens as A.
 */
export class Pair {
  /**
   * @param {import("./model.js").RunModel} a
   * @param {import("./model.js").RunModel} b
   * @param {"time"|"token"} by
   */
  constructor(a, b, by) {
    this.a = a;
    this.b = b;
    this.by = by;
    const end = this._there(a.length - 1);
    this.length = a.length + (b.length - 1 - end);
    this.first = firstDifference(a, b);
    this.differences = this._differences();
  }

  /** The iteration of B that goes with one of A. */
  _there(i) {
    const { a, b } = this;
    if (this.by === "token") return b.byToken(Math.min(a.totalTokens[i], b.totalTokens[b.length - 1]));
    return b.at(a.passed[i] - 5e-10); // half of what times are rounded to: both may end at the same moment
  }

  /** @param {number} position @returns {{a: number, b: number}} the iteration of each run */
  at(position) {
    const { a, b } = this;
    if (position < a.length) return { a: position, b: this._there(position) };
    return { a: a.length - 1, b: Math.min(b.length - 1, this._there(a.length - 1) + position - a.length + 1) };
  }

  /** @param {number} j an iteration of B @returns {number} the first position that shows it, or a later one */
  positionOfB(j) {
    let [low, high] = [0, this.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at(middle).b >= j) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /**
   * Where the runs begin to disagree about a request: in one it has its turn, in the other it does not.
   *
   * @returns {{position: number, requests: number[]}[]} in order
   */
  _differences() {
    const found = new Map();
    const disagree = (r, position) => {
      const { a: i, b: j } = this.at(position);
      return standing(this.a.stateAt(i, r)) !== standing(this.b.stateAt(j, r));
    };
    this.a.requests.forEach((_, r) => {
      const changes = new Set(this.a.spans(r).map((span) => span.from));
      for (const { from } of this.b.spans(r)) changes.add(this.positionOfB(from));
      let before = false;
      for (const position of [...changes].filter((one) => one < this.length).sort((x, y) => x - y)) {
        const now = disagree(r, position);
        if (now && !before) found.set(position, [...(found.get(position) ?? []), r]);
        before = now;
      }
    });
    if (this.first && !found.has(this.first.a)) found.set(this.first.a, []);
    return [...found].map(([position, requests]) => ({ position, requests })).sort((x, y) => x.position - y.position);
  }

  /** @param {number} position @returns {number|null} the next position at which a decision differs */
  next(position) {
    return this.differences.find((one) => one.position > position)?.position ?? null;
  }

  /** @param {number} position @returns {number|null} the one before */
  previous(position) {
    return this.differences.findLast((one) => one.position < position)?.position ?? null;
  }

  /** What differs at a position, in a sentence; null: no disagreement begins there. */
  told(position) {
    const { a, b } = this;
    const parts = [];
    const found = this.differences.find((one) => one.position === position);
    if (!found) return null;
    const { a: i, b: j } = this.at(position);
    if (this.first?.a === position) {
      if (this.first.ended) parts.push(`All decisions are alike up to here, where ${this.first.ended.run.title} ends.`);
      else parts.push(`The first decision that differs, iteration ${this.first.a} of ${a.run.title} and ${this.first.b} of ${b.run.title}: ${decided(a, this.first.a)}; ${decided(b, this.first.b)}.`);
      const because = this.by === "token" ? "where it has generated as many tokens" : "which it runs at that time";
      if (this.first.b !== j) parts.push(`${b.run.title} is shown in iteration ${j}, ${because}.`);
    }
    for (const r of found.requests.slice(0, 4)) {
      parts.push(`${a.requests[r].id} is ${a.stateAt(i, r)} in ${a.run.title} and ${b.stateAt(j, r)} in ${b.run.title}.`);
    }
    if (found.requests.length > 4) parts.push(`And ${found.requests.length - 4} more requests.`);
    return parts.join(" ");
  }
}

/** Whether a request is not there, waits, has its turn, or has ended. */
function standing(state) {
  if (state === "preprocessing" || state === "ready" || state === "running") return "in";
  return state === "refused" ? "finished" : state;
}

/** The columns of a run that decided something: waits and plans of moves alone are left out. */
function decidingColumns(model) {
  const found = [];
  model.run.steps.forEach((step, i) => step.w && found.push(i));
  return found.sort((i, j) => model.run.steps[i].n - model.run.steps[j].n);
}

/**
 * The first iterations, counted in the order of plans, that decide otherwise.
 *
 * @param {import("./model.js").RunModel} a @param {import("./model.js").RunModel} b
 * @returns {{a: number, b: number, ended?: import("./model.js").RunModel}|null} null: all decisions are alike; `ended`:
 *     the run that has no such iteration, as its trace was cut off or it had nothing more to do
 */
export function firstDifference(a, b) {
  const [mine, theirs] = [decidingColumns(a), decidingColumns(b)];
  const key = (model, i) => {
    const { a: admitted, e: evicted, w: work, ph } = model.run.steps[i];
    const sorted = (list) => [...(list ?? [])].sort((x, y) => x - y);
    return JSON.stringify([sorted(admitted), sorted(evicted), work.map((one) => one.slice(0, 3).join()).sort(), ph ?? ""]);
  };
  for (let k = 0; k < Math.max(mine.length, theirs.length); k++) {
    const [i, j] = [mine[k], theirs[k]];
    if (i === undefined) return { a: a.length - 1, b: j, ended: a };
    if (j === undefined) return { a: i, b: b.length - 1, ended: b };
    if (key(a, i) !== key(b, j)) return { a: i, b: j };
  }
  return null;
}

/** What an iteration decided, in words. */
function decided(model, i) {
  const { a: admitted, e: evicted, w: work, ph } = model.run.steps[i];
  const some = (list) => {
    const ids = [...new Set(list)].map((r) => model.requests[r].id);
    return ids.length > 4 ? `${ids.slice(0, 4).join(", ")} and ${ids.length - 4} more` : ids.join(", ");
  };
  const parts = [`computes ${grouped((work ?? []).reduce((sum, one) => sum + one[2] - one[1], 0))} for ${some((work ?? []).map((one) => one[0])) || "nobody"}`];
  if (ph === "preprocessing") parts.push("apart from the batch");
  if (admitted) parts.push(`admits ${some(admitted)}`);
  if (evicted) parts.push(`evicts ${some(evicted)}`);
  return `${model.run.title} ${parts.join(", ")}`;
}

/** A few figures of a run, as its card tells them. */
export function figures(model) {
  const { length, run } = model;
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
  const found = [`${counted(run.steps.filter((step) => step.w).length, "iteration")} in ${seconds(lasted)}`];
  if (run.notice) found.unshift("cut off");
  if (total && lasted > 0) found.push(`${grouped(total / lasted)} tokens/s`);
  if (waits.length) found.push(`median TTFT ${seconds((waits[(waits.length - 1) >> 1] + waits[waits.length >> 1]) / 2)}`);
  found.push(computed ? `${((100 * idle) / computed).toFixed(idle ? 1 : 0)}% idle` : "nothing computed");
  const refused = model.requests.filter((request) => request.refused).length;
  if (refused) found.push(`${refused} refused`);
  return found;
}

/** The technique of a run, as its trace names it. */
function techniqueOf({ run }) {
  return run.facts.find(([name]) => name === "technique")?.[1];
}

/** When a technique's idea has nothing to do in a run, which the record tells. */
const IDLE_IDEAS = {
  fusion: ["no shuffle was needed", ({ run }) => !run.steps.some(({ m }) => m?.some(([kind]) => kind === "shuffle"))],
  vllm: ["nothing was evicted", ({ run }) => !run.steps.some(({ e }) => e)],
  pensieve: ["no conversations here", ({ requests }) => !requests.some(({ after, history }) => after || history)],
  fluid: ["all KV fits the device", ({ run }) => !run.steps.some(({ wv }) => wv)],
};

/**
 * That a technique's idea has nothing to do in a run, in a few words; null: it has, or nobody knows.
 *
 * @param {import("./model.js").RunModel} model @returns {string|null}
 */
export function idleIdea(model) {
  const name = techniqueOf(model);
  if (model.run.notice || !Object.hasOwn(IDLE_IDEAS, name)) return null;
  const [told, holds] = IDLE_IDEAS[name];
  return holds(model) ? told : null;
}

const FAR_MORE = 3; // times the median of what the runs set aside, from which on each has a scale of its own
const CARD_HEIGHT = 92; // pixels of lanes
const CARD_MEMORY = 22; // pixels of the chart of memory below them

/** A card for each run of the page: its lanes and memory in small, on one scale, and what it does in a sentence. */
export class Overview {
  /** @param {HTMLElement} host @param {object} app */
  constructor(host, app) {
    this.host = host;
    this.app = app;
    const longest = Math.max(...app.runs.map((model) => (model.length ? model.passed[model.length - 1] : 0)));
    this.cards = app.runs.map((model) => this._card(model, longest));
    host.append(...this.cards.map((card) => card.root));
    const tops = app.runs.map(memoryTop).sort((x, y) => x - y);
    this.top = tops.at(-1) > FAR_MORE * tops[(tops.length - 1) >> 1] ? null : tops.at(-1);
    const what = app.main.ofCells ? "states" : "KV";
    const scale = this.top === null ? `; ${what} on a scale of each card, the number is its top` : ", on one scale";
    host.parentElement.querySelector("summary").textContent =
      `All runs at a glance: lanes, and below them ${what} in use (dark) and set aside (light)${scale}`;
  }

  _card(model, longest) {
    const { app } = this;
    const root = document.createElement("article");
    root.className = "card";
    const head = document.createElement("h3");
    head.textContent = model.run.title;
    const summary = document.createElement("p");
    summary.textContent = model.run.summary ?? "";
    const told = document.createElement("p");
    told.className = "figures";
    told.textContent = figures(model).join(" \u00b7 ");
    const idea = document.createElement("p");
    idea.className = "idle-idea";
    idea.textContent = idleIdea(model) ?? "";
    idea.hidden = !idea.textContent;
    root.classList.toggle("is-cut", Boolean(model.run.notice));
    if (model.run.notice) root.title = model.run.notice;
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${model.run.title} in small: ${told.textContent}`);
    const buttons = document.createElement("div");
    buttons.className = "choose";
    const choose = ["A", "B"].map((side) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `Show as ${side}`;
      button.setAttribute("aria-label", `Show ${model.run.title} as ${side}`);
      button.addEventListener("click", () => (side === "A" ? app.setMain(model) : app.setOther(model)));
      return button;
    });
    buttons.append(...choose);
    root.append(head, summary, idea, canvas, told, buttons);
    canvas.addEventListener("click", () => app.setMain(model));
    return { root, canvas, model, choose, longest, rows: new LaneRows(model), memory: memoryOf(model), surface: new CanvasSurface(canvas) };
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
    const base = height + 4 + CARD_MEMORY;
    surface.begin(width, base + 1);
    const look = { palette: app.palette, colour: (r) => app.colour(r), selected: null, rowHeight, width, height, top: 0, small: true };
    drawLanes(surface, card.rows, axis, look);
    const top = this.top ?? memoryTop(card.model);
    drawSmallMemory(surface, card.memory, axis, { base, tall: CARD_MEMORY, top, width, palette: app.palette });
    if (this.top !== null) return;
    const label = counted(top, card.model.ofCells ? "state" : "slot");
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
