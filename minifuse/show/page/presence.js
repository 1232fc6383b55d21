/** Requests by column: under way, or ended. A lookup costs as much as the requests that it finds. */

import { countUpTo } from "./ascending.js";

const STRETCH = 64; // columns that share a list of requests

/**
 * Requests that are under way, from their arrival to their end, and those that have ended.
 *
 *     // r0 in columns 0 to 4, r1 in columns 2 to 9
 *     presence.underWay(6)  // [1]
 */
export class Presence {
  constructor(model) {
    this._from = new Float64Array(model.requests.length);
    this._to = new Float64Array(model.requests.length);
    this._stretches = []; // of each stretch the requests that are under way in one of its columns
    const ends = [];
    model.requests.forEach((_, r) => {
      const spans = model.spans(r);
      if (!spans.length) return;
      const last = spans.at(-1);
      const ended = last.state === "finished" || last.state === "refused";
      [this._from[r], this._to[r]] = [spans[0].from, ended ? last.from : Infinity];
      if (ended) ends.push({ r, column: last.from, refused: last.state === "refused" });
      for (let k = Math.floor(this._from[r] / STRETCH); k <= (Math.min(this._to[r], model.length) - 1) / STRETCH; k++) (this._stretches[k] ??= []).push(r);
    });
    ends.sort((one, other) => one.column - other.column || one.r - other.r);
    /** Finished requests and refused ones, both in the order of their ends; and the columns of the ends. */
    this._ended = [false, true].map((refused) => ends.filter((one) => one.refused === refused));
    this._columns = this._ended.map((list) => list.map(({ column }) => column));
  }

  /** @returns {number[]} requests that have arrived, and have neither finished nor been refused */
  underWay(i) {
    return (this._stretches[Math.floor(i / STRETCH)] ?? []).filter((r) => this._from[r] <= i && i < this._to[r]);
  }

  /** @returns {number} how many requests have ended by column i */
  numEnded(i) {
    return this._columns.reduce((sum, columns) => sum + countUpTo(columns, i), 0);
  }

  /** @param {number} most @returns {number[]} the last that have ended, latest first: finished ones, then refused ones */
  lastEnded(i, most) {
    const last = this._ended.flatMap((list, k) => {
      const count = countUpTo(this._columns[k], i);
      return list.slice(Math.max(0, count - most), count).reverse();
    });
    return last.slice(0, most).map(({ r }) => r);
  }
}
