/** What the memory map shows, in words. */

import { MOVE_LOOKS } from "./memory_draw.js";
import { counted, grouped } from "./words.js";

/**
 * What the map shows, in words.
 *
 * @param {MemoryForms} forms @param {import("./owners.js").Frame} frame @returns {string}
 */
export function memoryWords(forms, frame) {
  const { model } = forms;
  const { run } = model;
  if (forms.layered) return layeredWords(forms, frame);
  const total = (runs, state) => runs.reduce((sum, one) => sum + (one.state === state ? one.count : 0), 0);
  const taken = frame.device.reduce((sum, one) => sum + one.count, 0);
  const parts = [
    `${counted(total(frame.device, "written"), "slot")} of ${run.capacity.toLocaleString("en")} on the device hold ${model.ofCells ? "states" : "KV"} of ${counted(new Set(frame.device.flatMap((one) => one.owners)).size, "request")}`,
  ];
  const told = { reserved: "reserved and empty", kept: "kept", copy: "also on the host, free to be taken" };
  for (const [state, words] of Object.entries(told)) {
    const count = total(frame.device, state);
    if (count) parts.push(`${count.toLocaleString("en")} ${words}`);
  }
  parts.push(`${(run.capacity - taken).toLocaleString("en")} free`);
  const [holes, longest] = freeRuns(forms, frame);
  if (holes) parts.push(`${counted(holes, "hole")} between owners, the longest ${longest.toLocaleString("en")}`);
  const shared = frame.device.reduce((sum, one) => sum + (one.owners.length > 1 ? one.count : 0), 0);
  if (shared) parts.push(`${shared.toLocaleString("en")} shared`);
  const away = frame.host.reduce((sum, one) => sum + one.count, 0);
  if (away) parts.push(`${counted(away, "slot")} on the host hold KV`);
  if (frame.waves.length > 1) parts.push(counted(frame.waves.length, "wave"));
  for (const [kind, [count, tokens]] of moveSums(frame)) {
    parts.push(`${MOVE_LOOKS[kind]?.name ?? kind}: ${counted(tokens, "token")} in ${counted(count, "move")}`);
  }
  if (forms.shown < run.capacity / 2) parts.push(`drawn are the ${counted(forms.shown, "slot")} that this run ever uses`);
  const rows = forms.rectangle(frame.index)?.stride;
  const unit = rows ?? forms.width;
  if (unit && forms.seenOf(unit) < unit) {
    const name = rows ? `row of ${counted(unit, "slot")}` : `slot of ${counted(unit, "token")}`;
    parts.push(`drawn of each ${name} are the first ${grouped(forms.seenOf(unit))}, further than this run writes`);
  }
  return `${parts.join("; ")}.`;
}

/**
 * What is on the device in a column: where layers take turns what each wave attends to, since at its end nothing is.
 *
 * @param {MemoryForms} forms @param {import("./owners.js").Frame} frame @returns {SlotRun[]}
 */
export function deviceRuns(forms, frame) {
  if (!forms.layered) return frame.device;
  return frame.waves.flatMap((runs) => runs.filter(({ state }) => state !== "copy"));
}

/** The words for a device that the layers of the model have in turn: what is told in places are its slots. */
function layeredWords(forms, frame) {
  const { run } = forms.model;
  const runs = deviceRuns(forms, frame);
  const written = runs.reduce((sum, one) => sum + (one.state === "written" ? one.count : 0), 0);
  const owners = new Set(runs.flatMap((one) => one.owners));
  const away = frame.host.reduce((sum, one) => sum + one.count, 0);
  const parts = [
    `the layers of the model have the device in turn (memory.turns=layers): each of its slots holds the KV of one layer at a time, and all are empty between iterations`,
    `drawn are the ${counted(forms.shown, "slot")} that this run ever uses, in the room of ${counted(run.capacity, "token")} of all layers`,
  ];
  if (frame.waves.length) {
    parts.push(`in this iteration ${counted(frame.waves.length, "wave")}, in each layer anew, with the KV of ${counted(written, "token")} of ${counted(owners.size, "request")}`);
  } else parts.push("nothing is computed in this column");
  if (away) parts.push(`${counted(away, "slot")} on the host hold KV of all layers`);
  for (const [kind, [count, tokens]] of moveSums(frame)) {
    parts.push(`${MOVE_LOOKS[kind]?.name ?? kind}: ${counted(tokens, "token")} in ${counted(count, "move")}`);
  }
  const told = parts.join("; ");
  return `${told[0].toUpperCase()}${told.slice(1)}.`;
}

/** How many runs of free slots lie between owned ones, and the longest of them. */
function freeRuns(forms, frame) {
  let [holes, longest, end] = [0, 0, 0];
  for (const { first, count } of frame.device) {
    if (first > end) {
      holes += 1;
      longest = Math.max(longest, first - end);
    }
    end = Math.max(end, first + count);
  }
  return [holes, longest];
}

/** Each kind of move of a column -> [moves, tokens]. */
export function moveSums(frame) {
  const sums = new Map();
  for (const { kind, count } of frame.moves) {
    const [moves, tokens] = sums.get(kind) ?? [0, 0];
    sums.set(kind, [moves + 1, tokens + count]);
  }
  return sums;
}
