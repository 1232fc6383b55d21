/** What the page opens with if its address does not say: two runs that differ, at a moment that shows something. */

import { actionsOf } from "./actions.js";
import { comparedIn, firstDifference } from "./difference.js";

const SAYING = ["run", "b", "i", "j", "request", "stops", "predict"]; // parts of an address that say what to open with

/** Whether an address leaves it to the page what to open with. @param {Record<string, string>} address */
export function leavesOpen(address) {
  return !SAYING.some((key) => key in address);
}

/** The first run that decides otherwise than the first one; null: there is none. */
export function firstToDiffer([main, ...others]) {
  return others.find((other) => firstDifference(main, other, comparedIn(main, other).moves)) ?? null;
}

/** The first column with an action of the technique or, without any, in which a request waits or computation is idle. */
export function firstMoment(model) {
  const acts = actionsOf(model).map(({ columns }) => columns[0]);
  if (acts.length) return Math.min(...acts);
  return Math.max(0, model.steps.findIndex((_, i) => model.queue[i] > 0 || model.idle[i] > 0));
}
