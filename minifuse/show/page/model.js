/**
 * A run of the record, decoded for random access.
 *
 * A column is a line of the trace that took time: an iteration, a plan of moves alone, or a wait. Columns are numbered
 * from 0 in the order of the trace, which is the order in which they ended; requests in the order of the record.
 *
 * @typedef {"absent"|"waiting"|"preprocessing"|"ready"|"running"|"suspended"|"finished"|"refused"} State
 * @typedef {{request: number, start: number, stop: number, cell: string}} Work
 * @typedef {{kind: "extent", offset: number, size: number} | {kind: "runs", runs: number[][]} |
 *           {kind: "blocks", blocks: number[], size: number} | {kind: "node", reads: number[], slot: number}} Place
 * @typedef {{kind: string, source: number, target: number, count: number, fromTier: string, toTier: string,
 *            moment: string, wave: number}} Move
 * @typedef {{code: string, text: string, at: number}} Told
 */

import { countUpTo } from "./ascending.js";
import { Presence } from "./presence.js";
import { READY, STATES, SUSPENDED, WAITING, livesOf } from "./lives.js";

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
    this._lives = livesOf(run, this.passed);
    this._count();
    this._steps = new Map(); // decoded, the last few
    /** Which requests there are in a column. */
    this.presence = new Presence(this);
  }

  /** What columns come to. */
  _sum() {
    let total = 0;
    let told = -1;
    this.run.steps.forEach((step, column) => {
      if (step.kv) told = column;
      this._previous[column] = told;
      const { kv = [0, 0, 0, 0], kp = [0] } = this.run.steps[told] ?? {};
      [this.used[column], this.reserved[column], , this.host[column]] = kv;
      [this.kept[column]] = kp;
      for (const [, count] of step.o ?? UNTOLD) total += count;
      this.totalTokens[column] = total;
    });
  }

  /** How many requests run, and how many wait. */
  _count() {
    const change = new Int32Array(this.length + 1);
    for (const { stateColumns, states, workColumns } of this._lives) {
      for (const column of workColumns) this.batch[column] += 1;
      states.forEach((state, k) => {
        if (state !== WAITING && state !== SUSPENDED) return;
        change[Math.min(this.length, stateColumns[k])] += 1;
        change[Math.min(this.length, stateColumns[k + 1] ?? this.length)] -= 1;
      });
    }
    let now = 0;
    for (let column = 0; column < this.length; column++) this.queue[column] = now += change[column];
  }

  /**
   * A column with every number named, and every block table whole.
   *
   * @param {number} i
   */
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
      places: work.map((one, k) => this._place(i, one.request, step.p[k])),
      admitted: step.a ?? [],
      evicted: step.e ?? [],
      phase: step.ph ?? (step.wait ? "waiting" : "running"),
      shape: step.sh ?? null,
      waves: step.wv ?? (work.length ? [[0, work.length]] : []),
      lanes: step.ln ?? [],
      moves: (step.m ?? []).map(([kind, source, target, count, fromTier, toTier, moment, wave]) => ({
        ...{ kind, source, target, count },
        ...{ fromTier: fromTier ?? "device", toTier: toTier ?? "device", moment: moment ?? "first", wave: wave ?? 0 },
      })),
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

  /** @returns {Place} */
  _place(i, request, place) {
    if (place.length === 3) return { kind: "blocks", blocks: this._lives[request].table.at(i), size: place[2] };
    if (place.length === 1) return { kind: "runs", runs: place[0] };
    if (Array.isArray(place[0])) return { kind: "node", reads: place[0], slot: place[1] };
    return { kind: "extent", offset: place[0], size: place[1] };
  }

  /** @param {number} i @param {number} r @returns {State} the state of a request while a column runs */
  stateAt(i, r) {
    return STATES[this._lives[r].stateAt(i)];
  }

  /** @param {number} i @param {number} r @returns {number} the column since which it is in the state that it has then */
  stateSince(i, r) {
    const { stateColumns } = this._lives[r];
    return stateColumns[countUpTo(stateColumns, i) - 1] ?? 0;
  }

  /** @param {number} r @returns {{from: number, to: number, state: State}[]} its states, each in columns [from, to) */
  spans(r) {
    const { stateColumns, states } = this._lives[r];
    return states.map((state, k) => ({
      from: stateColumns[k],
      to: Math.min(this.length, stateColumns[k + 1] ?? this.length),
      state: STATES[state],
    }));
  }

  /**
   * The reason that holds in column i for a request that waits then.
   *
   * @param {number} i @param {number} r
   * @returns {Told|null} `at`: since which column; null: it does not wait
   */
  reasonAt(i, r) {
    if (![WAITING, SUSPENDED, READY].includes(this._lives[r].stateAt(i))) return null;
    const [from, , reasons] = this.requests[r].waits ?? NO_WAITS;
    const k = countUpTo(from, i) - 1;
    return k >= 0 ? this._told(reasons[k], from[k], i) : null;
  }

  /** @param {number} r @returns {Told[]} every reason for which a request waited, in order */
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

  /** @param {number} i @param {number} r @returns {number} tokens generated for a request by the end of column i */
  tokensBy(i, r) {
    const { tokenColumns, tokenCounts } = this._lives[r];
    const count = countUpTo(tokenColumns, i);
    return count ? tokenCounts[count - 1] : 0;
  }

  /** @param {number} r @returns {number[]} the columns that generated tokens for a request */
  tokenColumns(r) {
    return this._lives[r].tokenColumns;
  }

  /** @param {number} r @returns {number[]} the columns that compute for a request */
  workColumns(r) {
    return this._lives[r].workColumns;
  }

  /** @param {number} r @returns {number[]} the columns that compute its row or buffer, though it has ended */
  idleColumns(r) {
    return this.requests[r].idle ?? UNTOLD;
  }

  /** @param {number} i @param {number} r @returns {string|null} its answer so far; null: the trace tells no texts */
  textAt(i, r) {
    const { answer, ends } = this.requests[r];
    if (answer === null || answer === undefined) return null;
    const count = this.tokensBy(i, r);
    return count ? answer.slice(0, ends[Math.min(count, ends.length) - 1]) : "";
  }

  /** @param {number} seconds @returns {number} the column that runs then; before the first and after the last, that */
  at(seconds) {
    return Math.max(0, Math.min(this.length - 1, countUpTo(this.passed, seconds)));
  }

  /** @param {number} count @returns {number} the first column by whose end so many tokens had been generated in all */
  byToken(count) {
    return Math.max(0, Math.min(this.length - 1, countUpTo(this.totalTokens, count - 0.5)));
  }
}

/**
 * The record of a page: gzip in base64, as `page.py` writes it.
 *
 * @param {string} text
 * @returns {Promise<object>}
 */
export async function decodeRecord(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
