/**
 * A run of the record, decoded for random access.
 *
 * A column is a line of the trace that took time: an iteration, a plan of moves alone, or a wait. Columns are numbered
 * from 0 in the order of the trace, which is the order in which they ended; requests in the order of the record. In all
 * modules `model` is a `RunModel`, `i` a column and `r` a request, both as numbers.
 *
 * @typedef {"absent"|"waiting"|"preprocessing"|"ready"|"running"|"suspended"|"finished"|"refused"} State
 * @typedef {{request: number, start: number, stop: number, cell: string}} Work
 * @typedef {{kind: string, source: number, target: number, count: number, fromTier: string, toTier: string,
 *            moment: string, wave: number, owners: number[]}} Move
 * @typedef {{code: string, text: string, at: number}} Told
 */

import { countUpTo } from "./ascending.js";
import { Presence } from "./presence.js";

const STATES = ["absent", "waiting", "preprocessing", "ready", "running", "suspended", "finished", "refused"]; // as in the record
const WAITS = ["waiting", "suspended", "ready"];
const NO_STATES = Object.freeze([[], []]); // from which column on, and which
const UNTOLD = Object.freeze([]);
const NO_WAITS = [UNTOLD, UNTOLD, UNTOLD]; // from, to, reason
const RECENT = 64; // columns that are kept decoded

/** One run of the record, with what the views ask of it. Indices of columns and requests are whole numbers. */
export class RunModel {
  /** @param {object} run a run of the record, version 1 */
  constructor(run) {
    this.run = run;
    this.requests = run.requests;
    this.length = run.steps.length;
    this.ofCells = run.unit === "state";
    const { length } = this;
    let latest = -Infinity;
    /** When each column began and ended, in seconds. */
    this.starts = Float64Array.from(run.steps, (step) => step.t[0]);
    this.ends = Float64Array.from(run.steps, (step) => step.t[1]);
    /** The latest end so far: ascending, whatever the order of lines. */
    this.passed = this.ends.map((end) => (latest = Math.max(latest, end)));
    /** Tokens, or nodes, computed, those of them that are idle, and requests that took part, by column. */
    this.computed = Float64Array.from(run.steps, (step) => step.c ?? 0);
    this.idle = Float64Array.from(run.steps, (step) => step.i ?? 0);
    this.batch = new Int32Array(length);
    /** KV in use, set aside, on the host alone and kept, by column; a wait has what its predecessor had. */
    this.used = new Float64Array(length);
    this.reserved = new Float64Array(length);
    this.host = new Float64Array(length);
    this.kept = new Float64Array(length);
    /** Tokens generated in all by the end of a column. */
    this.totalTokens = new Float64Array(length);
    /** Requests that wait, or are suspended, in a column. */
    this.queue = new Int32Array(length);
    this._previous = new Int32Array(length); // the last column so far that told of memory; -1: none has
    this._sum();
    this._states = run.requests.map(({ states = NO_STATES }) => states);
    this._count();
    this._steps = new Map(); // decoded, the last few
    /** Which requests there are in a column. */
    this.presence = new Presence(this);
  }

  /** What columns come to, in all and of each request. */
  _sum() {
    /** The columns that compute for a request; and those that generated tokens for it, with how many there were then. */
    [this._work, this._tokenColumns, this._tokenCounts] = [0, 1, 2].map(() => this.requests.map(() => []));
    let total = 0;
    let told = -1;
    this.run.steps.forEach((step, column) => {
      if (step.kv) told = column;
      this._previous[column] = told;
      const { kv = [0, 0, 0, 0], kp = [0] } = this.run.steps[told] ?? {};
      [this.used[column], this.reserved[column], , this.host[column]] = kv;
      [this.kept[column]] = kp;
      for (const [r] of step.w ?? UNTOLD) if (this._work[r].at(-1) !== column) this._work[r].push(column);
      for (const [r, count] of step.o ?? UNTOLD) {
        total += count;
        this._tokenColumns[r].push(column);
        this._tokenCounts[r].push((this._tokenCounts[r].at(-1) ?? 0) + count);
      }
      this.totalTokens[column] = total;
    });
  }

  /** How many requests run, and how many wait. */
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

  /** A column with every number named, and every block table whole. */
  step(i) {
    const known = this._steps.get(i);
    if (known) return known;
    const step = this._decode(i);
    if (this._steps.size > RECENT) this._steps.delete(this._steps.keys().next().value);
    this._steps.set(i, step);
    return step;
  }

