/** Prompts, and the answers as they grow. */

import { renamed, requestButton, setText, tag } from "./elements.js";
import { counted, grouped } from "./words.js";

const MOST_ANSWERS = 60;
const KEPT_TEXT = 1200; // characters that are shown of an answer: its last ones
const MOST_PROMPT = 400;
const MOST_SEEN = 12; // rows that are filled at once, from the first visible one on
const REST_AFTER = 120; // milliseconds until the other rows are filled, if the reader stays at the column
/** Running requests come first, then waiting ones, then the last that finished. */
const RANK = { running: 0, preprocessing: 0, ready: 1, suspended: 1, waiting: 2 };

/** Prompts and answers, up to the selected column. */
export class AnswersView {
  constructor(host, app) {
    this.app = app;
    this._rows = []; // on the page; they are filled anew for other requests, which costs less than new rows
    this.list = tag("ul", "answers-list");
    this.rest = tag("p", "quiet");
    this._first = 0; // the first visible row
    host.append(this.list, this.rest);
    host.addEventListener("scroll", () => {
      this._first = Math.max(0, this._rows.findIndex(({ item }) => item.offsetTop + item.offsetHeight > host.scrollTop + host.offsetTop));
    });
  }

  show(model, i) {
    const { presence } = model;
    const ranked = presence.underWay(i).map((r) => [r, model.stateAt(i, r)]);
    const count = ranked.length + presence.numEnded(i);
    ranked.sort((a, b) => RANK[a[1]] - RANK[b[1]] || b[0] - a[0]);
    ranked.push(...presence.lastEnded(i, Math.max(0, MOST_ANSWERS - ranked.length)).map((r) => [r, model.stateAt(i, r)]));
    const shown = ranked.slice(0, MOST_ANSWERS).sort((a, b) => a[0] - b[0]);
    const focused = this.list.contains(document.activeElement) ? Number(document.activeElement.dataset.request) : null;
    while (this._rows.length > shown.length) this._rows.pop().item.remove();
    while (this._rows.length < shown.length) this._rows.push(this._row(model, shown[this._rows.length][0]));
    const fill = (start, stop) => shown.slice(start, stop).forEach(([r, state], k) => this._fill(this._rows[start + k], model, i, r, state));
    clearTimeout(this._filling);
    // The scroll event of a list that has become shorter comes only later.
    this._first = Math.max(0, Math.min(this._first, shown.length - MOST_SEEN));
    if (focused !== null || shown.length <= MOST_SEEN) fill(0, shown.length);
    else {
      fill(this._first, this._first + MOST_SEEN);
      this._filling = setTimeout(() => fill(0, shown.length), REST_AFTER);
    }
    // The focus stays on the request that had it.
    if (focused !== null) this._rows.find(({ r }) => r === focused)?.button.focus({ preventScroll: true });
    const more = count - shown.length;
    const rest = !count ? "No request has arrived yet." : more ? `and ${counted(more, "request")} more` : "";
    setText(this.rest, rest);
  }

  /** A row at the end of the list, still empty. */
  _row(model, r) {
    const [button, progress, prompt] = [requestButton(this.app, model, r), tag("span", "quiet"), tag("p", "answer-prompt")];
    const [old, newest] = [document.createTextNode(""), tag("mark", "newest")];
    const item = tag("li", "", tag("p", "answer-head", button, progress), prompt, tag("p", "answer-text", old, newest));
    this.list.append(item);
    return { item, button, progress, prompt, old, newest };
  }

  /** Fills a row with a request's answer and state in column i. */
  _fill(row, model, i, r, state) {
    const request = model.requests[r];
    if (row.r !== r || row.model !== model) {
      [row.r, row.model, row.key] = [r, model, ""];
      renamed(row.button, this.app, model, r);
      const text = request.text ?? "";
      row.prompt.textContent = text.length > MOST_PROMPT ? `${text.slice(0, MOST_PROMPT)}\u2026` : text;
    }
    const count = model.tokensBy(i, r);
    const before = i > 0 ? model.tokensBy(i - 1, r) : 0;
    const chosen = this.app.request === r;
    const key = `${state} ${count} ${before} ${chosen}`;
    if (row.key === key) return;
    row.key = key;
    row.item.classList.toggle("is-chosen", chosen);
    const most = request.maxNew ? ` of at most ${grouped(request.maxNew)}` : "";
    const words = model.ofCells ? state : `${state}, ${grouped(count)}${most} tokens`;
    row.progress.textContent = state === "refused" ? `refused: ${request.refused}` : words;
    const text = model.textAt(i, r);
    if (text === null) {
      row.old.data = "";
      row.newest.textContent = count > before ? `+${counted(count - before, "token")}` : "";
      return;
    }
    const had = i > 0 ? model.textAt(i - 1, r) : "";
    const cut = Math.max(0, had.length - KEPT_TEXT);
    row.old.data = (cut ? "\u2026" : "") + had.slice(cut);
    row.newest.textContent = text.slice(had.length);
  }
}
