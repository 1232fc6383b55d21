/**
 * Names of columns and workers. An iteration has its number in the trace, as in Perfetto and `minifuse trace`. Other
 * columns are "a wait" or "moves alone". A worker is called by its number, or by what it does.
 */

import { oncePerModel } from "./model.js";
import { seconds } from "./words.js";

/** @returns {number|null} null: the column is no iteration */
export function iterationNumber(model, i) {
  const { work, number } = model.steps[i];
  return work.length ? number : null;
}

/** @returns {string} "iteration 12", "a wait", or "moves alone, step 13" */
export function columnName(model, i) {
  const { isWait, work, number } = model.steps[i];
  return isWait ? "a wait" : work.length ? `iteration ${number}` : `moves alone, step ${number}`;
}

/** The words for "since this column": "iteration 12", or the time at which a wait or moves alone began. */
export function columnMoment(model, i) {
  return iterationNumber(model, i) === null ? seconds(model.starts[i]) : columnName(model, i);
}

/**
 * Names columns [from, to] by their first and last iteration.
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
  const other = iterationNumber(model, last); // with several workers, the one that began first may end last
  return `${Math.min(number, other)} to ${Math.max(number, other)}`;
}

/** How many tokens, or nodes, some work of a step computes. */
export function sizeOf(work) {
  return work.reduce((sum, [, start, stop]) => sum + stop - start, 0);
}

/** Workers that only pre-process prompts, in runs where other workers compute the rest. */
const workersApart = oncePerModel(({ run, steps }) => {
  const [apart, others] = [new Set(), new Set()];
  for (const { phase, worker, work } of steps) if (work.length) (phase === "preprocessing" ? apart : others).add(worker);
  const parted = run.workers > apart.size && apart.size > 0 && [...apart].every((k) => !others.has(k));
  return parted ? apart : new Set();
});

/**
 * The name of a worker; where prompts are computed apart, it says what the worker does.
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

/** A reason in which workers have their names: `not admitted: worker 0 runs b` -> `not admitted: the main stream runs b`. */
export function namedReason(model, text) {
  return text.replace(/\bworker (\d+)\b/g, (_, k) => workerName(model, Number(k)));
}

/** Why a column evicts a request. */
export function evictionWords(model, i, r) {
  const reason = model.reasonGiven(i, r);
  return `is evicted: ${reason ? shortReason(model, reason.text) : "the trace gives no reason"}`;
}

/** Like `namedReason`, without the words that the page has already: `the main stream runs b`. */
export function shortReason(model, text) {
  return namedReason(model, text.replace(/^(not admitted|evicted): /, ""));
}
