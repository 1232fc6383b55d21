/**
 * The owners of every slot while a column runs, from the record's changes (`minifuse/show/slot_changes.py`).
 *
 * @typedef {"reserved"|"written"|"kept"|"copy"} SlotState
 *     kept: for a conversation, or a suspended request, until it is reclaimed; copy: also on the host, free to be taken
 * @typedef {{first: number, count: number, owners: number[], state: SlotState, twin: number, token: number}} SlotRun
 *     alike, consecutive slots; `twin` is the first slot of the other tier that has the same KV, `token` the first token; -1: none
 * @typedef {{index: number, device: SlotRun[], host: SlotRun[], moves: object[], waves: SlotRun[][], fresh: number[][][],
 *            idle: number[][], idleInWave: number[][][], lying: number[][]}} Frame
 *     `waves`: the device while each wave is attended, if there are several or layers take turns; `fresh`: written by
 *     each wave, `idle` and `lying`: needed by no request, each as [first, count]
 */

const SLOT_STATES = ["free", "reserved", "written", "kept", "copy"];
const CHECKPOINT_EVERY = 256; // columns

/** Four numbers of each slot of a tier: set of owners, state, twin and token as in the record. */
class Tier {
  /** @param {number[][]} sets of owners */
  constructor(size, sets) {
    this.sets = sets;
    this.parts = [0, 1, 2, 3].map(() => new Int32Array(size));
  }

  /** @param {ArrayLike<number>} changes six numbers each */
  apply(changes) {
    const [owners, states, twins, tokens] = this.parts;
    for (let k = 0; k < changes.length; k += 6) {
      const [first, end, twin, token] = [changes[k], changes[k] + changes[k + 1], changes[k + 4], changes[k + 5]];
      owners.fill(changes[k + 2], first, end);
      states.fill(changes[k + 3], first, end);
      for (let slot = first; slot < end; slot++) {
        twins[slot] = twin && twin + slot - first;
        tokens[slot] = token && token + slot - first;
      }
    }
  }

  /** All slots that are held, as changes from an empty tier. */
  pack() {
    const [owners, states, twins, tokens] = this.parts;
    const packed = [];
    for (let slot = 0; slot < states.length; ) {
      const first = slot++;
      if (!states[first]) continue;
      const [twin, token] = [twins[first], tokens[first]];
      while (
        slot < states.length &&
        states[slot] === states[first] &&
        owners[slot] === owners[first] &&
        twins[slot] === (twin && twin + slot - first) &&
        tokens[slot] === (token && token + slot - first)
      ) slot++;
      packed.push(first, slot - first, owners[first], states[first], twin, token);
    }
    return packed;
  }

  restore(packed) {
    for (const part of this.parts) part.fill(0);
    this.apply(packed);
  }

  runs() {
    const [packed, found] = [this.pack(), []];
    for (let k = 0; k < packed.length; k += 6) {
      const [first, count, set, state, twin, token] = packed.slice(k, k + 6);
      found.push({ first, count, owners: this.sets[set], state: SLOT_STATES[state], twin: twin - 1, token: token - 1 });
    }
    return found;
  }
}

/** Flat runs of the record as pairs: [5, 2, 9, 1] -> [[5, 2], [9, 1]]. */
function pairs(flat) {
  return Array.from({ length: flat.length / 2 }, (_, k) => [flat[2 * k], flat[2 * k + 1]]);
}

/** The slots of a run, at any of its columns. */
export class Slots {
  constructor(model) {
    this.model = model;
    const { sets = [[]], device = 0, host = 0, tooMany = 0 } = model.run.slots;
    /** How many slots the trace names, if too many to be drawn; else 0. */
    this.tooMany = tooMany;
    this.sizes = { device, host };
    this._tiers = [new Tier(device, sets), new Tier(host, sets)];
    this._at = -1; // the column that is shown
    this._checkpoints = [[[], []]]; // of the state before every CHECKPOINT_EVERY-th column
  }

  _seek(i) {
    if (i < this._at) {
      const k = Math.min(Math.floor(i / CHECKPOINT_EVERY), this._checkpoints.length - 1);
      this._tiers.forEach((tier, t) => tier.restore(this._checkpoints[k][t]));
      this._at = k * CHECKPOINT_EVERY - 1;
    }
    const [device, host] = this._tiers;
    while (this._at < i) {
      const { deviceChanges, hostChanges } = this.model.steps[++this._at];
      if (this._at === this._checkpoints.length * CHECKPOINT_EVERY) this._checkpoints.push(this._tiers.map((tier) => tier.pack()));
      device.apply(deviceChanges);
      host.apply(hostChanges);
    }
  }

  /** Every slot while a column runs; requests that finish with the column still have their slots. */
  during(i) {
    this._seek(i);
    const [device, host] = this._tiers.map((tier) => tier.runs());
    const step = this.model.steps[i];
    return {
      index: i,
      device,
      host,
      waves: this._waves(step.waveChanges),
      moves: step.moves,
      fresh: step.fresh.map(pairs),
      idle: pairs(step.idleSlots),
      idleInWave: step.idleInWave.map(pairs),
      lying: pairs(step.lying),
    };
  }

  /** The device while each wave is attended, from its differences to the device at the column's end. */
  _waves(changes) {
    const [device] = this._tiers;
    const packed = changes.length ? device.pack() : [];
    return changes.map((wave) => {
      device.apply(wave);
      const runs = device.runs();
      device.restore(packed);
      return runs;
    });
  }
}
