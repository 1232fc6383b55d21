/** What happens to each request of a run, looked up by column (see model.js): its state, work, tokens and blocks. */

import { countUpTo } from "./ascending.js";

export const STATES = ["absent", "waiting", "preprocessing", "ready", "running", "suspended", "finished", "refused"];
export const [ABSENT, WAITING, PREPROCESSING, READY, RUNNING, SUSPENDED, FINISHED, REFUSED] = STATES.keys();
const CHECKPOINT = 32; // changes of a block table between two that are kept whole
const NONE = Object.freeze([]);

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
    if (!count) return NONE;
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
    this.table = new BlockTable();
  }

  /** From a column on it is in a state, whatever was said of that column and later ones before. */
  mark(column, state) {
    const { stateColumns, states } = this;
    while (stateColumns.length && stateColumns.at(-1) >= column) {
      stateColumns.pop();
      states.pop();
    }
    if (this.now() !== state) {
      stateColumns.push(column);
      states.push(state);
    }
  }

  now() {
    return this.states.at(-1) ?? ABSENT;
  }

  /** @param {number} column @returns {number} its state while a column runs, as a place in STATES */
  stateAt(column) {
    return this.states[countUpTo(this.stateColumns, column) - 1] ?? ABSENT;
  }
}

/**
 * The first column that shows what a column decides: another worker's that had not ended when this one began does.
 *
 * @param {Float64Array} passed the latest end up to each column
 * @param {object} step of the record @param {number} column its number
 */
export function shownFrom(passed, step, column) {
  return countUpTo(passed, step.t[0], column);
}

/**
 * The lives of all requests of a run, in the order of the record.
 *
 * @param {object} run of the record
 * @param {Float64Array} passed the latest end up to each column
 * @returns {Life[]}
 */
export function livesOf(run, passed) {
  const lives = run.requests.map(() => new Life());
  run.steps.forEach((step, column) => {
    const from = shownFrom(passed, step, column);
    const state = step.ph === "preprocessing" ? PREPROCESSING : RUNNING;
    const { e: evicted = NONE, a: admitted = NONE, w: works = NONE } = step;
    for (const r of evicted) lives[r].mark(from, SUSPENDED);
    for (const r of admitted) lives[r].mark(from, state);
    works.forEach(([r], k) => {
      const life = lives[r];
      if (life.workColumns.at(-1) !== column) {
        life.workColumns.push(column);
        if (life.now() !== state && life.now() !== FINISHED) life.mark(from, state);
      }
      const place = step.p[k];
      if (place.length === 3) life.table.tell(column, place[0], place[1]);
    });
    for (const [r, count] of step.o ?? NONE) {
      lives[r].tokenColumns.push(column);
      lives[r].tokenCounts.push((lives[r].tokenCounts.at(-1) ?? 0) + count);
    }
    if (state === PREPROCESSING) {
      for (const r of new Set([...admitted, ...works.map((work) => work[0])])) {
        if (lives[r].now() === PREPROCESSING) lives[r].mark(column + 1, READY);
      }
    }
    for (const [r] of step.f ?? NONE) lives[r].mark(column + 1, FINISHED);
  });
  run.requests.forEach((request, r) => arrive(request, lives[r], passed));
  return lives;
}

/** Put in what columns do not tell of a request: its arrival, that it was refused, or aborted. */
function arrive(request, life, passed) {
  const arrived = typeof request.arrival === "number" ? countUpTo(passed, request.arrival) : null;
  if (arrived === null || request.refused) {
    life.stateColumns = request.refused ? [arrived ?? 0] : [];
    life.states = request.refused ? [REFUSED] : [];
    return;
  }
  if (!life.stateColumns.length || arrived < life.stateColumns[0]) {
    life.stateColumns.unshift(arrived);
    life.states.unshift(WAITING);
  }
  if (request.outcome === "aborted" && request.ended !== null) {
    const last = life.workColumns.at(-1) ?? -1; // a plan that runs when its request is aborted goes on
    life.mark(Math.max(countUpTo(passed, request.ended), last + 1), FINISHED);
  }
}
