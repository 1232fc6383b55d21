/** Why each waits, the story of the selected request, and the answers as they grow. */

import { mergedWaits, shortReason, storyOf } from "./request_story.js";
import { counted, grouped } from "./words.js";

const MOST_NAMES = 12; // requests named of a group that waits for the same
const MOST_WAITING = 40; // rows of those that wait
const MOST_ANSWERS = 60;
const KEPT_TEXT = 1200; // characters of an answer that are shown, its end first
const MOST_PROMPT = 400;

function tag(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A button that goes to an iteration. */
function stepButton(app, model, i, text = `iteration ${grouped(i)}`) {
  const button = tag("button", "to-iteration", text);
  button.type = "button";
  button.dataset.iteration = String(i);
  button.addEventListener("click", () => (model === app.other ? app.selectIn("B", i) : app.select(i)));
  return button;
}

/** A button that selects a request, with its colour beside it. */
function requestButton(app, model, r) {
  const button = tag("button", "to-request");
  button.type = "button";
  button.dataset.request = String(r);
  const mark = tag("span", "request-mark");
  mark.style.background = app.colour(r);
  mark.setAttribute("aria-hidden", "true");
  button.append(mark, document.createTextNode(String(model.requests[r].id)));
  button.addEventListener("click", () => app.selectRequest(r));
  return button;
}

/** Replaces what a host shows, and leaves the focus where it was: on the button that names the same. */
function refill(host, children) {
  const active = host.contains(document.activeElement) ? document.activeElement : null;
  const wanted = active && [active.className, active.dataset.request, active.dataset.iteration];
  host.replaceChildren(...children);
  if (!wanted) return;
  const same = [...host.querySelectorAll("button")].find(
    (one) => one.className === wanted[0] && one.dataset.request === wanted[1] && one.dataset.iteration === wanted[2],
  );
  same?.focus({ preventScroll: true });
}

/** The column since which a request has been in the state that it has in column i. */
function since(model, i, r) {
  const span = model.spans(r).find(({ from, to }) => from <= i && i < to);
  return span ? span.from : i;
}

/**
 * Everyone who waits in a column, those with the same reason together.
 *
 * @param {import("./model.js").RunModel} model @param {number} i
 * @returns {{code: string, text: string, told: number|null, requests: {request: number, state: string}[]}[]}
 *     `told`: the column that told the reason; null: the trace tells none
 */
export function waitingIn(model, i) {
  const groups = new Map();
  model.requests.forEach((_, r) => {
    const state = model.stateAt(i, r);
    if (state !== "waiting" && state !== "suspended" && state !== "ready") return;
    const reason = model.reasonAt(i, r);
    const key = reason ? `${reason.code} ${reason.text}` : "";
    if (!groups.has(key)) {
      groups.set(key, { code: reason?.code ?? "", text: reason?.text ?? "", told: reason?.at ?? null, requests: [] });
    }
    const group = groups.get(key);
    if (reason) group.told = Math.max(group.told, reason.at);
    group.requests.push({ request: r, state });
  });
  // What the trace gives no reason for comes last.
  return [...groups.values()].sort((a, b) => (a.told === null) - (b.told === null));
}

/** Why requests wait of which the trace tells no reason. */
function unexplained(model, step, waiting) {
  const came = waiting.every(({ request }) => model.requests[request].arrival > step.start);
  if (came) return "arrived while this iteration ran: nothing is decided before it has ended";
  return "the trace gives no reason: a run with --why or --replay tells one for each";
}

/** Why everyone who waits waits. */
export class WhyView {
  /** @param {HTMLElement} host @param {object} app */
  constructor(host, app) {
    this.host = host;
    this.app = app;
    host.classList.add("why");
  }

  /** @param {import("./model.js").RunModel} model @param {number} i */
  show(model, i) {
    const { host, app } = this;
    if (!model || !model.length) return refill(host, [tag("p", "quiet", "This run has no iterations.")]);
    const groups = waitingIn(model, i);
    const step = model.step(i);
    const children = [];
    for (const r of step.evicted) {
      const reason = step.reasons.find((one) => one.request === r);
      const line = tag("p", "why-evicted");
      line.append(requestButton(app, model, r), document.createTextNode(` is evicted: ${reason ? shortReason(reason.text) : "the trace gives no reason"}`));
      children.push(line);
    }
    if (!groups.length) children.push(tag("p", "quiet", "Nobody waits in this iteration."));
    const list = tag("ul", "why-list");
    for (const group of groups.slice(0, MOST_WAITING)) {
      const item = tag("li");
      const reason = group.told === null
        ? tag("p", "quiet", unexplained(model, step, group.requests))
        : tag("p", "why-reason", shortReason(group.text));
      if (group.told !== null) {
        reason.append(" ", tag("code", "", group.code));
        if (group.told < i) reason.append(" ", tag("span", "quiet", "told in"), " ", stepButton(app, model, group.told));
      }
      const names = tag("p", "why-names");
      for (const { request, state } of group.requests.slice(0, MOST_NAMES)) {
        const one = tag("span", "why-one");
        const waits = state === "waiting" ? "waits" : state === "suspended" ? "evicted" : "prompt computed";
        one.append(requestButton(app, model, request), tag("span", "quiet", `${waits} since ${grouped(since(model, i, request))}`));
        names.append(one);
      }
      const more = group.requests.length - MOST_NAMES;
      if (more > 0) names.append(tag("span", "quiet", `and ${grouped(more)} more`));
      item.append(reason, names);
      list.append(item);
    }
    if (groups.length > MOST_WAITING) list.append(tag("li", "quiet", `and ${counted(groups.length - MOST_WAITING, "more reason")}`));
    if (groups.length) children.push(list);
    refill(host, children);
  }
}

/** The story of the selected request. Each of its entries selects its iteration. */
export class StoryView {
  /** @param {HTMLElement} host @param {object} app */
  constructor(host, app) {
    this.host = host;
    this.app = app;
    host.classList.add("story");
    this._stories = new WeakMap(); // model -> request -> story
  }

  /** @param {import("./model.js").RunModel} model @param {number} i */
  show(model, i) {
    const { host, app } = this;
    const r = app.request;
    if (r === null || r === undefined || !model || !model.requests[r]) {
      this._shown = null;
      return refill(host, [tag("p", "quiet", "Select a request to read its story: click its lane, its slots or its name.")]);
    }
    const most = app.predict?.limitOf(model) ?? Infinity; // what may be told while a question is open
    const known = most < model.length ? storyOf(model, r, most) : this._story(model, r);
    const key = `${r} ${known.length} ${most}`;
    if (this._shown !== key || this._model !== model) {
      this._shown = key;
      this._model = model;
      const title = tag("p", "story-title");
      title.append(requestButton(app, model, r), document.createTextNode(` ${model.stateAt(i, r)}`));
      this._state = title.lastChild;
      const list = tag("ol", "story-list");
      const entries = mergedWaits(known, model);
      this._items = entries.map(({ at, to, kind, text, parts }) => {
        const item = tag("li", `story-${kind}`);
        const told = tag("div", "story-told");
        told.append(tag("span", "story-text", text));
        if (parts) told.append(this._folded(model, parts, most));
        item.append(this._when(model, at, to, most, text), told);
        return [at, item];
      });
      list.append(...this._items.map(([, item]) => item));
      refill(host, [title, list]);
    }
    this._state.textContent = ` ${model.length ? model.stateAt(i, r) : ""}`;
    let now = null;
    for (const [at, item] of this._items) {
      const here = at <= i;
      item.classList.toggle("is-later", !here);
      item.classList.remove("is-now");
      item.removeAttribute("aria-current");
      if (here) now = item;
    }
    now?.classList.add("is-now");
    now?.setAttribute("aria-current", "step");
    return undefined;
  }

  /** The button that goes to where an entry begins, and says where it ends. */
  _when(model, at, to, most, text) {
    const end = to !== undefined && to > at ? `${grouped(at)} to ${grouped(Math.min(to, most))}` : grouped(at);
    const button = stepButton(this.app, model, Math.min(at, Math.max(0, model.length - 1)), end);
    button.setAttribute("aria-label", `${text}, iteration ${end}`);
    return button;
  }

  /** Waits that an entry stands for, one by one, when they are asked for. */
  _folded(model, parts, most) {
    const folded = tag("details", "story-parts");
    folded.append(tag("summary", "quiet", counted(parts.length, "reason")));
    for (const { at, to, text } of parts) {
      const line = tag("div", "story-part");
      line.append(this._when(model, at, to, most, text), tag("span", "", text));
      folded.append(line);
    }
    return folded;
  }

  _story(model, r) {
    if (!this._stories.has(model)) this._stories.set(model, new Map());
    const stories = this._stories.get(model);
    if (!stories.has(r)) stories.set(r, storyOf(model, r));
    return stories.get(r);
  }
}

/** Prompts and answers, as long as they are at the selected column. */
export class AnswersView {
  /** @param {HTMLElement} host @param {object} app */
  constructor(host, app) {
    this.host = host;
    this.app = app;
    this._rows = new Map(); // request -> the elements of its row
    host.classList.add("answers");
    this.list = tag("ul", "answers-list");
    this.rest = tag("p", "quiet");
    host.append(this.list, this.rest);
  }

  /** @param {import("./model.js").RunModel} model @param {number} i */
  show(model, i) {
    if (model !== this._model) {
      this._model = model;
      this._rows.clear();
      this._order = null;
      this.list.replaceChildren();
    }
    if (!model || !model.length) {
      this.rest.textContent = "This run has no iterations.";
      return;
    }
    const present = [];
    model.requests.forEach((_, r) => {
      const state = model.stateAt(i, r);
      if (state !== "absent") present.push([r, state]);
    });
    // Those that run first, then those that finished last.
    const rank = { running: 0, preprocessing: 0, ready: 1, suspended: 1, waiting: 2, finished: 3, refused: 4 };
    let shown = present;
    if (present.length > MOST_ANSWERS) {
      shown = [...present].sort((a, b) => rank[a[1]] - rank[b[1]] || b[0] - a[0]).slice(0, MOST_ANSWERS);
    }
    const wanted = shown.map(([r, state]) => this._row(model, i, r, state)).sort((a, b) => a.r - b.r);
    const order = wanted.map(({ r }) => r).join();
    if (order !== this._order) {
      this._order = order;
      const active = this.list.contains(document.activeElement) ? document.activeElement : null;
      this.list.replaceChildren(...wanted.map(({ item }) => item));
      if (active && active.isConnected) active.focus({ preventScroll: true });
    }
    const more = present.length - shown.length;
    this.rest.textContent = !present.length ? "No request has arrived yet." : more ? `and ${counted(more, "request")} more` : "";
  }

  /** The row of a request, made once, filled with what holds in column i. */
  _row(model, i, r, state) {
    let row = this._rows.get(r);
    const request = model.requests[r];
    if (!row) {
      const item = tag("li");
      const head = tag("p", "answer-head");
      const told = tag("span", "quiet");
      head.append(requestButton(this.app, model, r), told);
      item.append(head);
      if (typeof request.text === "string") {
        const text = request.text.length > MOST_PROMPT ? `${request.text.slice(0, MOST_PROMPT)}\u2026` : request.text;
        item.append(tag("p", "answer-prompt", text));
      }
      const answer = tag("p", "answer-text");
      const old = document.createTextNode("");
      const newest = tag("mark", "newest");
      answer.append(old, newest);
      item.append(answer);
      row = { r, item, told, answer, old, newest, key: "" };
      this._rows.set(r, row);
    }
    const count = model.tokensBy(i, r);
    const before = i > 0 ? model.tokensBy(i - 1, r) : 0;
    const chosen = this.app.request === r;
    const key = `${state} ${count} ${before} ${chosen}`;
    if (row.key === key) return row;
    row.key = key;
    row.item.classList.toggle("is-chosen", chosen);
    row.item.dataset.state = state;
    const most = request.maxNew ? ` of at most ${grouped(request.maxNew)}` : "";
    row.told.textContent = model.ofCells ? state : `${state}, ${grouped(count)}${most} tokens`;
    if (state === "refused") row.told.textContent = `refused: ${request.refused}`;
    const text = model.textAt(i, r);
    if (text === null) {
      row.old.data = "";
      row.newest.textContent = count > before ? `+${counted(count - before, "token")}` : "";
    } else {
      const had = i > 0 ? model.textAt(i - 1, r) : "";
      const cut = Math.max(0, had.length - KEPT_TEXT);
      row.old.data = (cut ? "\u2026" : "") + had.slice(cut);
      row.newest.textContent = text.slice(had.length);
    }
    return row;
  }
}
