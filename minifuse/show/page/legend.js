/** What colours and patterns of the lanes mean. */

import { tag } from "./elements.js";
import { CanvasSurface } from "./surface.js";
import { DECODED, FIRST_TASK, IDLED, PREPARED, PROMPTED } from "./lanerows.js";
import { bandLook, sortLook } from "./lanes.js";

/**
 * What the legend shows for some runs: what occurs in them, in the order of a request's life.
 *
 * @param {import("./model.js").RunModel[]} models
 * @returns {{name: string, state?: string, sort?: number, end?: boolean}[]}
 */
function samplesOf(models) {
  const states = new Set();
  const idle = models.some((model) => model.idle.some(Boolean));
  for (const model of models) model.requests.forEach((_, r) => model.spans(r).forEach(({ state }) => states.add(state)));
  const found = [];
  const add = (name, of) => found.push({ name, ...of });
  if (states.has("waiting")) add("waiting", { state: "waiting" });
  if (states.has("preprocessing")) add("pre-processing: prompt computed apart", { sort: PREPARED });
  if (states.has("ready")) add("ready, prompt computed", { state: "ready" });
  if (models.some((model) => model.ofCells)) {
    [...new Set(models.flatMap((model) => model.run.cells))].forEach((cell, k) => add(`task of ${cell}`, { sort: FIRST_TASK + k }));
  } else {
    add("running: computes a prompt", { sort: PROMPTED });
    add("running: computes a token", { sort: DECODED });
  }
  if (states.has("running")) add("running, not in this iteration", { state: "running" });
  if (states.has("suspended")) add("suspended", { state: "suspended" });
  if (idle) add("idle computation", { sort: IDLED });
  if (states.has("finished")) add("finished", { end: true });
  return found;
}

/** Draws a sample of 26 by 13 pixels. */
function drawSample(surface, { state, sort, end }, palette) {
  if (end) surface.rect(12, 0, 2, 13, { fill: palette.ink });
  else if (state) surface.rect(0, 2, 26, 9, bandLook(state, palette));
  else surface.rect(0, 0, 26, 13, sortLook(sort, palette));
}

/** The legend of lanes as entries: what is told, and how its sample is drawn. */
export function lanesLegend({ runs, palette }) {
  const samples = samplesOf(runs); // of all, as the cards at the top are
  return samples.map((sample) => ({ text: sample.name, draw: (surface) => drawSample(surface, sample, palette) }));
}

/** Shows entries as a list, each behind its sample, of so many pixels. */
export function showEntries(host, entries, width, height) {
  const items = entries.map(({ text, draw }) => {
    const [item, canvas] = [tag("li"), tag("canvas")];
    canvas.setAttribute("aria-hidden", "true");
    item.append(canvas, text);
    const surface = new CanvasSurface(canvas);
    surface.begin(width, height);
    draw(surface);
    return item;
  });
  host.replaceChildren(...items);
}
