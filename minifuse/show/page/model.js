/**
 * A run of the record, decoded for random access.
 *
 * A column is a line of the trace that took time: an iteration, a plan of moves alone, or a wait. Columns are numbered
 * from 0 in the order of the trace, which is the order in which they ended; requests in the order of the record. In all
 * modules `model` is a `RunModel`, `i` a column and `r` a request, both as numbers.
 *
 * @typedef {"absent"|"waiting"|"preprocessing"|"ready"|"running"|"suspended"|"finished"|"refused"} State
 * @typedef {{code: string, text: string, at: number}} Reason
 */

import { countUpTo } from "./ascending.js";
import { Presence } from "./presence.js";
import { decodeSteps } from "./step.js";

const STATES = ["absent", "waiting", "preprocessing", "ready", "running", "suspended", "finished", "refused"]; // as in the record
const WAITS = ["waiting", "suspended", "ready"];
const NO_STATES = Object.freeze([[], []]); // from which column on, and which
const UNTOLD = Object.freeze([]);
const NO_WAITS = [UNTOLD, UNTOLD, UNTOLD]; // from, to, reason

/** One run of the record, with what the views ask of it. Indices of columns and requests are whole numbers. */
export class RunModel {
  /** @param {object} run a run of the record, version 1 */
  constructor(run) {
    this.run = run;
    this.requests = run.requests;
    this.steps = decodeSteps(run);
    this.length = this.steps.length;
    this.ofCells = run.unit === "state";
    /** The nouns for what the run computes and moves, and for the place of one token or state. */
    this.nouns = this.ofCells ? { computed: "node", moved: "state", slot: "state" } : { computed: "token", moved: "token", slot: "slot" };
    const byColumn = (value) => Float64Array.from(this.steps, value);
    let latest = -Infinity;
    /** When each column began and ended, in seconds. */
    this.starts = byColumn(({ start }) => start);
    this.ends = byColumn(({ end }) => end);
    /** For each column, the latest end up to that column: ascending, whatever the order of lines. */
    this.passed = this.ends.map((end) => (latest = Math.max(latest, end)));
    /** By column: tokens, or nodes, computed, and how many of them are idle; requests that took part. */
    this.computed = byColumn(({ computed }) => computed);
    this.idle = byColumn(({ idle }) => idle);
    this.batch = new Int32Array(this.length);
    /** By column: KV in use, set aside, on the host alone, and kept. */
    this.used = byColumn(({ memory }) => memory.used);
    this.reserved = byColumn(({ memory }) => memory.reserved);
    this.host = byColumn(({ memory }) => memory.host);
    this.kept = byColumn(({ memory }) => memory.kept);
    /** Tokens generated in all by the end of a column. */
    this.totalTokens = new Float64Array(this.length);
    /** Requests that wait, or are suspended, in a column. */
    this.queue = new Int32Array(this.length);
    this._sum();
    this._states = run.requests.map(({ states = NO_STATES }) => states);
    this._count();
    /** Which requests there are in a column. */
    this.presence = new Presence(this);
  }

  /** Sum up columns, in all and by request. */
  _sum() {
    const [work, evictions, tokenColumns, tokenCounts] = [0, 1, 2, 3].map(() => this.requests.map(() => []));
    /** By request: the columns that compute for it, evict it, or generate tokens for it; and its tokens so far. */
    Object.assign(this, { _work: work, _evictions: evictions, _tokenColumns: tokenColumns, _tokenCounts: tokenCounts });
    let total = 0;
    this.steps.forEach((step, column) => {
      for (const [r] of step.work) if (work[r].at(-1) !== column) work[r].push(column);
      for (const r of step.evicted) evictions[r].push(column);
      for (const [r, count] of step.tokens) {
        total += count;
        tokenColumns[r].push(column);
        tokenCounts[r].push((tokenCounts[r].at(-1) ?? 0) + count);
      }
      this.totalTokens[column] = total;
    });
  }

  /** Count the requests that run, and those that wait. */
  _count() {
    const change = new Int32Array(this.length + 1);
    this.requests.forEach((_, r) => {
      for (const column of this._work[r]) this.batch[column] += 1;
      for (const { from, to, state } of this.spans(r)) {
        if (state !== "waiting" && state !== "suspended") continue;
        change[Math.min(this.length, from)] += 1;
        change[to] -= 1;
      }
    });
    let now = 0;
    for (let column = 0; column < this.length; column++) this.queue[column] = now += change[column];
  }

