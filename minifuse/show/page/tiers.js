/**
 * The slots of both tiers: moves between them, and runs of slots alike.
 *
 * @typedef {import("./owners.js").SlotRun} SlotRun
 */

import { NO_TWIN, OwnerSets, SLOT_FREE, SLOT_KEPT, SLOT_STATES, SLOT_WRITTEN, SlotTier } from "./slots.js";

/** The device and the host. A slot of one and a slot of the other that have the same KV are twins. */
export class Tiers {
  /** @param {number} size slots of the device @param {number} hostSize slots of the host @param {number} blockSize */
  constructor(size, hostSize, blockSize) {
    this.sets = new OwnerSets();
    this.device = new SlotTier(size);
    this.host = new SlotTier(hostSize);
    this.blockSize = blockSize;
  }

  /**
   * The target takes over the owners of the source. If KV crosses to the other tier and stays, the two slots are twins.
   *
   * @param {number[]} evicted requests: of several that share a slot, the copy on the host belongs to these
   */
  move([kind, first, firstTarget, count, fromTier, toTier], evicted) {
    const [from, to] = [this[fromTier], this[toTier]];
    const twins = from !== to && kind !== "swap_in";
    const stays = twins || kind === "copy";
    for (let k = 0; k < count; k++) {
      const [source, target] = [first + k, firstTarget + k];
      const [set, state] = [from.owners[source], from.states[source]];
      this.unlink(to, target);
      if (!stays) {
        this.unlink(from, source);
        from.free(source);
      }
      if (kind === "copy") to.owners[target] = 0; // the places of the plan tell the request that it is for
      else to.owners[target] = to === this.host ? this.sets.only(set, (r) => evicted.includes(r)) || set : set;
      to.states[target] = state === SLOT_KEPT ? SLOT_KEPT : SLOT_WRITTEN;
      if (twins) {
        this.unlink(from, source);
        from.twins[source] = target + 1;
        to.twins[target] = source + 1;
      }
    }
    if (to !== this.host) return;
    // A block of the host is filled from its beginning: what lies behind has been left by a request that had it before.
    const end = firstTarget + count;
    const blockEnd = Math.min(Math.ceil(end / this.blockSize) * this.blockSize, to.size);
    for (let slot = end; slot < blockEnd; slot++) this.clear(to, slot);
  }

  /** A slot of a tier has no twin any more. Returns the one it had, or -1. */
  unlink(tier, slot) {
    const twin = tier.twins[slot] - 1;
    if (twin < 0) return -1;
    tier.twins[slot] = NO_TWIN;
    (tier === this.device ? this.host : this.device).twins[twin] = NO_TWIN;
    return twin;
  }

  /** A slot is free. */
  clear(tier, slot) {
    this.unlink(tier, slot);
    tier.free(slot);
  }

  /** A request does not own a slot any more. */
  remove(tier, slot, r) {
    if (!this.sets.has(tier.owners[slot], r)) return;
    const rest = this.sets.without(tier.owners[slot], r);
    if (rest) tier.owners[slot] = rest;
    else this.clear(tier, slot);
  }

  /** Nothing is on the device any more. */
  emptyDevice() {
    const { device } = this;
    for (let slot = 0; slot < device.size; slot++) if (device.states[slot] !== SLOT_FREE) this.clear(device, slot);
  }

  /** Calls back with each slot of a tier that a request owns, alone or with others. */
  eachOwned({ owners, size }, r, call) {
    const { sets } = this;
    let [last, found] = [0, false];
    for (let slot = 0; slot < size; slot++) {
      const set = owners[slot];
      if (!set) continue;
      if (set !== last) [last, found] = [set, sets.has(set, r)];
      if (found) call(slot);
    }
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
}