  _decode(i) {
    const { cells, reasons } = this.run;
    const step = this.run.steps[i];
    const told = this._previous[i] < 0 ? null : this.run.steps[this._previous[i]];
    const [used, reserved, capacity, host] = told ? told.kv : [0, 0, this.run.capacity, 0];
    const [kept, keptOnHost] = (told && told.kp) ?? [0, 0];
    const work = (step.w ?? []).map(([request, start, stop, cell]) => ({
      request,
      start,
      stop,
      cell: cells[cell ?? 0],
    }));
    return {
      index: i,
      number: step.n ?? null,
      worker: step.k ?? 0,
      start: step.t[0],
      end: step.t[1],
      isWait: Boolean(step.wait),
      work,
      admitted: step.a ?? [],
      evicted: step.e ?? [],
      phase: step.ph ?? (step.wait ? "waiting" : "running"),
      shape: step.sh ?? null,
      waves: step.wv ?? (work.length ? [[0, work.length]] : []),
      lanes: step.ln ?? [],
      moves: (step.m ?? []).map(([kind, source, target, count, fromTier, toTier, moment, wave], k) => {
        const owners = this.run.slots.sets?.[step.mo[k]] ?? [];
        return { kind, source, target, count, fromTier, toTier, moment, wave, owners };
      }),
      reused: (step.ru ?? []).map(([request, onDevice, onHost]) => ({ request, onDevice, onHost })),
      reasons: (step.y ?? []).map(([request, k]) => ({ request, code: reasons[k][0], text: reasons[k][1] })),
      computed: step.c ?? 0,
      idle: step.i ?? 0,
      tokens: new Map(step.o ?? []),
      finished: new Map(step.f ?? []),
      kv: { used, reserved, capacity, host, kept, keptOnHost },
      exposed: step.x ?? 0,
      discarded: step.d ?? 0,
    };
  }

  /** @returns {State} the state of a request while a column runs */
  stateAt(i, r) {
    const [columns, states] = this._states[r];
    return STATES[states[countUpTo(columns, i) - 1] ?? 0];
  }

  /** @returns {number} the column since which it is in the state that it has then */
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
   * The reason that holds in column i for a request that waits then.
   *
   * @returns {Told|null} `at`: since which column; null: it does not wait
   */
  reasonAt(i, r) {
    if (!WAITS.includes(this.stateAt(i, r))) return null;
    const [from, , reasons] = this.requests[r].waits ?? NO_WAITS;
    const k = countUpTo(from, i) - 1;
    return k >= 0 ? this._told(reasons[k], from[k], i) : null;
  }

  /** @returns {Told[]} every reason for which a request waited, in order */
  reasonsOf(r) {
    const [from, to, reasons] = this.requests[r].waits ?? NO_WAITS;
    return reasons.flatMap((reason, k) => {
      const changes = reason < 0 ? this.run.passed[-1 - reason][0].filter((i) => i > from[k] && i < to[k]) : [];
      return [from[k], ...changes].map((i) => this._told(reason, from[k], i));
    });
  }

  /** What a reason, which holds from a column on, is in column i: of requests that are passed over it may change. */
  _told(reason, from, i) {
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

  /** @returns {number[]} the columns that compute its row or buffer, though it has ended */
  idleColumns(r) {
    return this.requests[r].idle ?? UNTOLD;
  }

  /** The first column that shows what a column decides: another worker's that had not ended when this one began does. */
  shownFrom(i) {
    return countUpTo(this.passed, this.starts[i]);
  }

  /** @returns {string|null} its answer so far; null: the trace tells no texts */
  textAt(i, r) {
    const { answer, ends } = this.requests[r];
    if (answer === null || answer === undefined) return null;
    const count = this.tokensBy(i, r);
    return count ? answer.slice(0, ends[Math.min(count, ends.length) - 1]) : "";
  }

  /** @returns {number} the column that runs then; before the first and after the last, that */
  at(seconds) {
    return Math.max(0, Math.min(this.length - 1, countUpTo(this.passed, seconds)));
  }

  /** @returns {number} the first column by whose end so many tokens had been generated in all */
  byToken(count) {
    return Math.max(0, Math.min(this.length - 1, countUpTo(this.totalTokens, count - 0.5)));
  }
}

/** The record of a page: gzip in base64, as `page.py` writes it. */
export async function decodeRecord(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
