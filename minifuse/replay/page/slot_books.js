/**
 * The books of slots: whose each is now, and as what, while plans begin and end.
 *
 * @typedef {import("./owners.js").SlotRun} SlotRun
 * @typedef {import("./owners.js").OwnedMove} OwnedMove
 */

import { highestSlots, lastReads, shapeStop } from "./moments.js";
import { NO_TWIN, OwnerSets, SLOT_COPY, SLOT_FREE, SLOT_KEPT, SLOT_RESERVED, SLOT_STATES, SLOT_WRITTEN, SlotTier, alikeUpTo, eachSlot, placeSize } from "./slots.js";

const MOST_SLOTS = 2 ** 25; // of a tier: more than any device has room for
const NO_LIST = Object.freeze([]);

/** The books of one run: plain arrays of slots, which the moments of the run change one after the other. */
export class SlotBooks {
  /** @param {import("./model.js").RunModel} model @param {import("./moments.js").Moments} moments */
  constructor(model, moments) {
    this.model = model;
    this.sets = new OwnerSets();
    const { steps } = model.run;
    /** Whether KV that no request uses may be kept until it is reclaimed. */
    this.keeps = steps.some((step) => step.kp && (step.kp[0] || step.kp[1]));
    /** Whether KV leaves for the host while its sequence goes on: a place must then be taken anew. */
    this._offloads = steps.some((step) => step.m !== undefined && step.m.some(([kind]) => kind === "offload"));
    /** Whether the layers of the model have the device in turn: its slots hold one layer's KV, and nothing stays. */
    this.layered = (model.run.facts ?? []).some(([name, value]) => name === "memory.turns" && value === "layers");
    const [top, hostTop] = highestSlots(steps);
    /** More slots than can be kept books of, as a damaged trace may name; 0: they are kept, otherwise nothing is. */
    const most = steps.reduce((found, { sh }) => (sh ? Math.max(found, shapeStop(sh)) : found), Math.max(top, hostTop));
    this.tooMany = most > MOST_SLOTS ? most : 0;
    this.device = new SlotTier(this.tooMany ? 0 : top);
    this.host = new SlotTier(this.tooMany ? 0 : hostTop);
    this.places = new Map(); // of the requests that have one
    this.tables = new Map(); // block tables as they were told last
    this._gone = moments.gone;
    this._reads = model.ofCells && !this.tooMany ? lastReads(steps, moments) : new Map();
    this._stamps = new Int32Array(this.device.size);
    this._stamp = 0;
  }

  /**
   * A plan begins: its evictions, moves and places take effect.
   *
   * @param {number} i its column
   * @param {{moves: OwnedMove[], waves: SlotRun[][]}} [seen] takes what is to be seen of it
   */
  begin(i, seen) {
    const step = this.model.run.steps[i];
    const { w: work = NO_LIST, p: places = NO_LIST, m: moves = NO_LIST } = step;
    if (moves.length) {
      for (const move of moves) if (move[6] === "first" || move[6] === "behind") this._move(move, seen);
      this._movesOf(moves, "before", 0, seen);
    }
    for (const r of step.e ?? NO_LIST) this._suspend(r);
    const waves = step.wv ?? [[0, work.length]];
    for (let wave = 0; wave < waves.length; wave++) {
      const [start, stop] = waves[wave];
      if (wave && moves.length) this._movesOf(moves, "before", wave, seen);
      for (let k = start; k < stop; k++) {
        const [r, token, end] = work[k];
        const told = places[k];
        if (Array.isArray(told[0]) && told.length === 2) this._compute(told[1], r);
        else {
          // The first token that the wave computes of it: what lies before is there already.
          const first = k > start && work[k - 1][0] === r ? this._first : (this._first = token);
          this._place(r, this._whole(r, told), first, step);
          this._write(r, token, end);
        }
      }
      if (seen && work.length && (waves.length > 1 || this.layered)) seen.waves.push(this.runs(this.device));
      if (moves.length) this._movesOf(moves, "after", wave, seen);
    }
  }

  /** A place as the trace tells it, its block table put together with what was told before. */
  _whole(r, told) {
    if (told.length === 2) {
      const last = this.places.get(r);
      if (last && last.kind === "extent" && last.offset === told[0] && last.size === told[1]) return last;
      return { kind: "extent", offset: told[0], size: told[1] };
    }
    if (told.length === 1) return { kind: "runs", runs: told[0] };
    const [kept, added, size] = told;
    const last = this.tables.get(r);
    if (last && last.blocks.length === kept && !added.length) return last;
    const table = { kind: "blocks", blocks: last ? last.blocks.slice(0, kept).concat(added) : added, size };
    this.tables.set(r, table);
    return table;
  }

