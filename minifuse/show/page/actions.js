/** Counts what is particular to a run's technique: evictions, shuffles, waves and the like. */

import { counted } from "./words.js";

/**
 * @typedef {{kind: string, words: string, columns: number[], colour: string}} Action
 *     `columns`: those with this action, ascending; `colour`: its name in the palette
 */

const numMoves = ({ moves }, which) => moves.filter(({ kind }) => kind === which).length;
const hasMoves = (step, which) => Math.min(1, numMoves(step, which));

/**
 * Each kind of action: its colour, its count in a step, and the words for a total. If a technique is about this kind:
 * also the words for a run without any.
 */
const KINDS = [
  ["evicted", "warn", ({ evicted }) => evicted.length, (count) => counted(count, "eviction"), "nothing was evicted"],
  ["found", "prompt", ({ found }) => found, (count) => `KV found for ${counted(count, "prompt")}`, "no history was found"],
  ["shuffle", "apart", (step) => hasMoves(step, "shuffle"), (count) => counted(count, "shuffle"), "no shuffle was needed"],
  ["copy", "ready", (step) => numMoves(step, "copy"), (count) => `${counted(count, "block")} copied on write`],
  ["embed", "apart", (step) => hasMoves(step, "embed"), (count) => `prompts embedded ${counted(count, "time")}`],
  ["waves", "accent", ({ waves }) => Number(waves.length > 1), (count) => `${counted(count, "iteration")} in waves`],
];

/**
 * The actions of a run, in the order of `KINDS`, without kinds that never occur.
 *
 *     // two requests evicted in column 3, one in column 9
 *     actionsOf(model)  // [{kind: "evicted", words: "3 evictions", columns: [3, 9], colour: "warn"}]
 */
export function actionsOf(model) {
  // After an eviction, a request finds its own KV again: that does not count as history.
  const fresh = (i) => ([r]) => !(model.workColumns(r)[0] < i);
  const steps = model.steps.map((step, i) => ({ ...step, found: step.reused.filter(fresh(i)).length }));
  return KINDS.flatMap(([kind, colour, count, words]) => {
    const columns = steps.map((_, i) => i).filter((i) => count(steps[i]));
    const total = columns.reduce((sum, i) => sum + count(steps[i]), 0);
    return total ? [{ kind, words: words(total), columns, colour }] : [];
  });
}

/**
 * Says that what a technique is about never occurred; null: it did, or the trace ends early. Waves replace evictions.
 *
 * @param {Action[]} actions
 */
export function unusedIdea({ run }, actions) {
  if (run.notice || actions.some(({ kind }) => kind === run.idea || kind === "waves")) return null;
  return KINDS.find(([kind]) => kind === run.idea)?.[4] ?? null;
}