  /** @returns {State} the state of a request while a column runs */
  stateAt(i, r) {
    const [columns, states] = this._states[r];
    return STATES[states[countUpTo(columns, i) - 1] ?? 0];
  }

  /** @returns {number} the first column of the state that the request has in column i */
  stateSince(i, r) {
    const [columns] = this._states[r];
    return columns[countUpTo(columns, i) - 1] ?? 0;
  }

  /** @returns {{from: number, to: number, state: State}[]} its states, each in columns [from, to) */
  spans(r) {
    const [columns, states] = this._states[r];
    return states.map((state, k) => ({
      from: columns[k],
      to: Math.min(this.length, columns[k + 1] ?? this.length),
      state: STATES[state],
    }));
  }

  /**
   * The reason why a request waits in column i.
   *
   * @returns {Reason|null} `at`: the column in which the reason began; null: the request does not wait
   */
  reasonAt(i, r) {
    if (!WAITS.includes(this.stateAt(i, r))) return null;
    const [from, , reasons] = this.requests[r].waits ?? NO_WAITS;
    const k = countUpTo(from, i) - 1;
    return k >= 0 ? this._reason(reasons[k], from[k], i) : null;
  }

  /** The reason that the policy gave for a request in a column; null: none. */
  reasonGiven(i, r) {
    const given = this.steps[i].reasons.find(([one]) => one === r);
    if (!given) return null;
    const [code, text] = this.run.reasons[given[1]];
    return { code, text };
  }

  /** @returns {Reason[]} every reason for which a request waited, in order */
  reasonsOf(r) {
    const [from, to, reasons] = this.requests[r].waits ?? NO_WAITS;
    return reasons.flatMap((reason, k) => {
      const changes = reason < 0 ? this.run.passed[-1 - reason][0].filter((i) => i > from[k] && i < to[k]) : [];
      return [from[k], ...changes].map((i) => this._reason(reason, from[k], i));
    });
  }

  /** Look up a reason that began in column `from`; that of a passed-over request may have changed by column i. */
  _reason(reason, from, i) {
    let [at, k] = [from, reason];
    if (reason < 0) {
      const [columns, shared] = this.run.passed[-1 - reason];
      const last = countUpTo(columns, i) - 1;
      [at, k] = [Math.max(from, columns[last]), shared[last]];
    }
    const [code, text] = this.run.reasons[k];
    return { code, text, at };
  }

  /** @returns {number} tokens generated for a request by the end of column i */
  tokensBy(i, r) {
    return this._tokenCounts[r][countUpTo(this._tokenColumns[r], i) - 1] ?? 0;
  }

  /** @returns {number[]} the columns that generated tokens for a request */
  tokenColumns(r) {
    return this._tokenColumns[r];
  }

  /** @returns {number[]} the columns that compute for a request */
  workColumns(r) {
    return this._work[r];
  }

  /** @returns {number[]} the columns that evict a request */
  evictionColumns(r) {
    return this._evictions[r];
  }

  /** @returns {number[]} the columns that compute a request's row or buffer after its end */
  idleColumns(r) {
    return this.requests[r].idle ?? UNTOLD;
  }

  /** The first column that shows what i decides: perhaps one of another worker that was running when i began. */
  shownFrom(i) {
    return countUpTo(this.passed, this.starts[i]);
  }

  /** @returns {string|null} its answer so far; null: the trace has no texts */
  textAt(i, r) {
    const { answer, ends } = this.requests[r];
    if (answer === null || answer === undefined) return null;
    const count = this.tokensBy(i, r);
    return count ? answer.slice(0, ends[Math.min(count, ends.length) - 1]) : "";
  }

  /** @returns {number} the column that runs at a time, or the first or last column */
  at(seconds) {
    return Math.max(0, Math.min(this.length - 1, countUpTo(this.passed, seconds)));
  }

  /** @returns {number} the first column by whose end the run has generated so many tokens */
  byToken(count) {
    return Math.max(0, Math.min(this.length - 1, countUpTo(this.totalTokens, count - 0.5)));
  }
}

/** Makes a function of a model that computes its result once for each model. */
export function oncePerModel(compute) {
  const known = new WeakMap();
  return (model) => {
    if (!known.has(model)) known.set(model, compute(model));
    return known.get(model);
  };
}

/** The record of a page: gzip in base64, as `page.py` writes it. */
export async function decodeRecord(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