  /** A plan ends: what it finishes gives its slots up. @param {number} i its column @param {number} at the moment */
  end(i, at) {
    const step = this.model.run.steps[i];
    for (const move of step.m ?? NO_LIST) if (move[6] === "behind") this._land(move);
    for (const [slot, r] of this._reads.get(i) ?? NO_LIST) {
      if (this.sets.has(this.device.owners[slot], r)) this.device.free(slot);
    }
    for (const [r] of step.f ?? NO_LIST) this.leave(r);
    for (const [r] of step.w ?? NO_LIST) if (this._gone[r] < at) this.leave(r);
    if (this.layered) this._empty();
  }

  /** Nothing is on the device any more. */
  _empty() {
    for (let slot = 0; slot < this.device.size; slot++) {
      if (this.device.states[slot] === SLOT_FREE) continue;
      this._unlink(this.device, slot);
      this.device.free(slot);
    }
  }

  /** A state is computed. */
  _compute(slot, r) {
    this.device.free(slot);
    this.device.owners[slot] = this.sets.with(0, r);
    this.device.states[slot] = SLOT_WRITTEN;
  }

  _movesOf(moves, moment, wave, seen) {
    const given = new Set();
    for (const move of moves) {
      if (move[6] !== moment || move[7] !== wave) continue;
      this._move(move, seen);
      if (move[0] !== "offload") continue;
      for (let k = 0; k < move[3]; k++) {
        for (const r of this.sets.members[this.device.owners[move[1] + k]]) given.add(r);
      }
    }
    for (const r of given) this._giveBack(r);
  }

  /** The target takes over the owners of the source. What stays where it was, on both tiers, is a twin. */
  _move([kind, first, firstTarget, count, fromTier, toTier, moment, wave], seen) {
    const [from, to] = [this[fromTier], this[toTier]];
    const apart = from !== to && kind !== "swap_in";
    const stays = apart || kind === "copy";
    const owners = new Set();
    let last = 0;
    for (let k = 0; k < count; k++) {
      const [source, target] = [first + k, firstTarget + k];
      const [set, state] = [from.owners[source], from.states[source]];
      if (seen && set !== last) for (const r of this.sets.members[(last = set)]) owners.add(r);
      this._unlink(to, target);
      if (!stays) {
        this._unlink(from, source);
        from.free(source);
      }
      to.owners[target] = kind === "copy" ? 0 : set; // who it is for is told by the places
      to.states[target] = state === SLOT_KEPT ? SLOT_KEPT : SLOT_WRITTEN;
      if (apart) {
        this._unlink(from, source);
        from.twins[source] = target + 1;
        to.twins[target] = source + 1;
      }
    }
    if (!seen) return;
    const move = { kind, source: first, target: firstTarget, count, fromTier, toTier, moment, wave };
    seen.moves.push({ ...move, owners: [...owners] });
  }

  /** A slot of a tier has no twin any more. Returns the one it had, or -1. */
  _unlink(tier, slot) {
    const twin = tier.twins[slot] - 1;
    if (twin < 0) return -1;
    tier.twins[slot] = NO_TWIN;
    (tier === this.device ? this.host : this.device).twins[twin] = NO_TWIN;
    return twin;
  }

  /** What was copied behind everything stays on both tiers only if nothing has used it meanwhile. */
  _land([, first, firstTarget, count, , toTier]) {
    if (toTier !== "host") return;
    for (let k = 0; k < count; k++) {
      if (this.device.states[first + k] === SLOT_KEPT) continue;
      this._unlink(this.host, firstTarget + k);
      this.host.free(firstTarget + k);
    }
  }

