/**
 * What can be asked about a column of a run, and what is right.
 *
 * @typedef {"admitted"|"evicted"|"shuffled"|"running"} QuestionKind
 * @typedef {{value: string, name: string, text: string, right: boolean, why: string}} Choice
 * @typedef {{column: number, before: number}} Stop
 *     `before`: the first column that shows what `column` decides; the question is asked before it
 * @typedef {Stop & {kind: QuestionKind, words: string, several: boolean, choices: Choice[], because: string[]}} Question
 */

import { namedReason } from "./columns.js";
import { counted, grouped } from "./words.js";

/** What may be asked, in the words of the page's list. */
export const QUESTION_KINDS = {
  any: "any of these decisions",
  evicted: "a request is evicted",
  shuffled: "a window of slots is shuffled",
  admitted: "more wait than are admitted",
  running: "other requests run than before",
};

const MOST_RIGHT = 16; // choices that are right
const LEAST_WRONG = 7; // choices that are wrong, if there are as many

/**
 * Each kind of question: whether it can be asked about a column, and how. The most interesting kind comes first.
 *
 * @type {Record<QuestionKind, {isAsked: function, ask: function}>}
 */
const ASKED_KINDS = {
  evicted: { isAsked: (decisions, i) => leavesChoice(decisions.model.steps[i].evicted, () => decisions.evictable(i)), ask: askEvicted },
  shuffled: { isAsked: isShuffling, ask: askShuffled },
  admitted: { isAsked: (decisions, i) => leavesChoice(decisions.model.steps[i].admitted, () => decisions.admissible(i)), ask: askAdmitted },
  running: { isAsked: (decisions, i) => !isAlike(decisions, i) && mayAskRunning(decisions, i), ask: askRunning },
};

/** Whether some of the possible requests are chosen, and others are not. */
function leavesChoice(chosen, possible) {
  const right = new Set(chosen);
  return right.size > 0 && new Set(possible().map((r) => right.has(r))).size > 1;
}

/** Whether a column computes for the same requests as the last iteration before it. */
function isAlike(decisions, i) {
  const [runs, ran] = [decisions.runningIn(i), decisions.ranBefore(i)];
  return runs.size === ran.size && [...runs].every((r) => ran.has(r));
}

function mayAskRunning(decisions, i) {
  return leavesChoice(decisions.runningIn(i), () => decisions.mayRun(i));
}

/**
 * Whether a column gathers slots: then other windows were possible, as one slot was free. Nothing is asked if the
 * column admits a request, too: the trace does not have this request's slot before the shuffle.
 */
function isShuffling(decisions, i) {
  return decisions.model.steps[i].windows !== null;
}

/** The kinds of decision that a column makes and that leave a choice, the most interesting first. */
function kindsAt(decisions, i) {
  return Object.keys(ASKED_KINDS).filter((kind) => ASKED_KINDS[kind].isAsked(decisions, i));
}

/**
 * The stops at which there is something to ask.
 *
 * @returns {Stop[]} in the order in which the reader reaches them; none before the first column, where nothing is seen
 */
export function stopsOf(decisions, kind) {
  const kinds = kind === "any" ? Object.keys(ASKED_KINDS) : [kind];
  const asks = (i) => kinds.some((one) => ASKED_KINDS[one].isAsked(decisions, i));
  return stopsAt(decisions, [...decisions.model.steps.keys()], asks);
}

/**
 * The stops of given columns.
 *
 * @param {(i: number) => boolean} asks whether there is something to ask about a column
 * @returns {Stop[]} in the order in which the reader reaches them; columns that cannot be asked about are left out
 */
export function stopsAt(decisions, columns, asks = (i) => Boolean(kindOf(decisions, i))) {
  const { before, model } = decisions;
  const found = columns.filter((column) => before[column] > 0 && !model.steps[column].isWait && asks(column));
  const number = (column) => model.steps[column].number;
  found.sort((one, other) => before[one] - before[other] || number(one) - number(other));
  return found.map((column) => ({ column, before: before[column] }));
}

/** The kind of question about a column: the wanted one if possible; undefined: there is nothing to ask. */
function kindOf(decisions, i, wanted = "any") {
  const kinds = kindsAt(decisions, i);
  if (kinds.includes(wanted)) return wanted;
  return kinds[0] ?? (mayAskRunning(decisions, i) ? "running" : undefined);
}

/**
 * A question about a column, made from what was possible in it.
 *
 * @param {number} i a column that leaves a choice, as those of stops do
 * @param {keyof typeof QUESTION_KINDS} wanted the kind to ask, if the column has such a decision
 */
