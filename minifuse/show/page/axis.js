/** Where columns lie from left to right: all of one width, or as wide as they took in time. */

import { countUpTo } from "./ascending.js";
import { seconds } from "./words.js";

/** Pixels of a column: at least, and at most. */
const NARROWEST = 0.05;
export const WIDEST = 64;
const TICKS = 80; // pixels from one label to the next, about

/**
 * The common axis of a run's lanes and charts. Positions are pixels from the beginning of the run.
 *
 *     axis.mode = "iterations"; axis.width = 10; axis.x(3)  // 30
 */
export class Axis {
  constructor(model) {
    this.model = model;
    /** @type {"iterations"|"time"} */
    this.mode = "iterations";
    /** Pixels of a column; in time, of a column of median length. */
    this.width = 10;
    /** The most pixels of a column while the whole run is fitted to the page; 0: it is not fitted. */
    this.fitted = 0;
    /** The position at the left edge of what is seen. */
    this.left = 0;
    this.origin = model.length ? Math.min(...model.starts.subarray(0, 64), earliest(model)) : 0;
    const lengths = Float64Array.from(model.ends, (end, i) => end - model.starts[i]).filter((one) => one > 0);
    lengths.sort();
    this.median = lengths.length ? lengths[lengths.length >> 1] : 1;
  }

  /** Pixels of a second, in time. */
  get scale() {
    return this.width / this.median;
  }

  /** @returns {number} where column i begins */
  x(i) {
    if (this.mode === "iterations") return i * this.width;
    return (this.model.starts[i] - this.origin) * this.scale;
  }

  /** @returns {number} where column i ends */
  right(i) {
    if (this.mode === "iterations") return (i + 1) * this.width;
    return (this.model.ends[i] - this.origin) * this.scale;
  }

  /**
   * @param {number} position in columns and shares of them
   * @returns {number} pixels at which something that begins at this position is drawn
   *     axis.mode = "iterations"; axis.width = 10; axis.begin(3.5)  // 35
   */
  begin(position) {
    const i = Math.floor(position);
    return this.x(i) + (position - i) * (this.right(i) - this.x(i));
  }

  /** @param {number} position in columns and shares of them @returns {number} pixels at which it ends */
  end(position) {
    const i = Math.ceil(position) - 1;
    return this.x(i) + (position - i) * (this.right(i) - this.x(i));
  }

  /** @returns {number} where a moment lies; in columns of one width, where its column begins */
  atTime(seconds) {
    if (this.mode === "time") return (seconds - this.origin) * this.scale;
    return this.x(Math.min(this.model.length, countUpTo(this.model.passed, seconds)));
  }

  /** @returns {number} the moment at a position, for columns in time */
  timeAt(position) {
    return this.origin + position / this.scale;
  }

  /** @returns {number} the length of the whole run */
  get total() {
    const { length, passed } = this.model;
    if (!length) return 0;
    return this.mode === "iterations" ? length * this.width : (passed[length - 1] - this.origin) * this.scale;
  }

  /** @returns {number} the column at a position */
  column(position) {
    const { length, passed } = this.model;
    const i = this.mode === "iterations" ? Math.floor(position / this.width) : countUpTo(passed, this.origin + position / this.scale);
    return Math.max(0, Math.min(length - 1, i));
  }

  /** @param {number} seen pixels @returns {number[]} the columns [first, last) of which something is seen */
  visible(seen) {
    const { model, left } = this;
    if (this.mode === "iterations") {
      return [Math.max(0, Math.floor(left / this.width)), Math.min(model.length, Math.ceil((left + seen) / this.width))];
    }
    const beside = 2 * model.run.workers + 2; // plans of several workers may end in another order than they began
    const last = countUpTo(model.passed, this.origin + (left + seen) / this.scale) + beside;
    return [countUpTo(model.passed, this.origin + left / this.scale), Math.min(model.length, last)];
  }

  /**
   * Fit the whole run to the page. In time it fills all of the width.
   *
   * @param {number} seen pixels
   * @param {{widest?: number, last?: number}} [limits] `widest`: pixels of a column, if all have one width;
   *     `last`: in time, the second at which the page ends, if another run lasts longer
   */
  fit(seen, { widest = WIDEST, last = this.model.passed[this.model.length - 1] } = {}) {
    if (this.mode === "iterations") this.width = Math.max(NARROWEST, Math.min(widest, seen / Math.max(1, this.model.length)));
    else if (last > this.origin) this.width = (seen / (last - this.origin)) * this.median;
    this.left = 0;
    this.fitted = widest;
  }

  /** @param {number} width pixels of a column */
  zoomTo(width) {
    const widest = this.mode === "time" ? 4 * WIDEST : WIDEST;
    this.width = Math.max(Math.min(NARROWEST, this.width), Math.min(Math.max(widest, this.width), width));
    this.fitted = 0;
  }

  /**
   * Labels, about 80 pixels apart: times, or the trace's numbers of iterations and of moves alone.
   *
   * @returns {{x: number, label: string}[]}
   */
  ticks(seen) {
    const found = [];
    if (this.mode === "iterations") {
      const step = roundStep(TICKS / this.width, 1);
      const [first, last] = this.visible(seen);
      for (let i = first; i < last; i++) {
        const { isWait, number } = this.model.steps[i];
        if (isWait || number % step) continue;
        if (!found.length || this.x(i) - found.at(-1).x > TICKS / 2) found.push({ x: this.x(i), label: String(number) });
      }
      return found;
    }
    const step = roundStep(TICKS / this.scale, 0);
    const from = Math.max(0, this.left / this.scale);
    for (let k = Math.ceil(from / step); k * step <= (this.left + seen) / this.scale && found.length < 200; k++) {
      found.push({ x: k * step * this.scale, label: seconds(this.origin + k * step, step) });
    }
    return found;
  }
}

function earliest(model) {
  return model.starts.reduce((least, one) => Math.min(least, one), Infinity);
}

/** The next of 1, 2, 5, 10, 20 ... that is at least `value`, and at least `least`. */
function roundStep(value, least) {
  if (value <= least) return least;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((one) => one * power >= value * 0.999) * power;
  return Math.max(least, step);
}
