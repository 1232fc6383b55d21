/** Two runs of one workload, A and B, with one scrubber. */

import { countUpTo } from "./ascending.js";
import { columnName } from "./columns.js";
import { comparedIn, decidedIn, firstDifference } from "./difference.js";
import { someOf } from "./now.js";
import { capital } from "./words.js";

const MOST_NAMED = 5; // requests that disagree in the same way

/**
 * A and B, side by side. A position of the scrubber is a column of A or, once A has ended, one of B that follows.
 *
 * By time, B shows what it does when A's column ends; by token, the column with which B had generated as many tokens
 * as A.
 */
export class Pair {
  /**
   * @param {"time"|"token"} by
   * @param {Pair|null} [before] the pair shown before; of the same runs, it knows already where they first differ
   */
  constructor(a, b, by, before = null) {
    this.a = a;
    this.b = b;
    this.by = by;
    this.length = a.length + (b.length - 1 - this._there(a.length - 1));
    this._columnsOfB = Int32Array.from({ length: this.length }, (_, position) => this.at(position).b);
    this.compared = comparedIn(a, b);
    this.first = before?.a === a && before.b === b ? before.first : firstDifference(a, b, this.compared.moves);
    this.differences = this._differences();
    this._positions = this.differences.map(({ position }) => position);
  }

  /** The column of B that goes with one of A. */
  _there(i) {
    const { a, b } = this;
    if (this.by === "token") return b.byToken(Math.min(a.totalTokens[i], b.totalTokens[b.length - 1]));
    return b.at(a.passed[i] - 5e-10); // half of what times are rounded to: both may end at the same moment
  }

  /** @returns {{a: number, b: number}} the column of each run */
  at(position) {
    const { a, b } = this;
    if (position < a.length) return { a: position, b: this._there(position) };
    return { a: a.length - 1, b: Math.min(b.length - 1, this._there(a.length - 1) + position - a.length + 1) };
  }

  /** @param {number} j a column of B @returns {number} the first position that shows j, or a later column of B */
  positionOfB(j) {
    return Math.min(this.length - 1, countUpTo(this._columnsOfB, j - 1));
  }

  /** Whether, in a column of each run, a request has its turn in one and not in the other. */
  _disagree(r, i, j) {
    return standing(this.a.stateAt(i, r)) !== standing(this.b.stateAt(j, r));
  }

  /**
   * The first decision that differs, and where the runs begin to disagree about a request.
   *
   * @returns {{position: number, b: number, requests: number[]}[]} in order; `b`: the column of B that shows it
   */
  _differences() {
    const found = new Map();
    const add = (position, b, requests) => {
      const key = `${position} ${b}`;
      const one = found.get(key) ?? { position, b, requests: [] };
      one.requests.push(...requests);
      found.set(key, one);
    };
    this.a.requests.forEach((_, r) => {
      const changes = this.a.spans(r).map(({ from }) => ({ position: from, b: from < this.length ? this.at(from).b : 0 }));
      changes.push(...this.b.spans(r).map(({ from }) => ({ position: this.positionOfB(from), b: Math.min(from, this.b.length - 1) })));
      let before = false;
      for (const { position, b } of changes.sort(inOrder)) {
        if (position >= this.length) continue;
        const now = this._disagree(r, this.at(position).a, b);
        if (now && !before) add(position, b, [r]);
        before = now;
      }
    });
    if (this.first) add(this.first.a, this.first.b, []);
    return [...found.values()].sort(inOrder);
  }

  /**
   * The next decision that differs (1), the one before (-1), or the first (0).
   *
   * @param {{position: number, b: number}} from what is shown
   * @returns {{position: number, b: number}|null}
   */
  difference(way, from) {
    const { differences, first } = this;
    if (!way) return first ? { position: first.a, b: first.b } : differences[0] ?? null;
    let k = countUpTo(this._positions, from.position) - 1; // the last one here, or before
    while (k >= 0 && inOrder(differences[k], from) > (way > 0 ? 0 : -1)) k -= 1;
    return differences[way > 0 ? k + 1 : k] ?? null;
  }

  /** What differs at a position while column j of B is shown, in sentences. @returns {string|null} null: no disagreement begins there */
  sentences(position, j) {
    const { a, b, first } = this;
    const [begin, end] = [position - 1, position].map((one) => countUpTo(this._positions, one));
    const found = this.differences.slice(begin, end);
    if (!found.length) return null;
    const { a: i } = this.at(position);
    const [mine, theirs] = [`${columnName(a, i)} of ${a.run.title}`, `${columnName(b, j)} of ${b.run.title}`];
    if (first?.a === position && !first.ended && first.b === j) {
      const [own, others] = decidedIn(a, i, b, j, this.compared.moves);
      return `The first decision that differs: ${mine} ${own}; ${theirs} ${others}.`;
    }
    const parts = [];
    if (first?.a === position) {
      if (first.ended) parts.push(`Both ${this.compared.words} up to here, where ${first.ended.run.title} ends.`);
      else parts.push(`${capital(mine)} is the first that decides otherwise than ${b.run.title}, in its ${columnName(b, first.b)}: press f to see both.`);
    }
    const here = found.find((one) => one.b === j);
    const requests = (here ? [here] : found).flatMap((one) => one.requests).filter((r) => this._disagree(r, i, j));
    if (requests.length && !parts.length) parts.push(`${capital(mine)}, and ${theirs}:`);
    const states = (r) => `${a.stateAt(i, r)} in ${a.run.title} and ${b.stateAt(j, r)} in ${b.run.title}`;
    for (const [words, alike] of Map.groupBy(requests, states)) {
      parts.push(`${someOf(a, alike, MOST_NAMED)} ${alike.length > 1 ? "are" : "is"} ${words}.`);
    }
    return parts.join(" ") || null;
  }

  /** Says in a sentence that the runs never differ; null: they differ. */
  get alike() {
    const { a, b, compared, first } = this;
    return first ? null : `${a.run.title} and ${b.run.title} ${compared.words}, in every iteration.${compared.moves ? "" : " Moves and waves are not compared, as their stages differ."}`;
  }
}

function inOrder(one, other) {
  return one.position - other.position || one.b - other.b;
}

/** Whether a request has not had its turn, has it, has lost it, or has ended. */
function standing(state) {
  if (state === "preprocessing" || state === "ready" || state === "running") return "in";
  return state === "absent" ? "waiting" : state === "refused" ? "finished" : state;
}
