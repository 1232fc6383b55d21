/** The charts of a run on the page, with what they draw in words. */

import { chartsHeight, drawCharts, drawSeriesSample } from "./charts.js";
import { columnName } from "./columns.js";
import { tag } from "./elements.js";
import { GUTTER } from "./lanes.js";
import { showEntries } from "./legend.js";
import { chartsOf, gapsOf } from "./series.js";
import { CanvasSurface } from "./surface.js";
import { counted, grouped, seconds } from "./words.js";

/** What the colours and lines of charts mean that draw more than one thing, and how their samples are drawn. */
function legendOf(charts, palette) {
  const several = charts.filter(({ series }) => series.length > 1);
  return several.flatMap(({ name, series }) =>
    series.map((one) => ({ text: `${name}: ${one.label}`, draw: (surface) => drawSeriesSample(surface, one, palette) })),
  );
}

/** The charts of one side. */
export class ChartsView {
  constructor(host, app, { side, axis }) {
    this.host = host;
    this.app = app;
    this.side = side;
    this.axis = axis;
    host.classList.add("charts");
    this.canvas = tag("canvas");
    this.canvas.setAttribute("role", "img");
    this.cursor = tag("div", "cursor");
    this.told = tag("p", "values");
    this.frame = tag("div", "pin");
    this.frame.append(this.canvas, this.cursor);
    this.key = tag("ul", "chart-key");
    this.key.setAttribute("aria-label", "What the charts draw");
    host.append(this.frame, this.key, this.told);
    this.surface = new CanvasSurface(this.canvas);
    this.index = -1;
    this.canvas.addEventListener("click", (event) => {
      const at = event.clientX - this.canvas.getBoundingClientRect().left - GUTTER;
      if (at >= 0) app.selectIn(side, this.axis().column(at + this.axis().left));
    });
  }

  layout(model) {
    const { mode } = this.axis();
    const limit = this.app.limitOf(model);
    if (this.model !== model || this.mode !== mode || this.limit !== limit) {
      Object.assign(this, { model, mode, limit, request: undefined, keyPalette: null });
      this.charts = chartsOf(model, mode, limit);
    }
    if (this.keyPalette !== this.app.palette) {
      this.keyPalette = this.app.palette;
      showEntries(this.key, this.legendEntries(), 22, 11);
    }
    this.width = this.host.clientWidth; // asked for once, since asking makes the browser lay the page out
    this._choose();
    this.draw();
  }

  _choose() {
    const r = this.app.request;
    if (r === this.request) return false;
    this.request = r;
    this.gaps = r === null ? null : gapsOf(this.model, r, this.limit);
    if (this.gaps && !this.gaps.length) this.gaps = null;
    return true;
  }

  look() {
    const { app, request } = this;
    const name = request === null ? "" : String(this.model.requests[request].id);
    const colour = request === null ? "" : app.colour(request);
    return { width: this.width, palette: app.palette, gaps: this.gaps, name, colour, limit: this.limit };
  }

  /** The legend as entries, as from `lanesLegend`. */
  legendEntries() {
    return legendOf(this.charts, this.app.palette);
  }

  get height() {
    return chartsHeight(this.charts, this.gaps);
  }

  draw() {
    if (!this.model) return;
    const look = this.look();
    this.surface.begin(look.width, this.height);
    drawCharts(this.surface, this.model, this.charts, this.axis(), look);
    this.point();
  }

  show(model, i) {
    if (this.model !== model) this.layout(model);
    if (this._choose()) this.draw();
    this.index = i;
    this.point();
    const parts = this.charts.map(({ name, unit, series }) => {
      if (series.length > 1) return `${name}: ${series.map(({ label, values }) => `${grouped(values[i])} ${label}`).join(", ")}`;
      return `${name}: ${counted(series[0].values[i], unit)}`;
    });
    if (this.gaps) {
      const longest = this.gaps.slice(1).reduce((a, b) => (b.seconds > a.seconds ? b : a), { seconds: 0 });
      const more = longest.seconds ? `, longest gap ${seconds(longest.seconds)} in ${columnName(model, longest.column)}` : "";
      parts.push(`${model.requests[this.request].id}: TTFT ${seconds(this.gaps[0].seconds)}${more}`);
    }
    const text = parts.join(" \u00b7 ");
    if (this.told.textContent !== text) this.told.textContent = text;
    this.canvas.setAttribute("aria-label", `Charts of ${model.run.title}. In ${columnName(model, i)}: ${parts.join("; ")}`);
  }

  point() {
    if (this.index < 0) return;
    const axis = this.axis();
    const x = axis.x(this.index) + GUTTER - axis.left;
    const width = Math.max(2, axis.right(this.index) - axis.x(this.index));
    this.cursor.hidden = x + width < GUTTER || x > this.width;
    this.cursor.style.transform = `translateX(${x}px)`;
    this.cursor.style.width = `${width}px`;
    this.cursor.style.height = `${this.height}px`;
  }
}
