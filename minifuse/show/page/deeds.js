/** What the technique of a run did that others do not: evictions, shuffles, waves and the like, in a few words. */

import { counted } from "./words.js";

/**
 * @typedef {{kind: string, words: string, columns: number[], colour: string}} Deed
 *     `columns`: those in which it was done, ascending; `colour`: by its name in the palette
 */

const numMoves = ({ moves }, which) => moves.filter(({ kind }) => kind === which).length;
const hasMoves = (step, which) => Math.min(1, numMoves(step, which));

/**
 * What is looked for: its kind, its colour, how often it was done in a column, the words for how often in all, and those
 * for never where that is the idea of the technique.
 */
const KINDS = [
  ["evicted", "warn", ({ evicted }) => evicted.length, (count) => counted(count, "eviction"), "nothing was evicted"],
  ["found", "prompt", ({ found }) => found, (count) => `KV found for ${counted(count, "prompt")}`, "no history was found"],
  ["shuffle", "apart", (step) => hasMoves(step, "shuffle"), (count) => counted(count, "shuffle"), "no shuffle was needed"],
  ["copy", "ready", (step) => numMoves(step, "copy"), (count) => `${counted(count, "block")} copied on write`],
  ["embed", "apart", (step) => hasMoves(step, "embed"), (count) => `prompts embedded ${counted(count, "time")}`],
  ["waves", "accent", ({ waves }) => Number(waves.length > 1), (count) => `${counted(count, "iteration")} in waves`, "all KV fits the device"],
];

/**
 * What was done in a run, in the order of `KINDS`; what was not is left out.
 *
 *     // two requests evicted in column 3, one in column 9
 *     deedsOf(model)  // [{kind: "evicted", words: "3 evictions", columns: [3, 9], colour: "warn"}]
 */
export function deedsOf(model) {
  // What comes back after an eviction finds only what it had itself.
  const fresh = (i) => ([r]) => !(model.workColumns(r)[0] < i);
  const steps = model.steps.map((step, i) => ({ ...step, found: step.reused.filter(fresh(i)).length }));
  return KINDS.flatMap(([kind, colour, count, words]) => {
    const columns = steps.map((_, i) => i).filter((i) => count(steps[i]));
    const total = columns.reduce((sum, i) => sum + count(steps[i]), 0);
    return total ? [{ kind, words: words(total), columns, colour }] : [];
  });
}

/** That the idea of a technique had nothing to do in a run, in a few words; null: it had, or that cannot be known. @param {Deed[]} deeds */
export function idleIdea({ run }, deeds) {
  if (run.notice || deeds.some(({ kind }) => kind === run.idea)) return null;
  return KINDS.find(([kind]) => kind === run.idea)?.[4] ?? null;
}
