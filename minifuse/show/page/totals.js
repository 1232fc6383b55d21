/** What a run did in all, as its card and the sentence above the cards tell it. */

import { oncePerModel } from "./model.js";

const WHOLE = ["stop", "length"]; // how a request ends that was answered

/**
 * @typedef {{lasted: number, iterations: number, apart: number, perIteration: number, computed: number,
 *            idleShare: number, waitShare: number, tokens: number, refused: number, unfinished: number}} Totals
 *     `lasted`: seconds from the first arrival to the last end; `iterations`: without the `apart` ones that only
 *     pre-process prompts; `perIteration`: the mean seconds of one; `waitShare`: the share of `lasted` in which the
 *     run waited for transfers
 */

/** When the first request of a run arrived; Infinity: none did. */
export function firstArrival({ requests }) {
  return requests.reduce((least, { arrival }) => Math.min(least, arrival ?? Infinity), Infinity);
}

/** @returns {Totals} of a run */
export const totalsOf = oncePerModel((model) => {
  const { length, steps, requests } = model;
  const sum = (values) => values.reduce((total, one) => total + one, 0);
  const begin = firstArrival(model);
  const lasted = length ? model.passed[length - 1] - (Number.isFinite(begin) ? begin : 0) : 0;
  const working = steps.filter(({ work }) => work.length);
  const iterations = working.filter(({ phase }) => phase !== "preprocessing");
  const computed = sum(model.computed);
  const refused = requests.filter((one) => one.refused).length;
  return {
    lasted,
    iterations: iterations.length,
    apart: working.length - iterations.length,
    perIteration: sum(iterations.map(({ start, end }) => end - start)) / Math.max(1, iterations.length),
    computed,
    idleShare: computed ? sum(model.idle) / computed : 0,
    waitShare: lasted > 0 ? Math.min(1, sum(steps.map(({ exposed }) => exposed)) / lasted) : 0,
    tokens: length ? model.totalTokens[length - 1] : 0,
    refused,
    unfinished: requests.length - refused - requests.filter(({ outcome }) => WHOLE.includes(outcome)).length,
  };
});
