/** Slots that are computed, or lie between the columns in use, and that no request needs. */

/**
 * The slots that columns [start, stop) take in one row of a rectangle, which is a ring, as runs [first, count].
 *
 *     ringRuns({offset: 10, stride: 8}, 1, -1, 2)  // [[25, 1], [18, 2]]: the row's last slot, and its first two
 */
export function ringRuns({ offset, stride }, row, start, stop) {
  const first = offset + row * stride;
  const count = Math.min(stride, stop - start);
  const at = ((start % stride) + stride) % stride;
  const before = Math.min(count, stride - at);
  const runs = [[first + at, before], [first, count - before]];
  return runs.filter((run) => run[1] > 0);
}

/** What of slots [first, first + count) none of these runs covers, which are in order: `[[5, 2]]`. */
function uncovered(runs, first, count) {
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle].first + runs[middle].count <= first) low = middle + 1;
    else high = middle;
  }
  const [found, end] = [[], first + count];
  let at = first;
  for (; low < runs.length && runs[low].first < end; low++) {
    if (runs[low].first > at) found.push([at, runs[low].first - at]);
    at = runs[low].first + runs[low].count;
  }
  if (at < end) found.push([at, end - at]);
  return found;
}

/**
 * The idle slots of a column: of what it computes whole, and between columns in use.
 *
 *     rectangle of 2 rows, columns [0, 6) in use, column 5 computed, row 1 without work: slot 5 of it is computed, the
 *     five before it lie idle
 *
 * @param {MemoryForms} forms
 * @param {import("./owners.js").Frame} frame
 * @returns {{computed: number[][], lying: number[][]}} runs of slots
 */
export function idleSlots(forms, frame) {
  if (!frame.idle) frame.idle = findIdle(forms, frame); // asked for by all that is drawn and told of a column
  return frame.idle;
}

function findIdle(forms, frame) {
  const [computed, lying] = [[], []];
  const { shape, work } = forms.model.step(frame.index);
  if (!shape || !work.length) return { computed, lying };
  const fresh = [...frame.fresh].sort((a, b) => a.first - b.first);
  if (shape.kind === "Rectangle") {
    const { rows, start, stop, begin = 0 } = shape;
    for (let row = 0; row < rows; row++) {
      for (const run of ringRuns(shape, row, begin, start)) lying.push(...uncovered(frame.device, ...run));
      for (const run of ringRuns(shape, row, start, stop)) computed.push(...uncovered(fresh, ...run));
    }
  } else if (shape.kind === "Region") {
    const busy = new Set(fresh.map(({ first }) => Math.floor(first / shape.width)));
    for (let buffer = shape.offset; buffer < shape.offset + shape.size; buffer++) {
      if (!busy.has(buffer)) computed.push([buffer * shape.width, shape.width]);
    }
  } else computed.push(...uncovered(frame.device, shape.offset, shape.rows));
  return { computed, lying };
}
