/** Slots of a tier, their owners and their states; and the slots of a place. */

/** The states of a slot; and the same as numbers, in this order. */
export const SLOT_STATES = ["free", "reserved", "written", "kept", "copy"];
export const [SLOT_FREE, SLOT_RESERVED, SLOT_WRITTEN, SLOT_KEPT, SLOT_COPY] = SLOT_STATES.keys();
/** A slot whose KV is in its tier alone. */
export const NO_TWIN = 0;

/** Sets of requests by number, so that a slot needs one number however many requests share it. Set 0 is empty. */
export class OwnerSets {
  constructor() {
    this.members = [[]];
    this._numbers = new Map([["", 0]]);
    this._with = new Map();
    this._without = new Map();
  }

  _number(members) {
    const key = members.join();
    let number = this._numbers.get(key);
    if (number === undefined) {
      number = this.members.length;
      this.members.push(members);
      this._numbers.set(key, number);
    }
    return number;
  }

  /** @param {number} set @param {number} r @returns {number} the set with this request in it as well */
  with(set, r) {
    const key = `${set} ${r}`;
    let number = this._with.get(key);
    if (number === undefined) {
      const members = this.members[set];
      number = members.includes(r) ? set : this._number([...members, r].sort((a, b) => a - b));
      this._with.set(key, number);
    }
    return number;
  }

  /** @param {number} set @param {number} r @returns {number} the set without this request */
  without(set, r) {
    const key = `${set} ${r}`;
    let number = this._without.get(key);
    if (number === undefined) {
      const members = this.members[set];
      number = members.includes(r) ? this._number(members.filter((one) => one !== r)) : set;
      this._without.set(key, number);
    }
    return number;
  }

  /** @param {number} set @param {(r: number) => boolean} wanted @returns {number} the set of its wanted requests */
  only(set, wanted) {
    return this.members[set].reduce((rest, r) => (wanted(r) ? rest : this.without(rest, r)), set);
  }

  /** @param {number} set @param {number} r */
  has(set, r) {
    return set !== 0 && this.members[set].includes(r);
  }
}

/** The slots of one tier: the owners (a set), the state, and one more than the slot of the other tier with the same KV. */
export class SlotTier {
  /** @param {number} size slots that the run ever uses */
  constructor(size) {
    this.size = size;
    this.owners = new Int32Array(size);
    this.states = new Uint8Array(size);
    this.twins = new Int32Array(size);
  }

  /** Five numbers for each run of slots alike: first, count, owners, state, twin (that of the first; 0: none). */
  pack() {
    const { owners, states, twins, size } = this;
    const packed = [];
    for (let slot = 0; slot < size; ) {
      if (states[slot] === SLOT_FREE) {
        slot += 1;
        continue;
      }
      const first = slot;
      const twin = twins[first];
      do slot += 1;
      while (
        slot < size &&
        states[slot] === states[first] &&
        owners[slot] === owners[first] &&
        twins[slot] === (twin && twin + slot - first)
      );
      packed.push(first, slot - first, owners[first], states[first], twins[first]);
    }
    return Int32Array.from(packed);
  }

  /** @param {Int32Array} packed */
  unpack(packed) {
    this.owners.fill(0);
    this.states.fill(SLOT_FREE);
    this.twins.fill(NO_TWIN);
    for (let k = 0; k < packed.length; k += 5) {
      const [first, count, set, state, twin] = [packed[k], packed[k + 1], packed[k + 2], packed[k + 3], packed[k + 4]];
      this.owners.fill(set, first, first + count);
      this.states.fill(state, first, first + count);
      if (twin) for (let i = 0; i < count; i++) this.twins[first + i] = twin + i;
    }
  }

  /** @param {number} slot */
  free(slot) {
    this.owners[slot] = 0;
    this.states[slot] = SLOT_FREE;
    this.twins[slot] = NO_TWIN;
  }
}

/**
 * The runs of slots of a place, and the first token of each.
 *
 *     placeRuns({kind: "blocks", blocks: [4, 5, 2], size: 4})  // [[16, 8, 0], [8, 4, 8]]
 *
 * @param {import("./model.js").Place} place
 * @returns {[number, number, number][]} first slot, slots, first token
 */
export function placeRuns(place) {
  if (place.kind === "extent") return [[place.offset, place.size, 0]];
  if (place.kind === "node") return [[place.slot, 1, 0]];
  const runs = [];
  let token = 0;
  const pieces = place.kind === "runs" ? place.runs : place.blocks.map((block) => [block * place.size, place.size]);
  for (const [first, count] of pieces) {
    const last = runs.at(-1);
    if (last && last[0] + last[1] === first) last[1] += count;
    else runs.push([first, count, token]);
    token += count;
  }
  return runs;
}

/** Calls back with the slot and the token of each token [start, stop) of a place. */
export function eachSlot(place, start, stop, call) {
  if (place.kind === "blocks") {
    const { blocks, size } = place;
    const end = Math.min(stop, blocks.length * size);
    for (let token = start; token < end; token++) {
      call(blocks[Math.floor(token / size)] * size + (token % size), token);
    }
    return;
  }
  if (place.kind === "extent") {
    for (let at = start; at < Math.min(stop, place.size); at++) call(place.offset + at, at);
    return;
  }
  for (const [first, count, token] of placeRuns(place)) {
    const end = Math.min(stop, token + count);
    for (let at = Math.max(start, token); at < end; at++) call(first + at - token, at);
  }
}

export function placeSize(place) {
  if (place.kind === "extent") return place.size;
  if (place.kind === "blocks") return place.blocks.length * place.size;
  return placeRuns(place).reduce((sum, run) => sum + run[1], 0);
}

/** The number of leading tokens that lie in the same slots in both places. */
export function alikeUpTo(one, other) {
  if (!one || one.kind !== other.kind) return 0;
  if (one.kind === "blocks") {
    const { blocks, size } = one;
    if (blocks === other.blocks) return blocks.length * size;
    let same = 0;
    while (same < blocks.length && same < other.blocks.length && blocks[same] === other.blocks[same]) same += 1;
    return same * size;
  }
  const [a, b] = [placeRuns(one), placeRuns(other)];
  let same = 0;
  for (let k = 0; k < a.length && k < b.length && a[k][0] === b[k][0]; k++) {
    same += Math.min(a[k][1], b[k][1]);
    if (a[k][1] !== b[k][1]) break;
  }
  return same;
}
