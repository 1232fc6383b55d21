/**
 * The steps of a run, decoded: keys have their names in the trace; what the record leaves out is empty.
 *
 * @typedef {[request: number, start: number, stop: number, cell?: number]} Work
 * @typedef {{kind: string, source: number, target: number, count: number, fromTier: string, toTier: string,
 *            moment: string, wave: number, owners: number[]}} Move
 */

const NONE = Object.freeze([]);

/** The steps and waits of a run of the record (`minifuse/show/record.py`), by column. */
export function decodeSteps(run) {
  let memory = { used: 0, reserved: 0, capacity: run.capacity, host: 0, kept: 0, keptOnHost: 0 };
  return run.steps.map((entry) => {
    if (entry.kv) memory = decodeMemory(entry);
    return decodeStep(run, entry, memory);
  });
}

function decodeMemory({ kv: [used, reserved, capacity, host], kp: [kept, keptOnHost] = [0, 0] }) {
  return { used, reserved, capacity, host, kept, keptOnHost };
}

function decodeStep(run, entry, memory) {
  const work = entry.w ?? NONE;
  return {
    number: entry.n ?? null,
    worker: entry.k ?? 0,
    start: entry.t[0],
    end: entry.t[1],
    isWait: Boolean(entry.wait),
    /** @type {Work[]} */
    work,
    admitted: entry.a ?? NONE,
    evicted: entry.e ?? NONE,
    /** Pairs of a request and why it finishes, or how many tokens it takes in. */
    finished: entry.f ?? NONE,
    tokens: entry.o ?? NONE,
    phase: entry.ph ?? "running",
    shape: entry.sh ?? null,
    waves: entry.wv ?? (work.length ? [[0, work.length]] : NONE),
    lanes: entry.ln ?? NONE,
    moves: (entry.m ?? NONE).map((move, k) => decodeMove(move, run.slots.sets?.[entry.mo?.[k]] ?? NONE)),
    /** Requests, and how many tokens of theirs are found on the device and on the host. */
    reused: entry.ru ?? NONE,
    /** Requests, and numbers of the reasons that the policy gave. */
    reasons: entry.y ?? NONE,
    computed: entry.c ?? 0,
    idle: entry.i ?? 0,
    /** Seconds waited for transfers, and tokens computed for requests that had ended. */
    exposed: entry.x ?? 0,
    discarded: entry.d ?? 0,
    windows: entry.win ?? null,
    /** Slots in use, set aside and so on; a wait has what its predecessor had. */
    memory,
    /** Changes of slots: of each tier, and of the device in each wave. */
    deviceChanges: entry.s ?? NONE,
    hostChanges: entry.h ?? NONE,
    waveChanges: entry.wd ?? NONE,
    /** Runs of slots: written by each wave; computed idle, in all or by wave; needed by no request. */
    fresh: entry.fr ?? NONE,
    idleSlots: entry.id ?? NONE,
    idleInWave: entry.iw ?? NONE,
    lying: entry.ly ?? NONE,
  };
}

/** @returns {Move} */
function decodeMove([kind, source, target, count, fromTier, toTier, moment, wave], owners) {
  return { kind, source, target, count, fromTier, toTier, moment, wave, owners };
}
