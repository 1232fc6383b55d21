/** What the lanes and the charts of a side share: a canvas along the axis, and a cursor on the selected column. */

import { fillFrom } from "./elements.js";
import { GUTTER } from "./lanes.js";
import { CanvasSurface } from "./surface.js";

/** A canvas with columns along an axis. */
export class ColumnsView {
  /**
   * @param {string} template that has the `canvas` and the `cursor`
   * @param {{side: "A"|"B", axis: () => import("./axis.js").Axis}} look
   */
  constructor(template, host, app, { side, axis }) {
    Object.assign(this, { host, app, side, axis, ...fillFrom(template, host) });
    this.surface = new CanvasSurface(this.canvas);
    this.index = -1; // the selected column; -1: none is shown yet
  }

  /** The column under the pointer; null: the pointer is on the names. */
  columnAt({ offsetX: x }) {
    const axis = this.axis();
    return x < GUTTER ? null : axis.column(x - GUTTER + axis.left);
  }

  /** Put the cursor where the selected column is. @param {{width: number, height: number}} size of the canvas */
  point(size) {
    if (this.index < 0) return;
    const axis = this.axis();
    const x = axis.x(this.index) + GUTTER - axis.left;
    const width = Math.max(2, axis.right(this.index) - axis.x(this.index));
    this.cursor.hidden = x + width < GUTTER || x > size.width;
    this.cursor.style.transform = `translateX(${x}px)`;
    this.cursor.style.width = `${width}px`;
    this.cursor.style.height = `${size.height}px`;
  }
}
