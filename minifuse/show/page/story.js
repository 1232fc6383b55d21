/** The story of the selected request, on the page. */

import { columnSpan } from "./columns.js";
import { refill, requestButton, stepButton, tag } from "./elements.js";
import { mergedWaits, storyOf } from "./request_story.js";
import { counted } from "./words.js";

/** The story of the selected request. Each of its entries selects its iteration. */
export class StoryView {
  constructor(host, app) {
    this.host = host;
    this.app = app;
  }

  show(model, i) {
    const { host, app } = this;
    const r = app.request;
    const most = app.limitOf(model); // what may be shown while a question is open
    const subject = [model, r, most];
    if (!this._subject || subject.some((one, k) => one !== this._subject[k])) {
      this._subject = subject;
      if (r === null) refill(host, [tag("p", "quiet", "Select a request to read its story: click its lane, its slots or its name.")]);
      else this._write(model, r, most);
    }
    if (r !== null) this._mark(model, i, r);
  }

  /** Puts a story on the page. */
  _write(model, r, most) {
    this._state = document.createTextNode("");
    const entries = mergedWaits(storyOf(model, r, Math.min(most, model.length)), model);
    this._items = entries.map(({ at, to, since = at, kind, text, parts }) => {
      const folded = parts ? [this._folded(model, parts, most)] : [];
      const words = tag("div", "story-told", tag("span", "story-text", text), ...folded);
      return [since, tag("li", `story-${kind}`, this._when(model, at, to, most, text), words)];
    });
    const title = tag("p", "story-title", requestButton(this.app, model, r), this._state);
    refill(this.host, [title, tag("ol", "story-list", ...this._items.map(([, item]) => item))]);
  }

  /** Marks entries that have happened by column i, and the latest of them. */
  _mark(model, i, r) {
    this._state.data = ` ${model.stateAt(i, r)}`;
    let now = null;
    for (const [since, item] of this._items) {
      const here = since <= i;
      item.classList.toggle("is-later", !here);
      item.classList.remove("is-now");
      item.removeAttribute("aria-current");
      if (here) now = item;
    }
    now?.classList.add("is-now");
    now?.setAttribute("aria-current", "step");
  }

  /** The button that goes to where an entry begins, and says where it ends. */
  _when(model, at, to, most, text) {
    const first = Math.min(at, model.length - 1);
    const end = columnSpan(model, first, Math.max(first, Math.min(to ?? at, most, model.length - 1)));
    const button = stepButton(this.app, model, first, end);
    button.setAttribute("aria-label", `${text}, ${/^[0-9]/.test(end) ? "iteration " : ""}${end}`);
    return button;
  }

  /** The single waits of a merged entry, folded up. */
  _folded(model, parts, most) {
    const lines = parts.map(({ at, to, text }) => tag("div", "story-part", this._when(model, at, to, most, text), tag("span", "", text)));
    return tag("details", "story-parts", tag("summary", "quiet", counted(parts.length, "reason")), ...lines);
  }
}
