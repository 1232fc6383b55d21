/** What the memory map shows, in words. */

import { capital, counted, grouped } from "./words.js";

/** Describes the map with the trace's own counts, which the charts show as well. */
export function memoryWords(forms, frame) {
  const { model } = forms;
  const { isWait, memory } = model.steps[frame.index];
  const words = isWait ? ["nothing runs, and the trace counts no slots"] : countedWords(forms, frame, memory);
  return `${capital([...words, ...sharedWords(forms, frame)].join("; "))}.`;
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

/** The device's slots in a column; with those that layers share as each wave uses them, as they are empty at its end. */
export function deviceRuns(forms, frame) {
  return forms.shared ? [...frame.device, ...sharedRuns(forms, frame)] : frame.device;
}

function sharedRuns(forms, frame) {
  return frame.waves.flatMap((runs) => runs.filter(({ first, state }) => first >= forms.shared && state === "written"));
}

/** Describes the slots that the layers of the model share. */
function sharedWords(forms, frame) {
  if (!forms.shared) return [];
  const runs = sharedRuns(forms, frame);
  const parts = [`the layers share the slots from ${grouped(forms.shared)} on (memory.turns=layers): each holds the KV of one layer at a time, and all are empty between iterations`];
  if (runs.length) parts.push(`in this iteration the KV of ${counted(slotsIn(runs, "written"), "token")} of ${ownersOf(runs)} passes through them, in each layer anew`);
  return parts;
}
