/** The charts of a run on the page, with their values in words. */

import { chartsHeight, drawCharts, drawSeriesSample } from "./charts.js";
import { columnName } from "./columns.js";
import { ColumnsView } from "./columnsview.js";
import { setText } from "./elements.js";
import { showEntries } from "./legend.js";
import { chartsOf, gapsOf, longestGap, withSharedTops } from "./series.js";
import { SvgSurface } from "./surface.js";
import { counted, grouped, seconds } from "./words.js";

/** The legend of charts that have several series. */
function legendOf(charts, palette) {
  const several = charts.filter(({ series }) => series.length > 1);
  return several.flatMap(({ name, series }) =>
    series.map((one) => ({ text: `${name}: ${one.label}`, draw: (surface) => drawSeriesSample(surface, one, palette) })),
  );
}

/** The charts of one side. */
export class ChartsView extends ColumnsView {
  constructor(host, app, look) {
    super("charts", host, app, look);
    this.canvas.addEventListener("click", (event) => {
      const column = this.columnAt(event);
      if (column !== null) app.selectIn(this.side, column);
    });
  }

  layout(model) {
    const { app } = this;
    const { mode } = this.axis();
    const shown = app.sides().map((side) => side.model);
    const limits = shown.map((one) => app.limitOf(one));
    const subject = [model, mode, ...shown, ...limits];
    if (subject.length !== this.subject?.length || subject.some((one, k) => one !== this.subject[k])) {
      Object.assign(this, { model, subject, limit: app.limitOf(model), request: undefined, keyPalette: null });
      const all = shown.map((one, k) => chartsOf(one, mode, limits[k]));
      this.charts = withSharedTops(all[shown.indexOf(model)], all);
    }
    if (this.keyPalette !== app.palette) {
      this.keyPalette = app.palette;
      showEntries(this.key, this.legendEntries(), 22, 11);
    }
    this.width = this.host.clientWidth; // read once, as reading it makes the browser lay out the page
    this._choose();
    this.draw();
  }

  _choose() {
    const { app } = this;
    const r = app.request;
    if (r === this.request) return false;
    this.request = r;
    this.gaps = r === null ? null : gapsOf(this.model, r, this.limit);
    if (this.gaps && !this.gaps.length) this.gaps = null;
    const longest = ({ model }) => longestGap(gapsOf(model, r, app.limitOf(model))).seconds;
    this.longest = this.gaps && (Math.max(...app.sides().map(longest)) || 1);
    return true;
  }

  look() {
    const { app, request } = this;
    const name = request === null ? "" : String(this.model.requests[request].id);
    const colour = request === null ? "" : app.colour(request);
    return { width: this.width, palette: app.palette, gaps: this.gaps, longest: this.longest, name, colour, limit: this.limit };
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
    this._drawOn(this.surface);
    this.point(this);
  }

  _drawOn(surface) {
    const look = this.look();
    surface.begin(look.width, this.height);
    drawCharts(surface, this.model, this.charts, this.axis(), look);
  }

  picture() {
    const surface = new SvgSurface();
    this._drawOn(surface);
    return surface;
  }

  show(model, i) {
    if (this.model !== model) this.layout(model);
    if (this._choose()) this.draw();
    this.index = i;
    this.point(this);
    const parts = this.charts.map(({ name, unit, series }) => {
      if (series.length > 1) return `${name}: ${series.map(({ label, values }) => `${grouped(values[i])} ${label}`).join(", ")}`;
      return `${name}: ${counted(series[0].values[i], unit)}`;
    });
    if (this.gaps) {
      const longest = longestGap(this.gaps.slice(1));
      const more = longest.seconds ? `, longest gap ${seconds(longest.seconds)} in ${columnName(model, longest.column)}` : "";
      parts.push(`${model.requests[this.request].id}: TTFT ${seconds(this.gaps[0].seconds)}${more}`);
    }
    const text = parts.join(" \u00b7 ");
    setText(this.values, text);
    this.canvas.setAttribute("aria-label", `Charts of ${model.run.title}. In ${columnName(model, i)}: ${parts.join("; ")}`);
  }
}
