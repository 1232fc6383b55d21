/** Why requests wait. */

import { columnMoment, evictionWords, shortReason } from "./columns.js";
import { refill, requestButton, stepButton, tag } from "./elements.js";
import { counted, grouped } from "./words.js";

const MOST_NAMES = 12; // requests that are named for each reason
const MOST_WAITING = 40; // reasons that are listed
const WAITS_AS = { waiting: "waits", suspended: "evicted", ready: "prompt computed" };

/**
 * The requests that wait in a column, by reason.
 *
 * @returns {{code: string, text: string, since: number, requests: {request: number, state: string}[]}[]}
 *     `since`: the column since which the reason holds for all of them
 */
function waitingIn(model, i) {
  const groups = new Map();
  for (const request of model.presence.underWay(i)) {
    const state = model.stateAt(i, request);
    if (!(state in WAITS_AS)) continue;
    const { code, text, at } = model.reasonAt(i, request) ?? { code: "no-reason", text: "no reason was given", at: i };
    const key = `${code} ${text}`;
    if (!groups.has(key)) groups.set(key, { code, text, since: at, requests: [] });
    const group = groups.get(key);
    group.since = Math.max(group.since, at);
    group.requests.push({ request, state });
  }
  return [...groups.values()];
}

/** Lists the requests that wait, by reason, and those that are evicted. */
export class WhyView {
  constructor(host, app) {
    this.host = host;
    this.app = app;
  }

  show(model, i) {
    const groups = waitingIn(model, i);
    const { evicted } = model.steps[i];
    const quiet = !groups.length && !evicted.length;
    if (quiet && this._quiet) return;
    this._quiet = quiet;
    const lines = evicted.map((r) => tag("p", "why-evicted", requestButton(this.app, model, r), ` ${evictionWords(model, i, r)}`));
    const items = groups.slice(0, MOST_WAITING).map((group) => this._item(model, i, group));
    const more = groups.length - MOST_WAITING;
    if (more > 0) items.push(tag("li", "quiet", `and ${counted(more, "more reason")}`));
    const list = items.length ? tag("ul", "why-list", ...items) : tag("p", "quiet", "No request waits.");
    refill(this.host, [...lines, list]);
  }

  /** The requests that wait for one reason. */
  _item(model, i, { code, text, since, requests }) {
    const earlier = since < i ? [" ", tag("span", "quiet", "since"), " ", stepButton(this.app, model, since)] : [];
    const names = requests.slice(0, MOST_NAMES).map(({ request, state }) => {
      const when = `${WAITS_AS[state]} since ${columnMoment(model, model.stateSince(i, request))}`;
      return tag("span", "why-one", requestButton(this.app, model, request), tag("span", "quiet", when));
    });
    const more = requests.length - MOST_NAMES;
    if (more > 0) names.push(tag("span", "quiet", `and ${grouped(more)} more`));
    const reason = tag("p", "why-reason", shortReason(model, text), " ", tag("code", "", code), ...earlier);
    return tag("li", "", reason, tag("p", "why-names", ...names));
  }
}
