/** A tour of the page: a small dialog that goes from part to part, and marks the part that it tells of. */

import { part, setText } from "./elements.js";
import { TOUR_STOPS } from "./tourstops.js";

const AROUND = 10; // pixels between the dialog and what it tells of, and around it

/** The tour. It is a modal dialog: escape closes it, and the focus stays in it until then. */
export class Tour {
  constructor(dialog) {
    this.dialog = dialog;
    this.stops = [];
    this.at = 0;
    part("tour-back").addEventListener("click", () => this._go(-1));
    part("tour-next").addEventListener("click", () => this._go(1));
    dialog.addEventListener("keydown", ({ key }) => {
      if (key === "ArrowLeft") this._go(-1);
      if (key === "ArrowRight") this._go(1);
    });
    dialog.addEventListener("close", () => this._mark([]));
    for (const event of ["resize", "scroll"]) window.addEventListener(event, () => dialog.open && this._place());
  }

  /** Begin at the first of the stops that the page shows. */
  start() {
    const seen = (one) => one.getClientRects().length > 0;
    this.stops = TOUR_STOPS.map((stop) => ({ ...stop, parts: [...document.querySelectorAll(stop.selector)].filter(seen) })).filter(({ parts }) => parts.length);
    this.at = 0;
    this.dialog.showModal();
    part("tour-next").focus();
    this._show();
  }

  _go(way) {
    const to = this.at + way;
    if (to < 0 || to >= this.stops.length) return;
    this.at = to;
    this._show();
  }

  _show() {
    const { stops, at } = this;
    const { title, words, parts } = stops[at];
    setText(part("tour-title"), title);
    setText(part("tour-words"), words);
    setText(part("tour-count"), `${at + 1} of ${stops.length}`);
    part("tour-back").disabled = at === 0;
    part("tour-next").disabled = at === stops.length - 1;
    if (document.activeElement?.disabled !== false) part(at ? "tour-close" : "tour-next").focus();
    const [first] = parts;
    if (first.tagName === "DETAILS" && !first.open) {
      first.addEventListener("toggle", () => this._place(), { once: true });
      first.open = true;
    }
    this._mark(parts);
    first.scrollIntoView({ block: "nearest" });
    this._place();
  }

  /** Mark what is told of, and nothing else. */
  _mark(parts) {
    for (const one of document.querySelectorAll(".toured")) one.classList.remove("toured");
    for (const one of parts) one.classList.add("toured");
  }

  /** Put the dialog below what it tells of, or above, or else into its lower corner. */
  _place() {
    const { dialog, stops, at } = this;
    const boxes = stops[at].parts.map((one) => one.getBoundingClientRect());
    const [left, top] = ["left", "top"].map((edge) => Math.min(...boxes.map((box) => box[edge])));
    const bottom = Math.max(...boxes.map((box) => box.bottom));
    const { offsetWidth: width, offsetHeight: height } = dialog;
    const { clientWidth: wide, clientHeight: high } = document.documentElement; // without scroll bars
    const lowest = high - height - AROUND;
    const y = bottom + AROUND <= lowest ? bottom + AROUND : top - height - AROUND >= AROUND ? top - height - AROUND : lowest;
    dialog.style.left = `${Math.max(AROUND, Math.min(left + AROUND, wide - width - AROUND))}px`;
    dialog.style.top = `${Math.max(AROUND, y)}px`;
  }
}
