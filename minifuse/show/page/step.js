/**
 * The steps of a run, decoded: every key by its name in the trace, and what the record leaves out as empty.
 *
 * @typedef {[request: number, start: number, stop: number, cell?: number]} Work
 * @typedef {{kind: string, source: number, target: number, count: number, fromTier: string, toTier: string,
 *            moment: string, wave: number, owners: number[]}} Move
 */

const NONE = Object.freeze([]);

/** The steps and waits of a run of the record (`minifuse/show/record.py`), by column. */
export function decodeSteps(run) {
  let memory = { used: 0, reserved: 0, capacity: run.capacity, host: 0, kept: 0, keptOnHost: 0 };
  return run.steps.map((told) => {
    if (told.kv) memory = decodeMemory(told);
    return decodeStep(run, told, memory);
  });
}

function decodeMemory({ kv: [used, reserved, capacity, host], kp: [kept, keptOnHost] = [0, 0] }) {
  return { used, reserved, capacity, host, kept, keptOnHost };
}

function decodeStep(run, told, memory) {
  const work = told.w ?? NONE;
  return {
    number: told.n ?? null,
    worker: told.k ?? 0,
    start: told.t[0],
    end: told.t[1],
    isWait: Boolean(told.wait),
    /** @type {Work[]} */
    work,
    admitted: told.a ?? NONE,
    evicted: told.e ?? NONE,
    /** Pairs of a request and why it finishes, or how many tokens it takes in. */
    finished: told.f ?? NONE,
    tokens: told.o ?? NONE,
    phase: told.ph ?? "running",
    shape: told.sh ?? null,
    waves: told.wv ?? (work.length ? [[0, work.length]] : NONE),
    lanes: told.ln ?? NONE,
    moves: (told.m ?? NONE).map((move, k) => decodeMove(move, run.slots.sets?.[told.mo?.[k]] ?? NONE)),
    /** Requests, and how many tokens of theirs are found on the device and on the host. */
    reused: told.ru ?? NONE,
    /** Requests, and numbers of the reasons that the policy gave. */
    reasons: told.y ?? NONE,
    computed: told.c ?? 0,
    idle: told.i ?? 0,
    /** Seconds waited for transfers, and tokens computed for requests that had ended. */
    exposed: told.x ?? 0,
    discarded: told.d ?? 0,
    windows: told.win ?? null,
    /** Slots in use, set aside and so on; a wait has what its predecessor had. */
    memory,
    /** Changes of slots: of each tier, and of the device in each wave. */
    deviceChanges: told.s ?? NONE,
    hostChanges: told.h ?? NONE,
    waveChanges: told.wd ?? NONE,
    /** Runs of slots: written by each wave; computed idle, in all or by wave; needed by no request. */
    fresh: told.fr ?? NONE,
    idleSlots: told.id ?? NONE,
    idleInWave: told.iw ?? NONE,
    lying: told.ly ?? NONE,
  };
}

/** @returns {Move} */
function decodeMove([kind, source, target, count, fromTier, toTier, moment, wave], owners) {
  return { kind, source, target, count, fromTier, toTier, moment, wave, owners };
}
