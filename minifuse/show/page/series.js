/** The series of values that charts draw: by column, and in time. */

import { capital } from "./words.js";

/**
 * A sum over the iterations that run at each moment. Iterations of several workers overlap in time.
 *
 *     // iteration 0 from 0 to 3 s computes 8 tokens, iteration 1 from 2 to 4 s computes 1
 *     sumInTime(model, model.computed)  // {edges: [0, 2, 3, 4], values: [8, 9, 1]}
 *
 * @param {ArrayLike<number>} values of the first columns
 * @returns {{edges: Float64Array, values: Float64Array}} values[k] from edges[k] to edges[k + 1] seconds, ascending
 */
function sumInTime(model, values) {
  const changes = [];
  for (let i = 0; i < values.length; i++) changes.push([model.starts[i], values[i]], [model.ends[i], -values[i]]);
  changes.sort((a, b) => a[0] - b[0]);
  const [edges, sums] = [[], []];
  let now = 0;
  for (const [at, change] of changes) {
    now += change;
    if (edges.length && edges.at(-1) === at) sums[sums.length - 1] = now;
    else {
      edges.push(at);
      sums.push(now);
    }
  }
  return { edges: Float64Array.from(edges), values: Float64Array.from(sums).subarray(0, Math.max(0, sums.length - 1)) };
}

/**
 * Values by column, where moves alone get the value of the iteration that is running beside them: else they would look
 * like pauses.
 *
 * @param {Int32Array|Float64Array} all of the columns
 */
function withBeside(model, all) {
  const found = all.slice();
  let next = -1; // the column of the next iteration that ends
  for (let i = model.length - 1; i >= 0; i--) {
    const { work, isWait } = model.steps[i];
    if (work.length) next = i;
    else if (!isWait && next >= 0 && model.starts[next] < model.ends[i]) found[i] = all[next];
  }
  return found;
}

/**
 * A level at each moment, such as memory or a queue: that of the next iteration to end.
 *
 * @param {ArrayLike<number>} values of the first columns
 * @returns {{edges: Float64Array, values: ArrayLike<number>}} as of `sumInTime`
 */
function lastInTime(model, values) {
  const edges = new Float64Array(values.length + 1);
  edges.set(model.passed.subarray(0, values.length), 1);
  if (values.length) edges[0] = Math.min(model.passed[0], model.starts.reduce((a, b) => Math.min(a, b), Infinity));
  return { edges, values };
}

/**
 * The charts of a run: the series of each, drawn over each other, and the value at its upper edge.
 *
 * @param {"iterations"|"time"} mode of columns
 * @param {number} [limit] the last column that may be shown
 * @returns {{name: string, unit: string, top: number, series: {label: string, colour: string, values: ArrayLike<number>,
 *            steps: {edges: Float64Array, values: ArrayLike<number>}, pattern?: string, line?: boolean}[]}[]}
 */
export function chartsOf(model, mode, limit = Infinity) {
  const most = ({ values, steps }) => largest(mode === "time" ? steps.values : values) || 1;
  const [batch, computed, idle] = [model.batch, model.computed, model.idle].map((all) => {
    const values = all.subarray(0, limit + 1);
    const drawn = limit < model.length - 1 ? values : withBeside(model, all); // what ends later may not be shown yet
    return { values: drawn, steps: sumInTime(model, values) };
  });
  const waiting = model.queue.subarray(0, limit + 1);
  const queue = { values: waiting, steps: lastInTime(model, waiting) };
  const { computed: noun, slot } = model.nouns;
  const idleShare = { label: "idle", colour: "idle", pattern: "backstripes", ...idle };
  return [
    { name: "Batch size", unit: "request", top: most(batch), series: [{ label: "requests", colour: "running", ...batch }] },
    { name: `${capital(noun)}s computed`, unit: noun, top: most(computed), series: [{ label: "computed", colour: "prompt", ...computed }, ...(idle.values.some(Boolean) ? [idleShare] : [])] },
    { name: model.ofCells ? "States" : "KV", unit: slot, top: memoryTop(model, limit), series: memoryOf(model, limit) },
    { name: "Queue", unit: "request", top: most(queue), series: [{ label: "waiting or suspended", colour: "waiting", pattern: "dots", ...queue }] },
  ];
}

/**
 * Charts with the upper edges that they share with those of other runs, so that heights can be compared.
 *
 * @param {object[]} charts as from `chartsOf`
 * @param {object[][]} all the charts of each run
 */
export function withSharedTops(charts, all) {
  return charts.map((chart, k) => ({ ...chart, top: Math.max(...all.map((one) => one[k].top)) }));
}

/**
 * The series of memory: slots set aside and in use; kept and on the host, if there are any.
 *
 * @param {number} [limit]
 * @returns {object[]} as of `chartsOf`
 */
export function memoryOf(model, limit = Infinity) {
  const found = [
    { label: "set aside", colour: "held", all: model.reserved },
    { label: "in use", colour: "running", all: model.used },
    { label: "kept", colour: "apart", all: model.kept, line: true },
    { label: "on the host", colour: "suspended", all: model.host, line: true },
  ].map(({ all, ...look }) => ({ ...look, values: all.subarray(0, limit + 1) }));
  return found.filter(({ line, values }) => !line || values.some(Boolean)).map((one) => ({ ...one, steps: lastInTime(model, one.values) }));
}

/** The most slots that any series of memory has. @param {number} [limit] */
export function memoryTop(model, limit = Infinity) {
  return Math.max(1, ...[model.reserved, model.used, model.host, model.kept].map((all) => largest(all.subarray(0, limit + 1))));
}

function largest(values) {
  return values.reduce((a, b) => Math.max(a, b), 0);
}

/**
 * The gaps of a request: how long it waited for each of its tokens, the first since its arrival (TTFT).
 *
 * @param {number} [limit] the last column that may be shown
 * @returns {{column: number, seconds: number, first: boolean}[]}
 */
export function gapsOf(model, r, limit = Infinity) {
  let before = model.requests[r].arrival ?? 0;
  const columns = model.tokenColumns(r).filter((column) => column <= limit);
  return columns.map((column, k) => {
    const gap = { column, seconds: model.ends[column] - before, first: k === 0 };
    before = model.ends[column];
    return gap;
  });
}

/** The longest of some gaps. @param {{column: number, seconds: number}[]} gaps as from `gapsOf` */
export function longestGap(gaps) {
  return gaps.reduce((most, gap) => (gap.seconds > most.seconds ? gap : most), { column: 0, seconds: 0 });
}
