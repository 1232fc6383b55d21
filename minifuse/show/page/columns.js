/**
 * What columns and workers are called. An iteration by the number that the trace gives it, which Perfetto and
 * `minifuse trace` show as well; a wait, and moves alone, by what they are; a worker by its number, or by what it does.
 */

import { seconds } from "./words.js";

/** @returns {number|null} null: it is no iteration */
export function iterationNumber(model, i) {
  const { w, n } = model.run.steps[i];
  return w ? n : null;
}

/** @returns {string} "iteration 12", "a wait", or "moves alone, step 13" */
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

/** Workers that compute prompts and nothing else, in runs in which another one computes the rest. */
function workersApart(model) {
  if (!apartOf.has(model)) {
    const [apart, others] = [new Set(), new Set()];
    for (const { ph: phase, k = 0, w } of model.run.steps) if (w) (phase === "preprocessing" ? apart : others).add(k);
    const parted = model.run.workers > apart.size && apart.size > 0 && [...apart].every((k) => !others.has(k));
    apartOf.set(model, parted ? apart : new Set());
  }
  return apartOf.get(model);
}
const apartOf = new WeakMap(); // model -> these workers

/**
 * A worker, called by what it does where prompts are computed apart.
 *
 * @returns {string} "worker 2", "the main stream", "the pre-processing stream", or of several "pre-processing stream 2"
 */
export function workerName(model, k) {
  const apart = workersApart(model);
  if (apart.has(k)) return apart.size > 1 ? `pre-processing stream ${k}` : "the pre-processing stream";
  return apart.size && model.run.workers === apart.size + 1 ? "the main stream" : `worker ${k}`;
}

/** " on worker 2"; nothing in a run of one worker */
export function onWorker(model, k) {
  return model.run.workers > 1 ? ` on ${workerName(model, k)}` : "";
}

/** A reason with its worker by name: `not admitted: worker 0 runs b` -> `not admitted: the main stream runs b`. */
export function namedReason(model, text) {
  return text.replace(/\bworker (\d+)\b/g, (_, k) => workerName(model, Number(k)));
}

/** The same without what the line says already: `the main stream runs b`. */
export function shortReason(model, text) {
  return namedReason(model, text.replace(/^(not admitted|evicted): /, ""));
}
