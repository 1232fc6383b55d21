/**
 * The rows of lanes: what is computed for each request, and on each worker of a model of cells, from left to right.
 *
 * Equal columns side by side are one segment, so that drawing costs as much as what is visible, however long the run.
 */

import { sizeOf } from "./columns.js";

/** Sorts of segments; from FIRST_TASK on, each is a type of cells. */
export const [DECODED, PROMPTED, PREPARED, IDLED, FIRST_TASK] = [0, 1, 2, 3, 4];

/** Segments of one row: positions [from, to), in columns and shares of them, of one sort. */
class Segments {
  constructor() {
    this.from = [];
    this.to = [];
    this.sort = [];
  }

  add(from, sort, to = from + 1) {
    const last = this.to.length - 1;
    if (last >= 0 && this.to[last] > from) return; // two of one column: the first is shown
    if (last >= 0 && this.to[last] === from && this.sort[last] === sort) this.to[last] = to;
    else {
      this.from.push(from);
      this.to.push(to);
      this.sort.push(sort);
    }
  }

  /**
   * Divide a column by sort, in the order of the map, in shares of what is computed.
   *
   *     new Segments().divide(7, new Map([[4, 2], [5, 1], [IDLED, 1]]))  // 4 up to 7.5, 5 up to 7.75, IDLED up to 8
   */
  divide(column, counts) {
    const total = [...counts.values()].reduce((sum, one) => sum + one, 0);
    if (this.to.length && this.to.at(-1) > column) return;
    let before = 0;
    for (const [sort, count] of counts) this.add(column + before / total, sort, column + (before += count) / total);
  }
}

/** The rows of a run, made once. */
export class LaneRows {
  constructor(model) {
    this.model = model;
    const { run, requests, steps } = model;
    this.workers = model.ofCells ? run.workers : 0;
    this.tasks = Array.from({ length: this.workers }, () => new Segments());
    this.requests = requests.map(() => new Segments());
    this.padded = []; // columns in which some rows compute fewer tokens than the rectangle has columns
    steps.forEach((step, column) => {
      addWork(model, this.requests, column, step);
      if (model.ofCells && step.work.length) this.tasks[step.worker].divide(column, taskCounts(step.work, step.idle));
      if (step.idle && rectangleColumns(step) > 1) this.padded.push(column);
    });
    const going = run.workers > 1 ? this._going() : null;
    const beside = going && this._beside(going);
    this.requests = this.requests.map((own, r) => withIdle(own, model.idleColumns(r)));
    /** What is drawn for requests, in columns of one width. */
    this.beside = beside ? beside.map((own, r) => withIdle(own, alsoDuring(model.idleColumns(r), going))) : this.requests;
    this.count = this.workers + requests.length;
  }

  /** For each column, the columns of other workers that are running as it ends. */
  _going() {
    const { model } = this;
    const next = new Map(); // worker -> the first column, from this one on, in which it computes
    const going = model.steps.map(() => []);
    for (let i = model.length - 1; i >= 0; i--) {
      const { work, worker, isWait } = model.steps[i];
      if (work.length) next.set(worker, i);
      if (!isWait) for (const [other, j] of next) if (other !== worker && model.starts[j] < model.ends[i]) going[i].push(j);
    }
    return going;
  }

  /**
   * With columns of one width, an iteration has a column of its own while other workers go on computing. Their work is
   * drawn in that column, too: they do not pause.
   */
  _beside(going) {
    const { model } = this;
    const all = this.requests.map(() => new Segments());
    model.steps.forEach((_, i) => {
      for (const j of [i, ...going[i]]) addWork(model, all, i, model.steps[j]);
    });
    return all;
  }

  /** @param {number} row @returns {number|null} the request of a row; null: the row is a worker's */
  request(row) {
    return row < this.workers ? null : row - this.workers;
  }
}

/** Put what a step computes into a column of the rows of its requests. */
function addWork(model, rows, column, step) {
  if (!model.ofCells) {
    for (const work of step.work) rows[work[0]].add(column, sortOf(model, step, work));
    return;
  }
  for (const [r, work] of Map.groupBy(step.work, ([r]) => r)) rows[r].divide(column, taskCounts(work, paddingOf(step, work)));
}

/** The nodes of some work by sort, in the order of the waves, and after them those that are idle. */
function taskCounts(work, idle) {
  const counts = new Map();
  for (const [, start, stop, cell = 0] of work) counts.set(FIRST_TASK + cell, (counts.get(FIRST_TASK + cell) ?? 0) + stop - start);
  return idle > 0 ? counts.set(IDLED, idle) : counts;
}

/** How many nodes a padded batch computes in the row of a request, apart from the request's own work. */
export function paddingOf({ shape }, work) {
  return shape?.kind === "StateRows" ? shape.steps - sizeOf(work) : 0;
}

/** Adds idle columns to a row's own segments, in order: the row is still computed after a request's end. */
function withIdle(own, idle) {
  if (!idle.length) return own;
  const all = new Segments();
  let k = 0;
  own.from.forEach((from, at) => {
    while (k < idle.length && idle[k] < from) all.add(idle[k++], IDLED);
    all.from.push(from);
    all.to.push(own.to[at]);
    all.sort.push(own.sort[at]);
  });
  while (k < idle.length) all.add(idle[k++], IDLED);
  return all;
}

/** Some columns, and the columns at whose end one of them is running. */
function alsoDuring(columns, going) {
  if (!columns.length) return columns;
  const found = new Set(columns);
  going.forEach((list, i) => list.some((j) => found.has(j)) && found.add(i));
  return [...found].sort((a, b) => a - b);
}

/** What sort of segment a piece of work on tokens makes. */
function sortOf(model, step, [r, start, stop]) {
  if (step.phase === "preprocessing") return PREPARED;
  return stop - start === 1 && start >= (model.requests[r].prompt ?? 0) ? DECODED : PROMPTED;
}

/** How many tokens a rectangle computes in each row; 0: the column computes no rectangle. */
export function rectangleColumns({ shape }) {
  return shape?.kind === "Rectangle" ? shape.stop - shape.start : 0;
}
