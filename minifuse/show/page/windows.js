/** The windows of buffers in which a shuffle may gather running requests, as `minifuse/memory/slots/shuffle.py` forms them. */

/**
 * Every window that fits the live buffers. Fixed buffers are neither moved nor overwritten, so a window is of movable
 * ones that follow each other, and may span a fixed one.
 *
 *     shuffleWindows([0, 4], [2], 5)  // 0 to 1: 1 copy; 1 to 3: 2 copies; 3 to 4: 1 copy
 *
 * @param {number[]} live buffers of running requests @param {number[]} fixed buffers of other requests
 * @param {number} count buffers in all
 * @returns {{first: number, last: number, copies: number}[]} ascending
 */
export function shuffleWindows(live, fixed, count) {
  const [held, excluded] = [new Set(live), new Set(fixed)];
  const movable = Array.from({ length: count }, (_, buffer) => buffer).filter((buffer) => !excluded.has(buffer));
  const windows = [];
  for (let start = 0; start + held.size <= movable.length; start++) {
    const inside = movable.slice(start, start + held.size);
    const copies = inside.filter((buffer) => !held.has(buffer)).length;
    windows.push({ first: inside[0], last: inside.at(-1), copies });
  }
  return windows;
}
