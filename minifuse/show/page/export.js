/** Pictures of what the page shows: saved as SVG, and put in the place of canvases when the page is printed. */

import { columnName } from "./columns.js";
import { actButton, tag } from "./elements.js";
import { SvgSurface } from "./surface.js";
import { drawLanes } from "./lanes.js";
import { drawCharts } from "./charts.js";
import { lanesLegend } from "./legend.js";
import { capital } from "./words.js";

const [LINE, SAMPLE, TALL, GAP, BETWEEN, EDGE, SIZE] = [18, 26, 13, 5, 14, 4, 11]; // pixels
const LEEWAY = 1.15; // of a text, as a part of what is measured: fonts differ

/**
 * Makes a picture higher, and draws a legend there, in as many lines as it takes.
 *
 * @param {{text: string, draw: (surface: object) => void, newLine?: boolean}[]} entries `draw`: a sample, at most 26
 *     pixels wide and 13 high; `newLine`: it stands at the beginning of a line
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
 * The pictures that there are, each made when it is asked for.
 *
 * @returns {{name: string, label: string, host: HTMLElement, draw: () => SvgSurface, legend: () => object[]}[]}
 */
function picturesOf(app) {
  const found = [];
  for (const side of app.sides()) {
    const { model, lanes, charts, memory } = side;
    const { title } = model.run;
    const column = columnName(model, side === app.a ? app.index : app.indexOther);
    const add = (what, host, draw, legend) => found.push({ name: `${title}-${what}-${column}`, label: `${capital(what)} of ${title}`, host, draw, legend });
    add("lanes", lanes.host, () => lanesPicture(lanes), () => lanesLegend(app));
    add("charts", charts.host, () => chartsPicture(charts), () => charts.legendEntries());
    add("memory", memory.host, () => memoryPicture(memory), () => memory.legendEntries());
  }
  return found;
}

/** All rows of lanes, the columns that are seen. */
function lanesPicture(lanes) {
  const look = lanes.look({ top: 0 });
  look.height = lanes.rows.count * look.rowHeight + 22;
  const surface = new SvgSurface(look.width, look.height);
  drawLanes(surface, lanes.rows, lanes.axis(), look);
  return surface;
}

function chartsPicture(charts) {
  const look = charts.look();
  const surface = new SvgSurface(look.width, charts.height);
  drawCharts(surface, charts.model, charts.charts, charts.axis(), look);
  return surface;
}

function memoryPicture(memory) {
  const width = Math.max(280, memory.host.clientWidth);
  const surface = new SvgSurface(width, 0);
  surface.begin(width, memory.drawOn(surface, width));
  return surface;
}

/** Hands a text to the reader as a file. */
function saveFile(name, text, type = "image/svg+xml") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The dialog that offers pictures. */
export function offerPictures(app, dialog) {
  const list = dialog.querySelector("#picture-list");
  list.replaceChildren(
    ...picturesOf(app).map(({ name, label, draw, legend }) =>
      actButton("", label, () => {
        const picture = draw();
        drawLegendBelow(picture, legend(), app.palette);
        saveFile(`${name.replace(/[^\w.-]+/g, "_")}.svg`, picture.toString());
      }),
    ),
  );
  dialog.showModal();
}

/** While the page is printed, pictures stand in the place of canvases, which printers would blur. */
export function printSharply(app) {
  window.addEventListener("beforeprint", () => {
    app.theme.wear("light"); // paper is
    for (const { host, draw } of picturesOf(app)) {
      const frame = tag("div", "printed");
      const parsed = new DOMParser().parseFromString(draw().toString(), "image/svg+xml");
      frame.append(document.importNode(parsed.documentElement, true));
      host.append(frame);
    }
  });
  window.addEventListener("afterprint", () => {
    for (const frame of document.querySelectorAll(".printed")) frame.remove();
    app.theme.wear(app.theme.name);
  });
}
