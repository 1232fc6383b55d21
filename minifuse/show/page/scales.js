/** The widths of columns in A and B: equal columns are of one width, and in time both show the same moments on one scale. */

import { WIDEST } from "./axis.js";

/** The axes of the sides that are shown, together. */
export class Scales {
  constructor(app) {
    this.app = app;
  }

  /** Adopt the runs that are shown now. */
  renew() {
    const { app } = this;
    for (const { axis } of app.sides()) {
      axis.mode = app.mode;
      if (app.other && app.mode === "time") axis.fitted = WIDEST;
    }
  }

  /** @param {"iterations"|"time"} mode of columns; those that are selected stay in sight */
  setMode(mode) {
    for (const side of this.app.sides()) {
      const { axis, lanes } = side;
      axis.mode = mode;
      if (!axis.fitted) axis.left = Math.max(0, axis.x(this._selected(side)) - lanes.seen / 2);
    }
    this._together();
  }

  /** Make columns wider by a factor; 0: show the whole run. The selected one stays where it is. */
  zoom(factor) {
    for (const side of this.app.sides()) {
      const { axis, lanes } = side;
      if (!factor) axis.fitted = WIDEST;
      else {
        const at = this._selected(side);
        const stays = axis.x(at) - axis.left;
        axis.zoomTo(axis.width * factor);
        axis.left = Math.max(0, axis.x(at) - Math.max(0, Math.min(lanes.seen * 0.9, stays)));
      }
    }
    this._together();
  }

  /** Fit whole runs to the page where that is asked for: the longer one, so that the other has the same scale. */
  fit() {
    const sides = this.app.sides();
    this._together();
    const last = Math.max(...sides.map(({ model }) => model.passed[model.length - 1] ?? 0));
    for (const { axis, lanes } of sides) {
      if (axis.fitted) axis.fit(lanes.seen, { widest: axis.fitted, ...(this.app.mode === "time" ? { last } : {}) });
    }
    if (this.app.mode === "iterations") this._asWide(sides.map(({ axis }) => axis));
  }

  /** A side has been scrolled: in time, scroll the other one with it. */
  moved(side) {
    const { app } = this;
    if (!app.other || app.mode !== "time") return;
    const { axis, lanes, charts, model } = side === app.a ? app.b : app.a;
    if (Math.abs(axis.left - side.axis.left) <= 1) return;
    axis.left = side.axis.left;
    lanes.layout(model);
    charts.draw();
  }

  /** In time, the axis of B becomes that of A. */
  _together() {
    const { app } = this;
    if (!app.other || app.mode !== "time") return;
    const [axis, beside] = [app.a.axis, app.b.axis];
    axis.origin = beside.origin = Math.min(axis.origin, beside.origin);
    beside.width = axis.scale * beside.median;
    beside.left = axis.left;
    beside.fitted = axis.fitted;
  }

  /** Make equal columns of all axes as wide as the narrowest of those that show a whole run, or else as those of A. */
  _asWide(axes) {
    const zoomed = axes.find(({ fitted }) => !fitted);
    const width = zoomed ? zoomed.width : Math.min(...axes.map((one) => one.width));
    for (const axis of axes) {
      if (zoomed) axis.fitted = 0;
      axis.width = width;
    }
  }

  _selected(side) {
    return side === this.app.a ? this.app.index : this.app.indexOther;
  }
}
