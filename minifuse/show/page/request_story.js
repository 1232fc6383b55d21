/** The whole story of one request, in words: all that happened to it, in order. */

import { countUpTo } from "./ascending.js";
import { evictionWords, shortReason, sizeOf } from "./columns.js";
import { MOVE_LOOKS } from "./moves.js";
import { counted, grouped, seconds } from "./words.js";

const OTHER_NAMES = { upload: "upload for a wave", embed: "embedding" }; // of moves, in a story

const FINISHED_WORDS = {
  stop: "its answer is complete (a stop token)",
  length: "its answer has as many tokens as it may have",
  nan: "its logits were not finite",
  aborted: "it was aborted",
  interrupted: "the run was interrupted",
  refused: "it was refused",
};

/** Reasons which mean that other requests are ahead. */
const AHEAD = new Set(["behind", "not-in-batch"]);
const MOST_AHEAD = 4; // requests that are named as ahead of another

/**
 * Merges consecutive waits of a story that have reasons of one kind.
 *
 *     0: behind r1, 1 to 3: behind r2, 4: behind r3  ->  0 to 4: waits behind others (r1, r2, r3), with three parts
 *
 * @param {object[]} entries as from `storyOf`, perhaps only the first of them
 * @returns {object[]} an entry that stands for several has them as `parts`
 */
export function mergedWaits(entries, model) {
  const kindOf = ({ kind, code }) => (kind !== "waited" || !code ? null : AHEAD.has(code) ? "ahead" : code);
  const groups = [];
  for (const entry of entries) {
    const kind = kindOf(entry);
    const last = groups.at(-1);
    if (kind !== null && last?.kind === kind) last.parts.push(entry);
    else groups.push({ kind, parts: [entry] });
  }
  return groups.map(({ kind, parts }) => {
    if (parts.length === 1) return parts[0];
    const to = Math.max(...parts.map((one) => one.to));
    const text = kind === "ahead" ? aheadWords(parts) : `${parts[0].text}, and so on`;
    return { at: parts[0].at, to, kind: "waited", text, parts };
  });
}

/** `waits behind others (r1, r2 ... r14)` */
function aheadWords(parts) {
  const names = [...new Set(parts.map(({ text }) => / behind (.*)$/s.exec(text)?.[1]).filter((name) => name !== undefined))];
  if (!names.length) return "waits while others run";
  const list = names.length > MOST_AHEAD ? `${names.slice(0, 2).join(", ")} \u2026 ${names.at(-1)}` : names.join(", ");
  return `waits behind ${names.length > 1 ? "others" : "another"} (${list})`;
}

/**
 * The story of a request, in the order in which it happened.
 *
 *     [{at: 0, kind: "arrived", text: "arrives with a prompt of 12 tokens"}, {at: 0, to: 4, kind: "waited", ...}, ...]
 *
 * @param {number} [most] the last column that may be shown
 * @returns {{at: number, to?: number, since?: number, kind: string, text: string}[]} `at`: the column; `to`: the last of
 *     several; `since`: the first column that shows it, if one of another worker ends earlier
 */
