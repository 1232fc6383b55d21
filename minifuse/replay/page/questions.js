/**
 * What can be asked about a column of a run, and what is right.
 *
 * @typedef {"admitted"|"evicted"|"shuffled"|"running"} QuestionKind
 * @typedef {{value: string, text: string, right: boolean, why: string}} Choice
 * @typedef {{column: number, kind: QuestionKind, words: string, several: boolean, choices: Choice[], because: string[]}} Question
 */

import { formsOf } from "./memory_panels.js";
import { grouped } from "./words.js";

/** What may be asked, and how the list of stops is called. */
export const QUESTION_KINDS = {
  any: "any of these decisions",
  evicted: "a request is evicted",
  shuffled: "a window of slots is shuffled",
  admitted: "more wait than are admitted",
  running: "other requests run than before",
};

const MOST_OTHERS = 7; // wrong choices beside the right ones
const MOST_RUNNING = 16; // right ones among the choices of who will run
export const NO_REQUEST = "none"; // the value of that choice
const ROUNDED = 1e-9; // seconds to which the times of a record are exact

/** @param {import("./model.js").RunModel} model @param {number} i @param {number} r whether it waits to be admitted */
function waits(model, i, r) {
  const state = model.stateAt(i, r);
  return state === "waiting" || state === "suspended";
}

/** Who could be admitted in column i: those that wait before it, and those that have arrived when it is planned. */
function admissible(model, i) {
  const { a: admitted = [], e: evicted = [], t } = model.run.steps[i];
  const there = (r) => (model.requests[r].arrival ?? 0) <= t[0] + ROUNDED && !evicted.includes(r);
  return model.requests
    .map((_, r) => r)
    .filter((r) => admitted.includes(r) || waits(model, i - 1, r) || (waits(model, i, r) && there(r)));
}

/**
 * The columns before which there is something to ask.
 *
 * @param {import("./model.js").RunModel} model
 * @param {keyof typeof QUESTION_KINDS} kind
 * @returns {number[]} ascending; never the first column, before which there is nothing to see
 */
export function stopsOf(model, kind) {
  const found = [];
  model.run.steps.forEach((step, i) => {
    if (!i || step.wait) return;
    const told = kindsAt(model, i);
    if (kind === "any" ? told.length : told.includes(kind)) found.push(i);
  });
  return found;
}

/** What is decided in a column that can be asked, the most interesting first. */
function kindsAt(model, i) {
  const step = model.run.steps[i];
  const kinds = [];
  if (step.e?.length) kinds.push("evicted");
  if (step.sh?.kind === "Region" && step.m?.some(([kind]) => kind === "shuffle")) kinds.push("shuffled");
  const { a: admitted } = step;
  if (admitted?.length && model.queue[i - 1] + model.queue[i] > 0) {
    // With several workers, one that is admitted may have been seen to run in an earlier column.
    const unseen = admitted.every((r) => waits(model, i - 1, r) || model.stateAt(i - 1, r) === "absent");
    if (unseen && admissible(model, i).length > admitted.length) kinds.push("admitted");
  }
  // Anyone may run in a column: what is worth asking is where others run than before.
  if (step.w?.length && ranBefore(model, i) !== setKey(runningIn(model, i))) kinds.push("running");
  return kinds;
}

/** Who is computed for in a column, ascending. */
function runningIn(model, i) {
  return [...new Set((model.run.steps[i].w ?? []).map(([r]) => r))].sort((a, b) => a - b);
}

/** Who was computed for in the last column before of the same worker that computes, but for those that finished then. */
function ranBefore(model, i) {
  const { steps } = model.run;
  for (let before = i - 1; before >= 0; before--) {
    if (!steps[before].w?.length || (steps[before].k ?? 0) !== (steps[i].k ?? 0)) continue;
    const finished = new Set((steps[before].f ?? []).map(([r]) => r));
    return setKey(runningIn(model, before).filter((r) => !finished.has(r)));
  }
  return "";
}

function setKey(list) {
  return list.join();
}

/** Who will be computed for in a column: of those that run, are ready or wait before it, and those that arrive. */
function askRunning(model, i) {
  const { t } = model.run.steps[i];
  const runs = new Set(runningIn(model, i));
  const gone = new Set(["absent", "finished", "refused"]);
  const possible = model.requests.map((_, r) => r).filter((r) => {
    const there = !gone.has(model.stateAt(i - 1, r)) && !(i > 0 && model.run.steps[i - 1].f?.some(([one]) => one === r));
    const arrives = model.stateAt(i - 1, r) === "absent" && (model.requests[r].arrival ?? Infinity) <= t[0] + ROUNDED;
    return runs.has(r) || there || arrives;
  });
  const right = possible.filter((r) => runs.has(r)).slice(0, MOST_RUNNING);
  const shown = new Set([...right, ...possible.filter((r) => !runs.has(r)).slice(0, MOST_OTHERS)]);
  const words = { running: "runs", preprocessing: "its prompt is computed", ready: "its prompt is computed, and it waits to join", suspended: "evicted before", waiting: "waits", absent: "arrives now" };
  const choices = possible.filter((r) => shown.has(r)).map((r) => {
    const { id } = model.requests[r];
    const will = runs.has(r);
    const why = will ? "is computed for" : reasonFor(model, i, r) || "has no work in this iteration";
    return { value: String(r), text: `${id}: ${words[model.stateAt(i - 1, r)] ?? "waits"}`, right: will, why: `${id} ${why}` };
  });
  const more = runs.size - right.length;
  const because = more > 0 ? [`and ${grouped(more)} more, which were not among the choices`] : [];
  return { column: i, kind: "running", words: "Which requests will run in it?", several: true, choices, because };
}

