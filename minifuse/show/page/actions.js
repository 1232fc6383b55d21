/** What is particular to a run's technique, counted: evictions, shuffles, waves and the like. */

import { counted } from "./words.js";

/**
 * @typedef {{kind: string, words: string, columns: number[], colour: string}} Action
 *     `columns` in which it was done, ascending; `colour`: a name of the palette
 */

const numMoves = ({ moves }, which) => moves.filter(({ kind }) => kind === which).length;
const hasMoves = (step, which) => Math.min(1, numMoves(step, which));

/**
 * Each kind of action: its colour, its count in a step, the words for a total, and the words for none at all in a run
 * whose technique is about this kind.
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
 * The actions of a run, in the order of `KINDS`, without kinds that it never did.
 *
 *     // two requests evicted in column 3, one in column 9
 *     actionsOf(model)  // [{kind: "evicted", words: "3 evictions", columns: [3, 9], colour: "warn"}]
 */
export function actionsOf(model) {
  // A request that was evicted finds its own KV again, which is no history.
  const fresh = (i) => ([r]) => !(model.workColumns(r)[0] < i);
  const steps = model.steps.map((step, i) => ({ ...step, found: step.reused.filter(fresh(i)).length }));
  return KINDS.flatMap(([kind, colour, count, words]) => {
    const columns = steps.map((_, i) => i).filter((i) => count(steps[i]));
    const total = columns.reduce((sum, i) => sum + count(steps[i]), 0);
    return total ? [{ kind, words: words(total), columns, colour }] : [];
  });
}

/** Says that a run never did what its technique is about; null: it did, or its trace was cut off. @param {Action[]} actions */
export function unusedIdea({ run }, actions) {
  if (run.notice || actions.some(({ kind }) => kind === run.idea)) return null;
  return KINDS.find(([kind]) => kind === run.idea)?.[4] ?? null;
}
