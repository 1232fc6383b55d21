/** What the memory map shows, in words. */

import { capital, counted, grouped } from "./words.js";

/** Describes the map with the trace's own counts, which the charts show as well. */
export function memoryWords(forms, frame) {
  const { model } = forms;
  const { isWait, memory } = model.steps[frame.index];
  const words = isWait ? ["nothing runs, and the trace counts no slots"] : countedWords(forms, frame, memory);
  return `${capital((forms.layered ? layeredWords(forms, frame, memory) : words).join("; "))}.`;
}

function slotsIn(runs, ...states) {
  return runs.reduce((sum, one) => sum + (states.includes(one.state) ? one.count : 0), 0);
}

function ownersOf(runs) {
  return counted(new Set(runs.flatMap((one) => one.owners)).size, "request");
}

/** The trace's counts of an iteration, and why more or fewer slots are drawn as written. */
function countedWords(forms, frame, { used, reserved, capacity, host, kept, keptOnHost }) {
  const { ofCells } = forms.model;
  const needed = frame.device.filter(({ state }) => state === "written" || state === "reserved");
  const parts = [`${grouped(used)} of ${counted(capacity, "slot")} on the device in use, for ${ownersOf(needed)}`];
  const more = used - slotsIn(frame.device, "written");
  if (more > 0) {
    const why = ofCells ? "taken for iterations that have been submitted and have not begun" : "padding, or of rows that have ended";
    parts.push(`${grouped(more)} of them ${why}`);
  } else if (more < 0 && forms.model.run.workers > 1) parts.push(`${grouped(-more)} more written meanwhile by iterations beside this one`);
  if (reserved > used) parts.push(`${grouped(reserved - used)} reserved and empty`);
  if (kept) parts.push(`${grouped(kept)} kept`);
  const copies = slotsIn(frame.device, "copy");
  const held = copies ? `, ${grouped(copies)} of them with a copy of what is on the host` : "";
  parts.push(`${grouped(Math.max(0, capacity - Math.max(used, reserved) - kept))} free${held}`);
  if (host) parts.push(`${counted(host, "token")} on the host alone`);
  if (keptOnHost) parts.push(`${counted(keptOnHost, "token")} kept on the host alone`);
  if (forms.shown < capacity / 2) parts.push(`drawn are the ${counted(forms.shown, "slot")} that this run ever uses`);
  return parts;
}

/** The device's slots in a column; where layers take turns, those of all waves, as the device is empty at its end. */
export function deviceRuns(forms, frame) {
  if (!forms.layered) return frame.device;
  return frame.waves.flatMap((runs) => runs.filter(({ state }) => state !== "copy"));
}

/** Describes a device that the layers of the model use in turn: slots are those of one layer. */
function layeredWords(forms, frame, { host }) {
  const runs = deviceRuns(forms, frame);
  const parts = [
    "the layers of the model have the device in turn (memory.turns=layers): each of its slots holds the KV of one layer at a time, and all are empty between iterations",
    `there is room for ${counted(forms.model.run.capacity, "token")} in all layers, or for as many times more in one layer as the model has layers, which the trace does not tell: drawn are the first ${counted(forms.shown, "slot")} of one layer, as far as this run uses them`,
  ];
  if (frame.waves.length) {
    const written = counted(slotsIn(runs, "written"), "token");
    parts.push(`in this iteration ${counted(frame.waves.length, "wave")}, in each layer anew, with the KV of ${written} of ${ownersOf(runs)}`);
  } else parts.push("nothing is computed in this column");
  if (host) parts.push(`${counted(host, "token")} on the host, in all layers`);
  return parts;
}
