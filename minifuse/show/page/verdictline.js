/** The sentence above the cards: what was served, on what, which run was done first, and what the last one did more of. */

import { totalsOf } from "./totals.js";
import { counted, grouped, seconds } from "./words.js";

const ALIKE = 1.005; // times as fast: up to here, runs took equally long
const MATTERS = 1.05; // times as long: what makes a run slower by less is not named
const MOST_FACTORS = 2;

/**
 * What may make a run slower than another: how many times as long it takes by this alone, and what it did, in words.
 *
 * @type {{times: (slow: import("./totals.js").Totals, fast: import("./totals.js").Totals) => number, words: function}[]}
 */
const FACTORS = [
  {
    times: (slow, fast) => slow.iterations / fast.iterations,
    words: (slow, fast) => `took ${counted(slow.iterations, "iteration")} instead of ${grouped(fast.iterations)}`,
  },
  {
    times: (slow, fast) => slow.perIteration / fast.perIteration,
    words: (slow, fast) => `needed ${seconds(slow.perIteration)} for an iteration instead of ${seconds(fast.perIteration)}`,
  },
  {
    times: (slow, fast) => (1 - fast.idleShare) / (1 - slow.idleShare),
    words: (slow, fast, noun) => `computed ${insteadOf(slow.idleShare, fast.idleShare, `idle ${noun}s`)}`,
  },
  {
    times: (slow, fast) => (1 - fast.waitShare) / (1 - slow.waitShare),
    words: (slow, fast) => `waited ${insteadOf(slow.waitShare, fast.waitShare, "of its time for transfers")}`,
  },
  {
    times: (slow, fast) => (1 + slow.apart / slow.iterations) / (1 + fast.apart / fast.iterations),
    words: (slow, fast) => `computed prompts apart in ${grouped(slow.apart)} plans${fast.apart ? ` instead of ${grouped(fast.apart)}` : ""}`,
  },
];

/** "45% idle tokens", and what the other run has instead, if any. */
function insteadOf(share, other, what) {
  return `${percent(share)} ${what}${other > 0 ? ` instead of ${percent(other)}` : ""}`;
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`;
}

/** "a", "a and b", "a, b and c" */
function listed(parts) {
  return parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts.join();
}

/**
 * The sentence about the runs of a page.
 *
 *     "8 requests, answered by tiny with KV for 85 tokens in virtual time: vllm was done first, after 13.6 ms, 3.3 times
 *     as fast as static, which took 73 iterations instead of 21 and computed 45% idle tokens."
 *
 * @param {import("./model.js").RunModel[]} runs
 */
export function verdictLine(runs) {
  return `${servedWords(runs)}: ${runs.length > 1 ? comparedWords(runs) : aloneWords(runs[0])}.`;
}

/** The different values of a fact of the runs. */
function factsOf(runs, name) {
  return [...new Set(runs.flatMap(({ run }) => run.facts.filter(([key]) => key === name).map(([, value]) => value)))];
}

function servedWords(runs) {
  const [{ requests, ofCells }] = runs;
  const turns = requests.filter(({ conversation }) => (conversation ?? null) !== null);
  const conversations = new Set(turns.map(({ conversation }) => conversation)).size;
  const some = turns.length < requests.length ? `, ${grouped(turns.length)} of them` : "";
  const among = conversations && conversations < requests.length ? `${some} in ${counted(conversations, "conversation")}` : "";
  const [models, clocks] = ["model", "clock"].map((name) => factsOf(runs, name));
  const on = models.length ? `, ${ofCells ? "computed" : "answered"} by ${listed(models)}` : "";
  const time = clocks.length ? ` in ${listed(clocks)} time` : "";
  return `${counted(requests.length, "request")}${among}${on}${memoryGiven(runs)}${time}`;
}

/** " with KV for 128 tokens"; of runs with different memory, from the least to the most. */
function memoryGiven(runs) {
  const capacities = runs.map(({ run }) => run.capacity).filter(Boolean);
  if (!capacities.length) return "";
  const [least, most] = [Math.min(...capacities), Math.max(...capacities)];
  const [{ ofCells, nouns }] = runs;
  const slots = `${least < most ? `${grouped(least)} to ` : ""}${counted(most, nouns.moved)}`;
  return ` with ${ofCells ? "memory" : "KV"} for ${slots}`;
}

/** What a run did not do to the end, in words; "": it answered every request. */
function flawOf({ run }, totals) {
  const flaws = [];
  if (run.notice) flaws.push("was cut off");
  if (totals.refused) flaws.push(`refused ${counted(totals.refused, "request")}`);
  if (totals.unfinished) flaws.push(`did not finish ${counted(totals.unfinished, "request")}`);
  return listed(flaws);
}

function aloneWords(model) {
  const totals = totalsOf(model);
  const flaw = flawOf(model, totals);
  const { iterations, lasted } = totals;
  const took = `${seconds(lasted)}, in ${counted(iterations, "iteration")}`;
  return `${model.run.title} ${flaw ? `ran for ${took}, and ${flaw}` : `was done after ${took}`}`;
}

function comparedWords(runs) {
  if (factsOf(runs, "clock").length > 1) return "times of different clocks are not compared";
  const all = runs.map((model) => ({ model, totals: totalsOf(model), title: model.run.title }));
  const flaws = all.map(({ model, totals }) => flawOf(model, totals));
  const whole = all.filter((_, k) => !flaws[k]).sort((one, other) => one.totals.lasted - other.totals.lasted);
  const rest = all.flatMap(({ title }, k) => (flaws[k] ? [`${title} ${flaws[k]}`] : []));
  const parts = [whole.length ? doneWords(whole) : "no run answered all of them"];
  if (rest.length) parts.push(`${listed(rest)}${whole.length ? `, so ${rest.length > 1 ? "they are" : "it is"} not compared` : ""}`);
  return parts.join("; ");
}

/** Which of the runs that answered every request was done first. @param {object[]} whole in the order of their time */
function doneWords(whole) {
  const [first, last] = [whole[0], whole.at(-1)];
  const [fast, slow] = [first.totals, last.totals];
  const after = `after ${seconds(fast.lasted)}`;
  if (whole.length < 2) return `${first.title} was done ${after}`;
  const times = slow.lasted / fast.lasted;
  if (!(times > ALIKE)) return `${whole.length > 2 ? "all" : "both"} were done ${after}`;
  const noun = first.model.nouns.computed;
  const factors = FACTORS.map((one) => [one.times(slow, fast), one.words(slow, fast, noun)])
    .filter(([longer]) => Number.isFinite(longer) && longer > MATTERS)
    .sort((one, other) => other[0] - one[0])
    .slice(0, MOST_FACTORS);
  const why = factors.length ? `, which ${factors.map(([, words]) => words).join(" and ")}` : "";
  return `${first.title} was done first, ${after}, ${timesWords(times)} as fast as ${last.title}${why}`;
}

function timesWords(times) {
  return `${times < 2 ? times.toFixed(2) : times < 10 ? times.toFixed(1) : grouped(times)} times`;
}
