/**
 * The moments of a run: plans begin and end, requests are aborted. Found once, before any is replayed.
 *
 * @typedef {{kinds: Uint8Array, columns: Int32Array, begin: Int32Array, end: Int32Array, gone: Float64Array}} Moments
 *     of each moment what it is and its column (of an abort the request); of each column the moments with which it
 *     begins and ends; of each request the moment at which it leaves, or Infinity
 */

export const [PLAN_BEGINS, PLAN_ENDS, REQUEST_ABORTED] = [0, 1, 2];

/** One more than the highest slot of what is computed whole. */
export function shapeStop({ kind, offset, rows, stride, size, width }) {
  return kind === "Rectangle" ? offset + rows * stride : kind === "Region" ? (offset + size) * width : offset + rows;
}

/** One more than the highest slot that is ever used, on the device and on the host; and the slots of a block, or 1. */
export function highestSlots(steps) {
  let [top, hostTop, blockSize] = [0, 0, 1];
  const see = (stop) => (top = Math.max(top, stop));
  for (const step of steps) {
    for (const place of step.p ?? []) {
      if (place.length === 3) {
        blockSize = place[2];
        for (const block of place[1]) see((block + 1) * blockSize);
      } else if (place.length === 1) for (const [first, count] of place[0]) see(first + count);
      else if (Array.isArray(place[0])) see(place[1] + 1);
      else see(place[0] + place[1]);
    }
    for (const [, source, target, count, from, to] of step.m ?? []) {
      if (from === "host") hostTop = Math.max(hostTop, source + count);
      else see(source + count);
      if (to === "host") hostTop = Math.max(hostTop, target + count);
      else see(target + count);
    }
  }
  return [top, hostTop, blockSize];
}

/**
 * The moments of a run in order: a plan begins before another ends if it started before that. Plans begin in the order
 * in which they started: one that waits in the queue of its worker has no slots yet, though one with a later number
 * may run on another worker. Where KV is moved they begin in the order of their numbers, since a copy beside the
 * iterations may start after the iteration that overwrites what it copies, and which waits for it. Of one worker the
 * moments are: plan 0 begins, plan 0 ends, plan 1 begins, and so on.
 *
 * @param {import("./model.js").RunModel} model
 * @returns {Moments}
 */
export function momentsOf(model) {
  const { steps } = model.run;
  const plans = steps.map((_, i) => i).filter((i) => !steps[i].wait);
  const moves = steps.some(({ m }) => m !== undefined);
  const started = (a, b) => (moves ? 0 : steps[a].t[0] - steps[b].t[0]);
  const begins = [...plans].sort((a, b) => started(a, b) || (steps[a].n ?? a) - (steps[b].n ?? b));
  const [kinds, columns] = [[], []];
  const begin = new Int32Array(model.length).fill(-1);
  const end = new Int32Array(model.length);
  const aborts = model.requests
    .map((request, r) => [request.ended, r, request.outcome])
    .filter(([ended, , outcome]) => outcome === "aborted" && ended !== null && ended !== undefined)
    .sort((a, b) => a[0] - b[0]);
  const add = (kind, which) => {
    kinds.push(kind);
    columns.push(which);
    return kinds.length - 1;
  };
  let [next, abort] = [0, 0];
  for (let i = 0; i < model.length; i++) {
    const ended = steps[i].t[1];
    while (abort < aborts.length && aborts[abort][0] <= steps[i].t[0]) add(REQUEST_ABORTED, aborts[abort++][1]);
    if (!steps[i].wait) {
      while (next < begins.length && (begin[i] < 0 || steps[begins[next]].t[0] < ended)) {
        const column = begins[next++];
        begin[column] = add(PLAN_BEGINS, column);
      }
    }
    if (steps[i].wait) begin[i] = kinds.length;
    end[i] = steps[i].wait ? kinds.length : add(PLAN_ENDS, i);
  }
  while (abort < aborts.length) add(REQUEST_ABORTED, aborts[abort++][1]);
  const gone = new Float64Array(model.requests.length).fill(Infinity);
  kinds.forEach((kind, at) => {
    if (kind === REQUEST_ABORTED) gone[columns[at]] = at;
    if (kind === PLAN_ENDS) for (const [r] of steps[columns[at]].f ?? []) gone[r] = at;
  });
  return { kinds: Uint8Array.from(kinds), columns: Int32Array.from(columns), begin, end, gone };
}

/** Of states: the column with whose end a slot has been read for the last time -> those slots and their requests. */
export function lastReads(steps, { kinds, columns }) {
  const last = new Map();
  const done = new Map();
  const leave = (slot, before) => {
    const { column, r, read } = last.get(slot) ?? { read: -1 };
    if (read < 0 || read === before) return; // never read, or overwritten by the plan that read it
    if (!done.has(read)) done.set(read, []);
    done.get(read).push([slot, r, column]);
  };
  for (let at = 0; at < kinds.length; at++) {
    if (kinds[at] !== PLAN_BEGINS) continue;
    const column = columns[at];
    const { w: work = [], p: places = [], wv: waves = [[0, (steps[column].w ?? []).length]] } = steps[column];
    for (const [start, stop] of waves) {
      for (let k = start; k < stop; k++) {
        for (const slot of places[k][0]) if (last.has(slot)) last.get(slot).read = column;
      }
      for (let k = start; k < stop; k++) {
        leave(places[k][1], column);
        last.set(places[k][1], { column, r: work[k][0], read: -1 });
      }
    }
  }
  for (const slot of last.keys()) leave(slot, -1);
  return done;
}