export function questionAt(decisions, i, wanted = "any") {
  const kind = kindOf(decisions, i, wanted);
  return { kind, column: i, before: decisions.before[i], ...ASKED_KINDS[kind].ask(decisions, i) };
}

/**
 * Choices among requests: those that are right, and the likeliest of the others.
 *
 * @param {number[]} possible
 * @param {Set<number>} right
 * @param {(r: number) => {text: string, why: string}} wordsOf
 * @param {"first"|"last"} likeliest which of the wrong ones are likeliest
 */
function requestChoices(model, possible, right, wordsOf, likeliest = "first") {
  const [good, bad] = [possible.filter((r) => right.has(r)), possible.filter((r) => !right.has(r))];
  // Equally many choices, however many are right: so their number gives nothing away.
  const most = Math.max(LEAST_WRONG, MOST_RIGHT - good.length);
  const shown = new Set([...good.slice(0, MOST_RIGHT), ...(likeliest === "last" ? bad.slice(-most) : bad.slice(0, most))]);
  const choices = possible.filter((r) => shown.has(r)).map((r) => {
    const { id } = model.requests[r];
    const { text, why } = wordsOf(r);
    return { value: String(r), name: id, text: `${id}: ${text}`, right: right.has(r), why: `${id} ${why}` };
  });
  const more = good.length - MOST_RIGHT;
  return { several: true, choices, because: more > 0 ? [`and ${counted(more, "more request")} that could not be chosen here`] : [] };
}

const IS = {
  running: "runs",
  preprocessing: "its prompt is computed",
  ready: "its prompt is computed, and it waits to join",
  suspended: "evicted before",
  waiting: "waits",
  arriving: "arrives now",
};

function askRunning(decisions, i) {
  const { model } = decisions;
  const runs = decisions.runningIn(i);
  return {
    words: "Which requests will run in it?",
    ...requestChoices(model, decisions.mayRun(i), runs, (r) => ({
      text: IS[decisions.stateBefore(i, r)] ?? "waits",
      why: runs.has(r) ? "is computed for" : reasonFor(model, i, r) || "has no work in this iteration",
    })),
  };
}

function askAdmitted(decisions, i) {
  const { model } = decisions;
  const admitted = new Set(model.steps[i].admitted);
  return {
    words: "Which requests will be admitted?",
    ...requestChoices(model, decisions.admissible(i), admitted, (r) => {
      const { prompt, priority } = model.requests[r];
      const size = model.ofCells || !prompt ? "" : `, prompt of ${counted(prompt, "token")}`;
      const rank = priority ? `, priority ${priority}` : "";
      return {
        text: `${IS[decisions.stateBefore(i, r)] ?? "waits"}${size}${rank}`,
        why: admitted.has(r) ? "is admitted" : reasonFor(model, i, r) || "is not admitted; the trace gives no reason",
      };
    }),
  };
}

function askEvicted(decisions, i) {
  const { model } = decisions;
  const evicted = new Set(model.steps[i].evicted);
  const wordsOf = (r) => ({
    text: `runs, ${counted((model.requests[r].prompt ?? 0) + model.tokensBy(decisions.before[i] - 1, r), "token")} so far`,
    why: evicted.has(r) ? reasonFor(model, i, r) || "is evicted; the trace gives no reason" : "runs on",
  });
  return { words: "Which requests will be evicted?", ...requestChoices(model, decisions.evictable(i), evicted, wordsOf, "last") };
}

/** The reason that a column gives for a request, or an earlier one for which it still waits. */
function reasonFor(model, i, r) {
  const reason = model.reasonGiven(i, r) ?? model.reasonAt(i, r);
  return reason ? namedReason(model, reason.text) : "";
}

function askShuffled(decisions, i) {
  const { shape, windows, moves } = decisions.model.steps[i];
  const { offset, size, width } = shape;
  const choices = windows.map(([first, last, copies]) => {
    const name = first === last ? `slot ${first}` : `slots ${first} to ${last}`;
    return { value: String(first), name, text: name, right: first === offset && last === offset + size - 1, why: `${name}: ${grouped(copies)} to copy` };
  });
  const copied = moves.filter((move) => move.kind === "shuffle").slice(0, 4).map((move) => {
    return `slot ${move.source / width} is copied to slot ${move.target / width}: ${counted(move.count, "token")}`;
  });
  const because = [...copied, "the window that takes the fewest copies is chosen; of those alike, the first"];
  const live = counted(decisions.runningIn(i).size, "running request");
  return { words: `A request has left a hole. In which window will the slots of ${live} be gathered?`, several: false, choices, because };
}
