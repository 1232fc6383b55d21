/** Looking things up in arrays that ascend. */

/**
 * The number of values at the beginning of an ascending array that are at most `value`.
 *
 *     countUpTo([2, 5, 5, 9], 5)  // 3
 *
 * @param {number} [length] of the part to look at
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
