/**
 * What the columns of the page are called: an iteration by the number that the trace gives it, which Perfetto and
 * `minifuse trace` show as well; a wait, and moves alone, by what they are.
 */

import { seconds } from "./words.js";

/** @param {import("./model.js").RunModel} model @param {number} i @returns {number|null} null: it is no iteration */
export function iterationNumber(model, i) {
  const { w, n } = model.run.steps[i];
  return w ? n : null;
}

/**
 * @param {import("./model.js").RunModel} model @param {number} i
 * @returns {string} "iteration 12", "a wait", or "moves alone, step 13"
 */
export function columnName(model, i) {
  const { wait, w, n } = model.run.steps[i];
  return wait ? "a wait" : w ? `iteration ${n}` : `moves alone, step ${n}`;
}

/** When a column was, for what goes on since then: "iteration 12", or the time at which another column began. */
export function columnMoment(model, i) {
  return iterationNumber(model, i) === null ? seconds(model.starts[i]) : columnName(model, i);
}

/**
 * Columns [from, to] by the iterations at their two ends.
 *
 *     columnSpan(model, 3, 9)  // "4 to 9", where column 3 is a wait; "a wait" where all of them are
 *
 * @param {import("./model.js").RunModel} model @param {number} from @param {number} to @returns {string}
 */
export function columnSpan(model, from, to) {
  let [first, last] = [from, to];
  while (first < to && iterationNumber(model, first) === null) first++;
  while (last > first && iterationNumber(model, last) === null) last--;
  const number = iterationNumber(model, first);
  if (number === null) return columnName(model, from);
  if (last === first) return String(number);
  const other = iterationNumber(model, last); // of several workers the one that began first may end last
  return `${Math.min(number, other)} to ${Math.max(number, other)}`;
}