/** The reason that a column tells of a request, or an earlier one if it still waits for that. */
function reasonFor(model, i, r) {
  const told = model.step(i).reasons.find((one) => one.request === r) ?? model.reasonAt(i, r);
  return told ? told.text : "";
}

/** Who will be admitted. */
function askAdmitted(model, i) {
  const step = model.step(i);
  const all = admissible(model, i);
  const right = all.filter((r) => step.admitted.includes(r));
  // Those that waited for longest are the likeliest.
  const others = all.filter((r) => !step.admitted.includes(r)).slice(0, MOST_OTHERS);
  const shown = new Set([...right.slice(0, MOST_OTHERS), ...others]);
  const choices = all.filter((r) => shown.has(r)).map((r) => {
    const { id, prompt, priority } = model.requests[r];
    const size = model.ofCells || !prompt ? "" : `, prompt of ${grouped(prompt)} tokens`;
    const rank = priority ? `, priority ${priority}` : "";
    const is = model.stateAt(i - 1, r);
    const since = is === "suspended" ? "evicted before" : is === "waiting" ? "waits" : "arrives now";
    const admitted = step.admitted.includes(r);
    const why = admitted ? "is admitted" : reasonFor(model, i, r) || "is not admitted; the trace gives no reason";
    return { value: String(r), text: `${id}: ${since}${size}${rank}`, right: admitted, why: `${id} ${why}` };
  });
  choices.push({ value: NO_REQUEST, text: "no request", right: !right.length, why: "" });
  const because = right.length ? [] : step.reasons.map((one) => `${model.requests[one.request].id} ${one.text}`);
  return { column: i, kind: "admitted", words: "Which requests will be admitted?", several: true, choices, because: because.slice(0, 4) };
}

/** Who will be evicted. */
function askEvicted(model, i) {
  const step = model.step(i);
  const running = model.requests.map((_, r) => r).filter((r) => {
    return step.evicted.includes(r) || (model.stateAt(i - 1, r) === "running" && model.stateAt(i, r) !== "finished");
  });
  const others = running.filter((r) => !step.evicted.includes(r));
  // The latest are the likeliest.
  const shown = new Set([...step.evicted, ...others.slice(-MOST_OTHERS)]);
  const choices = running.filter((r) => shown.has(r)).map((r) => {
    const { id, prompt } = model.requests[r];
    const has = (prompt ?? 0) + model.tokensBy(i - 1, r);
    const evicted = step.evicted.includes(r);
    const why = evicted ? reasonFor(model, i, r) || "is evicted; the trace gives no reason" : "runs on";
    return { value: String(r), text: `${id}: runs, ${grouped(has)} tokens so far`, right: evicted, why: `${id} ${why}` };
  });
  choices.push({ value: NO_REQUEST, text: "no request", right: !step.evicted.length, why: "" });
  return { column: i, kind: "evicted", words: "Which requests will be evicted?", several: true, choices, because: [] };
}

/** Which slots will the running requests be gathered in. */
function askShuffled(model, i) {
  const step = model.step(i);
  const { offset, size, width } = step.shape;
  const { owners } = formsOf(model);
  const running = new Set(step.work.map((one) => one.request));
  const [live, fixed] = [new Set(), new Set()];
  for (const { first, count, owners: own } of owners.before(i).device) {
    for (let buffer = Math.floor(first / width); buffer * width < first + count; buffer++) {
      (own.some((r) => running.has(r)) ? live : fixed).add(buffer);
    }
  }
  for (const r of step.admitted) if (running.has(r)) live.add(step.places[step.work.findIndex((one) => one.request === r)].offset / width);
  const [low, high] = [Math.min(offset, ...live), Math.max(offset + size - 1, ...live)];
  const windows = [];
  for (let start = low; start + size - 1 <= high; start++) {
    const inside = Array.from({ length: size }, (_, k) => start + k);
    if (start !== offset && inside.some((buffer) => fixed.has(buffer))) continue;
    const copies = [...live].filter((buffer) => buffer < start || buffer >= start + size).length;
    windows.push({ start, copies, right: start === offset });
  }
  const others = windows.filter((one) => !one.right).sort((a, b) => a.copies - b.copies).slice(0, MOST_OTHERS - 1);
  const choices = windows.filter((one) => one.right || others.includes(one)).map(({ start, copies, right }) => {
    const name = size === 1 ? `slot ${start}` : `slots ${start} to ${start + size - 1}`;
    return { value: String(start), text: name, right, why: `${name}: ${grouped(copies)} to copy` };
  });
  const moves = step.moves.filter((move) => move.kind === "shuffle").slice(0, 4).map((move) => {
    return `slot ${move.source / width} is copied to slot ${move.target / width}: ${grouped(move.count)} tokens`;
  });
  const least = Math.min(...windows.map((one) => one.copies));
  if (windows.some((one) => one.right && one.copies === least)) {
    moves.push("the window that takes the fewest copies is chosen; of those alike, the first");
  }
  const words = `A request has left a hole. In which ${size === 1 ? "slot" : `${grouped(size)} slots`} will those that run be gathered?`;
  return { column: i, kind: "shuffled", words, several: false, choices, because: moves };
}

/**
 * A question about a column, made from what is possible in it.
 *
 * @param {import("./model.js").RunModel} model @param {number} i
 * @param {keyof typeof QUESTION_KINDS} kind asked for, if there is such a decision
 * @returns {Question}
 */
export function questionAt(model, i, kind = "any") {
  const kinds = kindsAt(model, i);
  const chosen = kinds.includes(kind) ? kind : kinds[0] ?? "running";
  return { running: askRunning, admitted: askAdmitted, evicted: askEvicted, shuffled: askShuffled }[chosen](model, i);
}
