/**
 * The books of slots: the owners and the state of each, while plans begin and end.
 *
 * @typedef {import("./owners.js").SlotRun} SlotRun
 * @typedef {import("./owners.js").OwnedMove} OwnedMove
 */

import { highestSlots, lastReads, shapeStop } from "./moments.js";
import { SLOT_COPY, SLOT_KEPT, SLOT_RESERVED, SLOT_WRITTEN, alikeUpTo, eachSlot, placeSize } from "./slots.js";
import { Tiers } from "./tiers.js";

const MOST_SLOTS = 2 ** 25; // of a tier: more than any device has room for
const NO_LIST = Object.freeze([]);

/** The books of one run: plain arrays of slots, which the moments of the run change one after the other. */
export class SlotBooks {
  /** @param {import("./model.js").RunModel} model @param {import("./moments.js").Moments} moments */
  constructor(model, moments) {
    this.model = model;
    const { steps } = model.run;
    /** Whether KV that no request uses may be kept until it is reclaimed. */
    this.keeps = steps.some((step) => step.kp && (step.kp[0] || step.kp[1]));
    /** Whether KV leaves for the host while its sequence goes on: a place must then be taken anew. */
    this._offloads = steps.some((step) => step.m !== undefined && step.m.some(([kind]) => kind === "offload"));
    /** Whether the layers of the model have the device in turn: its slots hold one layer's KV, and nothing stays. */
    this.layered = (model.run.facts ?? []).some(([name, value]) => name === "memory.turns" && value === "layers");
    const [top, hostTop, blockSize] = highestSlots(steps);
    /** The slots that the trace names, if they are too many to keep books of, as in a damaged trace: then none are kept. */
    const most = steps.reduce((found, { sh }) => (sh ? Math.max(found, shapeStop(sh)) : found), Math.max(top, hostTop));
    this.tooMany = most > MOST_SLOTS ? most : 0;
    this.tiers = this.tooMany ? new Tiers(0, 0, blockSize) : new Tiers(top, hostTop, blockSize);
    ({ sets: this.sets, device: this.device, host: this.host } = this.tiers);
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
   * @param {{moves: OwnedMove[], waves: SlotRun[][]}} [seen] gets its moves and the device in each wave
   */
  begin(i, seen) {
    const step = this.model.run.steps[i];
    const { w: work = NO_LIST, p: places = NO_LIST } = step;
    for (const moment of ["first", "behind", "before"]) this._move(step, moment, 0, seen);
    for (const r of step.e ?? NO_LIST) this._suspend(r);
    const waves = step.wv ?? [[0, work.length]];
    for (let wave = 0; wave < waves.length; wave++) {
      const [start, stop] = waves[wave];
      if (wave) this._move(step, "before", wave, seen);
      for (let k = start; k < stop; k++) {
        const [r, token, end] = work[k];
        const told = places[k];
        if (Array.isArray(told[0]) && told.length === 2) this._compute(told[1], r);
        else {
          // The first token of the request that the wave computes: the KV of those before is there already.
          const first = k > start && work[k - 1][0] === r ? this._first : (this._first = token);
          this._place(r, this._whole(r, told), first, step);
          this._write(r, token, end);
        }
      }
      if (seen && work.length && (waves.length > 1 || this.layered)) seen.waves.push(this.tiers.runs(this.device));
      this._move(step, "after", wave, seen);
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

  /** A plan ends: the requests that it finishes give up their slots. @param {number} i its column @param {number} at the moment */
  end(i, at) {
    const step = this.model.run.steps[i];
    for (const [slot, r] of this._reads.get(i) ?? NO_LIST) {
      if (this.sets.has(this.device.owners[slot], r)) this.device.free(slot);
    }
    for (const [r] of step.f ?? NO_LIST) this.leave(r);
    for (const [r] of step.w ?? NO_LIST) if (this._gone[r] < at) this.leave(r);
    if (this.layered) this.tiers.emptyDevice();
  }

  /** A state is computed. */
  _compute(slot, r) {
    this.device.free(slot);
    this.device.owners[slot] = this.sets.with(0, r);
    this.device.states[slot] = SLOT_WRITTEN;
  }

  /** Moves of a plan take effect. KV in use that goes to the host gives up its slots; what is kept stays on both tiers. */
  _move(step, moment, wave, seen) {
    if (!step.m) return;
    const { sets, tiers } = this;
    const leaving = new Set();
    for (const move of step.m) {
      const [kind, source, target, count, fromTier, toTier] = move;
      if (move[6] !== moment || move[7] !== wave) continue;
      const from = tiers[fromTier];
      const owners = new Set();
      for (let slot = source; slot < source + count; slot++) {
        const members = sets.members[from.owners[slot]];
        for (const r of members) owners.add(r);
        if (toTier === "host" && from.states[slot] === SLOT_WRITTEN && members.length === 1) leaving.add(members[0]);
      }
      tiers.move(move, step.e ?? NO_LIST);
      seen?.moves.push({ kind, source, target, count, fromTier, toTier, moment, wave, owners: [...owners] });
    }
    for (const r of leaving) this._giveBack(r);
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
        if (this._stamps[slot] !== this._stamp) this.tiers.remove(device, slot, r);
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
      const sharing = has && state === SLOT_WRITTEN ? sets.only(set, (one) => this.places.has(one)) : 0;
      const twin = has && state !== SLOT_KEPT ? -1 : this.tiers.unlink(device, slot);
      if (twin >= 0 && has) this.host.free(twin); // the request may write on: its copy is given up
      device.owners[slot] = sets.with(sharing, r);
      device.states[slot] = has ? SLOT_WRITTEN : SLOT_RESERVED;
    });
  }

  _write(r, start, stop) {
    const { device, sets } = this;
    eachSlot(this.places.get(r), start, stop, (slot) => {
      this.tiers.unlink(device, slot);
      if (!sets.has(device.owners[slot], r)) device.owners[slot] = sets.with(0, r);
      device.states[slot] = SLOT_WRITTEN;
    });
  }

  /** An evicted request gives up its place on the device; what it has on the host stays. */
  _suspend(r) {
    this.places.delete(r);
    this.tiers.eachOwned(this.device, r, (slot) => this._keepOrRemove(slot, r, this.keeps));
  }

  _keepOrRemove(slot, r, keep) {
    const { device, sets } = this;
    if (keep && device.states[slot] >= SLOT_WRITTEN && sets.members[device.owners[slot]].length === 1) {
      device.states[slot] = SLOT_KEPT;
    } else this.tiers.remove(device, slot, r);
  }

  /** The slots that a request has alone on the device may be taken: its KV is on the host. */
  _giveBack(r) {
    const { device, sets, tiers } = this;
    tiers.eachOwned(device, r, (slot) => {
      if (device.states[slot] === SLOT_RESERVED) tiers.remove(device, slot, r);
      else if (device.states[slot] === SLOT_WRITTEN && device.owners[slot] === sets.with(0, r)) device.states[slot] = SLOT_COPY;
    });
  }

  /** A request has ended. KV of a conversation may be kept, until it is reclaimed. */
  leave(r) {
    const keep = this.keeps && (this.model.requests[r].conversation ?? null) !== null;
    this.places.delete(r);
    this.tables.delete(r);
    this.tiers.eachOwned(this.device, r, (slot) => this._keepOrRemove(slot, r, keep));
    this.tiers.eachOwned(this.host, r, (slot) => {
      if (keep) this.host.states[slot] = SLOT_KEPT;
      else this.tiers.remove(this.host, slot, r);
    });
  }

  /** All that is needed to go on from here later. */
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
