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

export const STATES = ["absent", "waiting", "preprocessing", "ready", "running", "suspended", "finished", "refused"];
const [ABSENT, WAITING, PREPROCESSING, READY, RUNNING, SUSPENDED, FINISHED, REFUSED] = STATES.keys();
const CHECKPOINT = 32; // changes of a block table between two that are kept whole
const NOBODY = Object.freeze([]);

/**
 * The number of values at the beginning of an ascending array that are at most `value`.
 *
 *     countUpTo([2, 5, 5, 9], 5)  // 3
 *
 * @param {ArrayLike<number>} ascending
 * @param {number} value
 * @param {number} [length] only so many of them
 * @returns {number}
 */
export function countUpTo(ascending, value, length = ascending.length) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The block table of one request, as the columns tell it: each tells what is new since the one before. */
class BlockTable {
  constructor() {
    this.columns = [];
    this.changes = []; // [kept, new blocks]
    this.whole = []; // the table before every CHECKPOINT-th change
    this.last = [];
  }

  /** @param {number} column @param {number} kept @param {number[]} added */
  tell(column, kept, added) {
    if (kept === this.last.length && !added.length) return;
    if (this.changes.length % CHECKPOINT === 0) this.whole.push(this.last);
    this.columns.push(column);
    this.changes.push([kept, added]);
    this.last = this.last.slice(0, kept).concat(added);
  }

  /** @param {number} column @returns {number[]} the table in that column */
  at(column) {
    const count = countUpTo(this.columns, column);
    if (!count) return NOBODY;
    if (count === this.columns.length) return this.last;
    const checkpoint = Math.floor((count - 1) / CHECKPOINT);
    let table = this.whole[checkpoint];
    for (let i = checkpoint * CHECKPOINT; i < count; i++) {
      table = table.slice(0, this.changes[i][0]).concat(this.changes[i][1]);
    }
    return table;
  }
}

/** What happens to one request, each kind of event as ascending columns beside their values. */
class Life {
  constructor() {
    this.stateColumns = [];
    this.states = [];
    this.workColumns = []; // columns that compute for it, each once
    this.tokenColumns = [];
    this.tokenCounts = []; // by the end of that column
    this.reasonColumns = [];
    this.reasons = []; // indices into the run's reasons
    this.idleColumns = []; // columns that go on computing in its place after it has ended, or beside its work
    this.table = new BlockTable();
  }

  /** From a column on it is in a state, whatever was said of that column and later ones before. */
  mark(column, state) {
    const { stateColumns, states } = this;
    while (stateColumns.length && stateColumns.at(-1) >= column) {
      stateColumns.pop();
      states.pop();
    }
    if ((states.length ? states.at(-1) : ABSENT) !== state) {
      stateColumns.push(column);
      states.push(state);
    }
  }

  now() {
    return this.states.length ? this.states.at(-1) : ABSENT;
  }
}

/** One run of the record, with what the views ask of it. Indices of columns and requests are whole numbers. */
export class RunModel {
  /** @param {object} run a run of the record, version 1 */
  constructor(run) {
    this.run = run;
    this.requests = run.requests;
    this.length = run.steps.length;
    this.ofCells = run.unit === "state";
    const length = this.length;
    /** When each column began and ended, in seconds. */
    this.starts = new Float64Array(length);
    this.ends = new Float64Array(length);
    /** The latest end so far: ascending, whatever the order of lines. */
    this.passed = new Float64Array(length);
    /** Tokens, or nodes, computed, those of them that are idle, and requests that took part, by column. */
    this.computed = new Float64Array(length);
    this.idle = new Float64Array(length);
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
    this._lives = run.requests.map(() => new Life());
    this._previous = new Int32Array(length); // the last column before that told of memory
    this._read();
    this._arrive();
    this._countQueue();
    this._steps = new Map(); // decoded, the last few
  }