export function storyOf(model, r, most = model.length) {
  const request = model.requests[r];
  const entries = [];
  const add = (at, kind, text, to) => entries.push(to === undefined ? { at, kind, text } : { at, to, kind, text });
  const spans = model.spans(r);
  const first = spans.length ? spans[0].from : 0;
  const history = request.history ? `, of which ${counted(request.history, "token")} are history` : "";
  const what = model.ofCells ? "arrives" : `arrives with a prompt of ${counted(request.prompt, "token")}${history}`;
  if (request.arrival !== null && request.arrival !== undefined) add(first, "arrived", `${what}, at ${seconds(request.arrival)}`);
  if (request.refused) {
    add(first, "refused", `is refused: ${request.refused}`);
    return entries;
  }
  for (const { from, to, state } of spans) {
    if (!["waiting", "suspended", "ready"].includes(state) || from >= to) continue;
    const begins = model.reasonAt(from, r);
    const later = model.reasonsOf(r).filter(({ at }) => at > from && at < to && at <= most);
    const reasons = [...(begins ? [{ ...begins, at: from }] : []), ...later].filter(({ text }, k, all) => text !== all[k - 1]?.text);
    reasons.forEach(({ at, code, text }, k) => {
      if (state === "suspended" && model.steps[at].evicted.includes(r)) return; // the eviction's entry has it
      const words = code === "not-asked" ? "waits until the iteration under way has ended" : `waits: ${shortReason(model, text)}`;
      entries.push({ at, to: (reasons[k + 1]?.at ?? to) - 1, kind: "waited", text: words, code }); // until the next reason
    });
  }
  // What happened in the columns that compute for the request.
  const columns = model.workColumns(r).filter((i) => i <= most);
  let generated = 0;
  let pieces = 0;
  for (const i of columns) {
    const step = model.steps[i];
    if (step.admitted.includes(r)) {
      const reused = step.reused.find(([one]) => one === r);
      const found = reused ? `; ${reusedWords(reused)}` : "";
      const apart = step.phase === "preprocessing" ? ", to have its prompt computed apart" : "";
      add(i, "admitted", `is admitted${generated || pieces ? " again" : ""}${apart}${found}`);
      entries.at(-1).since = model.shownFrom(i);
    }
    const work = step.work.filter(([one]) => one === r);
    const prompt = work.filter(([, start]) => start < request.prompt && !generated);
    if (model.ofCells) pieces += work.length;
    else if (prompt.length) {
      pieces += 1;
      const [[, start, stop]] = prompt;
      const whole = prompt.length === 1 && start === 0 && stop >= request.prompt;
      const text = prompt.map(([, from, to]) => `${grouped(from)} to ${grouped(to - 1)}`).join(" and ");
      add(i, "prompt", whole ? `its whole prompt is computed: ${counted(request.prompt, "token")}` : `a piece of its prompt is computed: tokens ${text}`);
    } else if (generated && work.some(([, start, stop]) => stop - start > 1)) {
      add(i, "prompt", `what it lost is computed again: ${counted(sizeOf(work), "token")}`);
    }
    const count = step.tokens.find(([one]) => one === r)?.[1] ?? 0;
    if (count && !generated) add(i, "first", `its first token is there ${seconds(model.ends[i] - (request.arrival ?? 0))} after its arrival (TTFT)`);
    generated += count;
    const reason = step.finished.find(([one]) => one === r)?.[1];
    if (reason !== undefined) {
      const size = model.ofCells ? counted(pieces, "node") : counted(generated, "token");
      add(i, "finished", `finishes with ${size}: ${FINISHED_WORDS[reason] ?? reason}, ${seconds(model.ends[i] - (request.arrival ?? 0))} after its arrival`);
    }
  }
  for (const i of model.evictionColumns(r)) add(i, "evicted", evictionWords(model, i, r));
  entries.push(...movesOf(model, r, most));
  const idle = model.idleColumns(r).filter((i) => i <= most);
  if (idle.length) {
    add(idle[0], "idle", `its place goes on being computed, though no request needs it, in ${counted(idle.length, "iteration")}`, idle.at(-1));
  }
  if (request.outcome === "aborted" && request.ended !== null && request.ended !== undefined) {
    add(Math.min(model.length - 1, model.at(request.ended)), "finished", `is aborted with ${counted(model.tokensBy(model.length - 1, r), "token")}`);
  }
  const order = ["arrived", "refused", "evicted", "waited", "admitted", "moved", "prompt", "first", "generated", "finished"];
  const shown = entries.filter(({ at }) => at <= most);
  return shown.sort((a, b) => a.at - b.at || order.indexOf(a.kind) - order.indexOf(b.kind));
}

function reusedWords([, onDevice, onHost]) {
  const found = [];
  if (onDevice) found.push(`${counted(onDevice, "token")} on the device`);
  if (onHost) found.push(`${counted(onHost, "token")} on the host`);
  return `it finds the KV of ${found.join(" and ")}`;
}

/** The moves of a request's KV. Those of one kind in consecutive columns, or in columns that compute for it, are one entry. */
function movesOf(model, r, most) {
  const work = model.workColumns(r);
  const found = [];
  for (const [i, move, count] of model.requests[r].moves ?? []) {
    if (i > most) break;
    const last = found.findLast((one) => one.move === move);
    if (last?.next === i) {
      last.to = i;
      last.times += 1;
      last.count += count;
    } else found.push({ at: i, move, times: 1, count });
    const done = countUpTo(work, i);
    found.findLast((one) => one.move === move).next = (work[done - 1] === i ? work[done] : undefined) ?? i + 1;
  }
  return found.map(({ at, to, move, times, count }) => {
    const often = times > 1 ? `, in ${counted(times, "iteration")}` : "";
    const entry = { at, kind: "moved", text: `its KV is moved (${OTHER_NAMES[move] ?? MOVE_LOOKS[move]?.name ?? move}): ${counted(count, "token")}${often}` };
    return to === undefined ? entry : { ...entry, to };
  });
}
