/** Pictures of what the page shows: saved as SVG, and put in the place of canvases when the page is printed. */

import { columnName } from "./columns.js";
import { SvgSurface } from "./surface.js";
import { drawLanes } from "./lanes.js";
import { drawCharts } from "./charts.js";
import { lanesLegend } from "./legend.js";
import { drawLegendBelow } from "./saved_legend.js";
import { capital } from "./words.js";

/**
 * The pictures that there are, each made when it is asked for.
 *
 * @param {object} app
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

/** Hands a text to the reader as a file. @param {string} name @param {string} text */
function saveFile(name, text, type = "image/svg+xml") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The dialog that offers pictures. @param {object} app @param {HTMLDialogElement} dialog */
export function offerPictures(app, dialog) {
  const list = dialog.querySelector("#picture-list");
  list.replaceChildren(
    ...picturesOf(app).map(({ name, label, draw, legend }) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => {
        const picture = draw();
        drawLegendBelow(picture, legend(), app.palette);
        saveFile(`${name.replace(/[^\w.-]+/g, "_")}.svg`, picture.toString());
      });
      return button;
    }),
  );
  dialog.showModal();
}

/** While the page is printed, pictures stand in the place of canvases, which printers would blur. */
export function printSharply(app) {
  window.addEventListener("beforeprint", () => {
    app.theme.wear("light"); // paper is
    for (const { host, draw } of picturesOf(app)) {
      const frame = document.createElement("div");
      frame.className = "printed";
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
