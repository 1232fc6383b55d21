/** What colours and patterns of the lanes mean. */

import { CanvasSurface } from "./surface.js";
import { drawSample, samplesOf } from "./lanes.js";

/** @param {HTMLElement} host @param {object} app */
export function showLegend(host, app) {
  const samples = samplesOf(app.runs); // of all, as the cards at the top are
  host.replaceChildren(
    ...samples.map((sample) => {
      const item = document.createElement("li");
      const canvas = document.createElement("canvas");
      canvas.setAttribute("aria-hidden", "true");
      item.append(canvas, document.createTextNode(sample.name));
      const surface = new CanvasSurface(canvas);
      surface.begin(26, 13);
      drawSample(surface, sample, app.palette);
      return item;
    }),
  );
}
