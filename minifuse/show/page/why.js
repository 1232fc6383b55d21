/** Why each request that waits does so. */

import { columnMoment, shortReason } from "./columns.js";
import { refill, requestButton, stepButton, tag } from "./elements.js";
import { counted, grouped } from "./words.js";

const MOST_NAMES = 12; // requests named of a group that waits for the same
const MOST_WAITING = 40; // reasons that are listed

/**
 * The requests that wait in a column, by reason.
 *
 * @returns {{code: string, text: string, told: number, requests: {request: number, state: string}[]}[]}
 *     `told`: the column since which the reason holds for all of them
 */
function waitingIn(model, i) {
  const groups = new Map();
  for (const request of model.presence.underWay(i)) {
    const state = model.stateAt(i, request);
    if (state !== "waiting" && state !== "suspended" && state !== "ready") continue;
    const { code, text, at } = model.reasonAt(i, request) ?? { code: "no-reason", text: "no reason was given", at: i };
    const key = `${code} ${text}`;
    if (!groups.has(key)) groups.set(key, { code, text, told: at, requests: [] });
    const group = groups.get(key);
    group.told = Math.max(group.told, at);
    group.requests.push({ request, state });
  }
  return [...groups.values()];
}

/** Lists the requests that wait, by reason, and those that are evicted. */
export class WhyView {
  constructor(host, app) {
    this.host = host;
    this.app = app;
    host.classList.add("why");
  }

  show(model, i) {
    const { host, app } = this;
    const groups = waitingIn(model, i);
    const step = model.step(i);
    const quiet = !groups.length && !step.evicted.length;
    if (quiet && this._quiet) return;
    this._quiet = quiet;
    const children = [];
    for (const r of step.evicted) {
      const reason = step.reasons.find((one) => one.request === r);
      const line = tag("p", "why-evicted");
      line.append(requestButton(app, model, r), document.createTextNode(` is evicted: ${reason ? shortReason(model, reason.text) : "the trace gives no reason"}`));
      children.push(line);
    }
    if (!groups.length) children.push(tag("p", "quiet", "No request waits."));
    const list = tag("ul", "why-list");
    for (const group of groups.slice(0, MOST_WAITING)) {
      const item = tag("li");
      const reason = tag("p", "why-reason", shortReason(model, group.text));
      reason.append(" ", tag("code", "", group.code));
      if (group.told < i) reason.append(" ", tag("span", "quiet", "since"), " ", stepButton(app, model, group.told));
      const names = tag("p", "why-names");
      for (const { request, state } of group.requests.slice(0, MOST_NAMES)) {
        const one = tag("span", "why-one");
        const waits = state === "waiting" ? "waits" : state === "suspended" ? "evicted" : "prompt computed";
        one.append(requestButton(app, model, request), tag("span", "quiet", `${waits} since ${columnMoment(model, model.stateSince(i, request))}`));
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