  /** One pass over the columns, in order. */
  _read() {
    const lives = this._lives;
    let latest = -Infinity;
    let total = 0;
    let told = -1;
    const rows = new Map(); // of what is computed whole: first slot of a row -> the request that had it last
    this.run.steps.forEach((step, column) => {
      this.starts[column] = step.t[0];
      this.ends[column] = step.t[1];
      this.passed[column] = latest = Math.max(latest, step.t[1]);
      this.computed[column] = step.c ?? 0;
      this.idle[column] = step.i ?? 0;
      this._previous[column] = step.kv ? column : told;
      if (step.kv) told = column;
      const usage = told < 0 ? [0, 0, 0, 0] : this.run.steps[told].kv;
      [this.used[column], this.reserved[column], , this.host[column]] = usage;
      this.kept[column] = told < 0 ? 0 : (this.run.steps[told].kp ?? [0])[0];
      const from = this._firstDuring(step.t[0], column);
      const state = step.ph === "preprocessing" ? PREPROCESSING : RUNNING;
      for (const r of step.e ?? NOBODY) lives[r].mark(from, SUSPENDED);
      for (const r of step.a ?? NOBODY) lives[r].mark(from, state);
      let last = -1;
      (step.w ?? NOBODY).forEach(([r], k) => {
        const life = lives[r];
        if (r !== last && life.workColumns.at(-1) !== column) {
          life.workColumns.push(column);
          this.batch[column] += 1;
          if (life.now() !== state && life.now() !== FINISHED) life.mark(from, state);
        }
        last = r;
        const place = step.p[k];
        if (place.length === 3) life.table.tell(column, place[0], place[1]);
      });
      if (step.sh) this._idleRows(step, column, rows);
      for (const [r, reason] of step.y ?? NOBODY) {
        lives[r].reasonColumns.push(column);
        lives[r].reasons.push(reason);
      }
      for (const [r, count] of step.o ?? NOBODY) {
        lives[r].tokenColumns.push(column);
        lives[r].tokenCounts.push((lives[r].tokenCounts.at(-1) ?? 0) + count);
        total += count;
      }
      this.totalTokens[column] = total;
      if (state === PREPROCESSING) {
        for (const r of new Set([...(step.a ?? NOBODY), ...(step.w ?? NOBODY).map((work) => work[0])])) {
          if (lives[r].now() === PREPROCESSING) lives[r].mark(column + 1, READY);
        }
      }
      for (const [r] of step.f ?? NOBODY) lives[r].mark(column + 1, FINISHED);
    });
  }

  /** The first column, up to `column`, that had not ended when `column` began: of one worker, `column` itself. */
  _firstDuring(start, column) {
    return Math.min(column, countUpTo(this.passed, start, column));
  }

  /** Note whose rows of a rectangle, or buffers of a region, are computed though they have no work any more. */
  _idleRows(step, column, rows) {
    const { kind, offset, rows: count, stride, size, width } = step.sh;
    if (kind === "StateRows") return;
    const [first, number, step_] = kind === "Region" ? [offset * width, size, width] : [offset, count, stride];
    const busy = new Set();
    step.w.forEach(([r], k) => {
      const place = step.p[k];
      const slot = Array.isArray(place[0]) ? place[0][0][0] : place[0];
      const row = first + Math.floor((slot - first) / step_) * step_;
      busy.add(row);
      rows.set(row, r);
    });
    for (let row = 0; row < number; row++) {
      const at = first + row * step_;
      const r = rows.get(at);
      if (!busy.has(at) && r !== undefined && this._lives[r].idleColumns.at(-1) !== column) {
        this._lives[r].idleColumns.push(column);
      }
    }
  }

  /** Put in what columns do not tell: arrivals, refusals, aborts. */
  _arrive() {
    this.requests.forEach((request, r) => {
      const life = this._lives[r];
      if (request.arrival === null || request.arrival === undefined) {
        life.stateColumns = request.refused ? [0] : [];
        life.states = request.refused ? [REFUSED] : [];
        return;
      }
      const arrived = Math.min(this.length, countUpTo(this.passed, request.arrival));
      if (request.refused) {
        life.stateColumns = [arrived];
        life.states = [REFUSED];
        return;
      }
      if (!life.stateColumns.length || arrived < life.stateColumns[0]) {
        life.stateColumns.unshift(arrived);
        life.states.unshift(WAITING);
      }
      if (request.outcome === "aborted" && request.ended !== null) {
        life.mark(countUpTo(this.passed, request.ended), FINISHED);
      }
    });
  }

  _countQueue() {
    const change = new Int32Array(this.length + 1);
    for (const { stateColumns, states } of this._lives) {
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
    if (this._steps.size > 64) this._steps.delete(this._steps.keys().next().value);
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
    const { stateColumns, states } = this._lives[r];
    const count = countUpTo(stateColumns, i);
    return STATES[count ? states[count - 1] : ABSENT];
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
   * The last reason told, by column i, of a request that waits then.
   *
   * @param {number} i @param {number} r
   * @returns {Told|null} null: it does not wait, or nothing has been told of it since it began to
   */
  reasonAt(i, r) {
    const life = this._lives[r];
    const count = countUpTo(life.stateColumns, i);
    const state = count ? life.states[count - 1] : ABSENT;
    if (state !== WAITING && state !== SUSPENDED && state !== READY) return null;
    const told = countUpTo(life.reasonColumns, i);
    if (!told || life.reasonColumns[told - 1] < life.stateColumns[count - 1]) return null;
    const [code, text] = this.run.reasons[life.reasons[told - 1]];
    return { code, text, at: life.reasonColumns[told - 1] };
  }

  /** @param {number} r @returns {Told[]} every reason told of a request, in order, repeated ones once */
  reasonsOf(r) {
    const { reasonColumns, reasons } = this._lives[r];
    const found = [];
    reasons.forEach((reason, k) => {
      const [code, text] = this.run.reasons[reason];
      if (!k || reasons[k - 1] !== reason) found.push({ code, text, at: reasonColumns[k] });
    });
    return found;
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

  /** @param {number} r @returns {number[]} the columns that compute its row or buffer, though it has ended or waits */
  idleColumns(r) {
    return this._lives[r].idleColumns;
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
