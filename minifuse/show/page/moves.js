/** Moves of KV and states: what each kind is called, what it means, how it is drawn, and how much it moves. */

/** Dashes differ as well, so that kinds can be told apart without colours. */
export const MOVE_LOOKS = {
  shuffle: { name: "shuffle", means: "gathered, so that running slots stay side by side", dash: [] },
  copy: { name: "copy on write", means: "a shared block is copied before it is written", dash: [2, 2] },
  swap_in: { name: "swap in", means: "from the host back to the device", dash: [7, 3] },
  swap_out: { name: "swap out", means: "from the device to the host", dash: [7, 3, 2, 3] },
  upload: { name: "upload", means: "to the device for one wave", dash: [] },
  offload: { name: "offload", means: "what a wave wrote, to the host", dash: [4, 3] },
  embed: { name: "embed", means: "a prompt computed apart joins the batch", dash: [] },
};

/** @returns {Map<string, {moves: number, tokens: number}>} by kind */
export function moveSums(moves) {
  const sums = new Map();
  for (const { kind, count } of moves) {
    const sum = sums.get(kind) ?? { moves: 0, tokens: 0 };
    sums.set(kind, { moves: sum.moves + 1, tokens: sum.tokens + count });
  }
  return sums;
}
