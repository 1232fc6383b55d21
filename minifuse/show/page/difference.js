/** What two runs of one workload decide, iteration by iteration, and the first decision that differs. */

import { sizeOf } from "./columns.js";
import { moveSums } from "./moves.js";
import { someOf } from "./now.js";
import { counted } from "./words.js";

/** What is compared of two runs. Moves and waves count only if the stages are the same: else they differ by design. */
export function comparedIn(a, b) {
  const [mine, theirs] = [a, b].map(({ run }) => Object.entries(run.stages ?? {}).join());
  const moves = mine !== "" && mine === theirs;
  return { moves, words: moves ? `admit, evict, compute, move ${a.ofCells ? "states" : "KV"} and form waves alike` : "admit, evict and compute alike" };
}

/** The columns that are compared: not waits; moves alone only where moves are compared. */
function decidingColumns(model, moves) {
  const found = [];
  const { steps } = model;
  steps.forEach((step, i) => (step.work.length || (moves && step.moves.length)) && found.push(i));
  return found.sort((i, j) => steps[i].number - steps[j].number);
}

/** What a column decided for requests, as a key: whom it admits and evicts, and what it computes. */
function chosen(model, i) {
  const { admitted, evicted, work, phase } = model.steps[i];
  const sorted = (list) => list.toSorted((x, y) => x - y);
  return JSON.stringify([sorted(admitted), sorted(evicted), work.map((one) => one.slice(0, 3).join()).sort(), phase]);
}

/** What a column decided for memory, as a key: moves in their order, and waves. */
function carried(model, i) {
  const { moves, waves } = model.steps[i];
  return JSON.stringify([moves.map(({ owners, ...move }) => move), waves]);
}

/**
 * The first plans of two runs that admit, evict or compute differently, or move or form waves differently.
 *
 * @param {boolean} moves whether moves and waves are compared
 * @returns {{a: number, b: number, ended?: import("./model.js").RunModel}|null} null: no plans differ;
 *     `ended`: the run that has ended there
 */
export function firstDifference(a, b, moves) {
  const [mine, theirs] = [decidingColumns(a, moves), decidingColumns(b, moves)];
  for (let k = 0; k < Math.max(mine.length, theirs.length); k++) {
    const [i, j] = [mine[k], theirs[k]];
    if (i === undefined) return { a: a.length - 1, b: j, ended: a };
    if (j === undefined) return { a: i, b: b.length - 1, ended: b };
    if (chosen(a, i) !== chosen(b, j) || (moves && carried(a, i) !== carried(b, j))) return { a: i, b: j };
  }
  return null;
}

/** What a column decided for requests, in words. */
function chosenWords(model, i) {
  const { admitted, evicted, work, phase } = model.steps[i];
  const own = someOf(model, work.map(([r]) => r), 4);
  const parts = [own ? `computes ${counted(sizeOf(work), model.nouns.computed)} for ${own}` : "computes nothing"];
  if (phase === "preprocessing") parts.push("apart from the batch");
  if (admitted.length) parts.push(`admits ${someOf(model, admitted, 4)}`);
  if (evicted.length) parts.push(`evicts ${someOf(model, evicted, 4)}`);
  return parts.join(", ");
}

/**
 * What the first plans that differ decided, in words: moves and waves only if nothing else differs.
 *
 * @param {boolean} moves whether moves and waves are compared
 * @returns {string[]} of each run
 */
export function decidedIn(a, i, b, j, moves) {
  if (!moves || chosen(a, i) !== chosen(b, j)) return [chosenWords(a, i), chosenWords(b, j)];
  const steps = [a.steps[i], b.steps[j]];
  const [mine, theirs] = steps.map((step) => step.moves.map((one) => moveWords(a, one)));
  const k = mine.findIndex((words, at) => words !== theirs[at]);
  const sums = steps.map((step) => sumWords(a, step.moves));
  const waves = steps.map((step) => waveWords(step.waves));
  const parts = [];
  if (sums[0] !== sums[1]) parts.push(sums);
  else if (k >= 0) parts.push([mine[k], theirs[k]]);
  if (waves[0] !== waves[1]) parts.push(waves);
  return [0, 1].map((side) => parts.map((one) => one[side]).join(", "));
}

/** "moves 12 tokens (swap out) and 3 tokens (copy)" */
function sumWords(model, moves) {
  const sums = [...moveSums(moves)].sort();
  const parts = sums.map(([kind, { tokens }]) => `${counted(tokens, model.nouns.moved)} (${kind.replace("_", " ")})`);
  return parts.length ? `moves ${parts.join(" and ")}` : "moves nothing";
}

/** "moves 4 tokens (upload) from slot 16 of the host to slot 0 of the device, before wave 2" */
function moveWords(model, { kind, source, target, count, fromTier, toTier, moment, wave }) {
  const when = moment === "before" || moment === "after" ? `${moment} wave ${wave}` : moment; // as the trace has them
  return `moves ${counted(count, model.nouns.moved)} (${kind.replace("_", " ")}) from slot ${source} of the ${fromTier} to slot ${target} of the ${toTier}, ${when}`;
}

/** "attends in 2 waves, of 3 and 2 rows" */
function waveWords(waves) {
  return waves.length > 1 ? `attends in ${waves.length} waves, of ${waves.map(([from, to]) => to - from).join(" and ")} rows` : "attends in one wave";
}
