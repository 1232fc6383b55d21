/** What colours and patterns of the lanes mean. */

import { tag } from "./elements.js";
import { CanvasSurface } from "./surface.js";
import { DECODED, FIRST_TASK, IDLED, PREPARED, PROMPTED } from "./lanerows.js";
import { bandLook, sortLook } from "./lanes.js";

/**
 * The legend of the lanes of all runs: what occurs in them, in the order of a request's life.
 *
 * @returns {{text: string, draw: (surface: object) => void}[]} `draw`: a sample of 26 by 13 pixels
 */
export function lanesLegend({ runs, palette }) {
  const states = new Set(runs.flatMap((model) => model.requests.flatMap((_, r) => model.spans(r).map(({ state }) => state))));
  const band = (state) => (surface) => surface.rect(0, 2, 26, 9, bandLook(state, palette));
  const cell = (sort) => (surface) => surface.rect(0, 0, 26, 13, sortLook(sort, palette));
  const end = (surface) => surface.rect(12, 0, 2, 13, { fill: palette.ink });
  const types = new Set(runs.flatMap((model) => model.run.cells));
  const computes = runs.some((model) => model.ofCells)
    ? [...types].map((type, k) => [true, `task of ${type}`, cell(FIRST_TASK + k)])
    : [[true, "running: computes a prompt", cell(PROMPTED)], [true, "running: computes a token", cell(DECODED)]];
  const entries = [
    [states.has("waiting"), "waiting", band("waiting")],
    [states.has("preprocessing"), "pre-processing: prompt computed apart", cell(PREPARED)],
    [states.has("ready"), "ready, prompt computed", band("ready")],
    ...computes,
    [states.has("running"), "running, not in this iteration", band("running")],
    [states.has("suspended"), "suspended", band("suspended")],
    [runs.some((model) => model.idle.some(Boolean)), "idle computation", cell(IDLED)],
    [states.has("finished"), "finished", end],
  ];
  return entries.filter(([occurs]) => occurs).map(([, text, draw]) => ({ text, draw }));
}

/** Shows entries as a list, each after its sample of so many pixels. */
export function showEntries(host, entries, width, height) {
  const items = entries.map(({ text, draw }) => {
    const canvas = tag("canvas", { "aria-hidden": "true" });
    const surface = new CanvasSurface(canvas);
    surface.begin(width, height);
    draw(surface);
    return tag("li", "", canvas, text);
  });
  host.replaceChildren(...items);
}
