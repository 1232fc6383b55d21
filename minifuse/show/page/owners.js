/**
 * The owners of every slot of both tiers, at any moment of a run, from what the trace tells: places and moves.
 *
 * The columns of a run are replayed as moments: a plan begins (its evictions, moves and places take effect) and ends
 * (the requests that it finishes give up their slots). Plans of several workers overlap, so moments are put in the order
 * of time. The books are stored every CHECKPOINT_EVERY moments, as runs of slots that are alike, so that any column is
 * reached by replaying a few.
 *
 * @typedef {{first: number, count: number, owners: number[], state: SlotState, twin: number}} SlotRun
 *     consecutive slots alike; `twin` is the first slot of the other tier that has the same KV, or -1
 * @typedef {"reserved"|"written"|"kept"|"copy"} SlotState
 *     kept: for a conversation, or a suspended request, until it is reclaimed; copy: also on the host, free to be taken
 * @typedef {import("./model.js").Move & {owners: number[]}} OwnedMove
 * @typedef {{index: number, device: SlotRun[], host: SlotRun[], moves: OwnedMove[], waves: SlotRun[][],
 *            fresh: {first: number, count: number, request: number, wave: number}[],
 *            places: Map<number, import("./model.js").Place>}} Frame
 *     `waves`: the device while each wave is attended, if there are several or layers take turns; `fresh`: slots written
 *     in this column; `places`: of the requests that have one
 */

import { PLAN_BEGINS, PLAN_ENDS, momentsOf } from "./moments.js";
import { SlotBooks } from "./slot_books.js";
import { eachSlot } from "./slots.js";

const CHECKPOINT_EVERY = 128;
const FRAMES_KEPT = 32;
const [RECENT_EVERY, RECENT_KEPT] = [16, 16];

/** The owners of every slot of a run, at any of its columns. */
export class Owners {
  /** @param {import("./model.js").RunModel} model */
  constructor(model) {
    this.model = model;
    this._moments = momentsOf(model);
    this.books = new SlotBooks(model, this._moments);
    if (this.books.tooMany) this._moments = { kinds: [], begin: new Int32Array(model.length), end: new Int32Array(model.length) };
    this._at = 0; // moments that have been replayed
    this._checkpoints = []; // the books before every CHECKPOINT_EVERY-th moment, as far as has been replayed
    this._recent = new Map(); // moment -> the books before it, closer together, where one has stepped back
    this._storing = false;
    this._frames = new Map();
  }

  /** Replays up to a moment, from the nearest state that is stored, if the present one is later or far behind. */
  _seek(at) {
    if (at < this._at || at - this._at > CHECKPOINT_EVERY) {
      let nearest = Math.min(Math.floor(at / CHECKPOINT_EVERY), this._checkpoints.length - 1) * CHECKPOINT_EVERY;
      for (const moment of this._recent.keys()) if (moment <= at) nearest = Math.max(nearest, moment);
      if (nearest >= 0 && (at < this._at || nearest > this._at)) {
        this._restore(this._recent.get(nearest) ?? this._checkpoints[nearest / CHECKPOINT_EVERY], nearest);
        this._storing = true; // after one step back, another is likely
      }
    }
    while (this._at < at) this._advance();
    this._storing = false;
  }

  _advance(seen) {
    if (this._at === this._checkpoints.length * CHECKPOINT_EVERY) this._checkpoints.push(this.books.packed());
    else if (this._storing && this._at % RECENT_EVERY === 0 && !this._recent.has(this._at)) {
      if (this._recent.size >= RECENT_KEPT) this._recent.delete(this._recent.keys().next().value);
      this._recent.set(this._at, this.books.packed());
    }
    const { kinds, columns } = this._moments;
    if (kinds[this._at] === PLAN_BEGINS) this.books.begin(columns[this._at], seen);
    else if (kinds[this._at] === PLAN_ENDS) this.books.end(columns[this._at], this._at);
    else this.books.leave(columns[this._at]);
    this._at += 1;
  }

  _restore(packed, at) {
    this.books.restore(packed);
    this._at = at;
  }

  /**
   * Replays on, for some milliseconds at most, so that later columns are reached at once.
   *
   * @param {number} milliseconds
   * @returns {boolean} whether all moments have been replayed
   */
  prepare(milliseconds) {
    const until = performance.now() + milliseconds;
    const last = Math.floor(this._moments.kinds.length / CHECKPOINT_EVERY);
    if (this._checkpoints.length > last) return true;
    const reached = (this._checkpoints.length - 1) * CHECKPOINT_EVERY;
    if (this._at < reached) this._restore(this._checkpoints.at(-1), reached);
    while (this._at < this._moments.kinds.length) {
      this._advance();
      if (this._at % 16 === 0 && performance.now() > until) return false;
    }
    return true;
  }

  /**
   * Every slot while a column runs: the requests that finish with it still have their slots.
   *
   * @param {number} i
   * @returns {Frame}
   */
  during(i) {
    const known = this._frames.get(i);
    if (known) return known;
    const seen = { moves: [], waves: [] };
    const step = this.model.step(i);
    this._seek(this._moments.begin[i]);
    if (!step.isWait) this._advance(seen);
    this._seek(this._moments.end[i]);
    const frame = { ...this._now(i), ...seen, fresh: this._written(step), places: new Map(this.books.places) };
    if (this._frames.size >= FRAMES_KEPT) this._frames.delete(this._frames.keys().next().value);
    this._frames.set(i, frame);
    return frame;
  }

  /**
   * Every slot before a column begins: nothing that it decides has happened.
   *
   * @param {number} i
   * @returns {{index: number, device: SlotRun[], host: SlotRun[]}}
   */
  before(i) {
    this._seek(this._moments.begin[i]);
    return this._now(i);
  }

  _now(i) {
    const { books } = this;
    return { index: i, device: books.tiers.runs(books.device), host: books.tiers.runs(books.host) };
  }

  /** The slots that a column writes, as runs. */
  _written(step) {
    const fresh = [];
    step.waves.forEach(([start, stop], wave) => {
      for (let k = start; k < stop; k++) {
        const { request, start: token, stop: end } = step.work[k];
        if (step.places[k].kind === "node") {
          fresh.push({ first: step.places[k].slot, count: 1, request, wave });
          continue;
        }
        let last = null;
        eachSlot(step.places[k], token, end, (slot) => {
          if (last && last.first + last.count === slot) last.count += 1;
          else fresh.push((last = { first: slot, count: 1, request, wave }));
        });
      }
    });
    return fresh;
  }
}