  _place(r, place, start, step) {
    const old = this.places.get(r);
    const again = this._offloads || (this.keeps && step.a !== undefined && step.a.includes(r));
    if (old === place && !again) return;
    const { device, sets } = this;
    this.places.set(r, place);
    const same = alikeUpTo(old, place);
    const size = placeSize(place);
    if (old && same < placeSize(old)) {
      this._stamp += 1;
      eachSlot(place, 0, size, (slot) => (this._stamps[slot] = this._stamp));
      eachSlot(old, same, Infinity, (slot) => {
        if (this._stamps[slot] !== this._stamp) this._remove(device, slot, r);
      });
    }
    const { requests } = this.model;
    const conversation = requests[r].conversation ?? null;
    const alike = (one) => one === r || (conversation !== null && requests[one].conversation === conversation);
    eachSlot(place, again ? 0 : same, size, (slot, token) => {
      const [set, state] = [device.owners[slot], device.states[slot]];
      if (sets.has(set, r) && state !== SLOT_COPY && state !== SLOT_KEPT) return;
      const members = sets.members[set];
      const has = (state === SLOT_WRITTEN || state === SLOT_KEPT) && (token < start || members.some(alike));
      const others = has && state === SLOT_WRITTEN && members.some((one) => this.places.has(one));
      const twin = has && state !== SLOT_KEPT ? -1 : this._unlink(device, slot);
      if (twin >= 0 && has) this.host.free(twin); // it may grow: the copy is given up
      device.owners[slot] = sets.with(others ? this._living(set) : 0, r);
      device.states[slot] = has ? SLOT_WRITTEN : SLOT_RESERVED;
    });
  }

  /** Those of a set that have a place: others have left what they had. */
  _living(set) {
    return this.sets.members[set].reduce((rest, one) => (this.places.has(one) ? rest : this.sets.without(rest, one)), set);
  }

  _write(r, start, stop) {
    const { device, sets } = this;
    eachSlot(this.places.get(r), start, stop, (slot) => {
      this._unlink(device, slot);
      if (!sets.has(device.owners[slot], r)) device.owners[slot] = sets.with(0, r);
      device.states[slot] = SLOT_WRITTEN;
    });
  }

  _remove(tier, slot, r) {
    if (!this.sets.has(tier.owners[slot], r)) return;
    const rest = this.sets.without(tier.owners[slot], r);
    if (rest) tier.owners[slot] = rest;
    else {
      this._unlink(tier, slot);
      tier.free(slot);
    }
  }

  /** Calls back with each slot of a tier that a request owns, alone or with others. */
  _eachOwned(tier, r, call) {
    const { owners, size } = tier;
    const { sets } = this;
    let [last, found] = [0, false];
    for (let slot = 0; slot < size; slot++) {
      const set = owners[slot];
      if (!set) continue;
      if (set !== last) [last, found] = [set, sets.has(set, r)];
      if (found) call(slot);
    }
  }

  /** An evicted request gives up its place on the device; what it has on the host stays. */
  _suspend(r) {
    this.places.delete(r);
    this._eachOwned(this.device, r, (slot) => this._keepOrRemove(slot, r, this.keeps));
  }

  _keepOrRemove(slot, r, keep) {
    const { device, sets } = this;
    if (keep && device.states[slot] >= SLOT_WRITTEN && sets.members[device.owners[slot]].length === 1) {
      device.states[slot] = SLOT_KEPT;
    } else this._remove(device, slot, r);
  }

  /** A request's slots on the device may be taken: its KV is on the host. */
  _giveBack(r) {
    this._eachOwned(this.device, r, (slot) => {
      if (this.device.states[slot] === SLOT_WRITTEN) this.device.states[slot] = SLOT_COPY;
      else if (this.device.states[slot] === SLOT_RESERVED) this._remove(this.device, slot, r);
    });
  }

  /** A request has ended. What belongs to its conversation may be kept, until it is reclaimed. */
  leave(r) {
    const keep = this.keeps && (this.model.requests[r].conversation ?? null) !== null;
    this.places.delete(r);
    this.tables.delete(r);
    this._eachOwned(this.device, r, (slot) => this._keepOrRemove(slot, r, keep));
    this._eachOwned(this.host, r, (slot) => {
      if (keep) this.host.states[slot] = SLOT_KEPT;
      else this._remove(this.host, slot, r);
    });
  }

  /** The slots of a tier as runs alike. @param {SlotTier} tier @returns {SlotRun[]} */
  runs(tier) {
    const packed = tier.pack();
    const found = [];
    for (let k = 0; k < packed.length; k += 5) {
      const owners = this.sets.members[packed[k + 2]];
      found.push({ first: packed[k], count: packed[k + 1], owners, state: SLOT_STATES[packed[k + 3]], twin: packed[k + 4] - 1 });
    }
    return found;
  }

  /** All that is to be kept of the books to go on from here later. */
  packed() {
    return { device: this.device.pack(), host: this.host.pack(), places: [...this.places], tables: [...this.tables] };
  }

  /** The books as they were when they were packed. */
  restore({ device, host, places, tables }) {
    this.device.unpack(device);
    this.host.unpack(host);
    this.places = new Map(places);
    this.tables = new Map(tables);
  }
}
