/** Pictures of what the page shows: saved as SVG, and put in the place of canvases when the page is printed. */

import { columnName } from "./columns.js";
import { actButton, tag } from "./elements.js";
import { capital } from "./words.js";

const [LINE, SAMPLE, TALL, GAP, BETWEEN, EDGE, SIZE] = [18, 26, 13, 5, 14, 4, 11]; // pixels
const LEEWAY = 1.15; // room for a text, as a multiple of its measured width: fonts differ

/**
 * Draws a legend below a picture, and makes the picture higher by as much.
 *
 * @param {{text: string, draw: (surface: object) => void, newLine?: boolean}[]} entries `draw`: a sample, at most 26
 *     pixels wide and 13 high; `newLine`: the entry begins a new line
 */
function drawLegendBelow(surface, entries, { panel, soft }) {
  if (!entries.length) return;
  const top = surface.height;
  let [x, y] = [EDGE, top + LINE / 2];
  const places = entries.map(({ text, newLine = false }) => {
    const wide = SAMPLE + GAP + surface.measure(text, SIZE) * LEEWAY;
    if (x > EDGE && (newLine || x + wide > surface.width)) [x, y] = [EDGE, y + LINE];
    const place = [x, y];
    x += wide + BETWEEN;
    return place;
  });
  surface.begin(surface.width, y + LINE + EDGE);
  surface.rect(0, top, surface.width, surface.height - top, { fill: panel });
  entries.forEach(({ text, draw }, k) => {
    const [left, above] = places[k];
    surface.at(left, above, () => draw(surface));
    surface.text(left + SAMPLE + GAP, above + TALL / 2, text, { size: SIZE, fill: soft });
  });
}

/**
 * The views that can be saved or printed.
 *
 * @returns {{name: string, label: string, view: object}[]} `view`: one with `host`, `picture` and `legendEntries`
 */
function picturesOf(app) {
  return app.sides().flatMap((side) => {
    const { title } = side.model.run;
    const column = columnName(side.model, side === app.a ? app.index : app.indexOther);
    return ["lanes", "charts", "memory"].map((what) => ({ name: `${title}-${what}-${column}`, label: `${capital(what)} of ${title}`, view: side[what] }));
  });
}

/** Hands a text to the reader as a file. */
function saveFile(name, text) {
  const link = tag("a", { href: URL.createObjectURL(new Blob([text], { type: "image/svg+xml" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The dialog that offers pictures. */
export function offerPictures(app, dialog) {
  const buttons = picturesOf(app).map(({ name, label, view }) => {
    const save = () => {
      const picture = view.picture();
      drawLegendBelow(picture, view.legendEntries(), app.palette);
      saveFile(`${name.replace(/[^\w.-]+/g, "_")}.svg`, picture.toString());
    };
    return actButton("", save, label);
  });
  dialog.querySelector("#picture-list").replaceChildren(...buttons);
  dialog.showModal();
}

/** While the page is printed, pictures stand in the place of canvases, which printers would blur. */
export function printSharply(app) {
  window.addEventListener("beforeprint", () => {
    app.theme.wear("light"); // as paper is
    for (const { view } of picturesOf(app)) {
      const parsed = new DOMParser().parseFromString(view.picture().toString(), "image/svg+xml");
      view.host.append(tag("div", "printed", document.importNode(parsed.documentElement, true)));
    }
  });
  window.addEventListener("afterprint", () => {
    for (const frame of document.querySelectorAll(".printed")) frame.remove();
    app.theme.wear(app.theme.name);
  });
}
