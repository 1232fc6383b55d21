/**
 * What was possible when a column was decided.
 *
 * With several workers, a column that ends earlier may already show what a column decides: `before` is the first such
 * column. What was possible follows from the columns before `before`, and from plans that were still running.
 */

const ROUNDED = 1e-9; // seconds to which the times of a record are exact
const NO_COLUMNS = Object.freeze([]);
const NEWCOMERS = ["waiting", "suspended", "arriving"]; // states from which a request is admitted

/** The decisions of one run. Columns are counted as in the model. */
export class Decisions {
  constructor(model) {
    const { steps } = model;
    this.model = model;
    /** The first column that shows what a column decides. */
    this.before = Int32Array.from(steps, (_, i) => model.shownFrom(i));
    /** Whether prompts are computed apart from the requests that run. */
    this.apart = steps.some(({ phase }) => phase === "preprocessing");
    this._beside = steps.map(() => NO_COLUMNS); // columns that were running when this one was decided
    this._last = new Int32Array(steps.length).fill(-1); // the previous column of the same worker and phase
    this._putInOrder();
  }

  /** Goes through the plans in the order in which they were made. */
  _putInOrder() {
    const { steps } = this.model;
    const planned = [...steps.keys()].filter((i) => !steps[i].isWait).sort((i, j) => steps[i].number - steps[j].number);
    const last = new Map(); // worker and phase -> its last column that computes
    let running = [];
    for (const i of planned) {
      running = running.filter((j) => this.before[i] <= j);
      if (running.length) this._beside[i] = [...running];
      running.push(i);
      if (!steps[i].work.length) continue;
      const stream = `${steps[i].worker} ${steps[i].phase}`;
      this._last[i] = last.get(stream) ?? -1;
      last.set(stream, i);
    }
  }

  /** @returns {Set<number>} the requests that a column computes for */
  runningIn(i) {
    return new Set(this.model.steps[i].work.map(([r]) => r));
  }

  /**
   * @returns {Set<number>} the requests that the same worker's last iteration of that phase computed for, without
   *     requests that finished with it
   */
  ranBefore(i) {
    const last = this._last[i];
    if (last < 0) return new Set();
    const ran = this.runningIn(last);
    for (const [r] of this.model.steps[last].finished) ran.delete(r);
    return ran;
  }

  /**
   * @param {number} r a request that has not ended when column i is decided
   * @returns {import("./model.js").State|"arriving"} its state when column i was decided; arriving: earlier
   *     columns do not show the request
   */
  stateBefore(i, r) {
    const { model } = this;
    const before = this.before[i];
    for (const j of this._beside[i]) {
      const { admitted, phase } = model.steps[j]; // several workers never evict
      if (admitted.includes(r)) return phase;
    }
    const state = before ? model.stateAt(before - 1, r) : "absent";
    const there = (model.requests[r].arrival ?? Infinity) <= model.starts[i] + ROUNDED;
    return state === "absent" && there ? "arriving" : state;
  }

  /** Whether another plan computes for a request while column i is decided. */
  _isBeside(i, r) {
    return this._beside[i].some((j) => this.model.steps[j].work.some(([one]) => one === r));
  }

  /** The requests that are under way when column i is decided, and pass a test. */
  _requests(i, test) {
    return this.model.presence.underWay(this.before[i]).filter(test);
  }

  /** @returns {number[]} the requests that column i admits, and those that keep waiting */
  admissible(i) {
    const { admitted } = this.model.steps[i];
    return this._requests(i, (r) => admitted.includes(r) || NEWCOMERS.includes(this.stateBefore(i, r)));
  }

  /** @returns {number[]} the requests that column i evicts, and those that keep running */
  evictable(i) {
    const { evicted } = this.model.steps[i];
    return this._requests(i, (r) => evicted.includes(r) || this.stateBefore(i, r) === "running");
  }

  /** @returns {number[]} the requests that column i computes for, and those that its worker could have chosen */
  mayRun(i) {
    const { phase } = this.model.steps[i];
    const runs = this.runningIn(i);
    const states = phase === "preprocessing" ? NEWCOMERS : this.apart ? ["preprocessing", "ready", "running", "suspended"] : ["running", ...NEWCOMERS];
    const free = (r) => this.model.ofCells || !this._isBeside(i, r); // the nodes of a graph may be divided among workers
    return this._requests(i, (r) => runs.has(r) || (states.includes(this.stateBefore(i, r)) && free(r)));
  }
}
